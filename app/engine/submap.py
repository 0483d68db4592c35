"""Submaps: when the network stream is started anew with other scale frames, and how its world is aligned.

Poses and depth are relative to the scale frames. When none of these is in view, steps get noisy and scale drifts. Then
the latest keyframes become the scale frames of a new stream, a submap, and align its world with the first one's.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.depth_points import depth_ratio, project, transform_result, unproject
from stream_recon.app.core.rig import view_of
from stream_recon.app.core.transforms import Similarity, align_poses, invert_pose, rotation_angle_deg, transform_points
from stream_recon.app.core.types import FrameResult, OverlapError, Pair, PreparedFrame


@dataclass(frozen=True)
class SubmapConfig:
    """When a new submap starts."""

    min_frames: int = 24
    """Frames of a submap before its keyframes are tested: each new submap loses the cached past."""
    patience: int = 3
    """Keyframes in a row that must be out of view, so that one bad depth map starts no submap."""
    pixel_step: int = 14
    """Every 14th pixel along each axis is tested, one per patch."""
    unsure_share: float = 0.3
    """Share of these pixels, the least confident ones, that is left out."""
    occlusion_ratio: float = 1.3
    """A point further away than this times the surface of a scale frame is occluded there."""


DEFAULT_SUBMAPS = SubmapConfig()


class SubmapManager:
    """Scale frames of a run's submaps: whether they are still in view, and which come next.

    Args:
        overlap: a keyframe is out of view if every scale frame sees less than this share of it; 0: never.
        frames: number of scale frames.
        more: keyframes after these that a new submap gets at once.
    """

    def __init__(self, overlap: float, frames: int, more: int = 0, config: SubmapConfig = DEFAULT_SUBMAPS) -> None:
        self._config, self._overlap, self._frames, self._more = config, overlap, frames, more
        self._recent: deque[Pair] = deque(maxlen=frames + more)
        self._to_map: Similarity | None = None
        """From the submap's world to the first submap's; None is the identity."""
        self._first_pose: NDArray[np.float64] | None = None
        self._last_pose: NDArray[np.float64] | None = None
        self._last_view = 0
        self._after_gap = False
        self._begin([])

    def _begin(self, scale_frames: Sequence[FrameResult]) -> None:
        self._scale_frames = list(scale_frames)
        self._count = len(scale_frames)
        self._out_of_view = 0

    @property
    def needs_submap(self) -> bool:
        """Whether a new stream should start with `recent_frames`."""
        return self._out_of_view >= self._config.patience and len(self._recent) == self._recent.maxlen

    @property
    def reference_frames(self) -> tuple[int, ...]:
        """Indices of the scale frames."""
        return tuple(frame.index for frame in self._scale_frames)

    @property
    def recent_frames(self) -> list[PreparedFrame]:
        """The latest keyframes, in order."""
        return [frame for frame, _ in self._recent]

    def align(self, frames: Sequence[PreparedFrame], results: Sequence[FrameResult]) -> list[FrameResult]:
        """The stream's results in the first submap's world; a submap's first results are its scale frames."""
        if not self._scale_frames:
            self._begin(results)
        else:
            self._count += len(results)
        if self._after_gap:
            assert self._last_pose is not None
            start, turn = self._last_pose, frames[0].turn
            if turn is not None and self._first_pose is not None and view_of(frames[0].index) != self._last_view:
                start = self._first_pose.copy()
                start[:3, :3] = start[:3, :3] @ turn
            self._to_map = align_poses(np.array([results[0].T_world_camera]), start[None], self._scale)
            self._after_gap = False
        aligned = (
            list(results) if self._to_map is None else [transform_result(result, self._to_map) for result in results]
        )
        self._last_pose, self._last_view = aligned[-1].T_world_camera, view_of(frames[-1].index)
        self._first_pose = aligned[0].T_world_camera if self._first_pose is None else self._first_pose
        for frame, result, in_map in zip(frames, results, aligned, strict=True):
            if in_map.is_keyframe:
                self._recent.append((frame, in_map))
                is_tested = self._overlap > 0 and self._count > self._config.min_frames
                is_out_of_view = is_tested and self._visible_share(result) < self._overlap
                self._out_of_view = self._out_of_view + 1 if is_out_of_view else 0
        return aligned

    def end_segment(self) -> None:
        """The next submap has no overlap with earlier ones: it starts at the last frame's pose, in the same scale."""
        self._recent.clear()
        self._begin([])
        self._after_gap = self._last_pose is not None

    def resume(self, pairs: Sequence[Pair], results: Sequence[FrameResult], scale_frames: int) -> OverlapError:
        """Continue an earlier run with the first ``scale_frames`` of its frames.

        ``pairs`` have the frames' results in the earlier run, ``results`` those of a new stream. Returns the error
        of the last of them.
        """
        self._recent.extend(pairs)
        self._last_pose, self._last_view = pairs[-1][1].T_world_camera, view_of(pairs[-1][0].index)
        # Results of the keyframes that a submap begins with may be of the previous one; those of later ones are of it.
        own = max(len(pairs) - scale_frames - self._more, 0)
        later = min(own, len(self._recent)) or len(self._recent)
        earlier, latest = [result for _, result in pairs[-later:]], results[-later:]
        self._align_world(earlier, latest)
        self._begin(results[:scale_frames])
        self._count = len(results)
        return self._overlap_error(earlier, latest)

    def _overlap_error(self, earlier: Sequence[FrameResult], results: Sequence[FrameResult]) -> OverlapError:
        """Medians over the frames: rotation in degrees, position in median depths, relative depth."""
        assert self._to_map is not None
        pairs = list(zip(earlier, [transform_result(result, self._to_map) for result in results], strict=True))
        median_depth = float(np.median([np.median(result.depth) for result in earlier]))
        rotations = [rotation_angle_deg(a.T_world_camera[:3, :3].T @ b.T_world_camera[:3, :3]) for a, b in pairs]
        translations = [np.linalg.norm(a.T_world_camera[:3, 3] - b.T_world_camera[:3, 3]) for a, b in pairs]
        ratios = [ratio for ratio in (depth_ratio(*pair) for pair in pairs) if ratio]
        depth = float(np.median(np.abs(np.array(ratios) - 1))) if ratios else 0.0
        position = float(np.median(translations)) / max(median_depth, 1e-9)
        return OverlapError(earlier[-1].index, float(np.median(rotations)), position, depth)

    @property
    def _scale(self) -> float:
        return self._to_map.scale if self._to_map else 1.0

    def start_submap(self, results: Sequence[FrameResult]) -> None:
        """A new stream has started with `recent_frames` and gave these results."""
        self._align_world([in_map for _, in_map in self._recent], results)
        self._begin(results[: self._frames])
        self._count = len(results)

    def _align_world(self, in_map: Sequence[FrameResult], results: Sequence[FrameResult]) -> None:
        """Align the stream's world with the map by the same frames' results in both."""
        pairs = list(zip(in_map, results, strict=True))
        ratios = [ratio for ratio in (depth_ratio(*pair) for pair in pairs) if ratio is not None]
        map_poses, stream_poses = (np.array([pair[i].T_world_camera for pair in pairs]) for i in (0, 1))
        # Without any depth the scale stays as it was.
        self._to_map = align_poses(stream_poses, map_poses, float(np.median(ratios)) if ratios else self._scale)

    def _visible_share(self, result: FrameResult) -> float:
        """Largest share of a frame's points that one of the scale frames sees."""
        points = _sample_points(result, self._config)
        return (
            max(_visible_part(points, frame, self._config.occlusion_ratio) for frame in self._scale_frames)
            if len(points)
            else 0.0
        )


