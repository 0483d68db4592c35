"""Export of a scene as one HTML file that needs no server: viser's client with the scene inside.

It shows the result's mesh, or else textured surfaces of its keyframes, and its points where there are none of these.
"""

from pathlib import Path
from typing import Any

import numpy as np

from stream_recon.app.core.output_file import write_new
from stream_recon.app.core.ply import uniform_indices
from stream_recon.app.export.glb import FRUSTUM_COLOUR, FRUSTUM_SHARE, PATH_COLOUR, frusta
from stream_recon.app.export.job import ExportJob, ExportReport
from stream_recon.app.export.page_surface import add_surface
from stream_recon.app.export.points import OrderedPoints, ordered_points
from stream_recon.app.export.splats import job_splats
from stream_recon.app.result.cameras import of_bodies
from stream_recon.app.result.folder import current_splats
from stream_recon.app.viewer.document import with_page
from stream_recon.app.viewer.server import start_server, stop_server
from stream_recon.app.viewer.splats import add_splats
from stream_recon.configs.errors import OutputError

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
    most = min(job.options.points, MAX_POINTS)
    if not most:
        raise OutputError("--format html needs points: use --points N with N above 0")
    cloud = ordered_points(job, most, job.progress)
    server = start_server("127.0.0.1", 0)
    try:
        recording = server.get_scene_serializer()
        what = _fill(server, job, cloud)
        text = with_page(str(recording.as_html(dark_mode=True)), job.result.folder.resolve().name or "stream-recon")
    finally:
        stop_server(server)
    write_new(path, text)
    return ExportReport(
        f"{len(cloud.xyz)} points of {len(cloud.cameras)} frames, {what}, {len(text) / 1e6:.1f} MB.",
        [
            "Open it in a browser, from a disk or any web server; it needs no other files. Its panel shows and hides "
            "surface, points, cameras and path.",
            "The page shows the world upright; its axes are those above.",
        ],
    )


def _fill(server: Any, job: ExportJob, cloud: OrderedPoints) -> str:
    """Add the scene to a server; returns what it has beside points."""
    scene = server.scene
    has_splats = current_splats(job.result) is not None
    what = add_surface(server, job, has_splats)
    chosen = uniform_indices(len(cloud.xyz), len(cloud.xyz) if what == "no surface" else POINTS_WITH_SURFACES)
    near = float(np.abs(cloud.xyz).max()) <= HALF_RANGE * cloud.spacing
    scene.add_point_cloud(
        "/points",
        cloud.xyz[chosen],
        cloud.rgb[chosen],
        point_size=1.2 * cloud.spacing * (len(cloud.xyz) / len(chosen)) ** 0.5,
        point_shape="rounded",
        point_shading="flat",
        precision="float16" if near else "float32",
        visible=what == "no surface" and not has_splats,
    )
    if has_splats:
        splats = job_splats(job).most_visible(MAX_SPLATS)
        if len(splats):
            add_splats(server.scene, splats)
        # A hidden parent hides all surfaces, until a user switches them on.
        scene.add_frame("/surface", show_axes=False, visible=False)
        what = f"{len(splats)} splats, {what}"
    cameras = [cloud.cameras[k] for k in uniform_indices(len(cloud.cameras), MAX_FRUSTA)]
    lines = frusta(cameras, job.view, FRUSTUM_SHARE * cloud.extent).reshape(-1, 2, 3)
    scene.add_line_segments("/cameras", lines, _levels(FRUSTUM_COLOUR), thickness=1.5, thickness_units="screen")
    path = np.array([camera.T_world_camera[:3, 3] for camera in of_bodies(job.result.cameras)])
    if len(path) > 1:
        segments = np.stack([path[:-1], path[1:]], axis=1).astype(np.float32)
        scene.add_line_segments("/path", segments, _levels(PATH_COLOUR), thickness=3.0, thickness_units="screen")
    return what


def _levels(colour: tuple[float, float, float]) -> tuple[int, int, int]:
    red, green, blue = (round(255 * value) for value in colour)
    return red, green, blue
