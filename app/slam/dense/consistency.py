"""Agreement of a depth map with its neighbours' maps: there and back within a pixel, and at the same depth."""

from collections.abc import Sequence
from dataclasses import dataclass

from stream_recon.app.slam.dense.arrays import Array, Arrays
from stream_recon.app.slam.dense.sweep import pixel_centres
from stream_recon.app.slam.dense.views import PixelTransfer

FREE_SPACE = 0.08
"""A point is contradicted where another view sees a surface farther away by more than this share of its depth."""


@dataclass(frozen=True)
class Tolerance:
    """Largest differences of two maps that agree."""

    pixels: float
    """Distance of a point, projected into the other map and back with its depth there, from its pixel."""
    relative: Array | float
    """Difference of depth as a share, [h, w] or a number."""


@dataclass(frozen=True)
class NeighbourMap:
    """Depth map of another view [h, w], 0 where unknown, and the transfers to it and back."""

    depth: Array
    there: PixelTransfer
    back: PixelTransfer


@dataclass(frozen=True)
class Support:
    """How many neighbours agree with each pixel [h, w], how many contradict, and the mean depth of those who agree."""

    agreeing: Array
    contradicting: Array
    depth: Array
    """Harmonic mean of the depths, with the pixel's own one; 0 where the pixel has no depth."""


def support(arrays: Arrays, depth: Array, neighbours: Sequence[NeighbourMap], tolerance: Tolerance) -> Support:
    """Support of a depth map [h, w] by its neighbours' maps."""
    x, y = pixel_centres(arrays, (depth.shape[1], depth.shape[0]))
    known, bound = depth > 0, depth * tolerance.relative
    agreeing, contradicting = arrays.zeros_like(depth), arrays.zeros_like(depth)
    total = 1 / arrays.maximum(depth, 1e-9)
    for other in neighbours:
        column, row, expected = projected(arrays, other.there, x, y, depth)
        found = arrays.take(other.depth, column, row)
        # The other map's depth is that of its pixel's centre.
        x_back, y_back, z_back = projected(
            arrays, other.back, arrays.floor(column) + 0.5, arrays.floor(row) + 0.5, found
        )
        dx, dy, dz = x_back - x, y_back - y, z_back - depth
        seen = known & (found > 0) & (expected > 0)
        agrees = seen & (dx * dx + dy * dy < tolerance.pixels**2) & (dz * dz < bound * bound)
        agreeing = agreeing + arrays.to_float(agrees)
        total = total + arrays.where(agrees, 1 / arrays.maximum(z_back, 1e-9), 0.0)
        contradicting = contradicting + arrays.to_float(seen & (found > expected * (1 + FREE_SPACE)))
    return Support(agreeing, contradicting, arrays.where(known, (agreeing + 1) / total, 0.0))


def projected(arrays: Arrays, transfer: PixelTransfer, x: Array, y: Array, depth: Array) -> tuple[Array, Array, Array]:
    """Pixel coordinates and depth in another view of pixels (x, y) with depth."""
    M, v = transfer.M, [float(value) for value in transfer.v]
    local = [(x * float(M[k, 0]) + y * float(M[k, 1]) + float(M[k, 2])) * depth + v[k] for k in range(3)]
    reciprocal = 1 / arrays.maximum(local[2], 1e-6)
    return local[0] * reciprocal, local[1] * reciprocal, local[2]
