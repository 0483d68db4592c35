"""Export of a scene as one HTML file that needs no server: viser's client with the scene inside.

It plays the run with a slider: points and cameras are added keyframe by keyframe.
"""

from itertools import pairwise
from pathlib import Path

import numpy as np

from stream_recon.app.export.glb import FRUSTUM_COLOUR, FRUSTUM_SHARE, PATH_COLOUR, frusta
from stream_recon.app.export.job import ExportJob, ExportReport
from stream_recon.app.export.points import OrderedPoints, ordered_points, uniform_indices
from stream_recon.app.export.view import upright_axes, world_up
from stream_recon.configs.errors import OutputError

MAX_POINTS = 1_800_000
"""Most points: at 13 bytes each a file of less than 30 MB, and no more than browsers draw smoothly."""
STEPS = 80
"""Most steps of the slider, each a point cloud of some keyframes: more draw calls are slow."""
SECONDS = 12.0
"""Duration of the replay, as of a rendered video."""
HALF_RANGE = 1024
"""Largest coordinate in point spacings for half precision: with 11 bits its steps are then at most half a spacing."""


def write_page(job: ExportJob, path: Path) -> ExportReport:
    """Write the HTML file. Raises StreamReconError, or OSError for system errors."""
    # Imported here because other exports start sooner without a web server.
    from stream_recon.app.viewer.server import start_server, stop_server

    most = min(job.options.points, MAX_POINTS)
    if not most:
        raise OutputError("--format html needs points: use --points N with N above 0")
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
            "Open it in a browser, from a disk or any web server; it needs no other files. It replays the "
            "reconstruction; the slider at the bottom selects a time.",
            "The page shows the world upright; its axes are those above.",
        ],
    )


def _recorded(server: object, job: ExportJob, found: OrderedPoints) -> str:
    """HTML text with a recording of the scene, to which keyframes are added one after the other."""
    scene, extent = server.scene, found.extent  # type: ignore[attr-defined]
    up = world_up(found.cameras)
    level = upright_axes(up, found.cameras[0].T_world_camera[:3, 2])
    scene.set_up_direction(tuple(up.tolist()))
    camera = server.initial_camera  # type: ignore[attr-defined]
    camera.look_at = tuple(found.centre.tolist())
    camera.position = tuple((found.centre + 0.55 * extent * up - 0.75 * extent * level[2]).tolist())
    recording = server.get_scene_serializer()  # type: ignore[attr-defined]
    near = float(np.abs(found.xyz).max()) <= HALF_RANGE * found.spacing
    steps = np.unique(np.linspace(0, len(found.cameras), min(STEPS, len(found.cameras)) + 1).round().astype(int))
    ends = [0, *found.point_ends.tolist()]
    shown = set(uniform_indices(len(found.cameras), 4 * STEPS).tolist())
    for number, (first, last) in enumerate(pairwise(steps.tolist())):
        new = slice(ends[first], ends[last])
        if len(found.xyz[new]):
            scene.add_point_cloud(
                f"/points/{number}",
                found.xyz[new],
                found.rgb[new],
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
