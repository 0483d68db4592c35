"""The mesh of a complete scene, as the viewer shows it."""

import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.input_file import MAX_MESH_BYTES, parse_json, read_file


@dataclass(frozen=True)
class SceneMesh:
    """A mesh of the complete scene."""

    glb: bytes
    R_world_mesh: NDArray[np.float64]
    """Rotation [3, 3] from the axes of the file to the world."""
    triangles: int

    @classmethod
    def read(cls, path: Path, R_world_mesh: NDArray[np.floating]) -> "SceneMesh":
        """The mesh of a GLB file. Raises OSError."""
        content = read_file(path, MAX_MESH_BYTES)
        return cls(content, np.array(R_world_mesh, np.float64), _triangle_count(content))


def _triangle_count(glb: bytes) -> int:
    """Number of triangles of a GLB file; 0 where it cannot be read."""
    try:
        (length,) = struct.unpack_from("<I", glb, 12)
        document = parse_json(glb[20 : 20 + length])
        accessors = document["accessors"]
        primitives = [p for mesh in document["meshes"] for p in mesh["primitives"]]
        return sum(accessors[p["indices"]]["count"] // 3 for p in primitives if "indices" in p)
    except (struct.error, ValueError, LookupError, TypeError):
        return 0
