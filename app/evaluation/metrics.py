"""Errors of poses, depth and field of view against truth, by the protocols of the field.

Trajectories: Sim(3) alignment after Umeyama (PAMI 1991), ATE and RPE after Sturm et al. (IROS 2012); depth: AbsRel
and delta < 1.25 after Eigen et al. (NeurIPS 2014) with one scale a sequence. Poses are camera-to-world.

Pose AUC: how many pairs of frames have a relative pose within so many degrees.

The error of a pair is the larger of two angles: of the relative rotation, and between the directions of the relative
translation. The area under recall over error, up to a threshold and divided by it, is the figure (Jin et al., IJCV
2021). It needs no alignment: it knows neither scale nor drift.

The true trajectory over the frames of a run, of which some may lack a pose.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.transforms import FloatArray, align, invert_pose, rotation_angle_deg
from stream_recon.app.core.types import Intrinsics

MIN_POSES = 3
"""Two positions can always be aligned without error, so below this nothing is said."""
MOVED_SHARE = 0.3
"""A direction is only judged for steps longer than this share of the median step."""


@dataclass(frozen=True)
class PoseErrors:
    """Lengths in the truth's unit, angles in degrees. None where it cannot be said."""

    path_m: float | None = None
    """Length of the true path over the frames used."""
    ate_m: float | None = None
    """RMSE of the positions after Sim(3) alignment."""
    ate_over_path: float | None = None
    rpe_trans_m: float | None = None
    """RMSE of the translation from one frame to the next, the prediction scaled as for ``ate_m``."""
    rot_step_deg: float | None = None
    """Mean error of the rotation from one frame to the next."""
    rot_moved_deg: float | None = None
    """Mean true rotation from one frame to the next."""
    tdir_deg: float | None = None
    """Median error of the direction of translation, over steps that moved."""


@dataclass(frozen=True)
class DepthErrors:
    """Over all pixels with truth of a sequence. None where there are none."""

    absrel: float | None = None
    delta1: float | None = None
    """Share of pixels whose depth is off by less than a factor of 1.25."""


def pose_errors(predicted: FloatArray, truth: FloatArray, adjacent: NDArray[np.bool_]) -> PoseErrors:
    """Compare camera-to-world poses [N, 4, 4] in any unit and world frame with the truth.

    ``adjacent`` [N - 1] says which neighbours in the arrays were neighbours in the video as it was used; only those
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
    # Below the rounding of the coordinates a move is none, and its direction an accident.
    rounding = 1e-12 * np.abs(predicted[:, :3, 3]).max()
    predicted_moves = np.where(np.abs(predicted_moves) > rounding, predicted_moves, 0.0)
    turned = np.swapaxes(true_steps[:, :3, :3], 1, 2) @ predicted_steps[:, :3, :3]
    return PoseErrors(
        path_m=path,
        ate_m=ate,
        ate_over_path=ate_over_path,
        rpe_trans_m=_rms(np.linalg.norm(similarity.scale * predicted_moves - true_moves, axis=1)),
        rot_step_deg=float(rotation_angle_deg(turned).mean()),
        rot_moved_deg=float(rotation_angle_deg(true_steps[:, :3, :3]).mean()),
        tdir_deg=_direction_error_deg(predicted_moves, true_moves),
    )


def _rms(values: FloatArray) -> float:
    return float(np.sqrt(np.mean(np.square(values))))


def _direction_error_deg(predicted: FloatArray, truth: FloatArray) -> float | None:
    """Median angle between moves [N, 3]; where the prediction stands still it is as good as any guess, 90 degrees.

    None if the truth never moves, or the prediction never does.
    """
    lengths = np.linalg.norm(truth, axis=1)
    moved = (lengths > MOVED_SHARE * np.median(lengths)) & (lengths > 0)
    if not moved.any() or not predicted[moved].any():
        return None
    sine = np.linalg.norm(np.cross(predicted[moved], truth[moved]), axis=1)
    cosine = np.sum(predicted[moved] * truth[moved], axis=1)
    angles = np.degrees(np.arctan2(sine, cosine))
    return float(np.median(np.where(predicted[moved].any(axis=1), angles, 90.0)))


def depth_errors(predicted: FloatArray, truth: FloatArray) -> DepthErrors:
    """Compare depths [K], gathered over a sequence, after one scale: the ratio of medians (Zhou et al. 2017)."""
    assert predicted.shape == truth.shape
    if not len(truth) or not np.isfinite(predicted).all() or (predicted <= 0).any():
        return DepthErrors()
    ratio = predicted * (np.median(truth) / np.median(predicted)) / truth
    return DepthErrors(
        absrel=float(np.abs(ratio - 1).mean()), delta1=float((np.maximum(ratio, 1 / ratio) < 1.25).mean())
    )


def field_of_view_deg(intrinsics: Intrinsics, size: tuple[int, int]) -> tuple[float, float]:
    """Horizontal and vertical angle between the rays through opposite borders of an image of (width, height)."""
    k, (width, height) = intrinsics, size
    horizontal = np.arctan(k.cx / k.fx) + np.arctan((width - k.cx) / k.fx)
    vertical = np.arctan(k.cy / k.fy) + np.arctan((height - k.cy) / k.fy)
    return float(np.degrees(horizontal)), float(np.degrees(vertical))


def field_of_view_error_deg(predicted: Intrinsics, truth: Intrinsics, size: tuple[int, int]) -> float:
    """The larger of the horizontal and the vertical difference, for an image of (width, height)."""
    pairs = zip(field_of_view_deg(predicted, size), field_of_view_deg(truth, size), strict=True)
    return max(abs(p - t) for p, t in pairs)


AUC_THRESHOLDS_DEG = (3, 5, 15, 30)
MAX_POSES = 1500
"""So many poses, evenly spread, are paired of a longer sequence: about a million pairs."""
STILL = 1e-6
"""A true translation shorter than this share of the trajectory's extent has no direction to judge."""


