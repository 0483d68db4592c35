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
        self._shift = np.uint64(64 - bits)
        self._keys = np.zeros(1 << bits, np.uint64)

    def take_new(self, xyz: NDArray[np.float32]) -> NDArray[np.intp]:
        """Ascending indices of the points [N, 3] that are the first in their voxel, and remember these voxels."""
        # The top bit tells a key from an empty place.
        keys = np.ones(len(xyz), np.uint64)
        for axis in range(3):
            cells = np.floor(np.divide(xyz[:, axis], self._voxel, dtype=np.float64)).astype(np.int64)
            keys <<= np.uint64(21)
            keys |= cells.view(np.uint64) & np.uint64((1 << 21) - 1)
        # Fibonacci hashing (Knuth, volume 3, 6.4): the high bits of a product with 2^64 / golden ratio.
        places = (keys * np.uint64(0x9E3779B97F4A7C15)) >> self._shift
        # Few points are new: looking first leaves little to sort.
        unknown = np.flatnonzero(self._keys[places] != keys)
        new, first = np.unique(keys[unknown], return_index=True)
        indices: NDArray[np.intp] = unknown[first]
        self._keys[places[indices]] = new
        indices.sort()
        return indices


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
        self._file.append(vertices.tobytes())
        self.count += len(xyz)
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
