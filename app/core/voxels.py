"""Thinning of points: one for each voxel, at once or over a whole run."""

import math

import numpy as np
from numpy.typing import NDArray

TABLE_BITS = 22
"""A table of 2^22 voxels, 32 MB."""


class VoxelTable:
    """Remembers voxels that have a point already, in memory that never grows.

    Rule: each voxel has one place in a table of ``2 ** bits``, found by hashing; a later voxel with the same place
    takes it over. A voxel that was displaced and is seen again gets a second point. So the thinning is exact but
    for hash collisions while the scene is small against the table, and fades for the longest unseen places after
    that. Coordinates wrap at 2^21 voxels along an axis.
    """

    def __init__(self, voxel: float, bits: int = TABLE_BITS) -> None:
        assert voxel > 0 and 1 <= bits < 40
        self._voxel = voxel
        self._bits = bits
        self._keys = np.zeros(1 << bits, np.uint64)

    def take_new(self, xyz: NDArray[np.float32]) -> NDArray[np.intp]:
        """Ascending indices of the points [N, 3] that are the first in their voxel, and remember these voxels."""
        return self.take_first(self.keys(xyz))

    def take_first(self, keys: NDArray[np.uint64]) -> NDArray[np.intp]:
        """`take_new` for the voxels [N] of points."""
        # Looking first leaves little to do: most points of a frame are in voxels seen before.
        unknown = self._unknown(keys)
        indices: NDArray[np.intp] = unknown[first_of_each(keys[unknown])]
        self._remember(keys[indices])
        return indices

    def keys(self, xyz: NDArray[np.float32]) -> NDArray[np.uint64]:
        """The voxels [N] of points [N, 3], each as one number. May be called by any thread."""
        # The top bit tells a key from an empty place.
        keys = np.ones(len(xyz), np.uint64)
        for axis in range(3):
            cells = _cells(xyz[:, axis], self._voxel).astype(np.int64)
            keys <<= np.uint64(21)
            keys |= cells.view(np.uint64) & np.uint64((1 << 21) - 1)
        return keys

    def take_new_keys(self, keys: NDArray[np.uint64]) -> NDArray[np.intp]:
        """`take_new` for voxels [N] of which no two are the same."""
        unknown = self._unknown(keys)
        self._remember(keys[unknown])
        return unknown

    def parts(self, keys: NDArray[np.uint64], bits: int) -> list[NDArray[np.intp]]:
        """Ascending indices of voxels [N] in each of ``2 ** bits`` parts of the table.

        Threads that each keep to one part may use `take_new_keys` side by side.
        """
        part = _places(keys, bits).astype(np.uint8) if bits else np.zeros(len(keys), np.uint8)
        order = np.argsort(part, kind="stable")
        return np.split(order, np.searchsorted(part[order], np.arange(1, 1 << bits)))

    def _unknown(self, keys: NDArray[np.uint64]) -> NDArray[np.intp]:
        return np.flatnonzero(self._keys[_places(keys, self._bits)] != keys)

    def _remember(self, keys: NDArray[np.uint64]) -> None:
        self._keys[_places(keys, self._bits)] = keys


def first_of_each(keys: NDArray[np.uint64]) -> NDArray[np.intp]:
    """Ascending indices of the first of each value [N]. By hashing: a stable sort takes twice as long."""
    bits = len(keys).bit_length() + 1
    places = _places(keys, bits)
    holders = np.empty(1 << bits, np.intp)
    first, pending = [], np.arange(len(keys))
    while len(pending):
        here = places[pending]
        # Backwards, since of several values for one place the last one stays.
        holders[here[::-1]] = pending[::-1]
        held = holders[here]
        first.append(pending[held == pending])
        # A place's own value is done with; another one that hashes to the same place waits for its turn.
        pending = pending[keys[held] != keys[pending]]
    return np.sort(np.concatenate(first)) if first else pending


def _places(keys: NDArray[np.uint64], bits: int) -> NDArray[np.int64]:
    """Fibonacci hashing (Knuth, volume 3, 6.4): the high bits of a product with 2^64 / golden ratio."""
    places: NDArray[np.uint64] = (keys * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(64 - bits)
    # By signed numbers numpy indexes faster, and lets other threads work meanwhile.
    return places.view(np.int64)


def voxel_first(xyz: NDArray[np.floating], voxel: float) -> NDArray[np.intp]:
    """Ascending indices of the first point in each cell of a grid with edge ``voxel`` through the origin."""
    assert voxel > 0, voxel
    if not len(xyz):
        return np.empty(0, np.intp)
    # Axis by axis: numpy's reductions over rows of three take many times as long.
    cells = [_cells(xyz[:, axis], voxel) for axis in range(3)]
    lowest = [float(c.min()) for c in cells]
    assert np.isfinite(lowest).all(), "points must be finite"
    spans = [float(c.max()) - low + 1 for c, low in zip(cells, lowest, strict=True)]
    if math.prod(spans) < 2.0**62:
        keys = np.zeros(len(xyz), np.int64)
        for c, low, span in zip(cells, lowest, spans, strict=True):
            keys *= int(span)
            keys += (c - low).astype(np.int64)
        return first_of_each(keys.view(np.uint64))
    # Too many cells for one integer each: a stray point far away, or a tiny voxel.
    first = np.unique(np.stack(cells, axis=1), axis=0, return_index=True)[1]
    first.sort()
    return first


def _cells(coordinates: NDArray[np.floating], voxel: float) -> NDArray[np.float64]:
    cells: NDArray[np.float64] = np.floor(np.divide(coordinates, voxel, dtype=np.float64))
    return cells
