"""`Evaluator`: metrics against ground truth, gathered while a scene is reconstructed, without a second pass."""

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
    Metrics,
    PoseErrors,
    TrueTrajectory,
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
    "resolution, 0.1 to 60 m where metric; a uniform sample of 4 million at most. one_scale_ratio: least AbsRel with "
    "one scale over that with each frame's own; scale_jump: largest change of these scales between neighbours",
    "points": "metric depth alone; Umeyama on corresponding pixels of that sample, voxels of 4/512 m, ICP 0.1 m; "
    "accuracy, completeness, Chamfer in metres, F1 at 0.05 m, from 100,000 points of each cloud to all of the other",
}
LENGTHS = ("path_m", "ate_m", "rpe_trans_m")
"""Metrics that no mean is taken of over scenes whose ground truth is not metric."""
PLOT_POINTS = 300
"""Most points of each trajectory in a plot: enough for the small drawings of a batch page."""


@dataclass(frozen=True)
class Plot:
    """Camera positions for a drawing, in the plane of their largest variance."""

    estimate: list[list[float]]  # [N, 2], aligned to the ground truth if known
    ground_truth: list[list[float]]  # [M, 2], empty where unknown


class Evaluator:
    """Result listener that compares a run with ground truth, by causal and by latest results.

    It keeps no images and no complete depth maps, so memory does not grow much with the length of a run.
    """

    def __init__(
        self, truth: GroundTruth | None, on_frames: Callable[[int], None] | None = None, max_pixels: int = MAX_PIXELS
    ) -> None:
        """``on_frames`` is called with the number of frames; ``max_pixels`` is the budget of the `PixelSample`."""
        self.truth = truth
        self.pixels = PixelSample(max_pixels)
        self._on_frames = on_frames
        self._source_size = (0, 0)
        self._causal: dict[int, FrameRevision] = {}
        self._latest: dict[int, FrameRevision] = {}
        """State of each frame by index, in the order of the run; intrinsics are None after `add_pose`."""
        self._is_dense = True
        self.truth_error: str | None = None
        """Why depth is not compared from some frame on: a damaged ground truth file does not end a run."""

    def add(self, result: FrameResult) -> None:
        """Keep a result's pose and camera, and its depth at pixels with ground truth."""
        self._record(FrameRevision(result.index, _copy(result.T_world_camera), 1.0, result.intrinsics))
        self._source_size = result.transform.source_size
        if self.truth is not None:
            self._sample_depth(self.truth, result)
        if self._on_frames is not None:
            self._on_frames(len(self._latest))

    def add_pose(self, index: int, T_world_camera: FloatArray) -> None:
        """Keep the pose of a frame without ground truth."""
        self._record(FrameRevision(index, _copy(T_world_camera)))

    def _record(self, frame: FrameRevision) -> None:
        self._causal[frame.index] = self._latest[frame.index] = frame

    def revise(self, revision: Revision) -> None:
        """Apply a revision to the latest results."""
        for frame in revision.frames:
            intrinsics = frame.intrinsics or self._latest[frame.index].intrinsics
            pose = _copy(frame.T_world_camera)
            self._latest[frame.index] = dataclasses.replace(frame, T_world_camera=pose, intrinsics=intrinsics)

    def _sample_depth(self, truth: GroundTruth, result: FrameResult) -> None:
        if self.truth_error is not None:
            return
        try:
            depth = truth.depth(result.index)
        except StreamReconError as error:
            self.truth_error = str(error)
            return
        if depth is not None:
            self._is_dense &= isinstance(depth, DepthMap)
            self.pixels.add(result, depth.at_network(result.transform))

    @property
    def frames(self) -> int:
        """Number of frames received."""
        return len(self._latest)

    @property
    def metric(self) -> bool | None:
        """Whether the ground truth's lengths are metres; None without ground truth."""
        return self.truth.metric if self.truth is not None else None

    def true_trajectory(self) -> TrueTrajectory:
        """True poses of the frames received."""
        return TrueTrajectory.of_frames(self.truth.poses if self.truth is not None else {}, list(self._latest))

    def poses(self, *, causal: bool = False) -> FloatArray:
        """Camera-to-world poses [N, 4, 4] of all frames: ``causal`` or latest ones."""
        frames = self._causal if causal else self._latest
        return np.array([frame.T_world_camera for frame in frames.values()], np.float64).reshape(-1, 4, 4)

    def pose_errors(self, *, causal: bool = False) -> PoseErrors:
        """Pose metrics of the ``causal`` or latest poses."""
        return self.true_trajectory().errors(self.poses(causal=causal))

    def depth_errors(self, *, causal: bool = False) -> DepthErrors:
        """Depth metrics of the ``causal`` or latest depth."""
        frames = self._causal if causal else self._latest
        z = self.pixels.depths(lambda index, pixels: pixels.revised(frames[index]))
        return depth_errors(*z, self.pixels.counts) if z is not None else DepthErrors()

    def fov_error_deg(self, *, causal: bool = False) -> float | None:
        """Mean error of the field of view of the ``causal`` or latest cameras; None without true intrinsics."""
        true, size = self.truth.intrinsics if self.truth is not None else None, self._source_size
        cameras = [frame.intrinsics for frame in (self._causal if causal else self._latest).values()]
        if true is None or not cameras:
            return None
        return float(np.mean([field_of_view_error_deg(camera, true, size) for camera in cameras if camera is not None]))

    def metrics(self, *, causal: bool = False) -> Metrics:
        """Metrics of the ``causal`` or latest poses, depth and cameras, without pose AUC and points."""
        return Metrics(
            **dataclasses.asdict(self.pose_errors(causal=causal)),
            **dataclasses.asdict(self.depth_errors(causal=causal)),
            fov_error_deg=self.fov_error_deg(causal=causal),
        )

    def scene_metrics(self) -> Metrics | None:
        """All metrics of the latest results; None where none can be measured."""
        if self.truth is None:
            return None
        trajectory = self.true_trajectory()
        auc = pose_auc(self.poses()[trajectory.rows], trajectory.poses)
        points = self._point_metrics(self.truth)
        metrics = dataclasses.replace(self.metrics(), **dataclasses.asdict(auc), **points)
        return metrics if metrics != Metrics() else None

    def _point_metrics(self, truth: GroundTruth) -> dict[str, float]:
        if truth.intrinsics is None or not truth.metric or not self._is_dense:
            return {}
        points = self.pixels.points(self._latest, truth.poses, truth.intrinsics)
        errors = point_errors(*points) if points is not None else None
        if errors is None:
            return {}
        names = ("accuracy_m", "completeness_m", "chamfer_m", "f1")
        return {name: getattr(errors, name) for name in names}

    def plot(self) -> Plot:
        """The trajectories for a drawing."""
        trajectory, poses = self.true_trajectory(), self.poses()
        estimate, true = poses[:, :3, 3], trajectory.poses[:, :3, 3]
        has_truth = len(true) >= 3
        if has_truth:
            estimate = align(estimate[trajectory.rows], true).apply(estimate)
        shown = true if has_truth else estimate
        centred = shown - shown.mean(axis=0)
        # The SVD of the 3x3 scatter matrix: that of the points would need memory by their number squared.
        plane = np.linalg.svd(centred.T @ centred)[2][:2]
        return Plot(_projected(estimate, plane), _projected(true, plane) if has_truth else [])


def _copy(T_world_camera: NDArray[np.floating]) -> FloatArray:
    return np.array(T_world_camera, np.float64)


def _projected(points: FloatArray, plane: FloatArray) -> list[list[float]]:
    """At most `PLOT_POINTS` of the points [N, 3] in the plane's axes [2, 3], rounded for a file."""
    chosen = np.unique(np.linspace(0, len(points) - 1, min(len(points), PLOT_POINTS)).round().astype(int))
    return [[float(f"{value:.5g}") for value in point] for point in points[chosen] @ plane.T]
