"""The surface as triangles: depth maps of all keyframes fused, as PLY, OBJ or GLB with colours at the corners."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.depth_points import sure_pixels
from stream_recon.app.core.ply import VERTEX, vertices_of
from stream_recon.app.core.types import FrameResult
from stream_recon.app.export.depth import lost_frames
from stream_recon.app.export.gltf import TRIANGLES, Primitive, write_glb
from stream_recon.app.export.job import ExportJob, ExportReport
from stream_recon.app.export.points import spread_indices
from stream_recon.app.export.surface import Mesh, check_libraries, decimated, extract, without_floaters
from stream_recon.app.export.tsdf import DepthView, Volume
from stream_recon.app.export.view import gltf_axes, gltf_note
from stream_recon.app.result.cameras import Camera
from stream_recon.app.result.folder import result_of
from stream_recon.app.result.run_record import PROGRAM
from stream_recon.configs.errors import OutputError

VOXEL_PIXELS = 1.5
"""A voxel's edge, in widths of a depth map's pixel at the usual depth."""
TRUNCATION = 4.0
"""In voxels: about what depth maps of neighbouring frames differ by."""
FARTHEST = 3.0
"""In usual depths: farther off a pixel is several voxels wide, and depth says little."""
LEAST_SURE = 0.1
"""Share of a frame's pixels that is left out: of a cloud more is, but here frames outvote what one got wrong."""
LEAST_SEEN = 3
"""Frames that have to have looked at a place, where there are several times as many."""
MOST_BLOCKS = 50_000
"""About 400 MB; a scene that needs more gets larger voxels."""
COARSER = 1.5
LOOKED_AT = 50
"""Frames from which the usual depth is taken."""
FACE = np.dtype([("count", "u1"), ("corners", "<i4", 3)])


def write_mesh(job: ExportJob, path: Path) -> ExportReport:
    """Write the file; its suffix says which form. Raises StreamReconError, or OSError where the system refuses."""
    check_libraries()
    cameras = job.cameras("keyframes")
    volume, lost = fuse(job, cameras)
    least = min(LEAST_SEEN, max(1, (len(cameras) - lost) // 4))
    found = without_floaters(extract(volume, least))
    if not len(found.faces):
        raise OutputError(f"{job.result.folder}: no surface was seen by {least} frames: there is nothing to export")
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
        "Triangles turn counter-clockwise seen from where the cameras were. Colours are at the corners"
        + (" (r g b from 0 to 1 after x y z)." if path.suffix == ".obj" else "."),
        f"Fused with voxels of {volume.voxel:.4g} units, each seen by {least} frames or more; sky, unsure depth, and "
        f"what is farther than {FARTHEST:g} times the usual depth are left out.",
    ]
    if path.suffix == ".glb":
        notes.append(gltf_note(gltf_axes(job.result.cameras, job.options.up)))
    thinned = f", thinned from {len(found.faces)}" if len(mesh.faces) < len(found.faces) else ""
    return ExportReport(f"{len(mesh.faces)} triangles{thinned}, {len(mesh.xyz)} corners.", notes, lost_frames(lost))


def fuse(job: ExportJob, cameras: Sequence[Camera]) -> tuple[Volume, int]:
    """All depth maps in one volume, and how many frames could not be read.

    Raises:
        OutputError: none could.
    """
    usual, width = _usual_depth(job, cameras)
    voxel = VOXEL_PIXELS * width
    while True:
        volume, lost = Volume(voxel, TRUNCATION * voxel, MOST_BLOCKS), 0
        for done, camera in enumerate(cameras, start=1):
            try:
                result = result_of(job.result.folder, camera)
            except OutputError:
                lost += 1
            else:
                volume.integrate(_view(job, result, FARTHEST * usual))
            if volume.full:
                break
            job.progress(done, len(cameras))
        if not volume.full:
            return volume, lost
        voxel *= COARSER


def _view(job: ExportJob, result: FrameResult, farthest: float) -> DepthView:
    sure = _sure(job, result) & (result.depth < farthest)
    depth = np.where(sure, result.depth, np.float32(0))
    return DepthView(depth, result.rgb, result.network_intrinsics, result.T_world_camera)


def _sure(job: ExportJob, result: FrameResult) -> NDArray[np.bool_]:
    points = job.result.points
    return sure_pixels(result, replace(points, confidence_quantile=min(LEAST_SURE, points.confidence_quantile)))


def _usual_depth(job: ExportJob, cameras: Sequence[Camera]) -> tuple[float, float]:
    """Median depth of sure pixels, and how wide a pixel is there. Raises OutputError where no frame can be read."""
    depths, widths = [], []
    for number in spread_indices(len(cameras), LOOKED_AT):
        try:
            result = result_of(job.result.folder, cameras[number])
        except OutputError:
            continue
        sure = result.depth[_sure(job, result)]
        if len(sure):
            depths.append(float(np.median(sure)))
            widths.append(depths[-1] / result.network_intrinsics.fx)
    if not depths:
        raise OutputError(f"no frame of {job.result.folder} is readable: there is nothing to export")
    return float(np.median(depths)), float(np.median(widths))


def write_ply(path: Path, mesh: Mesh) -> None:
    """Binary PLY. OSError where the system refuses."""
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
    """Wavefront OBJ; colours after positions, as MeshLab and Blender read them. OSError where the system refuses."""
    with path.open("w") as file:
        file.write(f"# {PROGRAM}\n")
        np.savetxt(file, np.hstack([mesh.xyz, mesh.rgb / np.float32(255)]), "v %.6g %.6g %.6g %.4g %.4g %.4g")
        np.savetxt(file, mesh.faces + 1, "f %d %d %d")
