"""A result's mesh: fused, without holes and islands, simplified and textured, and its file in the result folder."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.cancel import Cancelled
from stream_recon.app.core.gltf import Primitive, glb
from stream_recon.app.core.transforms import level_axes, up_direction
from stream_recon.app.mesh.config import DEFAULT_MESH, MeshConfig, TextureConfig
from stream_recon.app.mesh.fusion import Fused, Report, fuse, mesh_cameras
from stream_recon.app.mesh.holes import closed_holes
from stream_recon.app.mesh.level import level_up
from stream_recon.app.mesh.surface import Mesh, decimated, subset, without_floaters
from stream_recon.app.mesh.texture import TexturedMesh, textured
from stream_recon.app.mesh.visibility import confirmed_part, visible_part
from stream_recon.app.result.cameras import FrameCamera
from stream_recon.app.result.disk_limit import bytes_without
from stream_recon.app.result.files import replace_file
from stream_recon.app.result.folder import MESH_NAME, ResultFolder
from stream_recon.app.result.run_record import PROGRAM
from stream_recon.configs.errors import NoSurfaceError

FUSION_SHARE, HOLES_SHARE = 0.35, 0.4
"""Progress after fusion, and after closed holes and simplification."""
NO_PLANES = np.zeros((0, 4))


@dataclass(frozen=True)
class MeshSurface:
    """A simplified mesh, and what it was made of."""

    mesh: Mesh
    fused: Fused
    closed: int
    """Number of closed holes."""


def surface(
    result: ResultFolder,
    cameras: Sequence[FrameCamera],
    config: MeshConfig,
    report: Report = lambda share: None,
    planes: NDArray[np.float64] = NO_PLANES,
) -> MeshSurface:
    """The mesh of these frames, of triangles that reach before all ``planes`` [P, 4]. Raises NoSurfaceError."""
    fused = fuse(result, cameras, config, lambda share: report(FUSION_SHARE * share))
    if not len(fused.mesh.faces):
        raise NoSurfaceError(
            f"{result.folder}: no surface is visible in {fused.frames} frames: there is no mesh to write"
        )
    mesh, closed = closed_holes(fused.mesh, fused.views, config.holes, config.visibility)
    report(HOLES_SHARE)
    inside = np.all(mesh.xyz @ planes[:, :3].T + planes[:, 3] >= 0, axis=1)[mesh.faces]
    mesh = subset(mesh, inside[:, 0] | inside[:, 1] | inside[:, 2])
    mesh = visible_part(decimated(mesh, config.faces), fused.views, fused.truncation, config.visibility)
    mesh = confirmed_part(without_floaters(mesh, config.min_part), fused.views, fused.truncation, config.visibility)
    return MeshSurface(mesh, fused, closed)


def with_texture(
    result: ResultFolder,
    cameras: Sequence[FrameCamera],
    plain: MeshSurface,
    config: TextureConfig,
    report: Report = lambda share: None,
) -> TexturedMesh:
    """The mesh with the frames' images. Raises OutputError where one cannot be read."""
    voxel = plain.fused.voxel
    return textured(result, cameras, plain.mesh, voxel, config, lambda s: report(HOLES_SHARE + (1 - HOLES_SHARE) * s))


def primitives(mesh: TexturedMesh, axes: NDArray[np.float64]) -> list[Primitive]:
    """The mesh for a GLB file, rotated by ``axes`` [3, 3]: a primitive for each image, and one without a texture."""

    def turned(xyz: NDArray[np.float32]) -> NDArray[np.float32]:
        return np.asarray(xyz @ axes.T, np.float32)

    parts = [
        Primitive(turned(part.xyz), part.faces, uv=part.uv, texture=part.jpeg, name=f"mesh{number}")
        for number, part in enumerate(mesh.parts)
    ]
    plain = mesh.untextured
    return [*parts, Primitive(turned(plain.xyz), plain.faces, plain.rgb, name="untextured")]


@dataclass(frozen=True)
class MeshReport:
    """What a result's mesh consists of."""

    triangles: int
    views: int
    """Frames whose images are used."""
    covered: float
    """See `TexturedMesh`."""
    size: int
    """Bytes of the file."""
    up: list[float]
    """Up direction in the world, a unit vector [3]; y in the file."""


def write_result_mesh(
    result: ResultFolder,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    cancelled: Callable[[], bool] = lambda: False,
    max_bytes: int | None = None,
    config: MeshConfig = DEFAULT_MESH,
) -> MeshReport:
    """Write ``mesh.glb`` into the result folder, complete or not at all; an old one is replaced.

    Args:
        on_progress: called with the hundredths done and 100.
        cancelled: asked often.
        max_bytes: bound for all files of the result; None: no bound.

    Raises:
        Cancelled: ``cancelled`` returned true; the folder is unchanged.
        NoSurfaceError: there is no surface, or no room within ``max_bytes``; the folder is unchanged.
        OutputError: a file cannot be read or written; the folder is unchanged.
    """

    def report(share: float) -> None:
        if cancelled():
            raise Cancelled
        on_progress(round(100 * share), 100)

    cameras = mesh_cameras(result, config.fusion.max_frames)
    if not cameras:
        raise NoSurfaceError("no depth was kept")
    plain = surface(result, cameras, config, report)
    mesh = with_texture(result, cameras, plain, config.texture, report)
    rotations = np.array([camera.T_world_camera[:3, :3] for camera in result.cameras])
    up = level_up(plain.mesh, rotations, up_direction(rotations), config.level)
    content = glb(primitives(mesh, level_axes(up, rotations[0][:, 2])), PROGRAM)
    if max_bytes is not None and len(content) + bytes_without(result.folder, MESH_NAME) > max_bytes:
        raise NoSurfaceError(f"its {len(content) / 1e6:.0f} MB would exceed --max-disk")
    replace_file(result.folder / MESH_NAME, lambda file: file.write(content))
    return MeshReport(mesh.triangles, mesh.views, round(mesh.covered, 4), len(content), up.tolist())
