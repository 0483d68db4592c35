"""The coloured cloud as a binary PLY that grows with the run and is readable at any moment."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stream_recon.app import ply
from stream_recon.app.output.files import GrowingFile


class PlyFile:
    """A binary little-endian PLY. Points are appended, then the header's count is raised: never the other way."""

    def __init__(self, path: Path) -> None:
        """Begin ``path`` anew. Raises OutputError."""
        self.count = 0
        self._head_size = len(ply.header(0))
        self._file = GrowingFile(path, ply.header(0))

    def append(self, xyz: NDArray[np.float32], rgb: NDArray[np.uint8]) -> None:
        """Add points [N, 3] with colours [N, 3]. Raises OutputError; the file then holds the points before."""
        self.append_vertices(ply.vertices(xyz, rgb))

    def append_vertices(self, vertices: NDArray[np.void]) -> None:
        """Add points [N], laid out as `ply.VERTEX` without gaps between them; see `append`."""
        self._file.append(vertices.view(np.uint8).data)
        self.count += len(vertices)
        self._file.patch(0, ply.header(self.count))

    def close(self) -> None:
        self._file.close()
