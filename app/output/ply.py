"""The coloured cloud as a binary PLY that grows with the run and is readable at any moment."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.output.files import GrowingFile

VERTEX = np.dtype([("x", "<f4"), ("y", "<f4"), ("z", "<f4"), ("red", "u1"), ("green", "u1"), ("blue", "u1")])
Vertices = NDArray[np.void]
"""Points [N], laid out as `VERTEX` without gaps between them."""
# Room for the count: the comment in front of it shrinks as the number gets longer.
COUNT_DIGITS = 20


class PlyFile:
    """A binary little-endian PLY. Points are appended, then the header's count is raised: never the other way."""

    def __init__(self, path: Path) -> None:
        """Begin ``path`` anew. Raises OutputError."""
        self.count = 0
        self._head_size = len(_header(0))
        self._file = GrowingFile(path, _header(0))

    def append(self, xyz: NDArray[np.float32], rgb: NDArray[np.uint8]) -> None:
        """Add points [N, 3] with colours [N, 3]. Raises OutputError; the file then holds the points before."""
        self.append_vertices(vertices_of(xyz, rgb))

    def append_vertices(self, vertices: Vertices) -> None:
        """Add points; see `append`."""
        self._file.append(vertices.view(np.uint8).data)
        self.count += len(vertices)
        self._file.patch(0, _header(self.count))

    def read(self, first: int, last: int) -> Vertices:
        """The points from number ``first`` to before ``last``. Any thread may. Raises OutputError."""
        size = VERTEX.itemsize
        return np.frombuffer(self._file.read(self._head_size + first * size, (last - first) * size), VERTEX)

    def close(self) -> None:
        self._file.close()


def vertices_of(xyz: NDArray[np.float32], rgb: NDArray[np.uint8]) -> Vertices:
    """Points [N, 3] with colours [N, 3] as they lie in a file."""
    vertices = np.empty(len(xyz), VERTEX)
    for axis, name in enumerate("xyz"):
        vertices[name] = xyz[:, axis]
    for channel, name in enumerate(("red", "green", "blue")):
        vertices[name] = rgb[:, channel]
    return vertices


def positions(vertices: Vertices) -> NDArray[np.float32]:
    """Where points are, [N, 3]."""
    return np.stack([vertices[axis] for axis in "xyz"], axis=1)


def taken(vertices: Vertices, indices: NDArray[np.intp]) -> Vertices:
    """Some of the points, copied as bytes: field by field, as numpy would otherwise, takes ten times as long."""
    return vertices.view(np.dtype((np.void, VERTEX.itemsize))).take(indices)


def _header(count: int) -> bytes:
    number = str(count)
    filler = "." * (COUNT_DIGITS - len(number))
    properties = "".join(f"property float {n}\n" for n in "xyz")
    properties += "".join(f"property uchar {n}\n" for n in ("red", "green", "blue"))
    return (
        f"ply\nformat binary_little_endian 1.0\ncomment stream-recon {filler}\n"
        f"element vertex {number}\n{properties}end_header\n"
    ).encode("ascii")
