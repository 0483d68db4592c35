"""Export of a scene as one HTML file that needs no server: viser's client with the scene inside.

It shows the result's mesh, or else textured surfaces of its keyframes, and its points where there are none of these.
"""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.box import cut_primitive
from stream_recon.app.core.gltf import Primitive, glb, read_glb
from stream_recon.app.core.ply import uniform_indices
from stream_recon.app.core.transforms import quaternion_xyzw
from stream_recon.app.core.types import FrameResult
from stream_recon.app.export.glb import FRUSTUM_COLOUR, FRUSTUM_SHARE, PATH_COLOUR, frusta
from stream_recon.app.export.job import ExportJob, ExportReport
from stream_recon.app.export.points import OrderedPoints, ordered_points
from stream_recon.app.export.source_images import surface_images
from stream_recon.app.export.splats import job_splats
from stream_recon.app.export.view import gltf_axes, world_up
from stream_recon.app.result.folder import MESH_NAME, current_splats
from stream_recon.configs.errors import OutputError

if TYPE_CHECKING:
    from stream_recon.app.viewer.surface_grid import Triangles

MAX_POINTS = 1_800_000
"""Most points: at 13 bytes each a file of less than 30 MB, and no more than browsers draw smoothly."""
POINTS_WITH_SURFACES = 300_000
"""Most points beside surfaces, which are hidden at first."""
MAX_SPLATS = 500_000
"""Most splats, of 32 bytes each."""
MAX_FRUSTA = 24
"""Most frusta: more hide the scene."""
HALF_RANGE = 1024
"""Largest coordinate in point spacings for half precision: with 11 bits its steps are then at most half a spacing."""


def write_page(job: ExportJob, path: Path) -> ExportReport:
    """Write the HTML file. Raises StreamReconError, or OSError for system errors."""
    # Imported here because other exports start sooner without a web server.
    from stream_recon.app.viewer.document import with_page
    from stream_recon.app.viewer.server import start_server, stop_server

    most = min(job.options.points, MAX_POINTS)
    if not most:
        raise OutputError("--format html needs points: use --points N with N above 0")
    found = ordered_points(job, most, job.progress)
    server = start_server("127.0.0.1", 0)
    try:
        recording = server.get_scene_serializer()
        what = _fill(server, job, found)
        text = with_page(str(recording.as_html(dark_mode=True)), job.result.folder.resolve().name or "stream-recon")
    finally:
        stop_server(server)
    path.write_text(text, encoding="utf-8")
    return ExportReport(
        f"{len(found.xyz)} points of {len(found.cameras)} frames, {what}, {len(text) / 1e6:.1f} MB.",
        [
            "Open it in a browser, from a disk or any web server; it needs no other files. Its panel shows and hides "
            "surface, points, cameras and path.",
            "The page shows the world upright; its axes are those above.",
        ],
    )


def _fill(server: Any, job: ExportJob, found: OrderedPoints) -> str:
    """Add the scene to a server; returns what it has beside points."""
    scene = server.scene
    has_splats = current_splats(job.result) is not None
    what = _add_surface(server, job, has_splats)
    if what != "no surface" and len(found.xyz) > POINTS_WITH_SURFACES:
        kept = uniform_indices(len(found.xyz), POINTS_WITH_SURFACES)
    else:
        kept = np.arange(len(found.xyz))
    near = float(np.abs(found.xyz).max()) <= HALF_RANGE * found.spacing
    scene.add_point_cloud(
        "/points",
        found.xyz[kept],
        found.rgb[kept],
        point_size=1.2 * found.spacing * (len(found.xyz) / len(kept)) ** 0.5,
        point_shape="rounded",
        point_shading="flat",
        precision="float16" if near else "float32",
        visible=what == "no surface" and not has_splats,
    )
    if has_splats:
        from stream_recon.app.viewer.splats import add_splats

        splats = job_splats(job).most_visible(MAX_SPLATS)
        if len(splats):
            add_splats(server.scene, splats)
        # A hidden parent hides all surfaces, until a user switches them on.
        scene.add_frame("/surface", show_axes=False, visible=False)
        what = f"{len(splats)} splats, {what}"
    cameras = [found.cameras[k] for k in uniform_indices(len(found.cameras), MAX_FRUSTA)]
    lines = frusta(cameras, job.view, FRUSTUM_SHARE * found.extent).reshape(-1, 2, 3)
    scene.add_line_segments("/cameras", lines, _levels(FRUSTUM_COLOUR), thickness=1.5, thickness_units="screen")
    path = np.array([camera.T_world_camera[:3, 3] for camera in job.result.cameras])
    if len(path) > 1:
        segments = np.stack([path[:-1], path[1:]], axis=1).astype(np.float32)
        scene.add_line_segments("/path", segments, _levels(PATH_COLOUR), thickness=3.0, thickness_units="screen")
    return what


