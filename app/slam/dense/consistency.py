"""Agreement of depth maps with their neighbours' maps: there and back within a pixel, and at the same depth."""

from collections.abc import Sequence
from dataclasses import dataclass

from stream_recon.app.slam.dense.arrays import Array, Arrays
from stream_recon.app.slam.dense.sweep import pixel_centres


@dataclass(frozen=True)
class Neighbours:
    """Depth maps of k other views for each of n views of one size, and the `pixel_transfers` between them."""

    depths: Sequence[Array]  # k arrays [n, h', w'], 0 where unknown
    forward: Array  # [n, k, 3, 4]
    backward: Array  # [n, k, 3, 4]


@dataclass(frozen=True)
class Support:
    """How many neighbours agree with each pixel [n, h, w] or contradict, and the mean depth of those that agree."""

    agreeing: Array
    contradicting: Array
    depth: Array
    """Harmonic mean of the depths, with the pixel's own one; 0 where the pixel has no depth."""


@dataclass(frozen=True)
class Bounds:
    """Up to where, and from where, a neighbour agrees and contradicts."""

    pixels: float
    """Distance of a point, projected into another map and back with its depth there, from its pixel."""
    relative: Array | float
    """Difference of depth as a share, [n, h, w] or a number."""
    free_space: float
    """Factor of a point's depth from which another view sees through it."""


def support(arrays: Arrays, depth: Array, neighbours: Neighbours, bounds: Bounds) -> Support:
    """Support of depth maps [n, h, w] by other views' maps."""
    size = depth.shape[-1], depth.shape[-2]
    if not neighbours.depths:
        none = arrays.zeros_like(depth)
        return Support(none, none, depth)

    def compared(depth: Array, bound: Array, forward: Array, backward: Array, *others: Array) -> tuple[Array, ...]:
        x, y = pixel_centres(arrays, size)
        x, y = x[:1], y[:, :1]
        known = depth > 0
        agreeing, contradicting = arrays.zeros_like(depth), arrays.zeros_like(depth)
        total = 1 / arrays.maximum(depth, 1e-9)
        for number, other in enumerate(others):
            column, row, expected = _project(arrays, forward[:, number], x, y, depth)
            # The other map's depth is that of its pixel's centre.
            centre = arrays.floor(column) + 0.5, arrays.floor(row) + 0.5
            z = arrays.take(other, *centre)
            x_back, y_back, z_back = _project(arrays, backward[:, number], *centre, z)
            dx, dy, dz = x_back - x, y_back - y, z_back - depth
            comparable = known & (z > 0) & (expected > 0)
            agrees = comparable & (dx * dx + dy * dy < bounds.pixels**2) & (dz * dz < bound * bound)
            agreeing = agreeing + arrays.to_float(agrees)
            total = total + arrays.where(agrees, 1 / arrays.maximum(z_back, 1e-9), 0.0)
            contradicting = contradicting + arrays.to_float(comparable & (z > expected * bounds.free_space))
        return agreeing, contradicting, arrays.where(known, (agreeing + 1) / total, 0.0)

    key, bound = ("support", bounds.pixels, bounds.free_space), depth * bounds.relative
    inputs = depth, bound, neighbours.forward, neighbours.backward, *neighbours.depths
    return Support(*arrays.batched(key, compared, *inputs))


def _project(arrays: Arrays, P: Array, x: Array, y: Array, depth: Array) -> tuple[Array, Array, Array]:
    """Coordinates and depths [n, h, w] in the other views of pixels with depth [n, h, w].

    ``P``: [n, 3, 4]. ``x``, ``y``: coordinates of the pixels, that can be broadcast to the depth.
    """
    P = P[..., None, None]
    local = [(P[:, k, 0] * x + (P[:, k, 1] * y + P[:, k, 2])) * depth + P[:, k, 3] for k in range(3)]
    reciprocal = 1 / arrays.maximum(local[2], 1e-6)
    return local[0] * reciprocal, local[1] * reciprocal, local[2]
