"""Export of a triangle mesh with vertex colours, fused from keyframe depth maps, as PLY, OBJ or GLB."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.depth_points import sure_pixels
from stream_recon.app.core.ply import VERTEX, vertices_of
from stream_recon.app.core.types import FrameResult
from stream_recon.app.export.depth import missing_frames
from stream_recon.app.export.gltf import TRIANGLES, Primitive, write_glb
from stream_recon.app.export.job import ExportJob, ExportReport
from stream_recon.app.export.points import uniform_indices
from stream_recon.app.export.surface import Mesh, check_libraries, decimated, extract, without_floaters
from stream_recon.app.export.tsdf import DepthView, Volume
from stream_recon.app.export.view import gltf_axes, gltf_note
from stream_recon.app.result.cameras import Camera
from stream_recon.app.result.folder import result_of
from stream_recon.app.result.run_record import PROGRAM
from stream_recon.configs.errors import OutputError

VOXEL_PIXELS = 1.5
"""Voxel size in widths of a depth pixel at the median depth: smaller voxels hold noise."""
TRUNCATION = 4.0
"""Truncation distance in voxels: about the difference between depth maps of neighbouring frames."""
MAX_DEPTH = 3.0
"""Largest depth that is fused, in median depths: beyond it a pixel is several voxels wide."""
MIN_FRAMES = 3
"""Fewest frames that observe a voxel of the surface, where there are several times as many."""
MAX_BLOCKS = 50_000
"""Most blocks of the volume, about 400 MB; a scene that needs more gets larger voxels."""
COARSER = 1.5
"""Factor of the voxel size where the blocks do not suffice: about half as many are needed."""
MAX_DEPTH_FRAMES = 50
"""Most frames that the median depth is computed from: more hardly change it."""
FACE = np.dtype([("count", "u1"), ("corners", "<i4", 3)])
"""A triangle in a PLY file."""


def write_mesh(job: ExportJob, path: Path) -> ExportReport:
    """Write a mesh in the format of the suffix. Raises StreamReconError, or OSError for system errors."""
    check_libraries()
    cameras = job.cameras("keyframes")
    volume, missing = fuse(job, cameras)
    least = min(MIN_FRAMES, max(1, (len(cameras) - missing) // 4))
    found = without_floaters(extract(volume, least))
    if not len(found.faces):
        raise OutputError(f"{job.result.folder}: no surface is visible in {least} frames: there is nothing to export")
    mesh = decimated(found, job.options.faces)
    if path.suffix == ".glb":
        axes = gltf_axes(job.result.cameras, job.options.up)
        xyz = np.asarray(mesh.xyz @ axes.T, np.float32)
        write_glb(path, [Primitive("mesh", TRIANGLES, xyz, mesh.rgb, indices=mesh.faces.ravel())], PROGRAM)
    elif path.suffix == ".obj":
        write_obj(path, mesh)
    else:
        write_ply(path, mesh)
    notes = [
        "Triangles are counter-clockwise seen from the cameras. Colours are at the vertices"
        + (" (r g b from 0 to 1 after x y z)." if path.suffix == ".obj" else "."),
        f"Fused with voxels of {volume.voxel:.4g} units, each observed by {least} frames or more, without sky, "
        f"uncertain depth, and depth beyond {MAX_DEPTH:g} times the median.",
    ]
    if path.suffix == ".glb":
        notes.append(gltf_note(gltf_axes(job.result.cameras, job.options.up)))
    simplified = f", simplified from {len(found.faces)}" if len(mesh.faces) < len(found.faces) else ""
    summary = f"{len(mesh.faces)} triangles{simplified}, {len(mesh.xyz)} vertices."
    return ExportReport(summary, notes, missing_frames(missing))


def fuse(job: ExportJob, cameras: Sequence[Camera]) -> tuple[Volume, int]:
    """The volume of all depth maps, and the number of frames that could not be read.

    Raises OutputError: no frame could be read.
    """
    median, width = _median_depth(job, cameras)
    voxel = VOXEL_PIXELS * width
    while True:
        volume, missing = Volume(voxel, TRUNCATION * voxel, MAX_BLOCKS), 0
        for done, camera in enumerate(cameras, start=1):
            try:
                result = result_of(job.result.folder, camera)
            except OutputError:
                missing += 1
            else:
                volume.integrate(_view(job, result, MAX_DEPTH * median))
            if volume.full:
                break
            job.progress(done, len(cameras))
        if not volume.full:
            return volume, missing
        voxel *= COARSER


def _view(job: ExportJob, result: FrameResult, max_depth: float) -> DepthView:
    reliable = _reliable(job, result) & (result.depth < max_depth)
    depth = np.where(reliable, result.depth, np.float32(0))
    return DepthView(depth, result.rgb, result.network_intrinsics, result.T_world_camera)


def _reliable(job: ExportJob, result: FrameResult) -> NDArray[np.bool_]:
    return sure_pixels(result, job.result.points)


def _median_depth(job: ExportJob, cameras: Sequence[Camera]) -> tuple[float, float]:
    """Median depth of reliable pixels, and the width of a pixel there. Raises OutputError without a frame."""
    depths, widths = [], []
    for number in uniform_indices(len(cameras), MAX_DEPTH_FRAMES):
        try:
            result = result_of(job.result.folder, cameras[number])
        except OutputError:
            continue
        reliable = result.depth[_reliable(job, result)]
        if len(reliable):
            depths.append(float(np.median(reliable)))
            widths.append(depths[-1] / result.network_intrinsics.fx)
    if not depths:
        raise OutputError(f"no frame of {job.result.folder} is readable: there is nothing to export")
    return float(np.median(depths)), float(np.median(widths))


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
    with path.open("wb") as file:
        file.write(head.encode("ascii"))
        file.write(vertices.view(np.uint8).data)
        file.write(faces.view(np.uint8).data)


def write_obj(path: Path, mesh: Mesh) -> None:
    """Write a Wavefront OBJ file with colours after positions, as MeshLab and Blender read them. Raises OSError."""
    with path.open("w") as file:
        file.write(f"# {PROGRAM}\n")
        np.savetxt(file, np.hstack([mesh.xyz, mesh.rgb / np.float32(255)]), "v %.6g %.6g %.6g %.4g %.4g %.4g")
        np.savetxt(file, mesh.faces + 1, "f %d %d %d")
