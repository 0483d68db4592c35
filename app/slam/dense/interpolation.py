"""Edge-aware interpolation of depth: the log ratio of measured to prior depth is spread over the image.

It minimises sum w (x - r)^2 + lambda sum links (dx)^2 with links that stop at edges of image and depth, as in the fast
bilateral solver (Barron and Poole 2016), by conjugate gradients from coarse to fine.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from stream_recon.app.slam.dense.arrays import Array, Arrays
from stream_recon.app.slam.dense.config import InterpolationConfig, ReflectionConfig


@dataclass(frozen=True)
class Links:
    """Weights [h, w] of the differences to the right and to the lower neighbour; 0 in the last column and row."""

    right: Array
    down: Array


def links(arrays: Arrays, grey: Array, log_depth: Array, config: InterpolationConfig) -> Links:
    """Links of an image and the logarithm of its prior depth."""

    def between(first: Array, second: Array, near: Array, far: Array) -> Array:
        edge = abs(first - second) / config.grey_edge + abs(near - far) / config.depth_edge
        return arrays.exp(-edge) + config.min_link

    right, down = arrays.zeros_like(grey), arrays.zeros_like(grey)
    left, after = np.s_[..., :, :-1], np.s_[..., :, 1:]
    above, below = np.s_[..., :-1, :], np.s_[..., 1:, :]
    right[left] = between(grey[left], grey[after], log_depth[left], log_depth[after])
    down[above] = between(grey[above], grey[below], log_depth[above], log_depth[below])
    return Links(right, down)


@dataclass(frozen=True)
class MeasuredRatios:
    """Log ratios [h, w] of measured to prior depth, and their weights, 0 where nothing is measured."""

    ratio: Array
    weight: Array


def without_reflections(arrays: Arrays, measured: MeasuredRatios, config: ReflectionConfig) -> Array:
    """Weights [..., h, w] of measured log ratios: less for those that are behind the prior and alone.

    A glossy surface without texture shows things in front of it as if they were behind it. Stereo measures such depth
    consistently in all views, but only at the few pixels where the reflection has texture. Holes and windows are behind
    their surroundings, too, but have many pixels that agree, or the network's depth is bad there.
    """
    ratio, weight = measured.ratio, measured.weight
    certain, (first, full) = arrays.minimum(weight, 1.0), config.behind
    mean = arrays.box(certain * ratio, config.radius) / arrays.maximum(arrays.box(certain, config.radius), 1e-9)
    share = arrays.box(arrays.where(abs(ratio - mean) < config.agreement, certain, 0.0), config.radius)
    alone = 1 - arrays.minimum(share * (1 / config.full_share), 1.0)
    behind = arrays.minimum(arrays.maximum((ratio - first) * (1 / (full - first)), 0.0), 1.0)
    variance = arrays.total(weight * ratio * ratio) / arrays.maximum(arrays.total(weight), 1e-9)
    trust = arrays.minimum(config.prior_variance / arrays.maximum(variance, 1e-9), 1.0)
    return weight * (1 - alone * behind * (trust * trust))


class Interpolator:
    """Spreads log ratios over the image of one view."""

    def __init__(self, arrays: Arrays, grey: Array, prior: Array, config: InterpolationConfig) -> None:
        """``grey``, ``prior``: image and prior depth [h, w]; pixels without prior depth have any positive value."""
        self._arrays, self._config = arrays, config
        log_depth = arrays.log(arrays.maximum(prior, 1e-6))
        self.levels = [links(arrays, grey, log_depth, config)]
        """Links at the image's size, at half of it, and so on."""
        for _ in range(config.levels - 1):
            if min(grey.shape[-2:]) < 8:
                break
            grey, log_depth = halved(arrays, grey), halved(arrays, log_depth)
            self.levels.append(links(arrays, grey, log_depth, config))

    def spread(self, measured: MeasuredRatios, damping: Array | float | None = None) -> Array:
        """Log ratios [h, w] of all pixels. ``damping``: weight of a ratio of 0; None: by the variance of the ratios."""
        arrays, config = self._arrays, self._config
        ratio, weight = measured.ratio, measured.weight
        if damping is None:
            spread = arrays.total(weight * ratio * ratio) / arrays.maximum(arrays.total(weight), 1e-9)
            damping = arrays.maximum(config.prior_variance / arrays.maximum(spread, 1e-9), config.damping[0])
            damping = arrays.minimum(damping, config.damping[1])
        pyramid = [measured]
        for _ in self.levels[1:]:
            fine = pyramid[-1]
            weight = halved(arrays, fine.weight)
            ratio = halved(arrays, fine.ratio * fine.weight) / arrays.maximum(weight, 1e-9)
            pyramid.append(MeasuredRatios(ratio, weight * 4))
        solution: Array | None = None
        for level, data in zip(self.levels[::-1], pyramid[::-1], strict=True):
            size = data.ratio.shape[-1], data.ratio.shape[-2]
            start = arrays.zeros_like(data.ratio) if solution is None else arrays.enlarged(solution, size)
            solution = self._solved(start, data, level, damping)
        assert solution is not None
        return solution

    def spread_robustly(self, measured: MeasuredRatios, outlier: Array | float = 1.0) -> Array:
        """`spread` in two rounds; the second one gives measurements that differ from their surroundings less weight.

        ``outlier``: how much a difference counts, [h, w] or a number.
        """
        first = self.spread(measured)
        difference = (measured.ratio - first) / self._config.robust_ratio
        weight = measured.weight / (1 + difference * difference * outlier)
        return self.spread(MeasuredRatios(measured.ratio, weight))

    def _solved(self, x: Array, data: MeasuredRatios, level: Links, damping: Array | float) -> Array:
        """Log ratios of one level, from ``x``."""
        arrays, diagonal = self._arrays, data.weight + damping
        right, down = level.right * self._config.smoothness, level.down * self._config.smoothness

        def applied(v: Array) -> Array:
            total = diagonal * v
            flow = right[..., :, :-1] * (v[..., :, 1:] - v[..., :, :-1])
            total[..., :, :-1] -= flow
            total[..., :, 1:] += flow
            flow = down[..., :-1, :] * (v[..., 1:, :] - v[..., :-1, :])
            total[..., :-1, :] -= flow
            total[..., 1:, :] += flow
            return total

        scale = diagonal + right + down
        scale[..., :, 1:] += right[..., :, :-1]
        scale[..., 1:, :] += down[..., :-1, :]
        return conjugate_gradients(arrays, applied, scale, data.weight * data.ratio, x, self._config.iterations)


