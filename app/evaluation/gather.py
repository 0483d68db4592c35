"""Errors against the truth, gathered while a scene is reconstructed: there is no second pass."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.ground_truth import DepthMap, GroundTruth
from stream_recon.app.core.transforms import FloatArray, align
from stream_recon.app.core.types import FrameResult, FrameRevision, Revision
from stream_recon.app.evaluation.metrics import (
    DepthErrors,
    PoseErrors,
    TruePath,
    depth_errors,
    field_of_view_error_deg,
    pose_auc,
)
from stream_recon.app.evaluation.pixel_sample import MAX_PIXELS, PixelSample
from stream_recon.app.evaluation.point_errors import point_errors
from stream_recon.configs.errors import StreamReconError

PROTOCOL = {
    "trajectory": "Sim(3) (Umeyama) over all frames with a true pose; ATE: RMSE of positions; RPE: over one frame, "
    "translation as RMSE, rotation as mean. Metres; where the truth is not metric (structure from motion) in a unit of "
    "its own, and then left out of the means",
    "pose_auc": "all pairs (of at most 1500 evenly spread poses); error: larger of the angles of rotation and of the "
    "signed translation direction; exact area under recall at 3, 5, 15, 30 degrees",
    "depth": "one scale a scene (ratio of medians); AbsRel and delta<1.25 over pixels with truth at network "
    "resolution, 0.1 to 60 m where metric; a uniform sample of 4 million at most",
    "points": "metric depth alone; Umeyama on corresponding pixels of that sample, voxels of 4/512 m, ICP 0.1 m; "
    "accuracy, completeness, Chamfer in metres, F1 at 0.05 m, from 100,000 points of each cloud to all of the other",
}
LENGTHS = ("path_m", "ate_m", "rpe_trans_m")
"""Figures that no mean can be taken of over truths of different units."""
PLOT_POINTS = 300


@dataclass(frozen=True)
class Figures:
    """Errors of one scene; None where there is no truth. Lengths in metres, or in the truth's own unit.

    See `PoseErrors`, `DepthErrors`, `PointErrors`, `pose_auc`.
    """

    path_m: float | None = None
    ate_m: float | None = None
    ate_over_path: float | None = None
    rpe_trans_m: float | None = None
    rot_step_deg: float | None = None
    rot_moved_deg: float | None = None
    tdir_deg: float | None = None
    auc_3: float | None = None
    auc_5: float | None = None
    auc_15: float | None = None
    auc_30: float | None = None
    absrel: float | None = None
    delta1: float | None = None
    fov_error_deg: float | None = None
    accuracy_m: float | None = None
    completeness_m: float | None = None
    chamfer_m: float | None = None
    f1: float | None = None


@dataclass(frozen=True)
class Plot:
    """Camera positions for a drawing, in the plane in which they spread most; ours aligned to the truth if known."""

    ours: list[list[float]]  # [N, 2]
    truth: list[list[float]]  # [M, 2], empty where unknown


class Evaluator:
    """Listens to a run, see `ResultListener`, and compares what it hears with the truth, as first given out and as last
    revised. Keeps no images and no whole depth maps, so long runs fit."""

    def __init__(
        self, truth: GroundTruth | None, on_frames: Callable[[int], None] | None = None, max_pixels: int = MAX_PIXELS
    ) -> None:
        """``on_frames`` is called with the number of frames so far; ``max_pixels`` is a `PixelSample`'s budget."""
        self.truth = truth
        self.pixels = PixelSample(max_pixels)
        self._on_frames = on_frames
        self._source_size = (0, 0)
        self._first: dict[int, FrameRevision] = {}
        self._last: dict[int, FrameRevision] = {}
        """What is known of each frame, in the order of the run; intrinsics are None after `add_pose`."""
        self._dense = True
        self.truth_error: str | None = None
        """Why depth was no longer compared from some frame on: a damaged file of truth costs no reconstruction."""

    def add(self, result: FrameResult) -> None:
        """Keep a result's pose and camera, and its depth at pixels of which the truth is known."""
        self._note(FrameRevision(result.index, _copy(result.T_world_camera), 1.0, result.intrinsics))
        self._source_size = result.transform.source_size
        if self.truth is not None:
            self._compare_depth(self.truth, result)
        if self._on_frames is not None:
            self._on_frames(len(self._last))

    def add_pose(self, index: int, T_world_camera: FloatArray) -> None:
        """All there is to gather of a frame where nothing is known of the truth."""
        self._note(FrameRevision(index, _copy(T_world_camera)))

    def _note(self, frame: FrameRevision) -> None:
        self._first[frame.index] = self._last[frame.index] = frame

    def revise(self, revision: Revision) -> None:
        for frame in revision.frames:
            intrinsics = frame.intrinsics or self._last[frame.index].intrinsics
            pose = _copy(frame.T_world_camera)
            self._last[frame.index] = dataclasses.replace(frame, T_world_camera=pose, intrinsics=intrinsics)

    def _compare_depth(self, truth: GroundTruth, result: FrameResult) -> None:
        if self.truth_error is not None:
            return
        try:
            depth = truth.depth(result.index)
        except StreamReconError as error:
            self.truth_error = str(error)
            return
        if depth is not None:
            self._dense &= isinstance(depth, DepthMap)
            self.pixels.add(result, depth.at_network(result.transform))

    @property
    def frames(self) -> int:
        """How many were heard of."""
        return len(self._last)

    @property
    def metric(self) -> bool | None:
        """Whether the truth's lengths are metres; None without truth."""
        return self.truth.metric if self.truth is not None else None

    def true_path(self) -> TruePath:
        """The true poses of the frames heard of."""
        return TruePath.of(self.truth.poses if self.truth is not None else {}, list(self._last))

    def poses(self, *, first: bool = False) -> FloatArray:
        """Camera-to-world poses [N, 4, 4] of all frames; as ``first`` given out, else as last known."""
        frames = self._first if first else self._last
        return np.array([frame.T_world_camera for frame in frames.values()], np.float64).reshape(-1, 4, 4)

    def pose_errors(self, *, first: bool = False) -> PoseErrors:
        """Errors of the poses as ``first`` given out, else as last known."""
        return self.true_path().errors(self.poses(first=first))

    def depth_errors(self, *, first: bool = False) -> DepthErrors:
        """Errors of the depth as ``first`` given out, else in the frames' last known scales."""
        frames = self._first if first else self._last
        z = self.pixels.depths(lambda index, pixels: pixels.revised(frames[index]))
        return depth_errors(*z) if z is not None else DepthErrors()

    def fov_error_deg(self, *, first: bool = False) -> float | None:
        """Mean over the frames, of the cameras as ``first`` given out, else as last known; None without a true one."""
        true, size = self.truth.intrinsics if self.truth is not None else None, self._source_size
        cameras = [frame.intrinsics for frame in (self._first if first else self._last).values()]
        if true is None or not cameras:
            return None
        return float(np.mean([field_of_view_error_deg(camera, true, size) for camera in cameras if camera is not None]))

    def figures(self) -> Figures | None:
        """All errors that can be told, as last known; None where nothing is known of the truth."""
        if self.truth is None:
            return None
        pose, depth = dataclasses.asdict(self.pose_errors()), dataclasses.asdict(self.depth_errors())
        path = self.true_path()
        auc = pose_auc(self.poses()[path.places], path.poses) or {}
        figures = Figures(
            **pose,
            **{f"auc_{degrees}": area for degrees, area in auc.items()},
            **depth,
            **self._point_figures(self.truth),
            fov_error_deg=self.fov_error_deg(),
        )
        return figures if figures != Figures() else None

    def _point_figures(self, truth: GroundTruth) -> dict[str, float]:
        if truth.intrinsics is None or not truth.metric or not self._dense:
            return {}
        points = self.pixels.points(self._last, truth.poses, truth.intrinsics)
        errors = point_errors(*points) if points is not None else None
        if errors is None:
            return {}
        names = ("accuracy_m", "completeness_m", "chamfer_m", "f1")
        return {name: getattr(errors, name) for name in names}

    def plot(self) -> Plot:
        """The trajectory for a drawing."""
        path, poses = self.true_path(), self.poses()
        ours, true = poses[:, :3, 3], path.poses[:, :3, 3]
        if len(true) >= 3:
            ours = align(ours[path.places], true).apply(ours)
        shown = true if len(true) >= 3 else ours
        centred = shown - shown.mean(axis=0)
        # Of the 3x3 scatter: the points' own decomposition grows with their number squared.
        plane = np.linalg.svd(centred.T @ centred)[2][:2]
        return Plot(_drawn(ours, plane), _drawn(true, plane) if len(true) >= 3 else [])


def _copy(T_world_camera: NDArray[np.floating]) -> FloatArray:
    return np.array(T_world_camera, np.float64)


def _drawn(points: FloatArray, plane: FloatArray) -> list[list[float]]:
    """At most `PLOT_POINTS` of the points [N, 3] in the plane's axes [2, 3], rounded for a file."""
    chosen = np.unique(np.linspace(0, len(points) - 1, min(len(points), PLOT_POINTS)).round().astype(int))
    return [[float(f"{value:.5g}") for value in point] for point in points[chosen] @ plane.T]