def pair_errors_deg(predicted: FloatArray, truth: FloatArray) -> FloatArray:
    """Errors [pairs] in degrees of all pairs of the camera-to-world poses [N, 4, 4].

    Where the truth does not move only the rotation counts; where it does and the prediction stands still, the
    direction is as wrong as a guess, 90 degrees.
    """
    assert predicted.shape == truth.shape
    chosen = np.unique(np.linspace(0, len(truth) - 1, min(len(truth), MAX_POSES)).round().astype(int))
    predicted, truth = predicted[chosen], truth[chosen]
    extent = float(np.ptp(truth[:, :3, 3], axis=0).max()) if len(truth) else 0.0
    rows = [_errors_of(predicted, truth, first, STILL * extent) for first in range(len(truth) - 1)]
    return np.concatenate(rows) if rows else np.empty(0)


def _errors_of(predicted: FloatArray, truth: FloatArray, first: int, still: float) -> FloatArray:
    """Errors of the pairs of one pose with all later ones."""
    ours = invert_pose(predicted[first]) @ predicted[first + 1 :]
    true = invert_pose(truth[first]) @ truth[first + 1 :]
    turned = rotation_angle_deg(np.swapaxes(true[:, :3, :3], 1, 2) @ ours[:, :3, :3])
    ours_t, true_t = ours[:, :3, 3], true[:, :3, 3]
    sine = np.linalg.norm(np.cross(ours_t, true_t), axis=1)
    direction = np.degrees(np.arctan2(sine, np.sum(ours_t * true_t, axis=1)))
    direction = np.where(ours_t.any(axis=1), direction, 90.0)
    judged = np.linalg.norm(true_t, axis=1) > still
    errors: FloatArray = np.where(judged, np.maximum(turned, direction), turned)
    return errors


def pose_auc(predicted: FloatArray, truth: FloatArray) -> dict[int, float] | None:
    """AUC in 0..1 at each of `AUC_THRESHOLDS_DEG`; None for fewer than two poses or a prediction that is not finite.

    The area is exact, not a histogram's: the mean over the pairs of ``max(0, 1 - error / threshold)``.
    """
    if len(truth) < 2 or not np.isfinite(predicted).all():
        return None
    errors = pair_errors_deg(predicted, truth)
    return {degrees: float(np.clip(1 - errors / degrees, 0, None).mean()) for degrees in AUC_THRESHOLDS_DEG}


@dataclass(frozen=True)
class TruePath:
    """The M of N frames in a run that have a true pose."""

    places: NDArray[np.intp]
    """[M] which of the run's frames they are, counted as they came."""
    poses: FloatArray  # [M, 4, 4]

    @classmethod
    def of(cls, poses: Mapping[int, FloatArray], frames: Sequence[int]) -> "TruePath":
        """The true ``poses`` by index, over the ``frames`` of a run, by their indices in order."""
        places = [place for place, index in enumerate(frames) if index in poses]
        known = [poses[frames[place]] for place in places]
        return cls(np.array(places, dtype=np.intp), np.array(known, dtype=np.float64).reshape(-1, 4, 4))

    def __len__(self) -> int:
        return len(self.places)

    @property
    def adjacent(self) -> NDArray[np.bool_]:
        """[M - 1] which of their neighbours were neighbours in the run."""
        adjacent: NDArray[np.bool_] = np.diff(self.places) == 1
        return adjacent

    def errors(self, predicted: FloatArray) -> PoseErrors:
        """Errors of poses [N, 4, 4] for all frames of the run."""
        return pose_errors(predicted[self.places], self.poses, self.adjacent)

    def first_step(self) -> FloatArray | None:
        """The first known motion [4, 4] from one frame to the next; None where there is none."""
        starts = np.flatnonzero(self.adjacent)
        if not len(starts):
            return None
        step: FloatArray = np.linalg.inv(self.poses[starts[0]]) @ self.poses[starts[0] + 1]
        return step