def conjugate_gradients(
    arrays: Arrays, applied: Callable[[Array], Array], diagonal: Array, right_side: Array, x: Array, iterations: int
) -> Array:
    """An approximate solution [..., h, w] of a linear system for each image, from ``x``.

    Args:
        applied: the product of the symmetric matrix with a vector [..., h, w].
        diagonal: of the matrix, which preconditions it.
    """
    inverse = 1 / arrays.maximum(diagonal, 1e-12)
    residual = right_side - applied(x)
    z = inverse * residual
    direction, product = z, arrays.product(residual, z)
    for _ in range(iterations):
        image = applied(direction)
        step = product / arrays.maximum(arrays.product(direction, image), 1e-30)
        x = arrays.plus(x, step, direction)
        residual = arrays.plus(residual, -step, image)
        z = inverse * residual
        before, product = product, arrays.product(residual, z)
        direction = arrays.plus(z, product / arrays.maximum(before, 1e-30), direction)
    return x


def halved(arrays: Arrays, image: Array) -> Array:
    """Means [..., h / 2, w / 2] of 2x2 pixels; an odd last row or column is doubled."""
    if image.shape[-1] % 2:
        image = _with_last(arrays, image, axis=-1)
    if image.shape[-2] % 2:
        image = _with_last(arrays, image, axis=-2)
    rows = image[..., ::2, :] + image[..., 1::2, :]
    return (rows[..., ::2] + rows[..., 1::2]) * 0.25


def _with_last(arrays: Arrays, image: Array, axis: int) -> Array:
    last = image[..., -1:] if axis == -1 else image[..., -1:, :]
    return arrays.concatenate([image, last], axis)
