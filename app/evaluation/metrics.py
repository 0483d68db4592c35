"""Errors of poses, depth and field of view against truth, by the protocols of the field.

Trajectories: Sim(3) alignment after Umeyama (PAMI 1991), ATE and RPE after Sturm et al. (IROS 2012); depth: AbsRel
and delta < 1.25 after Eigen et al. (NeurIPS 2014) with one scale a sequence. Poses are camera-to-world.
"""

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
