"""Fusion of measured depth with a prior: the logarithm of their ratio is spread from measured pixels over the image.

It minimises sum w (x - r)^2 + lambda sum links (dx)^2 with links that stop at edges of image and depth, as in the fast
bilateral solver (Barron and Poole 2016), by conjugate gradients from coarse to fine.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from stream_recon.app.slam.dense.arrays import Array, Arrays

GREY_EDGE = 8.0
"""Difference of grey values that divides a link by e."""
DEPTH_EDGE = 0.03
"""Relative difference of depth that divides a link by e."""
MIN_LINK = 1e-3
"""Least link, so that every pixel is reached."""
PRIOR_VARIANCE = 2e-4
"""Weight of a ratio of 1 for a variance of 1: the prior counts the more, the less measured depth varies about it."""
DAMPING = (1e-4, 0.1)
"""Bounds of that weight, against 1 for a measurement: where the prior is good, regions without measurements keep it."""
LEVELS = 5
ITERATIONS = 12
"""Steps of conjugate gradients a level."""
ROBUST_RATIO = 0.04
"""Difference of a measured log ratio from its surroundings at which its weight is halved in the second round."""


@dataclass(frozen=True)
class Links:
    """Weights [h, w] of the differences to the right and to the lower neighbour; 0 in the last column and row."""

    right: Array
    down: Array


def links(arrays: Arrays, grey: Array, log_depth: Array, least: float = MIN_LINK) -> Links:
    """Links of an image and the logarithm of its prior depth; ``least``: added to each."""

    def between(first: Array, second: Array, near: Array, far: Array) -> Array:
        return arrays.exp(-abs(first - second) / GREY_EDGE - abs(near - far) / DEPTH_EDGE) + least

    right, down = arrays.zeros_like(grey), arrays.zeros_like(grey)
    left, after = np.s_[..., :, :-1], np.s_[..., :, 1:]
    above, below = np.s_[..., :-1, :], np.s_[..., 1:, :]
    right[left] = between(grey[left], grey[after], log_depth[left], log_depth[after])
    down[above] = between(grey[above], grey[below], log_depth[above], log_depth[below])
    return Links(right, down)


@dataclass(frozen=True)
class Measured:
    """Log ratios [h, w] of measured to prior depth, and their weights, 0 where nothing is measured."""

    ratio: Array
    weight: Array


class Interpolator:
    """Spreads log ratios over the image of one view."""

    def __init__(
        self, arrays: Arrays, grey: Array, prior: Array, smoothness: float, least_link: float = MIN_LINK
    ) -> None:
        """
        Args:
            grey, prior: image and prior depth [h, w]; pixels without prior depth have any positive value.
            smoothness: weight of the links against that of a measurement.
            least_link: see `links`.
        """
        self._arrays, self._smoothness = arrays, smoothness
        log_depth = arrays.log(arrays.maximum(prior, 1e-6))
        self.levels = [links(arrays, grey, log_depth, least_link)]
        """Links at the image's size, at half of it, and so on."""
        for _ in range(LEVELS - 1):
            if min(grey.shape[-2:]) < 8:
                break
            grey, log_depth = halved(arrays, grey), halved(arrays, log_depth)
            self.levels.append(links(arrays, grey, log_depth, least_link))

    def spread(self, measured: Measured, damping: Array | None = None) -> Array:
        """Log ratios [h, w] of all pixels. ``damping``: weight of a ratio of 0; None: by the variance of the ratios."""
        arrays = self._arrays
        ratio, weight = measured.ratio, measured.weight
        if damping is None:
            spread = arrays.total(weight * ratio * ratio) / arrays.maximum(arrays.total(weight), 1e-9)
            damping = arrays.maximum(PRIOR_VARIANCE / arrays.maximum(spread, 1e-9), DAMPING[0])
            damping = arrays.minimum(damping, DAMPING[1])
        pyramid = [measured]
        for _ in self.levels[1:]:
            fine = pyramid[-1]
            weight = halved(arrays, fine.weight)
            ratio = halved(arrays, fine.ratio * fine.weight) / arrays.maximum(weight, 1e-9)
            pyramid.append(Measured(ratio, weight * 4))
        found: Array | None = None
        for level, data in zip(self.levels[::-1], pyramid[::-1], strict=True):
            size = data.ratio.shape[-1], data.ratio.shape[-2]
            start = arrays.zeros_like(data.ratio) if found is None else arrays.enlarged(found, size)
            found = self._solved(start, data, level, damping)
        assert found is not None
        return found

    def spread_robustly(self, measured: Measured, outlier: Array | float = 1.0) -> Array:
        """`spread` in two rounds; the second one gives measurements that differ from their surroundings less weight.

        ``outlier``: how much a difference counts, [h, w] or a number.
        """
        first = self.spread(measured)
        difference = (measured.ratio - first) / ROBUST_RATIO
        weight = measured.weight / (1 + difference * difference * outlier)
        return self.spread(Measured(measured.ratio, weight))

    def _solved(self, x: Array, data: Measured, level: Links, damping: Array) -> Array:
        """Log ratios of one level, from ``x``."""
        arrays, diagonal = self._arrays, data.weight + damping
        right, down = level.right * self._smoothness, level.down * self._smoothness

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
        return conjugate_gradients(arrays, applied, scale, data.weight * data.ratio, x, ITERATIONS)


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
