"""What keyframes' depth is to be corrected by besides one scale each: smooth fields, by the points that they see.

The network's depth is wrong by parts of the image. Triangulated points say by how much, where they are: the logs of
their depths against the network's are fitted by a coarse bilinear grid, robustly, with a prior of no correction and of
little change from node to node. Each point counts by its own parallax, and none for much: what is wrong with a depth
map within a cell is alike for all of a cell's points. So a keyframe whose points have no parallax keeps its one scale.

Whether a field is kept is said by what it was not fitted to: points held out, and, where there are none, by how well
the depth maps of neighbours agree.

What each keyframe's depth map is to be multiplied with, by the tracks that it sees.

Tracks say it at a few places, and a depth map is wrong by places: what they say is uncertain by more than their number
suggests. So a frame's scale goes only as far from what is usual in the video as the spread over the frames is larger
than that uncertainty: shrinkage with a prior taken from the frames themselves (empirical Bayes; Efron and Morris 1973).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.depth_correction import GRID, MOST, depth_factors_at, weights
from stream_recon.app.core.transforms import invert_pose
from stream_recon.app.slam.ba.problem import CameraModel
from stream_recon.app.slam.ba.robust_ba import BAState
from stream_recon.app.slam.frame_data import DepthGrid, FrameData, reproject

FloatArray = NDArray[np.float64]

MIN_VIEWS = 3
"""Of a track, before it says anything of depth."""
MIN_POINTS = 20
GOOD_PX = 2.0
INDEPENDENT_SAMPLES = 25.0
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
            variance[k] = spread**2 / min(len(mine), INDEPENDENT_SAMPLES)
    return np.exp(shrunk(value, variance))


def shrunk(value: FloatArray, variance: FloatArray) -> FloatArray:
    """Values [N], each with a variance of its own, drawn towards their mean; NaN stays."""
    known = np.isfinite(value)
    if known.sum() < 2:
        return value
    mean = np.average(value[known], weights=1 / np.maximum(variance[known], 1e-8))
    spread = max(float(np.var(value[known]) - np.mean(variance[known])), 0.0)
    return np.asarray(mean + (value - mean) * spread / np.maximum(spread + variance, 1e-12))


NODE_SIGMA, STEP_SIGMA = 0.2, 0.1
"""Of the log of depth: how far a node is from 0, and from its neighbours."""
DEPTH_SIGMA = 0.08
"""Of the log of a depth about a smooth field; errors of twice this size count half."""
PIXEL_SIGMA = 1.5
"""Of a point's place across its rays, poses and lens included."""
INDEPENDENT = 0.3
"""Each point counts for so much of one: errors are alike nearby."""
ROUNDS = 5
HELD_OUT = 5
"""Every so-manieth point is kept for the judgement."""
AROUND = 3
"""Keyframes on either side that are judged together: one alone sees few points that were held out."""
FEWEST_JUDGING = 20
GAIN = 0.03
"""By such a share held-out points have to fit better, or it may be chance."""
COST = 0.05
"""By such a share neighbours may agree less where the video's agree more as a whole. Geometry that is itself off by
more than the network makes them agree less: by a fifth over a plane seen from above, where the network was .01 off."""


@dataclass(frozen=True)
class Seen:
    """Points as keyframes see them."""

    camera: NDArray[np.integer]  # [O]
    point: NDArray[np.integer]  # [O]
    xy: FloatArray  # [O, 2], 0 to 1 over the depth map
    log_ratio: FloatArray  # [O], of the point's depth to the network's
    variance: FloatArray  # [O]

    def take(self, which: NDArray[np.bool_]) -> "Seen":
        """Some of them."""
        return Seen(self.camera[which], self.point[which], self.xy[which], self.log_ratio[which], self.variance[which])


@dataclass(frozen=True)
class Judged:
    """Fields of the keyframes, and what held-out points say of them."""

    nodes: FloatArray  # [K, GRID, GRID], 0 where none is kept
    error_before: float | None = None
    error: float | None = None
    """Medians of the absolute log of depth, weighted by what each says."""


