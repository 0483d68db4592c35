"""Pose AUC: how many pairs of frames have a relative pose within so many degrees.

The error of a pair is the larger of two angles: of the relative rotation, and between the directions of the relative
translation. The area under recall over error, up to a threshold and divided by it, is the figure (Jin et al., IJCV
2021). It needs no alignment: it knows neither scale nor drift.
"""

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.transforms import invert_pose, rotation_angle_deg

FloatArray = NDArray[np.float64]

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
