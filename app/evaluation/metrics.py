"""Metrics of poses, depth and field of view against ground truth, by the protocols of the field.

Trajectories: Sim(3) alignment after Umeyama (PAMI 1991), ATE and RPE after Sturm et al. (IROS 2012). Depth: AbsRel
and delta < 1.25 after Eigen et al. (NeurIPS 2014) with one scale a sequence. Poses are camera-to-world.

Pose AUC (Jin et al., IJCV 2021): the error of a pair of frames is the larger of two angles, of the relative rotation
and between the directions of the relative translation. The AUC is the area under recall over error, up to a threshold
and divided by it. It needs no alignment, and measures neither scale nor drift.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.transforms import FloatArray, align, invert_pose, rotation_angle_deg
from stream_recon.app.core.types import Intrinsics

MIN_POSES = 3
"""Fewest poses that are measured: two positions can always be aligned without error."""
MIN_SCALE_PIXELS = 20
"""Fewest pixels with true depth of a frame whose own scale is measured."""
ROUNDING = 1e-3
"""AbsRel that counts as the rounding of depth; smaller ones have no meaningful ratio."""
MOVED_SHARE = 0.3
"""Least length of a step whose direction is measured, as a share of the median step."""


@dataclass(frozen=True)
class PoseErrors:
    """Pose metrics of a trajectory: lengths in the ground truth's unit, angles in degrees; None where unknown."""

    path_m: float | None = None
    """Length of the true trajectory over the frames used."""
    ate_m: float | None = None
    """RMSE of the positions after Sim(3) alignment."""
    ate_over_path: float | None = None
    """``ate_m`` as a share of ``path_m``."""
    rpe_trans_m: float | None = None
    """RMSE of the translation from one frame to the next, the estimate scaled as for ``ate_m``."""
    rpe_rot_deg: float | None = None
    """Mean error of the rotation from one frame to the next."""
    gt_rot_deg: float | None = None
    """Mean true rotation from one frame to the next."""
    trans_dir_deg: float | None = None
    """Median error of the direction of translation, over steps that moved."""


@dataclass(frozen=True)
class PoseAUC:
    """Pose AUC in 0..1 at each of `AUC_THRESHOLDS_DEG`; None where unknown."""

    auc_3: float | None = None
    auc_5: float | None = None
    auc_15: float | None = None
    auc_30: float | None = None


@dataclass(frozen=True)
class DepthErrors:
    """Depth metrics over all pixels of a sequence with ground truth; None where there are none."""

    absrel: float | None = None
    delta1: float | None = None
    """Share of pixels whose depth is within a factor of 1.25 of the true one."""
    one_scale_ratio: float | None = None
    """AbsRel with one scale a sequence, divided by AbsRel with each frame's own best scale; 1 without scale drift."""
    scale_jump: float | None = None
    """Largest relative change of the frames' own best scale between neighbouring frames with true depth."""


@dataclass(frozen=True)
class Metrics(DepthErrors, PoseAUC, PoseErrors):
    """All metrics of one sequence or scene; None where there is no ground truth or no estimate.

    Lengths are in metres, or in the ground truth's own unit where that is not metric.
    """

    fov_error_deg: float | None = None
    """Mean over frames of `field_of_view_error_deg`."""
    accuracy_m: float | None = None
    """See `PointErrors` for this and the following ones."""
    completeness_m: float | None = None
    chamfer_m: float | None = None
    f1: float | None = None


METRIC_NAMES = tuple(field.name for field in fields(Metrics))


