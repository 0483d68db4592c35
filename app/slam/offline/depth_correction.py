"""Correction of keyframes' depth by triangulated points: one scale each, and a smooth log-scale field.

Scales: errors of a depth map are correlated over parts of the image, so that a keyframe's scale is less certain than
its number of points suggests. Scales are shrunk to their mean by the ratio of their variance to that uncertainty
(empirical Bayes; Efron and Morris 1973).
Fields: the log ratios of points' depths to the network's are fitted by a coarse bilinear grid, robustly, with priors of
no correction and of smoothness. Points are weighted by their parallax, and each has a small weight, since errors within
a cell are correlated. Without parallax, a keyframe keeps its scale alone. A field is kept if held-out points fit better
and depth maps of neighbours agree as well as without.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.camera_model import CameraModel
from stream_recon.app.core.depth_correction import GRID, MOST, depth_factors_at, weights
from stream_recon.app.core.transforms import invert_pose
from stream_recon.app.slam.ba.problem import FloatArray, rows_by
from stream_recon.app.slam.ba.robust_ba import BAState
from stream_recon.app.slam.frame_data import DepthGrid, FrameData, reproject

MIN_VIEWS = 3
"""Least number of views of a point whose depth is used; with two, a wrong match goes unnoticed."""
MIN_POINTS = 20
"""Least number of points of a keyframe with a scale or field from them."""
GOOD_PX = 2.0
"""Reprojection error up to which a point's depth is used."""
INDEPENDENT_SAMPLES = 25.0
"""Most independent samples of a depth map's error, since neighbouring errors are correlated."""
_MAD = 1.4826
"""Ratio of a normal variable's standard deviation to its median absolute deviation."""


def keyframe_depth_scales(fit: BAState, keyframes: int, otherwise: FloatArray | None = None) -> FloatArray:
    """Depth scales [keyframes] from points, shrunk to their mean.

    Of keyframes with few points: ``otherwise`` [keyframes], else from the adjustment, else interpolated.
    """
    value, sigma = point_scales(fit, keyframes, MIN_POINTS)
    scales, adjusted = np.exp(shrunk(value, sigma**2)), fit.scene.log_depth_scale
    if otherwise is None and adjusted is not None:
        otherwise = np.exp(adjusted)
    if otherwise is not None:
        scales = np.where(np.isfinite(scales), scales, otherwise)
    return interpolated(range(keyframes), scales, keyframes)


def point_scales(fit: BAState, keyframes: int, least: int) -> tuple[FloatArray, FloatArray]:
    """Log ratios [keyframes] of points' depth to the network's, and standard errors; NaN below ``least`` points."""
    depth = fit.observations.depth
    assert depth is not None
    usable = (fit.errors < GOOD_PX) & (depth > 0) & (fit.depth > 0)
    usable &= fit.views_of_points[fit.observations.point] >= MIN_VIEWS
    value, sigma = np.full((2, keyframes), np.nan)
    rows = np.flatnonzero(usable)
    for k, some in enumerate(rows_by(fit.observations.camera[rows], keyframes)):
        mine = rows[some]
        if len(mine) >= least:
            ratio = np.log(fit.depth[mine] / depth[mine])
            value[k] = np.median(ratio)
            spread = _MAD * np.median(np.abs(ratio - value[k]))
            sigma[k] = spread / np.sqrt(min(len(mine), INDEPENDENT_SAMPLES))
    return value, sigma


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


NODE_SIGMA = 0.2
"""Of a node of the log-scale field, about 0."""
STEP_SIGMA = 0.1
"""Of the difference of neighbouring nodes."""
DEPTH_SIGMA = 0.08
"""Of the log of depth about a smooth field; errors of twice this size have half the loss."""
PIXEL_SIGMA = 1.5
"""Of a point across its rays, including errors of poses and intrinsics."""
INDEPENDENT = 0.3
"""Weight of each point, since neighbouring errors are correlated."""
ROUNDS = 5
"""Iterations of the reweighted fit; it has converged by then."""
HELD_OUT = 5
"""Every 5th point is excluded from the fit, to test it."""
AROUND = 3
"""Keyframes on each side that are tested together, since one has few held-out points."""
MIN_TEST_POINTS = 20
"""Least number of held-out points of a test."""
GAIN = 0.03
"""Least relative improvement at held-out points; less can be chance."""
COST = 0.05
"""Relative loss of neighbours' agreement that is allowed where the video's agreement improves. Wrong geometry reduces
it: by a fifth for a plane seen from above, where the network's error was 0.01."""


