"""Smooth corrections of keyframes' depth by triangulated points, as log-scale fields.

The log ratios of points' depths to the network's are fitted by a coarse bilinear grid, robustly, with priors of no
correction and of smoothness. Points are weighted by their parallax, and each has a small weight, since errors within a
cell are correlated. Without parallax, a keyframe keeps its scale alone. A field is kept if held-out points fit better
and depth maps of neighbours agree as well as without.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.depth_correction import GRID, MAX_NODE, depth_factors_at, weights
from stream_recon.app.slam.ba.problem import FloatArray, rows_by
from stream_recon.app.slam.ba.robust_ba import BAState
from stream_recon.app.slam.evidence.depth_ratios import DepthMaps
from stream_recon.app.slam.evidence.depth_scales import POINTS, PointConfig, parallax_px
from stream_recon.app.slam.frame_data import DepthGrid, FrameData


@dataclass(frozen=True)
class FieldConfig:
    """How fields are fitted, and which are kept."""

    node_sigma: float = 0.2
    """Of a node of the log-scale field, about 0."""
    step_sigma: float = 0.1
    """Of the difference of neighbouring nodes."""
    depth_sigma: float = 0.08
    """Of the log of depth about a smooth field; errors of twice this size have half the loss."""
    rounds: int = 5
    """Iterations of the reweighted fit; it has converged by then."""
    held_out_every: int = 5
    """Every 5th point is excluded from the fit, to test it."""
    around: int = 3
    """Keyframes on each side that are tested together, since one has few held-out points."""
    min_test_points: int = 20
    """Least number of held-out points of a test."""
    min_gain: float = 0.03
    """Least relative improvement at held-out points; less can be chance."""
    max_cost: float = 0.05
    """Relative loss of neighbours' agreement that is allowed where the video's agreement improves. Wrong geometry
    reduces it: by a fifth for a plane seen from above, where the network's error was 0.01."""
    points: PointConfig = POINTS


FIELDS = FieldConfig()


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

    @property
    def kept(self) -> NDArray[np.bool_]:
        """Mask [K] of keyframes with a field."""
        return np.asarray(self.nodes.any(axis=(1, 2)))


def estimate_fields(
    fit: BAState,
    depth_scale: FloatArray,
    views: Sequence[FrameData],
    size: tuple[int, int],
    config: FieldConfig = FIELDS,
) -> DepthFields:
    """Fields that improve held-out points and do not reduce the agreement of neighbours.

    ``depth_scale`` [K] and ``views`` are the keyframes'; ``size``: width and height of the working image.
    """
    samples = depth_samples(fit, depth_scale, views, size, config)
    none = np.zeros((len(views), GRID, GRID))
    held_out = samples.point % config.held_out_every == config.held_out_every - 1
    test = samples.take(held_out)
    if not len(test.camera):
        return DepthFields(none)
    tried = fit_fields(samples.take(~held_out), len(views), config)
    keep = _improves(test, tried, config) & _agrees(fit, depth_scale, views, size, tried, config)
    residual = test.log_ratio - _values_at(tried * keep[:, None, None], test)
    weight = 1 / test.variance
    errors = _weighted_median(np.abs(test.log_ratio), weight), _weighted_median(np.abs(residual), weight)
    if not keep.any() or _losses(test, residual, config).sum() >= _losses(test, test.log_ratio, config).sum():
        return DepthFields(none, errors[0], errors[0])
    return DepthFields(np.where(keep[:, None, None], fit_fields(samples, len(views), config), 0.0), *errors)


def depth_samples(
    fit: BAState,
    depth_scale: FloatArray,
    views: Sequence[FrameData],
    size: tuple[int, int],
    config: FieldConfig = FIELDS,
) -> DepthSamples:
    """Samples of points that several keyframes see with small errors; arguments as of `estimate_fields`."""
    observations = fit.observations
    assert observations.depth is not None
    usable = (fit.errors < config.points.good_px) & (observations.depth > 0) & (fit.depth > 0)
    usable &= fit.views_of_points[observations.point] >= config.points.min_views
    camera, point = observations.camera[usable], observations.point[usable]
    ratio = np.log(fit.depth[usable] / (observations.depth[usable] * depth_scale[camera]))
    extent = np.array([view.extent or (0, 0, *size) for view in views])[camera]
    xy = (observations.pixel[usable] - extent[:, :2]) / extent[:, 2:]
    variance = config.depth_sigma**2 + (config.points.pixel_sigma / np.maximum(parallax_px(fit)[usable], 1e-6)) ** 2
    return DepthSamples(camera, point, xy, ratio, variance)


def fit_fields(samples: DepthSamples, keyframes: int, config: FieldConfig = FIELDS) -> FloatArray:
    """Fields [keyframes, GRID, GRID]; 0 with too few samples."""
    fields = np.zeros((keyframes, GRID**2))
    for k, mine in enumerate(rows_by(samples.camera, keyframes)):
        if len(mine) >= config.points.min_points:
            fields[k] = _fit_field(_basis(samples.xy[mine]), samples.log_ratio[mine], samples.variance[mine], config)
    return fields.reshape(-1, GRID, GRID)


