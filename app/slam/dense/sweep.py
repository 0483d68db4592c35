"""Plane sweeps about a prior depth (Collins 1996): each pixel's best inverse depth by correlation with source views.

The cost of a hypothesis is 1 - ZNCC over a small window, from 0 to 1, as the mean over the best source views, so that a
view where the point is hidden does not count.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stream_recon.app.slam.dense.arrays import Array, Arrays
from stream_recon.app.slam.dense.config import StereoConfig, SweepConfig, SweepRange

OUTSIDE = 1.02
"""Cost of a hypothesis outside the source image, just above the largest correlation cost."""


@dataclass(frozen=True)
class Sources:
    """Source views at the size of a sweep, and the `pixel_transfers` to them from the reference view."""

    grey: Sequence[Array]  # n images [h, w]
    P: Array  # [n, 3, 4]

    def some(self, first: int, count: int) -> "Sources":
        chosen = slice(first, first + count)
        return Sources(self.grey[chosen], self.P[chosen])


@dataclass(frozen=True)
class SweepResult:
    """Best inverse depth of each pixel [h, w]."""

    inverse_depth: Array
    cost: Array
    """Cost of the best hypothesis."""
    step: Array
    """Step of inverse depth, a number."""


def pixel_centres(arrays: Arrays, size: tuple[int, int]) -> tuple[Array, Array]:
    """Coordinates x and y [h, w] of the centres of an image's pixels."""
    x, y = np.meshgrid(np.arange(size[0], dtype=np.float32) + 0.5, np.arange(size[1], dtype=np.float32) + 0.5)
    return arrays.constant(x), arrays.constant(y)


def sweep(
    arrays: Arrays, grey: Array, sources: Sources, prior_inverse: Array, search: SweepRange, config: SweepConfig
) -> SweepResult:
    """Best inverse depths of the reference image ``grey`` about ``prior_inverse`` [h, w], all positive."""
    height, width = grey.shape
    x, y = pixel_centres(arrays, (width, height))
    at_once = arrays.views_at_once
    groups = [_Group.of(arrays, sources.some(n, at_once), x, y) for n in range(0, len(sources.grey), at_once)]
    rates = arrays.concatenate([group.pixels_per_inverse(arrays, prior_inverse, config.probe_step) for group in groups])
    step = 1 / arrays.maximum(rates.max(), 1e-9)
    window = _ReferenceWindow.of(arrays, grey, config)
    low, high = prior_inverse * search.lowest, prior_inverse * search.highest
    middle = search.steps // 2
    at_prior = [group.projected(prior_inverse) for group in groups]
    costs = []
    for first in range(0, search.steps, arrays.steps_at_once):
        offsets = np.arange(first, min(first + arrays.steps_at_once, search.steps), dtype=np.float32) - middle
        change = (arrays.constant(offsets) * step)[:, None, None]
        inverse = prior_inverse[None] + change
        within = (inverse >= low[None]) & (inverse <= high[None])
        rows = np.s_[..., arrays.rows(within, config.radius), :]
        part = window.part(rows)
        best: list[Array] = []
        inside: Array | None = None
        for group, start in zip(groups, at_prior, strict=True):
            positions = group.positions(arrays, [axis[rows] for axis in start], change)
            score, visible = _scores(arrays, part, group, positions, config)
            for number in range(score.shape[0]):
                inside = visible[number] if inside is None else inside + visible[number]
                best = _sorted_in(arrays, best, score[number], config.best_views)
        assert inside is not None
        cost = OUTSIDE - arrays.to_float(within[rows]) * _mean_of_best(arrays, best, inside, config.best_views)
        costs.append(arrays.padded_rows(cost, rows, within, OUTSIDE))
    return _winner(arrays, arrays.concatenate(costs), prior_inverse, step, search)


