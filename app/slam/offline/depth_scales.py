"""What each keyframe's depth map is to be multiplied with, by the tracks that it sees.

Tracks say it at a few places, and a depth map is wrong by places: what they say is uncertain by more than their number
suggests. So a frame's scale goes only as far from what is usual in the video as the spread over the frames is larger
than that uncertainty: shrinkage with a prior taken from the frames themselves (empirical Bayes; Efron and Morris 1973).
"""

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.slam.ba.robust_ba import BAState

FloatArray = NDArray[np.float64]

MIN_VIEWS = 3
"""Of a track, before it says anything of depth."""
MIN_POINTS = 20
GOOD_PX = 2.0
INDEPENDENT = 25.0
"""Errors of a depth map are alike over parts of it: so many of them are independent, however many are looked at."""
_MAD = 1.4826


def depth_scales(fit: BAState, keyframes: int) -> FloatArray:
    """[keyframes] the scales; NaN where too few points say anything."""
    depth = fit.observations.depth
    assert depth is not None
    usable = (fit.errors < GOOD_PX) & (depth > 0) & (fit.depth > 0)
    usable &= fit.views_of_points[fit.observations.point] >= MIN_VIEWS
    value, variance = np.full((2, keyframes), np.nan)
    rows = np.flatnonzero(usable)
    rows = rows[np.argsort(fit.observations.camera[rows], kind="stable")]
    ends = np.searchsorted(fit.observations.camera[rows], np.arange(1, keyframes + 1))
    for k, mine in enumerate(np.split(rows, ends)[:keyframes]):
        if len(mine) >= MIN_POINTS:
            ratio = np.log(fit.depth[mine] / depth[mine])
            value[k] = np.median(ratio)
            spread = _MAD * np.median(np.abs(ratio - value[k]))
            variance[k] = spread**2 / min(len(mine), INDEPENDENT)
    return np.exp(shrunk(value, variance))


def shrunk(value: FloatArray, variance: FloatArray) -> FloatArray:
    """Values [N], each with a variance of its own, drawn towards their mean; NaN stays."""
    known = np.isfinite(value)
    if known.sum() < 2:
        return value
    mean = np.average(value[known], weights=1 / np.maximum(variance[known], 1e-8))
    spread = max(float(np.var(value[known]) - np.mean(variance[known])), 0.0)
    return np.asarray(mean + (value - mean) * spread / np.maximum(spread + variance, 1e-12))
