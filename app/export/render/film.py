"""Rendering of a result's points along a camera path to a video file."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.transforms import invert_pose
from stream_recon.app.core.types import Intrinsics
from stream_recon.app.export.job import ExportJob, ExportOptions
from stream_recon.app.export.render.camera_path import CameraKeypoint, CameraPath, camera_keypoints
from stream_recon.app.export.render.encoder import VideoEncoder
from stream_recon.app.export.render.raster import PATH_COLOUR, PATH_SHARE, Points, RenderScene, draw, render_scene
from stream_recon.app.export.target import staged_file
from stream_recon.app.result.files import in_order
from stream_recon.app.result.folder import read_result
from stream_recon.configs.errors import ConfigError

FIELD_OF_VIEW = np.radians(60)
"""Field of view across 4 / 3 of the image's shorter side, so that wide images show more."""
NEAREST = 0.01
"""Least depth of a drawn point as a share of the scene's extent: nearer ones would cover the image."""
LINE_STEPS = 24
"""Points between two cameras of the drawn trajectory, dense enough for a closed line."""
MAX_THREADS = 8
"""Most threads that draw frames: each needs memory for all points."""

Painter = Callable[[NDArray[np.float64], Intrinsics, tuple[int, int]], NDArray[np.uint8]]
"""Draws the image [h, w, 3] of a pinhole camera with a pose [4, 4] and a size (width, height)."""


@dataclass(frozen=True)
class FilmOptions:
    """Options of a rendered video."""

    camera_path: CameraPath = "trajectory"
    size: tuple[int, int] = (1920, 1080)
    """Width and height, even."""
    seconds: float = 12.0
    fps: float = 30.0
    points: int = 1_500_000
    """Most points."""


def render_film(
    folder: Path,
    target: Path,
    options: FilmOptions,
    *,
    overwrite: bool = False,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
    paint: Painter | None = None,
) -> str:
    """Write a video of a result, which a run may still be writing to; returns a line that describes it.

    Args:
        target: a file NAME.mp4.
        overwrite: replace an existing file.
        paint: draws the scene; None: its points are drawn.
        progress: called with the step's name, the number done and the total; an exception from it ends the work.

    Raises StreamReconError: nothing to show, no disk space, or a file at ``target``; nothing is written then.
    """
    if target.suffix.lower() != ".mp4":
        raise ConfigError(f"{target}: for a video use NAME.mp4")
    frames = max(1, round(options.seconds * options.fps))
    with staged_file(target, overwrite) as part:
        job = ExportJob(read_result(folder), ExportOptions(frames="keyframes"))
        scene = render_scene(job, options.points, lambda done, total: progress("points", done, total))
        camera = _camera(options.size)

        def image_at(keypoint: CameraKeypoint) -> NDArray[np.uint8]:
            if paint is not None:
                return paint(keypoint.T_world_camera, camera, options.size)
            shown = min(keypoint.shown, len(scene.cameras))
            points = scene.points.first(int(scene.point_ends[shown - 1]))
            if options.camera_path != "trajectory":
                points = points.joined(trajectory_points(scene, shown))
            return draw(points, invert_pose(keypoint.T_world_camera), camera, options.size, NEAREST * scene.extent)

        threads = 1 if paint is not None else min(os.cpu_count() or 1, MAX_THREADS)
        keypoints = ((keypoint,) for keypoint in camera_keypoints(scene, options.camera_path, frames, options.fps))
        with VideoEncoder(part, options.size, options.fps) as encoder, ThreadPoolExecutor(threads) as pool:
            for done, image in enumerate(in_order(pool, image_at, keypoints, threads), start=1):
                encoder.write(image)
                progress("frames", done, frames)
    width, height = options.size
    what = "from splats" if paint is not None else f"{len(scene.points.xyz)} points"
    return f"{frames} frames of {width}x{height} pixels, {encoder.codec}, {what}."


def trajectory_points(scene: RenderScene, shown: int) -> Points:
    """The trajectory of the first ``shown`` cameras as a row of points."""
    line = scene.line[:shown]
    share = np.linspace(0, 1, LINE_STEPS, endpoint=False)[None, :, None]
    row = (line[:-1, None] * (1 - share) + line[1:, None] * share).reshape(-1, 3) if shown > 1 else line
    size = np.full(len(row), PATH_SHARE * scene.extent, np.float32)
    colour = np.tile(np.array(PATH_COLOUR, np.uint8), (len(row), 1))
    return Points(row.astype(np.float32), colour, size, np.zeros((len(row), 3), np.float32))


def _camera(size: tuple[int, int]) -> Intrinsics:
    focal = 4 / 3 * min(size) / (2 * np.tan(FIELD_OF_VIEW / 2))
    return Intrinsics(focal, focal, size[0] / 2, size[1] / 2)
