"""Planes between measured pixels: walls, cupboards and tables without texture, whose depth no stereo measures.

Inverse depth is linear over a plane. So it is spread from measured pixels with a smoothness of second order, as in
total generalised variation (Bredies et al., 2010) but with squares: with a slope s at each pixel, it minimises

    sum w (q - m)^2 + sum links (dq - s)^2 + sum links |ds|^2 + sum e (q - q0)^2

by conjugate gradients from coarse to fine, at half of the size. Links stop at edges of image and depth. The weight e of
the depth q0 found so far is large where the network's depth is good, and where no measured pixel is on the surface.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from stream_recon.app.slam.dense.arrays import Array, Arrays
from stream_recon.app.slam.dense.fusion import Interpolator, Links, Measured, halved

ITERATIONS = 12
"""Steps of conjugate gradients at half size; up to four times as many on coarser levels."""
SLOPE, BEND = 20.0, 3000.0
"""Weights of a difference from the slope, and of a change of slope, against 1 for a measurement."""
CLOSED_LINK = 1e-5
"""Least link: over an edge, planes hold nothing."""
PRIOR_WEIGHT, PRIOR_VARIANCE, PRIOR_POWER = 1e-2, 2e-3, 2
"""Weight of the depth found so far where the network's log depth has this variance about measured depth, and how it
falls with that variance."""
PRIOR_BOUNDS = (3e-3, 0.3)
"""Bounds of that weight."""
UNREACHED_WEIGHT = 0.3
"""Further weight of it where no measurement is on the same surface."""
REACH, REACH_DAMPING = 10.0, 1e-3
"""Smoothness and damping of the question how far a measurement reaches: about 100 pixels."""
MIN_MEASURED = 50
"""Fewest measured pixels that tell how good the network's depth is."""
MAX_CHANGE = 0.5
"""Largest change of log depth."""


@dataclass(frozen=True)
class Anchors:
    """Depths [..., h, w] that are known, and their weights, 0 where nothing is known."""

    depth: Array
    weight: Array


def flattened(arrays: Arrays, grey: Array, depth: Array, error: Array, anchors: Anchors) -> Array:
    """The depth [..., h, w] with planes between its anchors.

    Args:
        grey: image [..., h, w].
        error: log ratios of measured to prior depth; 0 where the anchors have no weight.
    """
    size = depth.shape[-1], depth.shape[-2]
    unit = 1 / arrays.maximum(arrays.total(1 / depth) * (1 / (size[0] * size[1])), 1e-12)
    weight = halved(arrays, anchors.weight)
    grey, present = halved(arrays, grey), halved(arrays, unit / depth)
    # Ratios, not depths: four pixels at an edge have different depths.
    value = present * halved(arrays, anchors.weight * depth / arrays.maximum(anchors.depth, 1e-9))
    interpolator = Interpolator(arrays, grey, unit / present, REACH, least_link=CLOSED_LINK)
    is_known = arrays.where(weight > 0, 1.0, 0.0)
    reached = interpolator.spread(Measured(is_known, weight * 4), REACH_DAMPING)
    missing = arrays.minimum(arrays.maximum(1 - reached, 0.0), 1.0)
    prior = _prior_weight(arrays, error, anchors.weight) + missing * UNREACHED_WEIGHT
    total = weight + prior
    inverse = _spread(arrays, interpolator.levels, (value + prior * present) / total, total * 4)
    change = arrays.log(present / arrays.maximum(inverse, 1e-6))
    change = arrays.minimum(arrays.maximum(change, -MAX_CHANGE), MAX_CHANGE)
    change = arrays.where(arrays.total(weight) > 0, change, 0.0)
    return depth * arrays.exp(arrays.enlarged(change, size))


def _prior_weight(arrays: Arrays, error: Array, weight: Array) -> Array:
    """Weight [..., 1, 1] of the depth found so far, by the variance of the prior about measured depth."""
    count = arrays.total(arrays.where(weight > 0, 1.0, 0.0))
    variance = arrays.total(error * error) / arrays.maximum(count, 1.0)
    variance = arrays.where(count >= MIN_MEASURED, variance, 0.0)
    ratio = PRIOR_VARIANCE / arrays.maximum(variance, 1e-6)
    return arrays.minimum(arrays.maximum(PRIOR_WEIGHT * ratio**PRIOR_POWER, PRIOR_BOUNDS[0]), PRIOR_BOUNDS[1])


