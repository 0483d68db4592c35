"""Depth scales of keyframes by triangulated points.

Errors of a depth map are correlated over parts of the image, so that a keyframe's scale is less certain than its number
of points suggests. Scales are shrunk to their mean by the ratio of their variance to that uncertainty (empirical Bayes;
Efron and Morris 1973).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stream_recon.app.slam.ba.problem import FloatArray, rows_by
from stream_recon.app.slam.ba.robust_ba import BAState


@dataclass(frozen=True)
class PointConfig:
    """Which points tell the depth at keyframes, and how surely."""

    min_views: int = 3
    """Least number of views of a point whose depth is used; with two, a wrong match goes unnoticed."""
    min_points: int = 20
    """Least number of points of a keyframe with a scale or field from them."""
    good_px: float = 2.0
    """Reprojection error up to which a point's depth is used."""
    independent_samples: float = 25.0
    """Most independent samples of a depth map's error, since neighbouring errors are correlated."""
    pixel_sigma: float = 1.5
    """Of a point across its rays, including errors of poses and intrinsics."""
    independent: float = 0.3
    """Weight of each point, since neighbouring errors are correlated."""


POINTS = PointConfig()

_MAD = 1.4826
"""Ratio of a normal variable's standard deviation to its median absolute deviation."""


def keyframe_depth_scales(
    fit: BAState, keyframes: int, otherwise: FloatArray | None = None, config: PointConfig = POINTS
) -> FloatArray:
    """Depth scales [keyframes] from points, shrunk to their mean.

    Of keyframes with few points: ``otherwise`` [keyframes], else from the adjustment, else interpolated.
    """
    log_scale, sigma = point_scales(fit, keyframes, config.min_points, config=config)
    scales, adjusted = np.exp(shrunk(log_scale, sigma**2)), fit.scene.log_depth_scale
    if otherwise is None and adjusted is not None:
        otherwise = np.exp(adjusted)
    if otherwise is not None:
        scales = np.where(np.isfinite(scales), scales, otherwise)
    return interpolated(range(keyframes), scales, keyframes)


def point_scales(
    fit: BAState, keyframes: int, min_points: int, config: PointConfig = POINTS
) -> tuple[FloatArray, FloatArray]:
    """Log ratios [keyframes] of points' depth to the network's, and standard errors; NaN below ``min_points``."""
    depth = fit.observations.depth
    assert depth is not None
    usable = (fit.errors < config.good_px) & (depth > 0) & (fit.depth > 0)
    usable &= fit.views_of_points[fit.observations.point] >= config.min_views
    log_scale, sigma = np.full((2, keyframes), np.nan)
    rows = np.flatnonzero(usable)
    for k, some in enumerate(rows_by(fit.observations.camera[rows], keyframes)):
        mine = rows[some]
        if len(mine) >= min_points:
            ratio = np.log(fit.depth[mine] / depth[mine])
            log_scale[k] = np.median(ratio)
            spread = _MAD * np.median(np.abs(ratio - log_scale[k]))
            sigma[k] = spread / np.sqrt(min(len(mine), config.independent_samples))
    return log_scale, sigma


def interpolated(positions: Sequence[int], values: FloatArray, count: int) -> FloatArray:
    """Positive values [count] of all frames from those of some, linear in the logarithm; NaN counts as unknown."""
    known = np.isfinite(values)
    if not known.any():
        return np.ones(count)
    return np.exp(np.interp(np.arange(count), np.asarray(positions)[known], np.log(values[known])))


def shrunk(value: FloatArray, variance: FloatArray) -> FloatArray:
    """Values [N] with variances [N], shrunk to their mean; NaN stays."""
    known = np.isfinite(value)
    if known.sum() < 2:
        return value
    mean = np.average(value[known], weights=1 / np.maximum(variance[known], 1e-8))
    spread = max(float(np.var(value[known]) - np.mean(variance[known])), 0.0)
    return np.asarray(mean + (value - mean) * spread / np.maximum(spread + variance, 1e-12))


def parallax_px(fit: BAState) -> FloatArray:
    """Parallax [O]: change of a point's pixels if its depth were e times larger, root of the sum of squares about the
    mean over its keyframes."""
    observations, points = fit.observations, fit.scene.points
    centres, count = fit.scene.T_world_camera[observations.camera, :3, 3], len(points)
    away = points[observations.point] - centres
    distance = np.maximum(np.linalg.norm(away, axis=1), 1e-12)
    views = np.maximum(np.bincount(observations.point, minlength=count), 1)[:, None]

    def mean(values: FloatArray) -> FloatArray:
        return np.stack([np.bincount(observations.point, column, count) for column in values.T], axis=1) / views

    axis = mean(away / distance[:, None])
    axis /= np.maximum(np.linalg.norm(axis, axis=1, keepdims=True), 1e-12)
    offset = centres - mean(centres)[observations.point]
    along = (offset * axis[observations.point]).sum(axis=1)
    across = np.maximum((offset**2).sum(axis=1) - along**2, 0.0)
    extent = np.sqrt(np.bincount(observations.point, across, count))
    return np.asarray(fit.scene.camera_model.focal * extent[observations.point] / distance)
