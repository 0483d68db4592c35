"""Errors against the truth, gathered while a scene is reconstructed: there is no second pass."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.datasets.recording import Truth
from stream_recon.app.datasets.sequence import DepthMap
from stream_recon.app.evaluation.metrics import DepthErrors, depth_errors, field_of_view_error_deg, pose_errors
from stream_recon.app.evaluation.pixel_sample import PixelSample
from stream_recon.app.evaluation.point_errors import point_errors
from stream_recon.app.evaluation.pose_auc import pose_auc
from stream_recon.app.results import FrameResult, Revision
from stream_recon.app.transforms import FloatArray, align
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


class Gatherer:
    """Listens to a run; see `pipeline.ResultListener`."""

    def __init__(self, truth: Truth | None, on_frames: Callable[[int], None] | None = None) -> None:
        """``on_frames`` is called with the number of frames so far."""
        self._truth = truth
        self._on_frames = on_frames
        self._poses: dict[int, FloatArray] = {}
        self._fov_errors: list[float] = []
        self._pixels = PixelSample()
        self._dense = True
        self.truth_error: str | None = None
        """Why depth was no longer compared from some frame on: a damaged file of truth costs no reconstruction."""

    def add(self, result: FrameResult) -> None:
        self.add_pose(result.index, result.T_world_camera)
        if self._truth is not None:
            if self._truth.intrinsics is not None:
                size = result.transform.source_size
                self._fov_errors.append(field_of_view_error_deg(result.intrinsics, self._truth.intrinsics, size))
            self._compare_depth(self._truth, result)
        if self._on_frames is not None:
            self._on_frames(len(self._poses))

    def add_pose(self, index: int, T_world_camera: FloatArray) -> None:
        """All there is to gather of a frame where nothing is known of the truth."""
        self._poses[index] = np.asarray(T_world_camera, np.float64)

    def revise(self, revision: Revision) -> None:
        for frame in revision.frames:
            self._poses[frame.index] = np.asarray(frame.T_world_camera, np.float64)

    def _compare_depth(self, truth: Truth, result: FrameResult) -> None:
        if self.truth_error is not None:
            return
        try:
            depth = truth.depth(result.index)
        except StreamReconError as error:
            self.truth_error = str(error)
            return
        if depth is not None:
            self._dense &= isinstance(depth, DepthMap)
            self._pixels.add(result, depth.at_network(result.transform))

    @property
    def metric(self) -> bool | None:
        """Whether the truth's lengths are metres; None without truth."""
        return self._truth.metric if self._truth is not None else None

    def figures(self) -> Figures | None:
        """All errors that can be told; None where nothing is known of the truth."""
        if self._truth is None:
            return None
        known, predicted, truth = self._posed()
        pose = dataclasses.asdict(pose_errors(predicted, truth, np.diff(known) == 1))
        auc = {f"auc_{degrees}": area for degrees, area in (pose_auc(predicted, truth) or {}).items()}
        z = self._pixels.depths()
        depth = dataclasses.asdict(depth_errors(*z) if z is not None else DepthErrors())
        fov = float(np.mean(self._fov_errors)) if self._fov_errors else None
        figures = Figures(**pose, **auc, **depth, **self._point_figures(self._truth), fov_error_deg=fov)
        return figures if figures != Figures() else None

    def _posed(self) -> tuple[NDArray[np.intp], FloatArray, FloatArray]:
        """Places in the run of the frames with a true pose; their poses, ours and true [N, 4, 4]."""
        poses = self._truth.poses if self._truth is not None else {}
        rows = [(row, index) for row, index in enumerate(self._poses) if index in poses]
        predicted = np.array([self._poses[index] for _, index in rows], np.float64).reshape(-1, 4, 4)
        truth = np.array([poses[index] for _, index in rows], np.float64).reshape(-1, 4, 4)
        return np.array([row for row, _ in rows], np.intp), predicted, truth

    def _point_figures(self, truth: Truth) -> dict[str, float]:
        if truth.intrinsics is None or not truth.metric or not self._dense:
            return {}
        points = self._pixels.points(self._poses, truth.poses, truth.intrinsics)
        errors = point_errors(*points) if points is not None else None
        if errors is None:
            return {}
        names = ("accuracy_m", "completeness_m", "chamfer_m", "f1")
        return {name: getattr(errors, name) for name in names}

    def plot(self) -> Plot:
        """The trajectory for a drawing."""
        ours = np.array([pose[:3, 3] for pose in self._poses.values()]).reshape(-1, 3)
        _, predicted, truth = self._posed()
        true = truth[:, :3, 3]
        if len(true) >= 3:
            ours = align(predicted[:, :3, 3], true).apply(ours)
        shown = true if len(true) >= 3 else ours
        centred = shown - shown.mean(axis=0)
        # Of the 3x3 scatter: the points' own decomposition grows with their number squared.
        plane = np.linalg.svd(centred.T @ centred)[2][:2]
        return Plot(_drawn(ours, plane), _drawn(true, plane) if len(true) >= 3 else [])


def _drawn(points: FloatArray, plane: FloatArray) -> list[list[float]]:
    """At most `PLOT_POINTS` of the points [N, 3] in the plane's axes [2, 3], rounded for a file."""
    chosen = np.unique(np.linspace(0, len(points) - 1, min(len(points), PLOT_POINTS)).round().astype(int))
    return [[float(f"{value:.5g}") for value in point] for point in points[chosen] @ plane.T]
