"""A flight through a result as a video file."""

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
from stream_recon.app.export.render.camera_path import CameraKeypoint, Route, fly
from stream_recon.app.export.render.encoder import VideoEncoder
from stream_recon.app.export.render.raster import PATH_COLOUR, PATH_SHARE, Points, RenderScene, draw, gather
from stream_recon.app.export.target import staged_file
from stream_recon.app.result.files import in_order
from stream_recon.app.result.folder import read_result
from stream_recon.configs.errors import ConfigError

FIELD_OF_VIEW = np.radians(60)
"""Of the image's shorter side times 4 / 3, so that wide images show more."""
NEAREST = 0.01
"""Of the scene's extent."""
LINE_STEPS = 24
MOST_THREADS = 8


@dataclass(frozen=True)
class FilmOptions:
    """As given on the command line."""

    route: Route = "path"
    size: tuple[int, int] = (1920, 1080)
    seconds: float = 12.0
    fps: float = 30.0
    points: int = 1_500_000


def film(
    folder: Path,
    target: Path,
    options: FilmOptions,
    *,
    overwrite: bool = False,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> str:
    """Write a video of a result, which a run may still be writing to; gives a line on what it is.

    Args:
        target: a file NAME.mp4.
        overwrite: a file there may be replaced.
        progress: told what is done, how much of it, of how much; what it raises ends the work.

    Raises:
        StreamReconError: nothing to show, no room, something else at ``target``; nothing is then left there.
    """
    if target.suffix.lower() != ".mp4":
        raise ConfigError(f"{target}: a video is called NAME.mp4")
    frames = max(1, round(options.seconds * options.fps))
    with staged_file(target, overwrite) as part:
        job = ExportJob(read_result(folder), ExportOptions(frames="keyframes"))
        scene = gather(job, options.points, lambda done, total: progress("points", done, total))
        camera = _camera(options.size)

        def picture(moment: CameraKeypoint) -> NDArray[np.uint8]:
            shown = min(moment.shown, len(scene.cameras))
            points = scene.points.first(int(scene.upto[shown - 1]))
            if options.route != "path":
                points = points.joined(path_points(scene, shown))
            return draw(points, invert_pose(moment.T_world_camera), camera, options.size, NEAREST * scene.extent)

        threads = min(os.cpu_count() or 1, MOST_THREADS)
        moments = ((moment,) for moment in fly(scene, options.route, frames, options.fps))
        with VideoEncoder(part, options.size, options.fps) as encoder, ThreadPoolExecutor(threads) as pool:
            for done, image in enumerate(in_order(pool, picture, moments, threads), start=1):
                encoder.write(image)
                progress("frames", done, frames)
    width, height = options.size
    return f"{frames} frames of {width}x{height} pixels, {encoder.codec}, {len(scene.points.xyz)} points."


def path_points(scene: RenderScene, shown: int) -> Points:
    """The path up to a camera as a row of points."""
    line = scene.line[:shown]
    share = np.linspace(0, 1, LINE_STEPS, endpoint=False)[None, :, None]
    row = (line[:-1, None] * (1 - share) + line[1:, None] * share).reshape(-1, 3) if shown > 1 else line
    thick = np.full(len(row), PATH_SHARE * scene.extent, np.float32)
    colour = np.tile(np.array(PATH_COLOUR, np.uint8), (len(row), 1))
    return Points(row.astype(np.float32), colour, thick, np.zeros((len(row), 3), np.float32))


def _camera(size: tuple[int, int]) -> Intrinsics:
    focal = 4 / 3 * min(size) / (2 * np.tan(FIELD_OF_VIEW / 2))
    return Intrinsics(focal, focal, size[0] / 2, size[1] / 2)
