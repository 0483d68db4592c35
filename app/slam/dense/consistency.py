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
class Transfers:
    """Transfers to several views and back, see `PixelTransfer`, as arrays of the backend."""

    M: Array  # [n, 3, 3]
    v: Array  # [n, 3]
    M_back: Array
    v_back: Array

    @classmethod
    def of(cls, arrays: Arrays, there: Sequence[PixelTransfer], back: Sequence[PixelTransfer]) -> "Transfers":
        def stacked(transfers: Sequence[PixelTransfer], name: str, shape: tuple[int, ...]) -> Array:
            return arrays.array(np.array([getattr(t, name) for t in transfers], np.float32).reshape(-1, *shape))

        return cls(
            stacked(there, "M", (3, 3)), stacked(there, "v", (3,)), stacked(back, "M", (3, 3)), stacked(back, "v", (3,))
        )


@dataclass(frozen=True)
class Support:
    """How many neighbours agree with each pixel [h, w], how many contradict, and the mean depth of those who agree."""

    agreeing: Array
    contradicting: Array
    depth: Array
    """Harmonic mean of the depths, with the pixel's own one; 0 where the pixel has no depth."""


def support(
    arrays: Arrays, depth: Array, others: Sequence[Array], transfers: Transfers, pixels: float, relative: Array | float
) -> Support:
    """Support of a depth map [h, w] by other views' maps.

    Args:
        others: depth maps of the n other views, 0 where unknown.
        pixels: largest distance of a point, projected into another map and back with its depth there, from its pixel.
        relative: largest difference of depth as a share, [h, w] or a number.
    """
    size = depth.shape[1], depth.shape[0]
    if not len(others):
        none = arrays.zeros_like(depth)
        return Support(none, none, depth)

    def found(depth: Array, bound: Array, *rest: Array) -> tuple[Array, ...]:
        transfers, others = rest[:4], rest[4:]
        x, y = pixel_centres(arrays, size)
        x, y = x[:1], y[:, :1]
        known = depth > 0
        agreeing, contradicting = arrays.zeros_like(depth), arrays.zeros_like(depth)
        total = 1 / arrays.maximum(depth, 1e-9)
        for first in range(0, len(others), arrays.views_at_once):
            some = slice(first, first + arrays.views_at_once)
            M, v, M_back, v_back = (each[some] for each in transfers)
            column, row, expected = _project(arrays, M, v, x, y, depth)
            # The other map's depth is that of its pixel's centre.
            centre = arrays.floor(column) + 0.5, arrays.floor(row) + 0.5
            z = arrays.take(arrays.stack(list(others[some])), *centre)
            x_back, y_back, z_back = _project(arrays, M_back, v_back, *centre, z)
            dx, dy, dz = x_back - x, y_back - y, z_back - depth
            seen = known & (z > 0) & (expected > 0)
            agrees = seen & (dx * dx + dy * dy < pixels**2) & (dz * dz < bound * bound)
            agreeing = agreeing + arrays.to_float(agrees).sum(0)
            total = total + arrays.where(agrees, 1 / arrays.maximum(z_back, 1e-9), 0.0).sum(0)
            contradicting = contradicting + arrays.to_float(seen & (z > expected * (1 + FREE_SPACE))).sum(0)
        return agreeing, contradicting, arrays.where(known, (agreeing + 1) / total, 0.0)

    matrices = transfers.M, transfers.v, transfers.M_back, transfers.v_back
    return Support(*arrays.replayed(f"support {pixels}", found, depth, depth * relative, *matrices, *others))


def _project(arrays: Arrays, M: Array, v: Array, x: Array, y: Array, depth: Array) -> tuple[Array, Array, Array]:
    """Coordinates and depths [n, h, w] in the other views of pixels with depth [h, w] or [n, h, w].

    ``x``, ``y``: coordinates of the pixels, that can be broadcast to the depth.
    """
    M, v = M[..., None, None], v[..., None, None]
    local = [(M[:, k, 0] * x + (M[:, k, 1] * y + M[:, k, 2])) * depth + v[:, k] for k in range(3)]
    reciprocal = 1 / arrays.maximum(local[2], 1e-6)
    return local[0] * reciprocal, local[1] * reciprocal, local[2]
