"""A frame's smooth correction of depth: a coarse grid of logarithms, over its depth map.

A field is [`GRID`, `GRID`] float16, rows from top to bottom: nodes lie evenly over the depth map from border to border,
its corners on the map's. Between nodes it is bilinear; beyond the border it is what it is there. Depth is multiplied
with its exponential, so a field of zeros changes nothing, bit for bit, and no field makes a depth negative.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Field = NDArray[np.float16]

GRID = 7
MOST = 1.0
"""No node is further from 0: depth is corrected, not replaced."""


def no_field() -> Field:
    """One that changes nothing."""
    return np.zeros((GRID, GRID), np.float16)


def checked(nodes: Sequence[Sequence[float]] | NDArray[np.floating]) -> Field:
    """A field of these nodes. Raises ValueError, TypeError: not [`GRID`, `GRID`] numbers up to `MOST`."""
    field = np.array(nodes, np.float64)
    if field.shape != (GRID, GRID) or not (np.abs(field) <= MOST).all():
        raise ValueError("a depth field is none")
    return field.astype(np.float16)


def weights(at: NDArray[np.floating]) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """Of places [N], 0 to 1 along an axis: the node before each [N], and the share of the one after it [N]."""
    place = np.clip(np.asarray(at, np.float64), 0, 1) * (GRID - 1)
    node = np.minimum(place.astype(np.intp), GRID - 2)
    return node, place - node


def factors(field: Field, shape: tuple[int, int]) -> NDArray[np.float32]:
    """What the depth [h, w] of a map of that ``shape`` is to be multiplied with."""
    rows, columns = (_rows_of_weights((np.arange(count) + 0.5) / count) for count in shape)
    return np.asarray(np.exp(rows @ field.astype(np.float32) @ columns.T))


def factors_at(
    fields: NDArray[np.floating], xy: NDArray[np.floating], which: NDArray[np.integer] | int = 0
) -> NDArray[np.float32]:
    """What depths [N] are to be multiplied with at places [N, 2], x and y from 0 to 1 over the depth map.

    ``fields``: [k, `GRID`, `GRID`], of which ``which`` [N] names each place's.
    """
    (column, right), (row, down) = weights(xy[:, 0]), weights(xy[:, 1])
    flat, first = np.asarray(fields, np.float64).reshape(-1, GRID**2), row * GRID + column
    above = (1 - right) * flat[which, first] + right * flat[which, first + 1]
    below = (1 - right) * flat[which, first + GRID] + right * flat[which, first + GRID + 1]
    return np.asarray(np.exp((1 - down) * above + down * below), np.float32)


def corrected(
    depth: NDArray[np.float32], depth_scale: float, field: NDArray[np.floating] | None
) -> NDArray[np.float32]:
    """Depth [h, w] times the scale and what the field says."""
    scaled = depth if depth_scale == 1 else depth * np.float32(depth_scale)
    return (
        scaled if field is None else scaled * factors(np.asarray(field, np.float16), (depth.shape[0], depth.shape[1]))
    )


def _rows_of_weights(at: NDArray[np.floating]) -> NDArray[np.float32]:
    """[N, `GRID`] of places [N] along an axis."""
    node, share = weights(at)
    found = np.zeros((len(at), GRID), np.float32)
    which = np.arange(len(at))
    found[which, node], found[which, node + 1] = 1 - share, share
    return found
