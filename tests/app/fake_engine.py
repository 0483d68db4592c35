"""Engine without a network, whose results are simple formulas."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.rig import VIEW_STRIDE
from stream_recon.app.core.types import Frame, FrameResult, Intrinsics, OverlapError, Pair, PreparedFrame
from stream_recon.app.result.run_record import RunInfo
from stream_recon.app.sources.preprocess import plan_image, prepare
from stream_recon.configs.schema import ImageConfig, PointsConfig, Preset, load_preset

IMAGE = ImageConfig(max_patches=12, max_side=56)
POINTS = PointsConfig(voxel=0.01)


def fake_preset() -> Preset:
    small = load_preset("small")
    return Preset("fake", small.network, small.stream, IMAGE, POINTS)


def run_info() -> RunInfo:
    return RunInfo("walk.mp4", fake_preset(), "ab" * 32, "cpu", {"stride": 1})


def pose_at(index: int, step: float = 0.1) -> NDArray[np.float64]:
    """Pose of a walk along x with a slow rotation about y."""
    angle = 0.02 * index
    T = np.eye(4)
    T[:3, :3] = [[np.cos(angle), 0, np.sin(angle)], [0, 1, 0], [-np.sin(angle), 0, np.cos(angle)]]
    T[0, 3] = step * index
    return T


def prepared(frame: Frame) -> PreparedFrame:
    height, width = frame.rgb.shape[:2]
    return prepare(frame, plan_image((width, height), IMAGE, 14))


def fake_result(frame: PreparedFrame) -> FrameResult:
    """Result that shows a slightly slanted wall at depth 2, with a horizontal field of view of 90 degrees."""
    width, height = frame.transform.source_size
    rows, columns = np.indices(frame.rgb.shape[:2], dtype=np.float32)
    return FrameResult(
        index=frame.index,
        timestamp=frame.timestamp,
        T_world_camera=pose_at(frame.index % VIEW_STRIDE),  # each view in a world of its own
        intrinsics=Intrinsics(width / 2, width / 2, width / 2, height / 2),
        depth=2 + columns / 100,
        confidence=1 + rows,
        rgb=frame.rgb,
        transform=frame.transform,
        is_keyframe=frame.index % 3 == 0,
        flow=None if frame.index == 0 else 0.5 * frame.index,
        segment=frame.segment,
    )


class FakeEngine:
    """Engine that holds back ``scale_frames`` frames first, as the real one does.

    ``seconds``: duration of a step; ``before_push``: called with each frame.
    """

    device = "cpu"
    precision = "fp32"
    cache = "full"
    attention = "sdpa"
    submaps = 1
    cache_use: dict[str, object] = {}  # noqa: RUF012
    reference_frames = ()
    threads = 0
    weights_sha256 = "ab" * 32

    def __init__(
        self, scale_frames: int = 4, seconds: float = 0.0, before_push: Callable[[PreparedFrame], None] | None = None
    ) -> None:
        self.preset = fake_preset()
        self._scale_frames = scale_frames
        self._seconds = seconds
        self._before_push = before_push
        self._waiting: list[PreparedFrame] = []
        self._started = False

    def expect(self, frames: int | None) -> None:
        pass

    def prepare(self, frame: Frame) -> PreparedFrame:
        return prepared(frame)

    def push(self, frame: PreparedFrame) -> Sequence[FrameResult]:
        if self._before_push is not None:
            self._before_push(frame)
        time.sleep(self._seconds)
        if self._started:
            return [fake_result(frame)]
        self._waiting.append(frame)
        return self._release() if len(self._waiting) == self._scale_frames else []

    def finish(self) -> Sequence[FrameResult]:
        return self._release()

    def resume(self, first: Sequence[Pair], later: Sequence[Pair] = ()) -> OverlapError:
        self._started = True
        return OverlapError([*first, *later][-1][0].index, 0.0, 0.0, 0.0)

    def _release(self) -> list[FrameResult]:
        self._started = True
        waiting, self._waiting = self._waiting, []
        return [fake_result(frame) for frame in waiting]


def frames(count: int, size: tuple[int, int] = (64, 48)) -> list[Frame]:
    noise = np.random.default_rng(0)
    shape = (size[1], size[0], 3)
    return [Frame(i, i / 10, noise.integers(0, 255, shape, dtype=np.uint8)) for i in range(count)]


def trajectory_of(folder: Path) -> NDArray[np.float64]:
    """Content [N, 8] of a result's trajectory.txt."""
    return np.loadtxt(folder / "trajectory.txt", ndmin=2)