def _add_surface(server: Any, job: ExportJob, inside: bool) -> str:
    """Add the mesh or the keyframes' surfaces, and set the camera; returns what was added.

    ``inside``: the camera is one of the path.
    """
    from stream_recon.app.viewer.nodes import SurfaceNode, wxyz
    from stream_recon.app.viewer.overview import MAX_TRIED, FreeView, inner_view, opening_view
    from stream_recon.app.viewer.subject import Subject
    from stream_recon.app.viewer.surface_grid import TEXTURE_SIDE
    from stream_recon.app.viewer.surfaces import SurfaceStore
    from stream_recon.app.viewer.timeline import Timeline

    timeline, subject = Timeline(), Subject()
    surfaces = SurfaceStore(timeline)
    for camera in job.result.cameras:
        timeline.add_frame(camera.index, camera.T_world_camera, camera.intrinsics)
    mesh = job.result.folder / MESH_NAME
    has_mesh = mesh.exists()

    def add(result: FrameResult, image: Any) -> None:
        ordinal = timeline.ordinal(result.index)
        assert ordinal is not None, "the frame is one of the result's"
        subject.add(ordinal, result)
        if not has_mesh:
            surfaces.add(ordinal, result, image, causal=False)

    for result, image in surface_images(job, TEXTURE_SIDE):
        add(result, image)
    cameras = job.result.cameras
    up = world_up(cameras)
    server.scene.set_up_direction(tuple(up.tolist()))
    points, rays = subject.world(timeline)
    half = float(np.tan(server.initial_camera.fov / 2))
    free = FreeView(16 / 9 * half, 16 / 9 * half, half)
    if inside and len(points):
        view = inner_view(points, timeline.spaced_poses(MAX_TRIED), up, free)
    else:
        view = opening_view(points, rays, timeline.path(len(cameras)), cameras[0].T_world_camera[:3, 2], up, free)
    camera = server.initial_camera
    camera.position, camera.look_at, camera.up = view.position, view.target, view.up
    if has_mesh:
        x, y, z, w = quaternion_xyzw(gltf_axes(cameras, "auto").T[None])[0]
        content = mesh.read_bytes()
        if job.options.box is not None:
            planes = job.box_planes(gltf_axes(cameras, "auto"))
            content = glb([cut_primitive(part, planes) for part in read_glb(content)])
        server.scene.add_glb("/surface", content, wxyz=(w, x, y, z), cast_shadow=False, receive_shadow=False)
        return f"the mesh of {len(content) / 1e6:.1f} MB"
    planes = job.box_planes()
    for ordinal, surface in surfaces.surfaces.items():
        pose = timeline.poses[ordinal]
        if len(planes):
            surface.triangles = _cut(surface.triangles, planes, pose, surface.scale(timeline))
        node = SurfaceNode(server, f"/surface/{ordinal}")
        node.sync(surface, timeline, pose, wxyz(pose[None, :3, :3])[0])
    return f"surfaces of {len(surfaces.surfaces)} keyframes" if surfaces.surfaces else "no surface"


def _cut(t: "Triangles", planes: NDArray[np.float64], pose: NDArray[np.float64], scale: Any) -> "Triangles":
    """What is in front of planes [P, 4] of the world, of triangles of a camera with a pose [4, 4] and scales [3]."""
    local = np.concatenate([planes[:, :3] @ pose[:3, :3] * scale, (planes @ pose[:, 3])[:, None]], axis=1)
    part = cut_primitive(Primitive(t.xyz, t.faces, uv=t.uv, unsure=t.unsure), local)
    assert part.uv is not None and part.faces is not None and part.unsure is not None
    return replace(t, xyz=part.xyz, faces=part.faces, uv=part.uv, unsure=part.unsure)


def _levels(colour: tuple[float, float, float]) -> tuple[int, int, int]:
    red, green, blue = (round(255 * value) for value in colour)
    return red, green, blue
