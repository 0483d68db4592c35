"""The coloured cloud as a binary PLY that grows with the run and is readable at any moment."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.output_files import GrowingFile

VERTEX = np.dtype([("x", "<f4"), ("y", "<f4"), ("z", "<f4"), ("red", "u1"), ("green", "u1"), ("blue", "u1")])
# Room for the count: the comment in front of it shrinks as the number gets longer.
COUNT_DIGITS = 20

VOXEL_TABLE_BITS = 22
"""A table of 2^22 voxels, 32 MB."""


class VoxelTable:
    """Remembers voxels that have a point already, in memory that never grows.

    Rule: each voxel has one place in a table of ``2 ** bits``, found by hashing; a later voxel with the same place
    takes it over. A voxel that was displaced and is seen again gets a second point. So the thinning is exact but
    for hash collisions while the scene is small against the table, and fades for the longest unseen places after
    that. Coordinates wrap at 2^21 voxels along an axis.
    """

    def __init__(self, voxel: float, bits: int = VOXEL_TABLE_BITS) -> None:
        assert voxel > 0 and 1 <= bits < 40
        self._voxel = voxel
        self._bits = bits
        self._keys = np.zeros(1 << bits, np.uint64)

    def take_new(self, xyz: NDArray[np.float32]) -> NDArray[np.intp]:
        """Ascending indices of the points [N, 3] that are the first in their voxel, and remember these voxels."""
        keys = self.keys(xyz)
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
            cells = np.floor(np.divide(xyz[:, axis], self._voxel, dtype=np.float64)).astype(np.int64)
            keys <<= np.uint64(21)
            keys |= cells.view(np.uint64) & np.uint64((1 << 21) - 1)
        return keys

    def take_new_keys(self, keys: NDArray[np.uint64]) -> NDArray[np.intp]:
        """`take_new` for voxels [N] of which no two are the same."""
        unknown = self._unknown(keys)
        self._remember(keys[unknown])
        return unknown

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


class PlyFile:
    """A binary little-endian PLY. Points are appended, then the header's count is raised: never the other way."""

    def __init__(self, path: Path) -> None:
        """Begin ``path`` anew. Raises OutputError."""
        self.count = 0
        self._head_size = len(_header(0))
        self._file = GrowingFile(path, _header(0))

    def append(self, xyz: NDArray[np.float32], rgb: NDArray[np.uint8]) -> None:
        """Add points [N, 3] with colours [N, 3]. Raises OutputError; the file then holds the points before."""
        vertices = np.empty(len(xyz), VERTEX)
        for axis, name in enumerate("xyz"):
            vertices[name] = xyz[:, axis]
        for channel, name in enumerate(("red", "green", "blue")):
            vertices[name] = rgb[:, channel]
        self.append_vertices(vertices)

    def append_vertices(self, vertices: NDArray[np.void]) -> None:
        """Add points [N], laid out as `VERTEX`; see `append`."""
        self._file.append(np.ascontiguousarray(vertices).view(np.uint8).data)
        self.count += len(vertices)
        self._file.patch(0, _header(self.count))

    def close(self) -> None:
        self._file.close()


def _header(count: int) -> bytes:
    number = str(count)
    filler = "." * (COUNT_DIGITS - len(number))
    properties = "".join(f"property float {n}\n" for n in "xyz")
    properties += "".join(f"property uchar {n}\n" for n in ("red", "green", "blue"))
    return (
        f"ply\nformat binary_little_endian 1.0\ncomment stream-recon {filler}\n"
        f"element vertex {number}\n{properties}end_header\n"
    ).encode("ascii")
