"""The scene as one HTML file that needs no server and no Python: viser's own page with the scene inside.

It plays the run: the cloud grows, cameras appear, and a slider goes to any moment.
"""

from itertools import pairwise
from pathlib import Path

import numpy as np

from stream_recon.app.export.gltf import FRUSTUM_COLOUR, FRUSTUM_SHARE, PATH_COLOUR, frusta
from stream_recon.app.export.job import ExportJob, ExportReport
from stream_recon.app.export.points import OrderedPoints, ordered_points, spread_indices
from stream_recon.app.export.view import upright_axes, world_up
from stream_recon.configs.errors import OutputError

MOST_POINTS = 1_800_000
"""At 13 bytes each a file of less than 30 MB; browsers draw as many without effort."""
MOMENTS = 80
"""Steps of the slider: so many clouds, each of some keyframes."""
SECONDS = 12.0
"""That it takes to play."""
HALF_RANGE = 1024
"""Half precision has 11 bits: farther than so many spacings from the origin its steps would exceed half a spacing."""


def write_page(job: ExportJob, path: Path) -> ExportReport:
    """Write the file. Raises StreamReconError, or OSError where the system refuses."""
    # Other exports start sooner without a web server.
    from stream_recon.app.viewer.server import start_server, stop_server

    most = min(job.options.points, MOST_POINTS)
    if not most:
        raise OutputError("a page without points shows nothing: --points N")
    found = ordered_points(job, most, job.progress)
    server = start_server("127.0.0.1", 0)
    try:
        text = _recorded(server, job, found)
    finally:
        stop_server(server)
    path.write_text(text, encoding="utf-8")
    return ExportReport(
        f"{len(found.xyz)} points of {len(found.cameras)} frames, {len(text) / 1e6:.1f} MB.",
        [
            "Open it in a browser, from a disk or any web server: it needs nothing else. It plays how the scene came "
            "to be; the bar at the bottom goes to any moment.",
            "The page shows the world upright; its axes are those above.",
        ],
    )


def _recorded(server: object, job: ExportJob, found: OrderedPoints) -> str:
    """The page of a scene to which keyframe after keyframe is added."""
    scene, extent = server.scene, found.extent  # type: ignore[attr-defined]
    up = world_up(found.cameras)
    level = upright_axes(up, found.cameras[0].T_world_camera[:3, 2])
    scene.set_up_direction(tuple(up.tolist()))
    camera = server.initial_camera  # type: ignore[attr-defined]
    camera.look_at = tuple(found.centre.tolist())
    camera.position = tuple((found.centre + 0.55 * extent * up - 0.75 * extent * level[2]).tolist())
    recording = server.get_scene_serializer()  # type: ignore[attr-defined]
    near = float(np.abs(found.xyz).max()) <= HALF_RANGE * found.spacing
    steps = np.unique(np.linspace(0, len(found.cameras), min(MOMENTS, len(found.cameras)) + 1).round().astype(int))
    ends = [0, *found.upto.tolist()]
    shown = set(spread_indices(len(found.cameras), 4 * MOMENTS).tolist())
    for number, (first, last) in enumerate(pairwise(steps.tolist())):
        here = slice(ends[first], ends[last])
        if len(found.xyz[here]):
            scene.add_point_cloud(
                f"/points/{number}",
                found.xyz[here],
                found.rgb[here],
                point_size=1.2 * found.spacing,
                point_shape="rounded",
                point_shading="flat",
                precision="float16" if near else "float32",
            )
        cameras = [found.cameras[k] for k in range(first, last) if k in shown]
        if cameras:
            lines = frusta(cameras, job.view, FRUSTUM_SHARE * extent).reshape(-1, 2, 3)
            scene.add_line_segments(
                f"/cameras/{number}", lines, _levels(FRUSTUM_COLOUR), thickness=1.5, thickness_units="screen"
            )
        path = np.array([camera.T_world_camera[:3, 3] for camera in found.cameras[max(first - 1, 0) : last]])
        if len(path) > 1:
            segments = np.stack([path[:-1], path[1:]], axis=1).astype(np.float32)
            scene.add_line_segments(
                f"/path/{number}", segments, _levels(PATH_COLOUR), thickness=3.0, thickness_units="screen"
            )
        recording.insert_sleep(SECONDS / (len(steps) - 1))
    return str(recording.as_html(dark_mode=True))


def _levels(colour: tuple[float, float, float]) -> tuple[int, int, int]:
    red, green, blue = (round(255 * value) for value in colour)
    return red, green, blue
