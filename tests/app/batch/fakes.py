"""Scenes in the box room, and an engine with exact results. All of it can be pickled for workers."""

import os
import re
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.batch.jobs import Job, ModelIdentity, plan_jobs
from stream_recon.app.batch.plan import Batch
from stream_recon.app.batch.runner import run_batch
from stream_recon.app.batch.store import LocalStore, Store
from stream_recon.app.batch.summary import Row
from stream_recon.app.batch.workers import HASHED_ELSEWHERE, ProcessPool, SerialPool
from stream_recon.app.core.depth_points import transform_result
from stream_recon.app.core.ground_truth import DepthMap, GroundTruth
from stream_recon.app.core.transforms import Similarity
from stream_recon.app.core.types import Frame, FrameResult, OverlapError, Pair, PreparedFrame
from stream_recon.app.sources.frame_choice import FrameChoice
from stream_recon.app.sources.source import Source, open_source
from stream_recon.configs.errors import InputError, WeightsError
from tests.app.boxroom import room_result, walk_pose
from tests.app.fake_engine import fake_preset, prepared
from tests.app.stages.chains import ONLY_FRAMES

SIZE = (112, 84)
"""Width and height of the room's pictures."""
WEIGHTS = "cd" * 32


def room_depth(index: int) -> DepthMap:
    return DepthMap(room_result(index).depth)


def damaged_depth(index: int) -> DepthMap:
    if index >= 5:
        raise InputError("depth/000005.png is damaged")
    return room_depth(index)


@dataclass(frozen=True)
class RoomScene:
    """A folder of images with the room's ground truth; the engine does not look at the pictures."""

    name: str
    path: Path
    frames: int | None
    dataset: str = "room"
    known: bool = True
    metric: bool = True
    masks: str | None = None

    def open(self, stride: int = 1, max_frames: int | None = None) -> Source:
        return open_source(str(self.path), FrameChoice(stride=stride, max_frames=max_frames, masks=self.masks))

    def truth(self) -> GroundTruth | None:
        if not self.known:
            return None
        poses = {index: walk_pose(index / 10) for index in range(self.frames or 0)}
        camera = room_result(0).intrinsics
        return GroundTruth(SIZE, poses, camera, metric=self.metric, has_depth=True, read_depth=room_depth)


def room_scene(folder: Path, frames: int = 12, size: tuple[int, int] = SIZE, known: bool = True) -> RoomScene:
    folder.mkdir(parents=True, exist_ok=True)
    # Results show the room, and a resumed run compares its pictures with the source's.
    ok, picture = cv2.imencode(".jpg", cv2.resize(room_result(0).rgb, size))
    assert ok
    for number in range(frames):
        (folder / f"{number}.jpg").write_bytes(picture.tobytes())
    return RoomScene(folder.name, folder, frames, known=known)


class RoomEngine:
    """Engine with exact results, in coordinates and a scale that depend on the stream's first frame."""

    device = "cpu"
    precision = "fp32"
    cache = "full"
    attention = "sdpa"
    submaps = 1
    cache_use: dict[str, object] = {}  # noqa: RUF012
    reference_frames = ()
    threads = 0
    scale_frames = 4

    def __init__(self, loader: "RoomLoader", weights_sha256: str) -> None:
        self.preset, self.weights_sha256 = fake_preset(), weights_sha256
        self._loader = loader
        self.reset()

    def reset(self) -> None:
        self._waiting: list[PreparedFrame] = []
        self._world: Similarity | None = None

    def expect(self, frames: int | None) -> None:
        pass

    def prepare(self, frame: Frame) -> PreparedFrame:
        return prepared(frame)

    def push(self, frame: PreparedFrame) -> Sequence[FrameResult]:
        if frame.transform.source_size != SIZE:
            raise ZeroDivisionError("a picture that breaks the engine")
        if self._loader.seconds:
            time.sleep(self._loader.seconds)
        self._perhaps_die(frame)
        if self._world is None:
            self._waiting.append(frame)
            return self.finish() if len(self._waiting) == self.scale_frames else []
        return [self._see(frame)]

    def resume(self, first: Sequence[Pair], later: Sequence[Pair] = ()) -> OverlapError:
        known = [*first, *later][-1][1]
        seen = room_result(known.index)
        self._world = _between(seen, known) if self._loader.own_worlds else IDENTITY
        return OverlapError(known.index, 0.0, 0.0, 0.0)

    def finish(self) -> Sequence[FrameResult]:
        if self._world is None and self._waiting:
            self._world = world_of(self._waiting[0].index) if self._loader.own_worlds else IDENTITY
        waiting, self._waiting = self._waiting, []
        return [self._see(frame) for frame in waiting]

    def _see(self, frame: PreparedFrame) -> FrameResult:
        assert self._world is not None
        result = replace(room_result(frame.index), timestamp=frame.timestamp, is_keyframe=frame.index % 3 == 0)
        return transform_result(result, self._world)

    def _perhaps_die(self, frame: PreparedFrame) -> None:
        marker = self._loader.die_once
        if frame.index == 6 and (self._loader.die_always or (marker is not None and not marker.exists())):
            if marker is not None:
                marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)