def pose_errors(predicted: FloatArray, truth: FloatArray, adjacent: NDArray[np.bool_]) -> PoseErrors:
    """Pose metrics of camera-to-world poses [N, 4, 4], ``predicted`` in any unit and world frame.

    ``adjacent`` [N - 1] marks neighbours in the arrays that were neighbours in the video as it was used. Only these
    count for the errors from one frame to the next.
    """
    assert predicted.shape == truth.shape and adjacent.shape == (max(len(truth) - 1, 0),)
    if len(truth) < MIN_POSES or not np.isfinite(predicted).all():
        return PoseErrors()
    positions = truth[:, :3, 3]
    path = float(np.linalg.norm(np.diff(positions, axis=0), axis=1).sum())
    similarity = align(predicted[:, :3, 3], positions)
    ate = _rms(np.linalg.norm(similarity.apply(predicted[:, :3, 3]) - positions, axis=1))
    ate_over_path = ate / path if path > 0 else None
    if not adjacent.any():
        return PoseErrors(path, ate, ate_over_path)
    predicted_steps = (invert_pose(predicted[:-1]) @ predicted[1:])[adjacent]
    true_steps = (invert_pose(truth[:-1]) @ truth[1:])[adjacent]
    predicted_moves, true_moves = predicted_steps[:, :3, 3], true_steps[:, :3, 3]
    # A translation below the rounding of the coordinates has an arbitrary direction, so it counts as zero.
    rounding = 1e-12 * np.abs(predicted[:, :3, 3]).max()
    predicted_moves = np.where(np.abs(predicted_moves) > rounding, predicted_moves, 0.0)
    rotation_error = np.swapaxes(true_steps[:, :3, :3], 1, 2) @ predicted_steps[:, :3, :3]
    return PoseErrors(
        path_m=path,
        ate_m=ate,
        ate_over_path=ate_over_path,
        rpe_trans_m=_rms(np.linalg.norm(similarity.scale * predicted_moves - true_moves, axis=1)),
        rpe_rot_deg=float(rotation_angle_deg(rotation_error).mean()),
        gt_rot_deg=float(rotation_angle_deg(true_steps[:, :3, :3]).mean()),
        trans_dir_deg=_direction_error_deg(predicted_moves, true_moves),
    )


def _rms(values: FloatArray) -> float:
    return float(np.sqrt(np.mean(np.square(values))))


def _direction_error_deg(predicted: FloatArray, truth: FloatArray) -> float | None:
    """Median angle between translations [N, 3]; an estimate of zero counts as a random guess, 90 degrees.

    None if the true translations, or the estimated ones, are all zero.
    """
    lengths = np.linalg.norm(truth, axis=1)
    moved = (lengths > MOVED_SHARE * np.median(lengths)) & (lengths > 0)
    if not moved.any() or not predicted[moved].any():
        return None
    sine = np.linalg.norm(np.cross(predicted[moved], truth[moved]), axis=1)
    cosine = np.sum(predicted[moved] * truth[moved], axis=1)
    angles = np.degrees(np.arctan2(sine, cosine))
    return float(np.median(np.where(predicted[moved].any(axis=1), angles, 90.0)))


def depth_errors(predicted: FloatArray, truth: FloatArray, counts: Sequence[int] = ()) -> DepthErrors:
    """Depth metrics of depths [K] of a sequence after one scale, the ratio of medians (Zhou et al. 2017).

    ``counts``: numbers of pixels of the frames, in order; without them frames' scales are not measured.
    """
    assert predicted.shape == truth.shape
    if not len(truth) or not np.isfinite(predicted).all() or (predicted <= 0).any():
        return DepthErrors()
    ratio = predicted * (np.median(truth) / np.median(predicted)) / truth
    absrel = float(np.abs(ratio - 1).mean())
    errors = DepthErrors(absrel=absrel, delta1=float((np.maximum(ratio, 1 / ratio) < 1.25).mean()))
    if not counts:
        return errors
    edges = np.cumsum([0, *counts])
    frames = [ratio[a:b] for a, b in pairwise(edges) if b - a >= MIN_SCALE_PIXELS]
    if len(frames) < 2:
        return errors
    scales = np.array([_best_scale(frame) for frame in frames])
    used = np.concatenate(frames)
    own = np.concatenate([frame * scale for frame, scale in zip(frames, scales, strict=True)])
    best = float(np.abs(own - 1).mean())
    one = float(np.abs(used * _best_scale(used) - 1).mean())
    return replace(
        errors,
        one_scale_ratio=max(one, ROUNDING) / max(best, ROUNDING),
        scale_jump=float(np.expm1(np.abs(np.diff(np.log(scales))).max())),
    )


def _best_scale(ratio: FloatArray) -> float:
    """The factor of least AbsRel of ratios [K] of estimated to true depth: the median of 1 / ratio, weighted by it."""
    order = np.argsort(ratio)
    total = np.cumsum(ratio[order])
    return float(1 / ratio[order[np.searchsorted(total, 0.5 * total[-1])]])


def field_of_view_deg(intrinsics: Intrinsics, size: tuple[int, int]) -> tuple[float, float]:
    """Horizontal and vertical field of view of an image of (width, height)."""
    k, (width, height) = intrinsics, size
    horizontal = np.arctan(k.cx / k.fx) + np.arctan((width - k.cx) / k.fx)
    vertical = np.arctan(k.cy / k.fy) + np.arctan((height - k.cy) / k.fy)
    return float(np.degrees(horizontal)), float(np.degrees(vertical))