def judged(fit: BAState, depth_scale: FloatArray, views: Sequence[FrameData], size: tuple[int, int]) -> Judged:
    """Of all keyframes those fields that are better than none.

    Args:
        depth_scale: [K].
        views: the keyframes.
        size: width and height of the working image.
    """
    seen = seen_points(fit, depth_scale, views, size)
    none = np.zeros((len(views), GRID, GRID))
    kept_out = seen.point % HELD_OUT == HELD_OUT - 1
    judging = seen.take(kept_out)
    if not len(judging.camera):
        return Judged(none)
    tried = fitted(seen.take(~kept_out), len(views))
    keep = _fit_better(judging, tried) & _agree(fit, depth_scale, views, size, tried)
    off = judging.log_ratio - _at(tried * keep[:, None, None], judging)
    errors = _median(np.abs(judging.log_ratio), 1 / judging.variance), _median(np.abs(off), 1 / judging.variance)
    if not keep.any() or _misfit(judging, off).sum() >= _misfit(judging, judging.log_ratio).sum():
        return Judged(none, errors[0], errors[0])
    return Judged(np.where(keep[:, None, None], fitted(seen, len(views)), 0.0), *errors)


def seen_points(fit: BAState, depth_scale: FloatArray, views: Sequence[FrameData], size: tuple[int, int]) -> Seen:
    """What says something of depth: points that several keyframes see well."""
    seen = fit.observations
    assert seen.depth is not None
    usable = (fit.errors < GOOD_PX) & (seen.depth > 0) & (fit.depth > 0)
    usable &= fit.views_of_points[seen.point] >= MIN_VIEWS
    camera, point = seen.camera[usable], seen.point[usable]
    ratio = np.log(fit.depth[usable] / (seen.depth[usable] * depth_scale[camera]))
    extent = np.array([view.extent or (0, 0, *size) for view in views])[camera]
    xy = (seen.pixel[usable] - extent[:, :2]) / extent[:, 2:]
    variance = DEPTH_SIGMA**2 + (PIXEL_SIGMA / np.maximum(parallax_px(fit)[usable], 1e-6)) ** 2
    return Seen(camera, point, xy, ratio, variance)


def parallax_px(fit: BAState) -> FloatArray:
    """[O] by how many pixels the keyframes that see a point would see it elsewhere were its depth e times as much: root
    of the sum of squares over them, about their mean."""
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
    spread = np.sqrt(np.bincount(seen.point, across, count))
    return np.asarray(fit.scene.lens.focal * spread[seen.point] / distance)


def fitted(seen: Seen, keyframes: int) -> FloatArray:
    """[keyframes, GRID, GRID] the fields; 0 where too few points are seen."""
    fields = np.zeros((keyframes, GRID**2))
    order = np.argsort(seen.camera, kind="stable")
    ends = np.searchsorted(seen.camera[order], np.arange(1, keyframes + 1))
    for k, mine in enumerate(np.split(order, ends)[:keyframes]):
        if len(mine) >= MIN_POINTS:
            fields[k] = _fitted_one(_basis(seen.xy[mine]), seen.log_ratio[mine], seen.variance[mine])
    return fields.reshape(-1, GRID, GRID)


def _fitted_one(basis: FloatArray, value: FloatArray, variance: FloatArray) -> FloatArray:
    """Nodes [GRID * GRID] by iteratively reweighted least squares, with a Cauchy loss."""
    nodes: FloatArray = np.zeros(basis.shape[1])
    for _ in range(ROUNDS):
        weight = INDEPENDENT / (variance + (value - basis @ nodes) ** 2 * (variance / (2 * DEPTH_SIGMA) ** 2))
        weighted = basis * weight[:, None]
        nodes = np.asarray(np.linalg.solve(basis.T @ weighted + _PRIOR, weighted.T @ value), np.float64)
    return nodes


def _prior() -> FloatArray:
    """Information [GRID * GRID, GRID * GRID] of what is usual."""
    along = np.diff(np.eye(GRID), axis=0)
    steps = np.concatenate([np.kron(np.eye(GRID), along), np.kron(along, np.eye(GRID))])
    return np.asarray(np.eye(GRID**2) / NODE_SIGMA**2 + steps.T @ steps / STEP_SIGMA**2)


_PRIOR = _prior()


def _basis(xy: FloatArray) -> FloatArray:
    """[O, GRID * GRID] the nodes' shares at places [O, 2]."""
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


def _at(fields: FloatArray, seen: Seen) -> FloatArray:
    """What fields [K, GRID, GRID] say at the points [O]."""
    return np.asarray((_basis(seen.xy) * fields.reshape(len(fields), -1)[seen.camera]).sum(axis=1))