Field = tuple[Array, Array, Array]
"""Inverse depths and their slopes to the right and down, each [..., h, w]."""


def _spread(arrays: Arrays, levels: list[Links], value: Array, weight: Array) -> Array:
    """Inverse depths [..., h, w] from values with weights, both of the size of the first level."""
    pyramid = [(value, weight)]
    for _ in levels[1:]:
        fine, fine_weight = pyramid[-1]
        coarse = halved(arrays, fine_weight)
        pyramid.append((halved(arrays, fine * fine_weight) / coarse, coarse * 4))
    value, weight = pyramid[-1]
    zero = arrays.zeros_like(value)
    field: Field = (zero + arrays.total(value * weight) / arrays.total(weight), zero, zero)
    for number in reversed(range(len(levels))):
        value, weight = pyramid[number]
        size = value.shape[-1], value.shape[-2]
        if field[0].shape != value.shape:
            q, right, down = (arrays.enlarged(part, size) for part in field)
            # Slopes are in units of a pixel.
            field = q, right * 0.5, down * 0.5
        system = _System(levels[number], weight, BEND / 4**number)
        field = _solved(arrays, system, field, weight * value, ITERATIONS * min(2**number, 4))
    return field[0]


def _solved(arrays: Arrays, system: "_System", x: Field, right_side: Array, iterations: int) -> Field:
    """Conjugate gradients from ``x``, preconditioned by the diagonal."""
    scale = tuple(1 / arrays.maximum(part, 1e-12) for part in system.diagonal())
    image = system.applied(x)
    residual = right_side - image[0], -image[1], -image[2]
    z = _plus(None, scale, residual)
    direction, product = z, _product(arrays, residual, z)
    for _ in range(iterations):
        image = system.applied(direction)
        step = product / arrays.maximum(_product(arrays, direction, image), 1e-30)
        x = _plus(x, step, direction)
        residual = _plus(residual, -step, image)
        z = _plus(None, scale, residual)
        before, product = product, _product(arrays, residual, z)
        direction = _plus(z, product / arrays.maximum(before, 1e-30), direction)
    return x


def _plus(first: Field | None, factor: Array | tuple[Array, ...], second: Field) -> Field:
    """The sum of a field, or zero, and another one times a factor, or times one factor for each part."""
    factors = factor if isinstance(factor, tuple) else (factor, factor, factor)
    parts = tuple(f * s for f, s in zip(factors, second, strict=True))
    if first is not None:
        parts = tuple(a + b for a, b in zip(first, parts, strict=True))
    return parts[0], parts[1], parts[2]


def _product(arrays: Arrays, first: Field, second: Field) -> Array:
    return arrays.total(first[0] * second[0] + first[1] * second[1] + first[2] * second[2])


@dataclass(frozen=True)
class _System:
    """The symmetric matrix of one level."""

    links: Links
    weight: Array
    bend: float
    """Weight of a change of slope."""

    def _directions(self) -> Iterator[tuple[Array, int, tuple[object, ...], tuple[object, ...]]]:
        """For right and down: the links, the slope along them, and the pixels at both of their ends."""
        every, first, last = slice(None), slice(None, -1), slice(1, None)
        yield self.links.right[..., :, :-1], 1, (..., every, first), (..., every, last)
        yield self.links.down[..., :-1, :], 2, (..., first, every), (..., last, every)

    def applied(self, x: Field) -> Field:
        q = x[0]
        found: Field = (self.weight * q, q * np.float32(0), q * np.float32(0))
        for link, number, i, j in self._directions():
            along, across = x[number], x[3 - number]
            flow = (SLOPE * link) * (q[j] - q[i] - 0.5 * (along[i] + along[j]))
            found[0][i] -= flow
            found[0][j] += flow
            half, bend = 0.5 * flow, self.bend * link
            change = bend * (along[j] - along[i])
            found[number][i] -= half + change
            found[number][j] += change - half
            change = bend * (across[j] - across[i])
            found[3 - number][i] -= change
            found[3 - number][j] += change
        return found

    def diagonal(self) -> Field:
        found: Field = (self.weight * 1, self.weight * np.float32(0), self.weight * np.float32(0))
        for link, number, i, j in self._directions():
            for end in (i, j):
                found[0][end] += SLOPE * link
                found[number][end] += (0.25 * SLOPE + self.bend) * link
                found[3 - number][end] += self.bend * link
        return found