def field_of_view_error_deg(predicted: Intrinsics, truth: Intrinsics, size: tuple[int, int]) -> float:
    """Error of the field of view: the larger of the horizontal and the vertical one."""
    pairs = zip(field_of_view_deg(predicted, size), field_of_view_deg(truth, size), strict=True)
    return max(abs(p - t) for p, t in pairs)


AUC_THRESHOLDS_DEG = (3, 5, 15, 30)
MAX_POSES = 1500
"""Most poses that are paired, uniformly sampled from a longer sequence: about a million pairs."""
MIN_TRANSLATION = 1e-6
"""Least true translation whose direction is measured, as a share of the trajectory's extent."""


def pair_errors_deg(predicted: FloatArray, truth: FloatArray) -> FloatArray:
    """Errors [pairs] in degrees of all pairs of camera-to-world poses [N, 4, 4].

    Without true translation only the rotation counts. With one, an estimate of zero counts as 90 degrees, a guess.
    """
    assert predicted.shape == truth.shape
    chosen = np.unique(np.linspace(0, len(truth) - 1, min(len(truth), MAX_POSES)).round().astype(int))
    predicted, truth = predicted[chosen], truth[chosen]
    extent = float(np.ptp(truth[:, :3, 3], axis=0).max()) if len(truth) else 0.0
    rows = [_pair_errors_from(predicted, truth, first, MIN_TRANSLATION * extent) for first in range(len(truth) - 1)]
    return np.concatenate(rows) if rows else np.empty(0)


def _pair_errors_from(predicted: FloatArray, truth: FloatArray, first: int, min_translation: float) -> FloatArray:
    """Errors of the pairs of pose number ``first`` with all later ones."""
    estimated = invert_pose(predicted[first]) @ predicted[first + 1 :]
    true = invert_pose(truth[first]) @ truth[first + 1 :]
    rotation = rotation_angle_deg(np.swapaxes(true[:, :3, :3], 1, 2) @ estimated[:, :3, :3])
    estimated_t, true_t = estimated[:, :3, 3], true[:, :3, 3]
    sine = np.linalg.norm(np.cross(estimated_t, true_t), axis=1)
    direction = np.degrees(np.arctan2(sine, np.sum(estimated_t * true_t, axis=1)))
    direction = np.where(estimated_t.any(axis=1), direction, 90.0)
    moved = np.linalg.norm(true_t, axis=1) > min_translation
    return np.where(moved, np.maximum(rotation, direction), rotation)


def pose_auc(predicted: FloatArray, truth: FloatArray) -> PoseAUC:
    """Pose AUC; of None for fewer than two poses or an estimate that is not finite.

    The area is exact, not a histogram's: the mean over the pairs of ``max(0, 1 - error / threshold)``.
    """
    if len(truth) < 2 or not np.isfinite(predicted).all():
        return PoseAUC()
    errors = pair_errors_deg(predicted, truth)
    return PoseAUC(*(float(np.clip(1 - errors / degrees, 0, None).mean()) for degrees in AUC_THRESHOLDS_DEG))


@dataclass(frozen=True)
class TrueTrajectory:
    """The M of N frames of a run that have a true pose."""

    rows: NDArray[np.intp]  # [M] their positions in the run
    poses: FloatArray  # [M, 4, 4]

    @classmethod
    def of_frames(cls, poses: Mapping[int, FloatArray], frames: Sequence[int]) -> "TrueTrajectory":
        """The true ``poses`` by index, over the ``frames`` of a run, by their indices in order."""
        rows = [row for row, index in enumerate(frames) if index in poses]
        known = [poses[frames[row]] for row in rows]
        return cls(np.array(rows, dtype=np.intp), np.array(known, dtype=np.float64).reshape(-1, 4, 4))

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def adjacent(self) -> NDArray[np.bool_]:
        """[M - 1] which neighbours in the arrays were neighbours in the run."""
        return np.asarray(np.diff(self.rows) == 1)

    def errors(self, predicted: FloatArray) -> PoseErrors:
        """Pose metrics of poses [N, 4, 4] of all frames of the run."""
        return pose_errors(predicted[self.rows], self.poses, self.adjacent)

    def first_step(self) -> FloatArray | None:
        """The first known relative pose [4, 4] of two consecutive frames; None where there is none."""
        starts = np.flatnonzero(self.adjacent)
        if not len(starts):
            return None
        return np.asarray(np.linalg.inv(self.poses[starts[0]]) @ self.poses[starts[0] + 1])