@dataclass(frozen=True)
class DepthSamples:
    """Depths of points at keyframes."""

    camera: NDArray[np.integer]  # [O]
    point: NDArray[np.integer]  # [O]
    xy: FloatArray  # [O, 2], 0 to 1 over the depth map
    log_ratio: FloatArray  # [O], of the point's depth to the network's
    variance: FloatArray  # [O], of the log ratio

    def take(self, which: NDArray[np.bool_]) -> "DepthSamples":
        """The samples in a mask [O]."""
        xy, ratio, variance = self.xy[which], self.log_ratio[which], self.variance[which]
        return DepthSamples(self.camera[which], self.point[which], xy, ratio, variance)


@dataclass(frozen=True)
class DepthFields:
    """Log-scale fields of the keyframes, with their errors at held-out points."""

    nodes: FloatArray  # [K, GRID, GRID], 0 where none is kept
    error_before: float | None = None
    error: float | None = None
    """Medians of the absolute log error of depth, weighted by inverse variance."""


def estimate_fields(
    fit: BAState, depth_scale: FloatArray, views: Sequence[FrameData], size: tuple[int, int]
) -> DepthFields:
    """Fields that improve held-out points and do not reduce the agreement of neighbours.

    ``depth_scale`` [K] and ``views`` are the keyframes'; ``size``: width and height of the working image.
    """
    samples = depth_samples(fit, depth_scale, views, size)
    none = np.zeros((len(views), GRID, GRID))
    held_out = samples.point % HELD_OUT == HELD_OUT - 1
    test = samples.take(held_out)
    if not len(test.camera):
        return DepthFields(none)
    tried = fit_fields(samples.take(~held_out), len(views))
    keep = _improves(test, tried) & _agrees(fit, depth_scale, views, size, tried)
    residual = test.log_ratio - _values_at(tried * keep[:, None, None], test)
    weight = 1 / test.variance
    errors = _weighted_median(np.abs(test.log_ratio), weight), _weighted_median(np.abs(residual), weight)
    if not keep.any() or _losses(test, residual).sum() >= _losses(test, test.log_ratio).sum():
        return DepthFields(none, errors[0], errors[0])
    return DepthFields(np.where(keep[:, None, None], fit_fields(samples, len(views)), 0.0), *errors)


def depth_samples(
    fit: BAState, depth_scale: FloatArray, views: Sequence[FrameData], size: tuple[int, int]
) -> DepthSamples:
    """Samples of points that several keyframes see with small errors; arguments as of `estimate_fields`."""
    seen = fit.observations
    assert seen.depth is not None
    usable = (fit.errors < GOOD_PX) & (seen.depth > 0) & (fit.depth > 0)
    usable &= fit.views_of_points[seen.point] >= MIN_VIEWS
    camera, point = seen.camera[usable], seen.point[usable]
    ratio = np.log(fit.depth[usable] / (seen.depth[usable] * depth_scale[camera]))
    extent = np.array([view.extent or (0, 0, *size) for view in views])[camera]
    xy = (seen.pixel[usable] - extent[:, :2]) / extent[:, 2:]
    variance = DEPTH_SIGMA**2 + (PIXEL_SIGMA / np.maximum(parallax_px(fit)[usable], 1e-6)) ** 2
    return DepthSamples(camera, point, xy, ratio, variance)


