"""The coloured cloud as a binary PLY that grows with the run and is readable at any moment."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.ply import VERTEX, Vertices, header, vertices_of
from stream_recon.app.result.files import GrowingFile
from stream_recon.configs.errors import OutputError


class PlyFile:
    """A binary little-endian PLY. Points are appended, then the header's count is raised: never the other way."""

    def __init__(self, path: Path) -> None:
        """Begin ``path`` anew. Raises OutputError."""
        self.count = 0
        self._head_size = len(header(0))
        self._file = GrowingFile(path, header(0))

    def append(self, xyz: NDArray[np.float32], rgb: NDArray[np.uint8]) -> None:
        """Add points [N, 3] with colours [N, 3]. Raises OutputError; the file then holds the points before."""
        self.append_vertices(vertices_of(xyz, rgb))

    def append_vertices(self, vertices: Vertices) -> None:
        """Add points; see `append`."""
        self._file.append(vertices.view(np.uint8).data)
        self.count += len(vertices)
        self._file.patch(0, header(self.count))

    def read(self, first: int, last: int) -> Vertices:
        """The points from number ``first`` to before ``last``. Any thread may. Raises OutputError."""
        size = VERTEX.itemsize
        return np.frombuffer(self._file.read(self._head_size + first * size, (last - first) * size), VERTEX)

    def close(self) -> None:
        self._file.close()


def stored_points(path: Path) -> Vertices:
    """The points of a file written by `PlyFile`, as they are now: not in memory, but read where they are looked at.

    Raises:
        OutputError: the file is missing, damaged, or of another program.
    """
    try:
        with path.open("rb") as file:
            head = file.read(len(header(0)))
        count = int(head.split(b"element vertex ", 1)[1].split(b"\n", 1)[0])
        if head != header(count):
            raise ValueError("it was not written here")
        if not count:
            return np.empty(0, VERTEX)
        return np.memmap(path, VERTEX, "r", offset=len(head), shape=(count,))
    except (OSError, ValueError, IndexError) as error:
        raise OutputError(f"{path} is missing or damaged: {error}") from error