def _fit_better(judging: Seen, fields: FloatArray) -> NDArray[np.bool_]:
    """[K] where points that were held out, seen by a keyframe or those around it, fit better with the fields."""
    count = len(fields)

    def sums(off: FloatArray) -> FloatArray:
        return _around(np.asarray(np.bincount(judging.camera, _misfit(judging, off), count), np.float64))

    before, after = sums(judging.log_ratio), sums(judging.log_ratio - _at(fields, judging))
    number = _around(np.asarray(np.bincount(judging.camera, minlength=count), np.float64))
    return np.asarray((number >= FEWEST_JUDGING) & (after < (1 - GAIN) * before))


def _misfit(seen: Seen, off: FloatArray) -> FloatArray:
    """How badly logs of depth that are ``off`` [O] fit, each bounded, weighted by what the point says."""
    return np.asarray(off**2 / (off**2 + (2 * DEPTH_SIGMA) ** 2) * DEPTH_SIGMA**2 / seen.variance)


def _agree(
    fit: BAState, depth_scale: FloatArray, views: Sequence[FrameData], size: tuple[int, int], fields: FloatArray
) -> NDArray[np.bool_]:
    """[K] where the depth of a keyframe and its neighbours agrees as well with the fields as without; none where that
    of the whole video does not."""
    plain = [view.grid.scaled(scale) for view, scale in zip(views, depth_scale.tolist(), strict=True)]
    better = [_corrected(grid, field, view, size) for grid, field, view in zip(plain, fields, views, strict=True)]
    T, lens, off = fit.scene.T_world_camera, fit.scene.lens, np.zeros((2, len(views)))
    for a in range(len(views) - 1):
        for row, grids in enumerate((plain, better)):
            between = _disagreement(lens, T, grids, a, a + 1), _disagreement(lens, T, grids, a + 1, a)
            off[row, a : a + 2] += sum(between)
    before, after = (_around(row) for row in off)
    return np.asarray((after <= (1 + COST) * before) & (off[1].sum() <= off[0].sum()))


def _disagreement(lens: CameraModel, T: FloatArray, grids: Sequence[DepthGrid], a: int, b: int) -> float:
    """Median of the log of a keyframe's depths as another one has them; 0 where they see nothing in common."""
    uv, z = grids[a].pixels()
    there, depth = reproject(lens, uv, z, invert_pose(T[b]) @ T[a])
    seen = grids[b].at(np.nan_to_num(there, nan=-1e6))
    both = (seen > 0) & (depth > 0)
    return float(np.median(np.abs(np.log(depth[both] / seen[both])))) if both.any() else 0.0


def _corrected(grid: DepthGrid, field: FloatArray, view: FrameData, size: tuple[int, int]) -> DepthGrid:
    left, top, width, height = view.extent or (0, 0, *size)
    x, y = np.meshgrid((grid.u - left) / width, (grid.v - top) / height)
    by = depth_factors_at(field[None], np.stack([x.ravel(), y.ravel()], axis=1))
    return DepthGrid(grid.u, grid.v, grid.z * by.reshape(grid.z.shape))


def _median(values: FloatArray, weight: FloatArray) -> float:
    """Weighted."""
    order = np.argsort(values)
    total = np.cumsum(weight[order])
    return float(values[order[np.searchsorted(total, 0.5 * total[-1])]])


def _around(values: FloatArray) -> FloatArray:
    """Sums [K] over keyframes and those around each."""
    return np.convolve(values, np.ones(2 * AROUND + 1))[AROUND : AROUND + len(values)]


def of_all(nodes: FloatArray, positions: Sequence[int], segment: NDArray[np.integer]) -> NDArray[np.float16]:
    """Fields [N, GRID, GRID] of all frames from the keyframes' [K, ...]: between two keyframes their mix.

    Args:
        positions: [K], of the keyframes among all frames, ascending.
        stretch: [N]; over the border of one nothing is mixed.
    """
    at = np.asarray(positions)
    frames = np.arange(len(segment))
    right = np.clip(np.searchsorted(at, frames), 1, max(len(at) - 1, 1)).clip(max=len(at) - 1)
    left = np.maximum(right - 1, 0)
    share = np.clip((frames - at[left]) / np.maximum(at[right] - at[left], 1), 0, 1)
    apart = segment[at[left]] != segment[at[right]]
    share = np.where(apart, segment[at[right]] == segment, share)[:, None, None]
    return np.asarray(((1 - share) * nodes[left] + share * nodes[right]).clip(-MOST, MOST), np.float16)