def parallax_px(fit: BAState) -> FloatArray:
    """Parallax [O]: change of a point's pixels if its depth were e times larger, root of the sum of squares about the
    mean over its keyframes."""
    seen, points = fit.observations, fit.scene.points
    centres, count = fit.scene.T_world_camera[seen.camera, :3, 3], len(points)
    away = points[seen.point] - centres
    distance = np.maximum(np.linalg.norm(away, axis=1), 1e-12)
    views = np.maximum(np.bincount(seen.point, minlength=count), 1)[:, None]

    def mean(values: FloatArray) -> FloatArray:
        return np.stack([np.bincount(seen.point, column, count) for column in values.T], axis=1) / views

    axis = mean(away / distance[:, None])
    axis /= np.maximum(np.linalg.norm(axis, axis=1, keepdims=True), 1e-12)
    offset = centres - mean(centres)[seen.point]
    along = (offset * axis[seen.point]).sum(axis=1)
    across = np.maximum((offset**2).sum(axis=1) - along**2, 0.0)
    extent = np.sqrt(np.bincount(seen.point, across, count))
    return np.asarray(fit.scene.lens.focal * extent[seen.point] / distance)


def fit_fields(samples: DepthSamples, keyframes: int) -> FloatArray:
    """Fields [keyframes, GRID, GRID]; 0 with too few samples."""
    fields = np.zeros((keyframes, GRID**2))
    for k, mine in enumerate(rows_by(samples.camera, keyframes)):
        if len(mine) >= MIN_POINTS:
            fields[k] = _fit_field(_basis(samples.xy[mine]), samples.log_ratio[mine], samples.variance[mine])
    return fields.reshape(-1, GRID, GRID)


def _fit_field(basis: FloatArray, value: FloatArray, variance: FloatArray) -> FloatArray:
    """Nodes [GRID * GRID] by iteratively reweighted least squares, with a Cauchy loss."""
    nodes: FloatArray = np.zeros(basis.shape[1])
    for _ in range(ROUNDS):
        weight = INDEPENDENT / (variance + (value - basis @ nodes) ** 2 * (variance / (2 * DEPTH_SIGMA) ** 2))
        weighted = basis * weight[:, None]
        nodes = np.asarray(np.linalg.solve(basis.T @ weighted + _PRIOR, weighted.T @ value), np.float64)
    return nodes


_ALONG = np.diff(np.eye(GRID), axis=0)
_STEPS = np.concatenate([np.kron(np.eye(GRID), _ALONG), np.kron(_ALONG, np.eye(GRID))])
_PRIOR = np.eye(GRID**2) / NODE_SIGMA**2 + _STEPS.T @ _STEPS / STEP_SIGMA**2
"""Information matrix [GRID * GRID, GRID * GRID] of the priors on nodes and their differences."""


def _basis(xy: FloatArray) -> FloatArray:
    """Bilinear weights [O, GRID * GRID] of the nodes at positions [O, 2]."""
    (column, right), (row, down) = weights(xy[:, 0]), weights(xy[:, 1])
    found, which, first = np.zeros((len(xy), GRID**2)), np.arange(len(xy)), row * GRID + column
    for step, share in (
        (0, (1 - right) * (1 - down)),
        (1, right * (1 - down)),
        (GRID, (1 - right) * down),
        (GRID + 1, right * down),
    ):
        found[which, first + step] = share
    return found


def _values_at(fields: FloatArray, samples: DepthSamples) -> FloatArray:
    """Values [O] of fields [K, GRID, GRID] at the samples."""
    return np.asarray((_basis(samples.xy) * fields.reshape(len(fields), -1)[samples.camera]).sum(axis=1))


def _improves(test: DepthSamples, fields: FloatArray) -> NDArray[np.bool_]:
    """Mask [K] of keyframes where the fields reduce the loss of held-out samples, of a keyframe and those around it."""
    count = len(fields)

    def sums(residual: FloatArray) -> FloatArray:
        return _around(np.asarray(np.bincount(test.camera, _losses(test, residual), count), np.float64))

    before, after = sums(test.log_ratio), sums(test.log_ratio - _values_at(fields, test))
    number = _around(np.asarray(np.bincount(test.camera, minlength=count), np.float64))
    return np.asarray((number >= MIN_TEST_POINTS) & (after < (1 - GAIN) * before))