@dataclass(frozen=True)
class _ReferenceWindow:
    """The reference image with the means and the reciprocal deviations of its windows [h, w]."""

    grey: Array
    mean: Array
    reciprocal: Array

    @classmethod
    def of(cls, arrays: Arrays, grey: Array, config: SweepConfig) -> "_ReferenceWindow":
        mean = arrays.box(grey, config.radius)
        variance = arrays.maximum(arrays.box(grey * grey, config.radius) - mean * mean, 0.0) + config.noise_variance
        return cls(grey, mean, 1 / arrays.sqrt(variance))

    def part(self, rows: tuple[Any, ...]) -> "_ReferenceWindow":
        """The window in some rows, an index of the arrays."""
        return _ReferenceWindow(self.grey[rows], self.mean[rows], self.reciprocal[rows])


@dataclass(frozen=True)
class _Group:
    """Source views [n, h', w'] that are computed at once, with their projections of the reference's pixels."""

    grey: Array
    rays: list[Array]
    """``P (p, 0)`` of each pixel p, three arrays [n, 1, h, w]."""
    v: list[Array]
    """The last columns of ``P``, three arrays [n, 1, 1, 1]."""

    @classmethod
    def of(cls, arrays: Arrays, sources: Sources, x: Array, y: Array) -> "_Group":
        P = sources.P[..., None, None, None]
        rays = [P[:, k, 0] * x[:1] + (P[:, k, 1] * y[:, :1] + P[:, k, 2]) for k in range(3)]
        starts = [P[:, k, 3] for k in range(3)]
        # From here on, coordinates count from the centre of the first pixel, as `Arrays.sample` needs them.
        for parts in (rays, starts):
            parts[0], parts[1] = parts[0] - 0.5 * parts[2], parts[1] - 0.5 * parts[2]
        return cls(arrays.stack(list(sources.grey)), rays, starts)

    def projected(self, inverse: Array, rays: Sequence[Array] | None = None) -> list[Array]:
        """Homogeneous coordinates, three arrays [n, 1, h, w], of points with inverse depths [h, w]."""
        return [ray + inverse * v for ray, v in zip(rays or self.rays, self.v, strict=True)]

    def positions(self, arrays: Arrays, start: Sequence[Array], change: Array | float) -> tuple[Array, Array]:
        """Coordinates [n, k, h, w] in the source images where inverse depth changes by ``change`` [k, 1, 1].

        ``start``: `projected` points.
        """
        reciprocal = 1 / arrays.maximum(start[2] + change * self.v[2], 1e-6)
        return (start[0] + change * self.v[0]) * reciprocal, (start[1] + change * self.v[1]) * reciprocal

    def pixels_per_inverse(self, arrays: Arrays, inverse: Array, every: int) -> Array:
        """Median displacement [n] in each source image for a change of inverse depth, in pixels per unit.

        ``every``: pixels between those that count.
        """
        probe = np.s_[..., every // 3 :: every, every // 3 :: every]
        coarse, some = [axis[probe] for axis in self.rays], inverse[None][probe]
        start = self.projected(some, coarse)
        x0, y0 = self.positions(arrays, start, 0.0)
        x1, y1 = self.positions(arrays, start, some * 0.01)
        rate = arrays.sqrt((x1 - x0) * (x1 - x0) + (y1 - y0) * (y1 - y0)) / (some * 0.01)
        return arrays.median(rate.reshape(len(rate), -1))


def _scores(
    arrays: Arrays, window: _ReferenceWindow, group: _Group, positions: tuple[Array, Array], config: SweepConfig
) -> tuple[Array, Array]:
    """Scores [n, k, h, w] of hypotheses in source views, and whether they lie inside the images (1 or 0).

    A score is `OUTSIDE` less the cost: 0 outside the image.
    """
    (u, v), radius = positions, config.radius
    warped = arrays.sample(group.grey, u, v)
    height, width = group.grey.shape[-2:]
    inside = arrays.to_float((u >= 0) & (v >= 0) & (u <= width - 1) & (v <= height - 1))
    other = arrays.box(warped, radius)
    covariance = arrays.box(warped * window.grey, radius) - other * window.mean
    # Rounding makes the first part negative by less than the noise.
    variance = arrays.box(warped * warped, radius) - other * other + config.noise_variance
    zncc = covariance * window.reciprocal / arrays.sqrt(variance)
    return (arrays.maximum(zncc, 0.0) + (OUTSIDE - 1)) * inside, inside


def _sorted_in(arrays: Arrays, best: list[Array], score: Array, count: int) -> list[Array]:
    """The ``count`` highest scores in descending order, with one more view's scores."""
    highest = []
    for earlier in best:
        highest.append(arrays.maximum(earlier, score))
        if len(highest) < count:
            score = arrays.minimum(earlier, score)
    return highest if len(highest) == count else [*highest, score]


def _mean_of_best(arrays: Arrays, best: Sequence[Array], inside: Array, count: int) -> Array:
    """Mean of the ``count`` highest scores where more views see the point, else of the better half."""
    total = best[0]
    result = total
    for number, score in enumerate(best[1:], start=2):
        total = total + score
        # Two of three or four views, three of more.
        needed = 2 * number - 1 if number < count else count + 1
        result = arrays.where(inside >= needed, total * (1 / number), result)
    return result


def _winner(arrays: Arrays, cost: Array, prior_inverse: Array, step: Array, search: SweepRange) -> SweepResult:
    """The least cost of each pixel, with a parabola between steps."""
    count, middle = cost.shape[0], search.steps // 2
    away = np.minimum(
        np.abs(np.arange(count, dtype=np.float32) - middle) * np.float32(search.distance_cost),
        20 * search.distance_cost,
    )
    smooth = arrays.box(cost, 1) + arrays.constant(away.astype(np.float32))[:, None, None]
    best = arrays.argmin(smooth)
    centre = arrays.pick(smooth, best)
    left = arrays.pick(smooth, (best - 1).clip(0, count - 1))
    right = arrays.pick(smooth, (best + 1).clip(0, count - 1))
    curvature = left - 2 * centre + right
    is_inner = (best > 0) & (best < count - 1) & (curvature > 1e-6)
    part = arrays.where(is_inner, 0.5 * (left - right) / arrays.maximum(curvature, 1e-6), 0.0)
    index = arrays.to_float(best)
    inverse = arrays.maximum(prior_inverse + (index - middle + part) * step, 1e-9)
    return SweepResult(inverse, arrays.pick(cost, best), step)


def swept(arrays: Arrays, prior: Array, levels: Sequence[tuple[Array, Sources]], config: SweepConfig) -> SweepResult:
    """Sweeps about a prior depth [h, w] at several sizes, from coarse to fine: images [h, w] and their sources."""
    (grey, sources), *finer = levels
    about = 1 / arrays.repeated(prior, (grey.shape[1], grey.shape[0]))
    result = sweep(arrays, grey, sources, about, config.coarse, config)
    for grey, sources in finer:
        size, inverse = (grey.shape[1], grey.shape[0]), result.inverse_depth
        smooth, nearest = arrays.enlarged(inverse, size), arrays.repeated(inverse, size)
        # Between two surfaces, a mean of both depths is on neither.
        about = arrays.where(abs(smooth - nearest) < result.step, smooth, nearest)
        result = sweep(arrays, grey, sources, about, config.fine, config)
    return result


def with_other(
    arrays: Arrays, grey: Array, sources: Sources, result: SweepResult, other: Array, config: StereoConfig
) -> SweepResult:
    """The result with another depth [h, w], 0 where unknown, where images agree clearly better with it."""
    about = arrays.where(other > 0, 1 / arrays.maximum(other, 1e-9), result.inverse_depth)
    candidate = sweep(arrays, grey, sources, about, config.other_surfaces.sweep, config.sweep)
    is_better = (other > 0) & (candidate.cost < result.cost - config.other_surfaces.min_gain)
    is_better = is_better & (abs(candidate.inverse_depth - result.inverse_depth) > 2 * result.step)
    return SweepResult(
        arrays.where(is_better, candidate.inverse_depth, result.inverse_depth),
        arrays.where(is_better, candidate.cost, result.cost),
        result.step,
    )


def sides(side: int, coarse_side: int) -> list[int]:
    """Longer sides of the sweeps' images, from about ``coarse_side`` to ``side``, each at most twice the last one."""
    lengths = [side]
    while lengths[0] > coarse_side * 1.2:
        lengths.insert(0, max((lengths[0] + 1) // 2, coarse_side))
    return lengths