def _sample_points(result: FrameResult, config: SubmapConfig) -> NDArray[np.float32]:
    """Sample of a frame's points [N, 3] in its world."""
    height, width = result.depth.shape
    half = config.pixel_step // 2
    rows, columns = np.mgrid[half : height : config.pixel_step, half : width : config.pixel_step].reshape(2, -1)
    z, confidence = result.depth[rows, columns], result.confidence[rows, columns]
    chosen = (z > 0) & (confidence >= np.quantile(confidence, config.unsure_share))
    local = unproject(rows[chosen], columns[chosen], z[chosen], result.network_intrinsics)
    return transform_points(result.T_world_camera, local)


def _visible_part(points: NDArray[np.float32], frame: FrameResult, occlusion_ratio: float) -> float:
    """Share of the points [N, 3] that a frame sees; those further away than this times its surface are occluded."""
    height, width = frame.depth.shape
    camera = frame.network_intrinsics
    local = transform_points(invert_pose(frame.T_world_camera), points)
    pixels = project(local, camera.matrix)
    inside = ((pixels >= 0) & (pixels < (width, height))).all(axis=1)
    column, row = pixels[inside].astype(int).T
    in_front = local[inside, 2] < occlusion_ratio * frame.depth[row, column]
    return float(in_front.sum()) / len(points)
