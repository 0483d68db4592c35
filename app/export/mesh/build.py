"""A result's mesh: fused, without holes and islands, simplified and textured, and its file in the result folder."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.gltf import Primitive, write_glb
from stream_recon.app.export.mesh.fusion import Fused, Report, fuse, mesh_cameras
from stream_recon.app.export.mesh.holes import closed_holes
from stream_recon.app.export.mesh.surface import Mesh, decimated
from stream_recon.app.export.mesh.texture import TexturedMesh, textured
from stream_recon.app.export.view import gltf_axes
from stream_recon.app.result.cameras import Camera
from stream_recon.app.result.files import replace_file
from stream_recon.app.result.folder import ResultFolder
from stream_recon.app.result.mesh import MESH_NAME
from stream_recon.app.result.run_record import PROGRAM
from stream_recon.configs.errors import OutputError

FACES = 150_000
"""Triangles of a result's mesh, about: a room in detail, drawn fluently by a laptop."""
FUSION_SHARE, HOLES_SHARE = 0.35, 0.4
"""Progress after fusion, and after closed holes and simplification."""


@dataclass(frozen=True)
class Surface:
    """A simplified mesh, and what it was made of."""

    mesh: Mesh
    fused: Fused
    closed: int
    """Number of closed holes."""


def surface(
    result: ResultFolder, cameras: Sequence[Camera], faces: int, report: Report = lambda share: None
) -> Surface:
    """The mesh of these frames with about ``faces`` triangles. Raises OutputError where there is no surface."""
    fused = fuse(result, cameras, lambda share: report(FUSION_SHARE * share))
    if not len(fused.mesh.faces):
        raise OutputError(f"{result.folder}: no surface is visible in {fused.frames} frames: there is no mesh to write")
    mesh, closed = closed_holes(fused.mesh, fused.views)
    report(HOLES_SHARE)
    return Surface(decimated(mesh, faces), fused, closed)


def with_texture(
    result: ResultFolder, cameras: Sequence[Camera], found: Surface, report: Report = lambda share: None
) -> TexturedMesh:
    """The mesh with the frames' images. Raises OutputError where one cannot be read."""
    voxel = found.fused.voxel
    return textured(result, cameras, found.mesh, voxel, lambda s: report(HOLES_SHARE + (1 - HOLES_SHARE) * s))


def primitives(mesh: TexturedMesh, axes: NDArray[np.float64]) -> list[Primitive]:
    """The mesh for a GLB file, rotated by ``axes`` [3, 3]: a primitive for each page, and one without a texture."""
    turned = [np.asarray(page.xyz @ axes.T, np.float32) for page in mesh.pages]
    parts = [
        Primitive(xyz, page.faces, uv=page.uv, texture=page.jpeg, name=f"mesh{number}")
        for number, (xyz, page) in enumerate(zip(turned, mesh.pages, strict=True))
    ]
    rest = mesh.rest
    return [*parts, Primitive(np.asarray(rest.xyz @ axes.T, np.float32), rest.faces, rest.rgb, name="untextured")]


def write_result_mesh(
    result: ResultFolder,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    cancelled: Callable[[], bool] = lambda: False,
) -> bool:
    """Write ``mesh.glb`` into the result folder, complete or not at all; an old one is replaced.

    Args:
        on_progress: called with the hundredths done and 100.
        cancelled: asked often; once it returns true, nothing is written.

    Returns False where it was cancelled. Raises OutputError where there is no surface, or the file cannot be written.
    """

    def report(share: float) -> None:
        if cancelled():
            raise KeyboardInterrupt
        on_progress(round(100 * share), 100)

    try:
        cameras = mesh_cameras(result)
        found = surface(result, cameras, FACES, report)
        parts = primitives(with_texture(result, cameras, found, report), gltf_axes(result.cameras, "auto"))
    except KeyboardInterrupt:
        return False
    replace_file(mesh_path(result.folder), lambda file: write_glb(file, parts, PROGRAM))
    return True


def mesh_path(folder: Path) -> Path:
    return folder / MESH_NAME