IDENTITY = Similarity(1.0, np.eye(3), np.zeros(3))


def _between(seen: FrameResult, known: FrameResult) -> Similarity:
    """T_known_room from a known result of the same frame."""
    scale = float(np.median(known.depth) / np.median(seen.depth))
    rotation = known.T_world_camera[:3, :3] @ seen.T_world_camera[:3, :3].T
    return Similarity(scale, rotation, known.T_world_camera[:3, 3] - scale * rotation @ seen.T_world_camera[:3, 3])


def world_of(first: int) -> Similarity:
    """Coordinates of a stream that begins with that frame; the room's for the first one."""
    if first == 0:
        return IDENTITY
    noise = np.random.default_rng(first)
    return Similarity(float(noise.uniform(0.3, 3)), random_rotation(noise), noise.normal(size=3))


def random_rotation(noise: np.random.Generator) -> NDArray[np.float64]:
    q = np.linalg.qr(noise.normal(size=(3, 3)))[0]
    return np.asarray(q * np.sign(np.linalg.det(q)))


@dataclass(frozen=True)
class RoomLoader:
    seconds: float = 0.0
    """Time per frame."""
    own_worlds: bool = False
    """Each stream has its own coordinates, see `world_of`."""
    die_once: Path | None = None
    """The first process that reaches frame 6 of a scene writes this file and is killed."""
    die_always: bool = False
    unusable: bool = False
    """Loading raises an unexpected error."""
    named_gpus: tuple[str, ...] = ()
    notes: Path | None = None
    """Folder in which each process that loads the model writes its GPU and its threads."""

    uses_gpu: bool = False
    choice: None = None

    def check(self) -> None:
        pass

    def describe(self) -> ModelIdentity:
        return ModelIdentity(fake_preset(), WEIGHTS)

    def gpus(self) -> list[str]:
        return list(self.named_gpus)

    def prepare(self) -> None:
        assert "torch" not in sys.modules, "it would have counted its threads already"

    def load(self, weights_sha256: str | None = None) -> RoomEngine:
        assert weights_sha256 in (None, WEIGHTS, HASHED_ELSEWHERE)
        if self.unusable:
            raise WeightsError("weights of another family")
        if self.notes is not None:
            given = [os.environ.get(name, "") for name in ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")]
            (self.notes / str(os.getpid())).write_text(" ".join(given))
        return RoomEngine(self, weights_sha256 or WEIGHTS)


class Listening:
    """Listener that records a batch's events."""

    def __init__(self) -> None:
        self.begun: tuple[int, int] = (0, 0)
        self.rows: list[Row] = []
        self.frames = 0
        self.progress_events = 0

    def begin(self, rows: Sequence[Row], frames: int) -> None:
        self.begun = (len(rows), frames)

    def progress(self, frames: int) -> None:
        self.frames = frames
        self.progress_events += 1

    def finished(self, row: Row) -> None:
        self.rows.append(row)


def batch_of(root: Path, out: Path | Store, scenes: Sequence[RoomScene], split: int = 1, **choice: int) -> Batch:
    store = LocalStore(out) if isinstance(out, Path) else out
    return Batch(root, store, scenes, replace(ONLY_FRAMES, frames=FrameChoice(**choice)), split)


def run(batch: Batch, loader: RoomLoader | None = None, workers: int = 0) -> dict[str, Any]:
    """Summary of a batch, run in this process or by ``workers`` processes."""
    loader = loader or RoomLoader()
    pool = ProcessPool(loader, batch.store, workers) if workers else SerialPool(loader, batch.store)
    return run_batch(batch, loader, pool, Listening())


def states(summary: dict[str, Any]) -> dict[str, tuple[str, bool]]:
    """Status of each scene, and whether an earlier batch had finished it."""
    return {scene["name"]: (scene["status"], scene["resumed"]) for scene in summary["scenes"]}


def job_of(scene: RoomScene, root: Path) -> Job:
    return plan_jobs(root, [scene], ONLY_FRAMES, RoomLoader().describe())[0]


def result_files(folder: Path) -> dict[str, bytes]:
    """Content of a result's files by name, without the two files that contain times."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name not in ("run.json", "manifest.json")]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def assert_same_result(folder: Path, uninterrupted: Path) -> None:
    """Assert that a resumed scene has the result of an uninterrupted one."""
    ours, theirs = result_files(folder), result_files(uninterrupted)
    assert ours.keys() == theirs.keys()
    for name in ours.keys() - {"points.ply"}:
        # The first frame after an interruption has no predecessor, which tracking quality compares with.
        a, b = (re.sub(rb', "health": [0-9.]+', b"", files[name]) for files in (ours, theirs))
        assert a == b, name
    # Depth files are rounded to half precision, so a point near a voxel's edge may fall into the next voxel.
    assert abs(len(ours["points.ply"]) - len(theirs["points.ply"])) < 0.05 * len(theirs["points.ply"]) + 100
