"""The frames that a stream stands on, and when to stand on others.

Poses and depth come relative to the scale frames. Once nothing of these is in view any more, steps get noisy and
lengths drift. Then the latest keyframes become the scale frames of a new stream, whose world is laid onto the first
one's by them.
"""

from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.depth_points import depth_ratio, project, transform_result, unproject
from stream_recon.app.core.transforms import Similarity, align_poses, invert_pose, rotation_angle_deg, transform_points
from stream_recon.app.core.types import FrameResult, OverlapError, Pair, PreparedFrame

MIN_FRAMES = 24
"""A stream gets so many frames before it may end."""
PATIENCE = 3
"""So many keyframes in a row have to be apart from the scale frames."""
_STEP = 14
"""One pixel in so many along each axis is looked at."""
_SURE = 0.3
"""Share of them, the least confident ones, that is not."""
_BEHIND = 1.3
"""What lies further than this behind a scale frame's surface is not seen from there."""


class SubmapManager:
    """The scale frames of one run, which may be several streams: whether they are still in view, and the next ones.

    Args:
        overlap: a keyframe of which less than this share is in view of any scale frame is apart from them; 0: none is.
        frames: how many scale frames there are.
    """

    def __init__(self, overlap: float, frames: int) -> None:
        self._overlap = overlap
        self._recent: deque[Pair] = deque(maxlen=frames)
        self._world: Similarity | None = None
        self._last: NDArray[np.float64] | None = None
        self._parted = False
        self._begin([])

    def _begin(self, scale_frames: Sequence[FrameResult]) -> None:
        self._scale_frames = list(scale_frames)
        self._count = len(scale_frames)
        self._apart = 0

    @property
    def is_lost(self) -> bool:
        """Whether a new stream should begin with `frames`."""
        return self._apart >= PATIENCE and len(self._recent) == self._recent.maxlen

    @property
    def reference_frames(self) -> tuple[int, ...]:
        """Numbers of the scale frames."""
        return tuple(frame.index for frame in self._scale_frames)

    @property
    def frames(self) -> list[PreparedFrame]:
        """The latest keyframes, in order."""
        return [frame for frame, _ in self._recent]

    def place(self, frames: Sequence[PreparedFrame], results: Sequence[FrameResult]) -> list[FrameResult]:
        """The stream's ``results`` for ``frames`` in the first stream's world; its first ones are its scale frames."""
        if not self._scale_frames:
            self._begin(results)
        else:
            self._count += len(results)
        if self._parted:
            assert self._last is not None
            here = np.array([results[0].T_world_camera])
            self._world = align_poses(here, self._last[None], self._scale)
            self._parted = False
        placed = list(results) if self._world is None else [transform_result(result, self._world) for result in results]
        self._last = placed[-1].T_world_camera
        if not self._overlap:
            return placed
        for frame, result, known in zip(frames, results, placed, strict=True):
            if known.is_keyframe:
                self._recent.append((frame, known))
                apart = self._count > MIN_FRAMES and self._in_view(result) < self._overlap
                self._apart = self._apart + 1 if apart else 0
        return placed

    def part(self) -> None:
        """The next stream has no tie to those before. For want of knowledge it begins where the last frame was seen
        from, in the same unit."""
        self._recent.clear()
        self._begin([])
        self._parted = self._last is not None

    def go_on(self, pairs: Sequence[Pair], results: Sequence[FrameResult], scale_frames: int) -> OverlapError:
        """Stand on the first ``scale_frames`` frames of an earlier run, of which ``pairs`` have the results there, and
        which a new stream gave these ``results``. Gives how well the last of them fit one another."""
        self._recent.extend(pairs)
        self._last = pairs[-1][1].T_world_camera
        # The scale frames' own results may be of the stream before: those of later ones are of this one.
        later = min(len(pairs) - scale_frames, len(self._recent)) or len(self._recent)
        known, latest = [result for _, result in pairs[-later:]], results[-later:]
        self._lay(known, latest)
        self._begin(results[:scale_frames])
        self._count = len(results)
        return self._seam(known, latest)

    def _seam(self, known: Sequence[FrameResult], results: Sequence[FrameResult]) -> OverlapError:
        assert self._world is not None
        placed = [transform_result(result, self._world) for result in results]
        unit = float(np.median([np.median(result.depth) for result in known]))
        turned = [
            rotation_angle_deg(a.T_world_camera[:3, :3].T @ b.T_world_camera[:3, :3])
            for a, b in zip(known, placed, strict=True)
        ]
        shifted = [
            np.linalg.norm(a.T_world_camera[:3, 3] - b.T_world_camera[:3, 3])
            for a, b in zip(known, placed, strict=True)
        ]
        ratios = [ratio for ratio in (depth_ratio(*pair) for pair in zip(known, placed, strict=True)) if ratio]
        depth = float(np.median(np.abs(np.array(ratios) - 1))) if ratios else 0.0
        return OverlapError(
            known[-1].index, float(np.median(turned)), float(np.median(shifted)) / max(unit, 1e-9), depth
        )

    @property
    def _scale(self) -> float:
        return self._world.scale if self._world else 1.0

    def renew(self, results: Sequence[FrameResult]) -> None:
        """A new stream began with `frames` and gave these results."""
        self._lay([known for _, known in self._recent], results)
        self._begin(results)

    def _lay(self, known: Sequence[FrameResult], results: Sequence[FrameResult]) -> None:
        """Lay the stream's world onto the first one's, by results that the same frames have in both."""
        pairs = list(zip(known, results, strict=True))
        ratios = [ratio for ratio in (depth_ratio(*pair) for pair in pairs) if ratio is not None]
        earlier, later = (np.array([pair[i].T_world_camera for pair in pairs]) for i in (0, 1))
        # Without any depth lengths stay as they were.
        self._world = align_poses(later, earlier, float(np.median(ratios)) if ratios else self._scale)

    def _in_view(self, result: FrameResult) -> float:
        """The largest share of a frame's points that one of the scale frames sees."""
        points = _points(result)
        return max(_seen(points, frame) for frame in self._scale_frames) if len(points) else 0.0


def _points(result: FrameResult) -> NDArray[np.float32]:
    """Some of a frame's points [N, 3] in its world."""
    height, width = result.depth.shape
    rows, columns = np.mgrid[_STEP // 2 : height : _STEP, _STEP // 2 : width : _STEP].reshape(2, -1)
    z, confidence = result.depth[rows, columns], result.confidence[rows, columns]
    sure = (z > 0) & (confidence >= np.quantile(confidence, _SURE))
    local = unproject(rows[sure], columns[sure], z[sure], result.network_intrinsics)
    return transform_points(result.T_world_camera, local)


def _seen(points: NDArray[np.float32], frame: FrameResult) -> float:
    height, width = frame.depth.shape
    camera = frame.network_intrinsics
    local = transform_points(invert_pose(frame.T_world_camera), points)
    pixels = project(local, np.array([[camera.fx, 0, camera.cx], [0, camera.fy, camera.cy], [0, 0, 1]]))
    inside = ((pixels >= 0) & (pixels < (width, height))).all(axis=1)
    column, row = pixels[inside].astype(int).T
    in_front = local[inside, 2] < _BEHIND * frame.depth[row, column]
    return float(in_front.sum()) / len(points)