def _losses(samples: DepthSamples, residual: FloatArray) -> FloatArray:
    """Bounded losses [O] of log residuals [O], weighted by inverse variance."""
    return np.asarray(residual**2 / (residual**2 + (2 * DEPTH_SIGMA) ** 2) * DEPTH_SIGMA**2 / samples.variance)


def _agrees(
    fit: BAState, depth_scale: FloatArray, views: Sequence[FrameData], size: tuple[int, int], fields: FloatArray
) -> NDArray[np.bool_]:
    """Mask [K] of keyframes whose depth agrees with their neighbours as well with the fields as without.

    All are false if the agreement over the video decreases.
    """
    plain = [view.grid.scaled(scale) for view, scale in zip(views, depth_scale.tolist(), strict=True)]
    better = [_corrected(grid, field, view, size) for grid, field, view in zip(plain, fields, views, strict=True)]
    scene, one, difference = fit.scene, np.ones(len(views)), np.zeros((2, len(views)))
    for a in range(len(views) - 1):
        for row, grids in enumerate((plain, better)):
            pairs = ((a, a + 1), (a + 1, a))
            between = [depth_errors(scene.lens, scene.T_world_camera, grids, one, i, j) for i, j in pairs]
            difference[row, a : a + 2] += sum(float(np.median(errors)) if len(errors) else 0.0 for errors in between)
    before, after = (_around(row) for row in difference)
    return np.asarray((after <= (1 + COST) * before) & (difference[1].sum() <= difference[0].sum()))


def depth_errors(
    lens: CameraModel, T: FloatArray, grids: Sequence[DepthGrid], depth_scale: FloatArray, a: int, b: int
) -> FloatArray:
    """Absolute log ratios of a keyframe's depths, times its scale, to another one's, at common cells."""
    uv, z = grids[a].pixels()
    there, depth = reproject(lens, uv, z * depth_scale[a], invert_pose(T[b]) @ T[a])
    seen = grids[b].sample(np.nan_to_num(there, nan=-1e6)) * depth_scale[b]
    both = (seen > 0) & (depth > 0)
    return np.asarray(np.abs(np.log(depth[both] / seen[both])))


def _corrected(grid: DepthGrid, field: FloatArray, view: FrameData, size: tuple[int, int]) -> DepthGrid:
    """A depth grid multiplied by a field."""
    left, top, width, height = view.extent or (0, 0, *size)
    x, y = np.meshgrid((grid.u - left) / width, (grid.v - top) / height)
    factor = depth_factors_at(field[None], np.stack([x.ravel(), y.ravel()], axis=1))
    return DepthGrid(grid.u, grid.v, grid.z * factor.reshape(grid.z.shape))


def _weighted_median(values: FloatArray, weight: FloatArray) -> float:
    order = np.argsort(values)
    total = np.cumsum(weight[order])
    return float(values[order[np.searchsorted(total, 0.5 * total[-1])]])


def _around(values: FloatArray) -> FloatArray:
    """Sums [K] over each keyframe and those around it."""
    return np.convolve(values, np.ones(2 * AROUND + 1))[AROUND : AROUND + len(values)]


def interpolate_fields(
    nodes: FloatArray, positions: Sequence[int], segment: NDArray[np.integer]
) -> NDArray[np.float16]:
    """Fields [N, GRID, GRID] of all frames, interpolated linearly between the keyframes' [K, ...] within segments [N].

    ``positions``: [K], of the keyframes among all frames, ascending.
    """
    known = np.asarray(positions)
    frames = np.arange(len(segment))
    right = np.clip(np.searchsorted(known, frames), 1, max(len(known) - 1, 1)).clip(max=len(known) - 1)
    left = np.maximum(right - 1, 0)
    share = np.clip((frames - known[left]) / np.maximum(known[right] - known[left], 1), 0, 1)
    border = segment[known[left]] != segment[known[right]]
    share = np.where(border, segment[known[right]] == segment, share)[:, None, None]
    return np.asarray(((1 - share) * nodes[left] + share * nodes[right]).clip(-MOST, MOST), np.float16)
