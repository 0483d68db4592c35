"""Voxel downsampling: the first point of each voxel, in one array or over a run."""

import math

import numpy as np
from numpy.typing import NDArray

TABLE_BITS = 22
"""Size of the hash table: 2^22 voxels in 32 MB, more than the points of most scenes."""


class VoxelTable:
    """Set of voxels that already have a point, in constant memory.

    Each voxel hashes to one slot of a table of ``2 ** bits``; a later voxel replaces an earlier one in its slot. A
    replaced voxel that is seen again gets a second point. Downsampling is thus exact except for hash collisions while
    the scene is small compared with the table. Coordinates wrap at 2^21 voxels along an axis.
    """

    def __init__(self, voxel: float, bits: int = TABLE_BITS) -> None:
        assert voxel > 0 and 1 <= bits < 40
        self._voxel = voxel
        self._bits = bits
        self._keys = np.zeros(1 << bits, np.uint64)

    def take_new(self, xyz: NDArray[np.float32]) -> NDArray[np.intp]:
        """Add the voxels of points [N, 3]; returns the ascending indices of the first point in each new voxel."""
        return self.take_first(self.keys(xyz))

    def take_first(self, keys: NDArray[np.uint64]) -> NDArray[np.intp]:
        """Do the same as `take_new` for voxel keys [N]."""
        # The lookup comes first, since most points of a frame lie in known voxels.
        unknown = self._unknown(keys)
        indices: NDArray[np.intp] = unknown[first_of_each(keys[unknown])]
        self._store_keys(keys[indices])
        return indices

    def keys(self, xyz: NDArray[np.float32]) -> NDArray[np.uint64]:
        """Voxel keys [N] of points [N, 3]. Safe from any thread."""
        # The top bit distinguishes a key from an empty slot.
        keys = np.ones(len(xyz), np.uint64)
        for axis in range(3):
            cells = _cells(xyz[:, axis], self._voxel).astype(np.int64)
            keys <<= np.uint64(21)
            keys |= cells.view(np.uint64) & np.uint64((1 << 21) - 1)
        return keys

    def take_new_keys(self, keys: NDArray[np.uint64]) -> NDArray[np.intp]:
        """Do the same as `take_new` for voxel keys [N] without duplicates."""
        unknown = self._unknown(keys)
        self._store_keys(keys[unknown])
        return unknown

    def _unknown(self, keys: NDArray[np.uint64]) -> NDArray[np.intp]:
        return np.flatnonzero(self._keys[_slots(keys, self._bits)] != keys)

    def _store_keys(self, keys: NDArray[np.uint64]) -> None:
        self._keys[_slots(keys, self._bits)] = keys


def first_of_each(keys: NDArray[np.uint64]) -> NDArray[np.intp]:
    """Ascending indices of the first occurrence of each value [N], by hashing: a stable sort takes twice as long."""
    bits = len(keys).bit_length() + 1
    slots = _slots(keys, bits)
    holders = np.empty(1 << bits, np.intp)
    first, pending = [], np.arange(len(keys))
    while len(pending):
        pending_slots = slots[pending]
        # Reversed, since of several assignments to one slot the last one counts.
        holders[pending_slots[::-1]] = pending[::-1]
        winners = holders[pending_slots]
        first.append(pending[winners == pending])
        # Values in their slot are finished; others that hash to the same slot follow in the next pass.
        pending = pending[keys[winners] != keys[pending]]
    return np.sort(np.concatenate(first)) if first else pending


def _slots(keys: NDArray[np.uint64], bits: int) -> NDArray[np.int64]:
    """Slots [N] by Fibonacci hashing (Knuth, volume 3, 6.4): high bits of the product with 2^64 / golden ratio."""
    slots: NDArray[np.uint64] = (keys * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(64 - bits)
    # Indexing with signed numbers is faster in numpy and releases the GIL.
    return slots.view(np.int64)


def voxel_first(xyz: NDArray[np.floating], voxel: float) -> NDArray[np.intp]:
    """Ascending indices of the first point in each cell of a grid with edge ``voxel`` through the origin."""
    assert voxel > 0, voxel
    if not len(xyz):
        return np.empty(0, np.intp)
    # Axis by axis, since reductions over rows of three are many times slower in numpy.
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
    # Cell numbers overflow an integer, with a distant outlier or a tiny voxel.
    first = np.unique(np.stack(cells, axis=1), axis=0, return_index=True)[1]
    first.sort()
    return first


def _cells(coordinates: NDArray[np.floating], voxel: float) -> NDArray[np.float64]:
    cells: NDArray[np.float64] = np.floor(np.divide(coordinates, voxel, dtype=np.float64))
    return cells
