"""Export of a triangle mesh: with textures as GLB, with vertex colours as PLY or OBJ."""

from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.box import cut_primitive
from stream_recon.app.core.gltf import Primitive, write_glb
from stream_recon.app.core.output_file import new_file, new_text
from stream_recon.app.core.ply import VERTEX, vertices_of
from stream_recon.app.export.depth import missing_frames
from stream_recon.app.export.job import ExportJob, ExportReport
from stream_recon.app.export.view import gltf_axes, gltf_note
from stream_recon.app.mesh.build import primitives, surface, with_texture
from stream_recon.app.mesh.config import DEFAULT_MESH
from stream_recon.app.mesh.fusion import mesh_cameras
from stream_recon.app.mesh.surface import Mesh
from stream_recon.app.result.run_record import PROGRAM

FACE = np.dtype([("count", "u1"), ("corners", "<i4", 3)])
"""A triangle in a PLY file."""


def write_mesh(job: ExportJob, path: Path) -> ExportReport:
    """Write a mesh in the format of the suffix. Raises StreamReconError, or OSError for system errors."""
    config = replace(DEFAULT_MESH, faces=job.options.faces)

    def report(share: float) -> None:
        job.progress(round(100 * share), 100)

    cameras = mesh_cameras(job.result, config.fusion.max_frames, job.options.frames)
    plain = surface(job.result, cameras, config, report, job.box_planes())
    fused, mesh = plain.fused, plain.mesh
    summary = f"{len(mesh.faces)} triangles"
    if len(mesh.faces) < len(fused.mesh.faces):
        summary += f", simplified from {len(fused.mesh.faces)}"
    if path.suffix == ".glb":
        axes = gltf_axes(job.result, job.options.up)
        drawn = with_texture(job.result, cameras, plain, config.texture, report)
        planes = job.box_planes(axes)
        write_glb(path, [cut_primitive(part, planes) for part in primitives(drawn, axes)], PROGRAM)
        summary += f", with textures of {drawn.views} frames."
        untextured = len(drawn.untextured.faces)
        colours = f"Triangles have textures without lighting; {untextured} that no frame shows, colours."
        notes = [colours, gltf_note(axes)]
    else:
        mesh = _cut(mesh, job.box_planes())
        (write_obj if path.suffix == ".obj" else write_ply)(path, mesh)
        summary += f", {len(mesh.xyz)} vertices."
        notes = [
            "Colours are at the vertices" + (" (r g b from 0 to 1 after x y z)." if path.suffix == ".obj" else ".")
        ]
    notes = [
        "Triangles are counter-clockwise seen from the cameras, and visible from that side.",
        f"Fused with voxels of {fused.voxel:.4g} units, larger far away, each observed by {fused.frames} frames or "
        f"more, without sky, uncertain depth, and depth beyond {fused.max_depth:.3g} units. "
        f"Small and planar holes were closed ({plain.closed}).",
        *notes,
    ]
    return ExportReport(summary, notes, missing_frames(fused.missing))


def _cut(mesh: Mesh, planes: NDArray[np.float64]) -> Mesh:
    """What is in front of planes [P, 4] of a mesh."""
    cut = cut_primitive(Primitive(mesh.xyz, mesh.faces, mesh.rgb), planes)
    assert cut.rgb is not None and cut.faces is not None
    return Mesh(cut.xyz, cut.rgb, cut.faces)


def write_ply(path: Path, mesh: Mesh) -> None:
    """Write a binary PLY file. Raises OSError."""
    properties = "".join(f"property float {name}\n" for name in "xyz")
    properties += "".join(f"property uchar {name}\n" for name in ("red", "green", "blue"))
    head = (
        f"ply\nformat binary_little_endian 1.0\ncomment {PROGRAM}\nelement vertex {len(mesh.xyz)}\n{properties}"
        f"element face {len(mesh.faces)}\nproperty list uchar int vertex_indices\nend_header\n"
    )
    faces = np.empty(len(mesh.faces), FACE)
    faces["count"], faces["corners"] = 3, mesh.faces
    vertices: NDArray[np.void] = vertices_of(mesh.xyz, mesh.rgb)
    assert vertices.dtype == VERTEX
    with new_file(path) as file:
        file.write(head.encode("ascii"))
        file.write(vertices.view(np.uint8).data)
        file.write(faces.view(np.uint8).data)


def write_obj(path: Path, mesh: Mesh) -> None:
    """Write a Wavefront OBJ file with colours after positions, as MeshLab and Blender read them. Raises OSError."""
    with new_text(path) as file:
        file.write(f"# {PROGRAM}\n")
        np.savetxt(file, np.hstack([mesh.xyz, mesh.rgb / np.float32(255)]), "v %.6g %.6g %.6g %.4g %.4g %.4g")
        np.savetxt(file, mesh.faces + 1, "f %d %d %d")
