"""Planes between measured pixels: walls, cupboards and tables without texture, whose depth no stereo measures.

Inverse depth is linear over a plane. So it is spread from measured pixels with a smoothness of second order, as in
total generalised variation (Bredies et al., 2010) but with squares: with a slope s at each pixel, it minimises

    sum w (q - m)^2 + sum links (dq - s)^2 + sum links |ds|^2 + sum e (q - q0)^2

by conjugate gradients from coarse to fine, at half of the size. Links stop at edges of image and depth. The weight e of
the depth q0 found so far is large where the network's depth is good, and where no measured pixel is on the surface.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from stream_recon.app.slam.dense.arrays import Array, Arrays
from stream_recon.app.slam.dense.config import PlaneConfig, StereoConfig
from stream_recon.app.slam.dense.interpolation import Interpolator, Links, MeasuredRatios, conjugate_gradients, halved


@dataclass(frozen=True)
class Anchors:
    """Depths [..., h, w] that are known, and their weights, 0 where nothing is known."""

    depth: Array
    weight: Array


def flattened(arrays: Arrays, grey: Array, depth: Array, error: Array, anchors: Anchors, config: StereoConfig) -> Array:
    """The depth [..., h, w] with planes between its anchors.

    Args:
        grey: image [..., h, w].
        error: log ratios of measured to prior depth; 0 where the anchors have no weight.
    """
    planes, size = config.planes, (depth.shape[-1], depth.shape[-2])
    unit = 1 / arrays.maximum(arrays.total(1 / depth) * (1 / (size[0] * size[1])), 1e-12)
    weight = halved(arrays, anchors.weight)
    grey, present = halved(arrays, grey), halved(arrays, unit / depth)
    # Ratios, not depths: four pixels at an edge have different depths.
    value = present * halved(arrays, anchors.weight * depth / arrays.maximum(anchors.depth, 1e-9))
    spreading = replace(config.interpolation, smoothness=planes.reach_smoothness, min_link=planes.min_link)
    interpolator = Interpolator(arrays, grey, unit / present, spreading)
    is_known = arrays.where(weight > 0, 1.0, 0.0)
    reached = interpolator.spread(MeasuredRatios(is_known, weight * 4), planes.reach_damping)
    missing = arrays.minimum(arrays.maximum(1 - reached, 0.0), 1.0)
    prior = _prior_weight(arrays, error, anchors.weight, planes) + missing * planes.unreached_weight
    total = weight + prior
    inverse = _spread(arrays, interpolator.levels, (value + prior * present) / total, total * 4, planes)
    change = arrays.log(present / arrays.maximum(inverse, 1e-6))
    change = arrays.minimum(arrays.maximum(change, -planes.max_change), planes.max_change)
    change = arrays.where(arrays.total(weight) > 0, change, 0.0)
    return depth * arrays.exp(arrays.enlarged(change, size))


def _prior_weight(arrays: Arrays, error: Array, weight: Array, config: PlaneConfig) -> Array:
    """Weight [..., 1, 1] of the depth found so far, by the variance of the prior about measured depth."""
    count = arrays.total(arrays.where(weight > 0, 1.0, 0.0))
    variance = arrays.total(error * error) / arrays.maximum(count, 1.0)
    variance = arrays.where(count >= config.min_measured, variance, 0.0)
    ratio = config.prior_variance / arrays.maximum(variance, 1e-6)
    prior = config.prior_weight * ratio**config.prior_power
    return arrays.minimum(arrays.maximum(prior, config.prior_bounds[0]), config.prior_bounds[1])


def _spread(arrays: Arrays, levels: list[Links], value: Array, weight: Array, config: PlaneConfig) -> Array:
    """Inverse depths [..., h, w] from values with weights, both of the size of the first level."""
    pyramid = [(value, weight)]
    for _ in levels[1:]:
        fine, fine_weight = pyramid[-1]
        coarse = halved(arrays, fine_weight)
        pyramid.append((halved(arrays, fine * fine_weight) / coarse, coarse * 4))
    value, weight = pyramid[-1]
    zero = arrays.zeros_like(value)
    # Inverse depths and their slopes to the right and down, one below the other: [..., 3 h, w].
    field = arrays.concatenate([zero + arrays.total(value * weight) / arrays.total(weight), zero, zero], -2)
    for number in reversed(range(len(levels))):
        value, weight = pyramid[number]
        size = value.shape[-1], value.shape[-2]
        if field.shape[-1] != size[0] or field.shape[-2] != 3 * size[1]:
            q, right, down = (arrays.enlarged(part, size) for part in _parts(field))
            # Slopes are in units of a pixel.
            field = arrays.concatenate([q, right * 0.5, down * 0.5], -2)
        system = _System.of(arrays, levels[number], weight, config.slope, config.bend / 4**number)
        nothing = arrays.zeros_like(value)
        right_side = arrays.concatenate([weight * value, nothing, nothing], -2)
        iterations = config.iterations * min(2**number, 4)
        field = conjugate_gradients(arrays, system.applied, system.diagonal(), right_side, field, iterations)
    return _parts(field)[0]


def _parts(field: Array) -> tuple[Array, Array, Array]:
    """Views [..., h, w] of inverse depths and their slopes to the right and down."""
    height = field.shape[-2] // 3
    return field[..., :height, :], field[..., height : 2 * height, :], field[..., 2 * height :, :]


@dataclass(frozen=True)
class _System:
    """The symmetric matrix of one level, for fields [..., 3 h, w]."""

    arrays: Arrays
    weight: Array
    links: tuple[Array, Array]
    """Weights of the differences from the slopes to the right and down."""
    bends: tuple[Array, Array]
    """Weights of the changes of slope to the right and down."""

    @classmethod
    def of(cls, arrays: Arrays, links: Links, weight: Array, slope: float, bend: float) -> "_System":
        """``slope``, ``bend``: weights of a difference from the slope, and of a change of slope."""
        right, down = links.right[..., :, :-1], links.down[..., :-1, :]
        return cls(arrays, weight, (slope * right, slope * down), (bend * right, bend * down))

    def _directions(self) -> Iterator[tuple[Array, Array, int, tuple[object, ...], tuple[object, ...]]]:
        """For right and down: the weights, the slope along them, and the pixels at both of their ends."""
        every, first, last = slice(None), slice(None, -1), slice(1, None)
        yield self.links[0], self.bends[0], 1, (..., every, first), (..., every, last)
        yield self.links[1], self.bends[1], 2, (..., first, every), (..., last, every)

    def applied(self, x: Array) -> Array:
        parts, product = _parts(x), self.arrays.zeros_like(x)
        totals, q = _parts(product), parts[0]
        totals[0][...] = self.weight * q
        for link, bend, number, i, j in self._directions():
            along, across = parts[number], parts[3 - number]
            half = (0.5 * link) * (q[j] - q[i] - 0.5 * (along[i] + along[j]))
            flow = half + half
            totals[0][i] -= flow
            totals[0][j] += flow
            change = bend * (along[j] - along[i])
            totals[number][i] -= half + change
            totals[number][j] += change - half
            change = bend * (across[j] - across[i])
            totals[3 - number][i] -= change
            totals[3 - number][j] += change
        return product

    def diagonal(self) -> Array:
        """The diagonal of the matrix [..., 3 h, w]."""
        parts: list[Array] = [self.weight * 1, self.weight * np.float32(0), self.weight * np.float32(0)]
        for link, bend, number, i, j in self._directions():
            for end in (i, j):
                parts[0][end] += link
                parts[number][end] += 0.25 * link + bend
                parts[3 - number][end] += bend
        return self.arrays.concatenate(parts, -2)