def _fit_field(basis: FloatArray, value: FloatArray, variance: FloatArray, config: FieldConfig) -> FloatArray:
    """Nodes [GRID * GRID] by iteratively reweighted least squares, with a Cauchy loss."""
    nodes: FloatArray = np.zeros(basis.shape[1])
    prior = _prior_information(config)
    for _ in range(config.rounds):
        loss = (value - basis @ nodes) ** 2 * (variance / (2 * config.depth_sigma) ** 2)
        weight = config.points.independent / (variance + loss)
        weighted = basis * weight[:, None]
        nodes = np.asarray(np.linalg.solve(basis.T @ weighted + prior, weighted.T @ value), np.float64)
    return nodes


def _prior_information(config: FieldConfig) -> FloatArray:
    """Information matrix [GRID * GRID, GRID * GRID] of the priors on nodes and their differences."""
    along = np.diff(np.eye(GRID), axis=0)
    steps = np.concatenate([np.kron(np.eye(GRID), along), np.kron(along, np.eye(GRID))])
    return np.asarray(np.eye(GRID**2) / config.node_sigma**2 + steps.T @ steps / config.step_sigma**2)


def _basis(xy: FloatArray) -> FloatArray:
    """Bilinear weights [O, GRID * GRID] of the nodes at positions [O, 2]."""
    (column, right), (row, down) = weights(xy[:, 0]), weights(xy[:, 1])
    basis, which, first = np.zeros((len(xy), GRID**2)), np.arange(len(xy)), row * GRID + column
    basis[which, first], basis[which, first + 1] = (1 - right) * (1 - down), right * (1 - down)
    basis[which, first + GRID], basis[which, first + GRID + 1] = (1 - right) * down, right * down
    return basis


def _values_at(fields: FloatArray, samples: DepthSamples) -> FloatArray:
    """Values [O] of fields [K, GRID, GRID] at the samples."""
    return np.asarray((_basis(samples.xy) * fields.reshape(len(fields), -1)[samples.camera]).sum(axis=1))


def _improves(test: DepthSamples, fields: FloatArray, config: FieldConfig) -> NDArray[np.bool_]:
    """Mask [K] of keyframes where the fields reduce the loss of held-out samples, of a keyframe and those around it."""
    count = len(fields)

    residuals = test.log_ratio, test.log_ratio - _values_at(fields, test)
    losses = [np.bincount(test.camera, _losses(test, residual, config), count) for residual in residuals]
    number, before, after = (_around(each, config) for each in (np.bincount(test.camera, minlength=count), *losses))
    return np.asarray((number >= config.min_test_points) & (after < (1 - config.min_gain) * before))


def _losses(samples: DepthSamples, residual: FloatArray, config: FieldConfig) -> FloatArray:
    """Bounded losses [O] of log residuals [O], weighted by inverse variance."""
    square = residual**2
    return np.asarray(square / (square + (2 * config.depth_sigma) ** 2) * config.depth_sigma**2 / samples.variance)


def _agrees(
    fit: BAState,
    depth_scale: FloatArray,
    views: Sequence[FrameData],
    size: tuple[int, int],
    fields: FloatArray,
    config: FieldConfig,
) -> NDArray[np.bool_]:
    """Mask [K] of keyframes whose depth agrees with their neighbours as well with the fields as without.

    All are false if the agreement over the video decreases.
    """
    plain = [view.grid.scaled(scale) for view, scale in zip(views, depth_scale.tolist(), strict=True)]
    better = [_corrected(grid, field, view, size) for grid, field, view in zip(plain, fields, views, strict=True)]
    scene, between = fit.scene, np.zeros((2, len(views) - 1))
    forward = [(k, k + 1) for k in range(len(views) - 1)]
    both_ways = forward, [(b, a) for a, b in forward]
    for row, grids in enumerate((plain, better)):
        maps = DepthMaps.of(scene.camera_model, grids, np.ones(len(views)))
        for pairs in both_ways:
            ratios = maps.common_log_ratios(scene.camera_model, scene.T_world_camera, pairs)
            medians = np.array([float(np.median(np.abs(each))) if len(each) else 0.0 for each in ratios])
            between[row] += medians
    difference = np.zeros((2, len(views)))
    difference[:, 1:] += between
    difference[:, :-1] += between
    before, after = (_around(row, config) for row in difference)
    return np.asarray((after <= (1 + config.max_cost) * before) & (difference[1].sum() <= difference[0].sum()))


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


def _around(values: NDArray[np.number], config: FieldConfig) -> FloatArray:
    """Sums [K] over each keyframe and those around it."""
    total = np.convolve(values, np.ones(2 * config.around + 1))[config.around : config.around + len(values)]
    return np.asarray(total, np.float64)


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
    return np.asarray(((1 - share) * nodes[left] + share * nodes[right]).clip(-MAX_NODE, MAX_NODE), np.float16)
