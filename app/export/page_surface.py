"""Surface and first view of an HTML page: the result's mesh, or else textured surfaces of its keyframes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.box import cut_primitive
from stream_recon.app.core.gltf import Primitive, glb, read_glb
from stream_recon.app.core.input_file import MAX_MESH_BYTES, read_file
from stream_recon.app.core.transforms import quaternion_xyzw
from stream_recon.app.export.job import ExportJob
from stream_recon.app.export.source_images import surface_images
from stream_recon.app.export.view import gltf_axes
from stream_recon.app.result.folder import MESH_NAME
from stream_recon.app.viewer.nodes import SurfaceNode, wxyz
from stream_recon.app.viewer.overview import MAX_TRIED, FreeView, inner_view, opening_view
from stream_recon.app.viewer.subject import Subject
from stream_recon.app.viewer.surface_grid import TEXTURE_SIDE, Triangles
from stream_recon.app.viewer.surfaces import SurfaceStore
from stream_recon.app.viewer.timeline import Timeline


def add_surface(server: Any, job: ExportJob, inside: bool) -> str:
    """Add the mesh or the keyframes' surfaces, and set the camera; returns what was added.

    ``inside``: the camera is one of the path.
    """
    timeline, subject = Timeline(), Subject()
    surfaces = SurfaceStore(timeline)
    for camera in job.result.cameras:
        timeline.add_frame(camera.index, camera.T_world_camera, camera.intrinsics)
    mesh = job.result.folder / MESH_NAME
    for result, image in surface_images(job, TEXTURE_SIDE):
        ordinal = timeline.ordinal(result.index)
        assert ordinal is not None, "the frame is one of the result's"
        subject.add(ordinal, result)
        if not mesh.exists():
            surfaces.add(ordinal, result, image, causal=False)
    _set_camera(server, job, timeline, subject, inside)
    if mesh.exists():
        return _add_mesh(server, job, mesh)
    planes = job.box_planes()
    for ordinal, surface in surfaces.surfaces.items():
        pose = timeline.poses[ordinal]
        if len(planes):
            surface.triangles = _cut(surface.triangles, planes, pose, surface.scale(timeline))
        node = SurfaceNode(server, f"/surface/{ordinal}")
        node.sync(surface, timeline, pose, wxyz(pose[None, :3, :3])[0])
    return f"surfaces of {len(surfaces.surfaces)} keyframes" if surfaces.surfaces else "no surface"


def _set_camera(server: Any, job: ExportJob, timeline: Timeline, subject: Subject, inside: bool) -> None:
    cameras = job.result.cameras
    up = job.result.up
    server.scene.set_up_direction(tuple(up.tolist()))
    points, rays = subject.world(timeline)
    camera = server.initial_camera
    half = float(np.tan(camera.fov / 2))
    free = FreeView(16 / 9 * half, 16 / 9 * half, half)
    if inside and len(points):
        view = inner_view(points, timeline.spaced_poses(MAX_TRIED), up, free)
    else:
        view = opening_view(points, rays, timeline.path(len(cameras)), cameras[0].T_world_camera[:3, 2], up, free)
    camera.position, camera.look_at, camera.up = view.position, view.target, view.up


def _add_mesh(server: Any, job: ExportJob, mesh: Path) -> str:
    axes, content = gltf_axes(job.result, "auto"), read_file(mesh, MAX_MESH_BYTES)
    if job.box is not None:
        planes = job.box_planes(axes)
        content = glb([cut_primitive(part, planes) for part in read_glb(content)])
    x, y, z, w = quaternion_xyzw(axes.T[None])[0]
    server.scene.add_glb("/surface", content, wxyz=(w, x, y, z), cast_shadow=False, receive_shadow=False)
    return f"the mesh of {len(content) / 1e6:.1f} MB"


def _cut(t: Triangles, planes: NDArray[np.float64], pose: NDArray[np.float64], scale: Any) -> Triangles:
    """What is in front of planes [P, 4] of the world, of triangles of a camera with a pose [4, 4] and scales [3]."""
    local = np.concatenate([planes[:, :3] @ pose[:3, :3] * scale, (planes @ pose[:, 3])[:, None]], axis=1)
    part = cut_primitive(Primitive(t.xyz, t.faces, uv=t.uv, unsure=t.unsure), local)
    assert part.uv is not None and part.faces is not None and part.unsure is not None
    return replace(t, xyz=part.xyz, faces=part.faces, uv=part.uv, unsure=part.unsure)
