"""A finished result's mesh, and a rough shape of it that pages draw until they have the mesh."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.gltf import Primitive, glb, read_glb
from stream_recon.app.core.input_file import MAX_MESH_BYTES, read_file
from stream_recon.app.core.voxels import VoxelTable

ROUGH_TRIANGLES = 20_000
"""Triangles of the rough shape, about: half a megabyte, drawn at once without a graphics card, too."""
ROUGH_UNSURE = 99.0
"""Percentage by which a page knows the rough shape; it hides all above 98 once it has drawn the mesh."""


@dataclass(frozen=True)
class SceneMesh:
    """A mesh of the complete scene."""

    glb: bytes
    R_world_mesh: NDArray[np.float64]
    """Rotation [3, 3] from the axes of the file to the world."""
    parts: list[Primitive]
    """What is in the file; empty for a file of another program."""
    rough: bytes | None
    """A GLB file of the rough shape; None where the mesh is hardly larger."""

    @classmethod
    def read(cls, path: Path, R_world_mesh: NDArray[np.floating]) -> "SceneMesh":
        """The mesh of a GLB file. Raises OSError."""
        content = read_file(path, MAX_MESH_BYTES)
        try:
            parts = [part for part in read_glb(content) if part.faces is not None]
        except ValueError:
            parts = []
        return cls(content, np.array(R_world_mesh, np.float64), parts, _rough(parts))

    @property
    def title(self) -> str:
        """What it is, for users."""
        return f"mesh of {sum(len(part.faces) for part in self.parts if part.faces is not None):,} triangles"


def _rough(parts: Sequence[Primitive]) -> bytes | None:
    """A GLB file with one vertex for each cell of a grid."""
    starts = np.cumsum([0, *(len(part.xyz) for part in parts)])
    corners = [part.faces + start for part, start in zip(parts, starts, strict=False) if part.faces is not None]
    if sum(map(len, corners)) < 2 * ROUGH_TRIANGLES:
        return None
    faces, xyz = np.concatenate(corners), np.concatenate([part.xyz for part in parts])
    rgb = np.concatenate([_colours(part) for part in parts])
    a, b, c = np.moveaxis(xyz[faces], 1, 0)
    area = float(np.linalg.norm(np.cross(b - a, c - a), axis=1).sum()) / 2
    # A cell of a level surface has two triangles.
    _, cell = np.unique(VoxelTable(max(2 * area / ROUGH_TRIANGLES, 1e-12) ** 0.5, 1).keys(xyz), return_inverse=True)
    count = np.bincount(cell)
    mean_xyz, mean_rgb = (
        np.stack([np.bincount(cell, column) / count for column in values.T], axis=1) for values in (xyz, rgb)
    )
    faces = cell[faces]
    faces = faces[(faces != np.roll(faces, 1, axis=1)).all(axis=1)].astype(np.int32)
    unsure = np.full(len(count), ROUGH_UNSURE, np.float32)
    return glb([Primitive(mean_xyz.astype(np.float32), faces, mean_rgb.astype(np.uint8), unsure=unsure)])


def _colours(part: Primitive) -> NDArray[np.uint8]:
    """sRGB at vertices [N, 3]; white where there is none that can be read."""
    image = (
        None
        if part.texture is None
        else cv2.imdecode(np.frombuffer(part.texture, np.uint8), cv2.IMREAD_REDUCED_COLOR_4)
    )
    if image is None or part.uv is None:
        return part.rgb if part.rgb is not None else np.full((len(part.xyz), 3), 255, np.uint8)
    x, y = (part.uv.clip(0, 1) * (np.array(image.shape[1::-1]) - 1)).round().astype(np.intp).T
    return np.asarray(image[y, x, ::-1])
