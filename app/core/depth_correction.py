"""Smooth depth correction of a frame: a coarse log-scale grid over its depth map.

A field is [`GRID`, `GRID`] float16, rows from top to bottom. Its nodes lie evenly over the depth map, the outer ones on
the borders. Values between nodes are bilinear, beyond the border those of the border. Depth is multiplied by the
exponential, so that a field of zeros changes no bit and depth stays positive.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Field = NDArray[np.float16]

GRID = 7
"""Nodes along each side: the network's depth errors vary slowly over the image."""
MAX_NODE = 1.0
"""Largest absolute value of a node, a factor of e: larger errors are not smooth scale errors."""


def validated_field(nodes: Sequence[Sequence[float]] | NDArray[np.floating]) -> Field:
    """Field with the given nodes. Raises ValueError, TypeError: not [`GRID`, `GRID`] numbers up to `MAX_NODE`."""
    field = np.array(nodes, np.float64)
    if field.shape != (GRID, GRID) or not (np.abs(field) <= MAX_NODE).all():
        raise ValueError(f"a depth field needs {GRID}x{GRID} numbers up to {MAX_NODE:g}")
    return field.astype(np.float16)


def weights(position: NDArray[np.floating]) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """Node before each position [N] (0 to 1 along an axis), and weight [N] of the node after it."""
    scaled = np.clip(np.asarray(position, np.float64), 0, 1) * (GRID - 1)
    node = np.minimum(scaled.astype(np.intp), GRID - 2)
    return node, scaled - node


def depth_factors(field: Field, shape: tuple[int, int]) -> NDArray[np.float32]:
    """Factors [h, w] for a depth map of the given ``shape``."""
    rows, columns = (_weight_rows((np.arange(count) + 0.5) / count) for count in shape)
    return np.asarray(np.exp(rows @ field.astype(np.float32) @ columns.T))


def depth_factors_at(
    fields: NDArray[np.floating], xy: NDArray[np.floating], which: NDArray[np.integer] | int = 0
) -> NDArray[np.float32]:
    """Factors [N] at positions [N, 2], x and y from 0 to 1 over the depth map.

    ``fields``: [k, `GRID`, `GRID`]; ``which``: index [N] of each position's field.
    """
    (column, right), (row, down) = weights(xy[:, 0]), weights(xy[:, 1])
    flat, first = np.asarray(fields, np.float64).reshape(-1, GRID**2), row * GRID + column
    above = (1 - right) * flat[which, first] + right * flat[which, first + 1]
    below = (1 - right) * flat[which, first + GRID] + right * flat[which, first + GRID + 1]
    return np.asarray(np.exp((1 - down) * above + down * below), np.float32)


def correct_depth(
    depth: NDArray[np.float32], depth_scale: float, field: NDArray[np.floating] | None
) -> NDArray[np.float32]:
    """Depth [h, w] times the scale and the field's factors."""
    scaled = depth if depth_scale == 1 else depth * np.float32(depth_scale)
    if field is None:
        return scaled
    return scaled * depth_factors(np.asarray(field, np.float16), (depth.shape[0], depth.shape[1]))


def _weight_rows(position: NDArray[np.floating]) -> NDArray[np.float32]:
    """Bilinear weights [N, `GRID`] of positions [N] along an axis."""
    node, share = weights(position)
    rows = np.zeros((len(position), GRID), np.float32)
    index = np.arange(len(position))
    rows[index, node], rows[index, node + 1] = 1 - share, share
    return rows
