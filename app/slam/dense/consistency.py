"""Agreement of a depth map with its neighbours' maps: there and back within a pixel, and at the same depth."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

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
    for first in range(0, len(neighbours), arrays.views_at_once):
        group = neighbours[first : first + arrays.views_at_once]
        there, back = (
            _Transfers.of(arrays, transfers) for transfers in zip(*((n.there, n.back) for n in group), strict=True)
        )
        column, row, expected = there.project(arrays, x, y, depth)
        found = arrays.take(arrays.stack([n.depth for n in group]), column, row)
        # The other map's depth is that of its pixel's centre.
        x_back, y_back, z_back = back.project(arrays, arrays.floor(column) + 0.5, arrays.floor(row) + 0.5, found)
        dx, dy, dz = x_back - x, y_back - y, z_back - depth
        seen = known & (found > 0) & (expected > 0)
        agrees = seen & (dx * dx + dy * dy < tolerance.pixels**2) & (dz * dz < bound * bound)
        agreeing = agreeing + arrays.to_float(agrees).sum(0)
        total = total + arrays.where(agrees, 1 / arrays.maximum(z_back, 1e-9), 0.0).sum(0)
        contradicting = contradicting + arrays.to_float(seen & (found > expected * (1 + FREE_SPACE))).sum(0)
    return Support(agreeing, contradicting, arrays.where(known, (agreeing + 1) / total, 0.0))


@dataclass(frozen=True)
class _Transfers:
    """Transfers to several views, as arrays of the backend."""

    M: Array  # [n, 3, 3, 1, 1]
    v: Array  # [n, 3, 1, 1]

    @classmethod
    def of(cls, arrays: Arrays, transfers: Sequence[PixelTransfer]) -> "_Transfers":
        M, v = (np.array([getattr(transfer, name) for transfer in transfers]) for name in ("M", "v"))
        return cls(arrays.array(M)[..., None, None], arrays.array(v)[..., None, None])

    def project(self, arrays: Arrays, x: Array, y: Array, depth: Array) -> tuple[Array, Array, Array]:
        """Coordinates and depths [n, h, w] in the other views of pixels (x, y) with depth [h, w] or [n, h, w]."""
        M, v = self.M, self.v
        local = [(M[:, k, 0] * x + M[:, k, 1] * y + M[:, k, 2]) * depth + v[:, k] for k in range(3)]
        reciprocal = 1 / arrays.maximum(local[2], 1e-6)
        return local[0] * reciprocal, local[1] * reciprocal, local[2]
