"""Refined results of the synthetic room, with the images of their source."""

import dataclasses
from functools import partial
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.transforms import Similarity, align
from stream_recon.app.core.types import ImageTransform, Intrinsics
from stream_recon.app.result.folder import read_result
from stream_recon.app.result.run_record import RunSummary
from stream_recon.app.result.writer import ResultWriter
from stream_recon.app.sources.source import open_source
from stream_recon.app.stages.refinement import write_refinement
from stream_recon.app.stages.stage import StageContext
from tests.app.fake_engine import run_info
from tests.app.slam.room import FOCAL, SIZE, Video, drifting, picture

FloatArray = NDArray[np.float64]


def write_refined(folder: Path, truth: FloatArray, draw: int = 0, zoom: float = 1.0) -> Video:
    """Write a refined result of a walk ``truth`` [N, 4, 4], and its images beside it.

    ``zoom``: share of the image that another camera shows, in twice as many pixels.
    """
    video = Video(truth, drifting(truth, turn_deg=0.3, move=0.05), focal=FOCAL, draw=draw)
    if zoom != 1:
        _zoom(video, zoom)
    images = folder.with_name(folder.name + "-images")
    video.write_images(images)
    options = {"source": str(images), "camera": video.camera_option}
    info = dataclasses.replace(run_info(), options=options, source=images.name)
    writer = ResultWriter(folder, info)
    for result in video.results:
        writer.add(result)
    writer.finish(RunSummary(interrupted=False, frames_read=len(truth), frames_reconstructed=len(truth)))
    write_refinement(StageContext(folder, partial(open_source, str(images))))
    return video


def _zoom(video: Video, zoom: float) -> None:
    """Keep the middle of the images, at another size, as another camera shows it."""
    width, height = round(SIZE[0] * zoom), round(SIZE[1] * zoom)
    left, top = (SIZE[0] - width) // 2, (SIZE[1] - height) // 2
    size = (2 * width, 2 * height)
    for k, (rgb, old) in enumerate(zip(video.pictures, video.results, strict=True)):
        cut = rgb[top : top + height, left : left + width]
        video.pictures[k] = np.asarray(cv2.resize(cut, size, interpolation=cv2.INTER_CUBIC))
        depth = picture(video.truth[k])[1][top : top + height, left : left + width]
        small = (3 * width // 4, 3 * height // 4)
        focal = 2 * old.intrinsics.fx
        video.results[k] = dataclasses.replace(
            old,
            intrinsics=Intrinsics(focal, focal, float(width), float(height)),
            depth=np.asarray(cv2.resize(depth, small, interpolation=cv2.INTER_AREA)),
            confidence=np.ones((small[1], small[0]), np.float32),
            rgb=np.asarray(cv2.resize(cut, small, interpolation=cv2.INTER_AREA)),
            transform=ImageTransform(size, (0.0, 0.0, float(size[0]), float(size[1])), small),
        )


def to_truth(folder: Path, truth: FloatArray) -> Similarity:
    """Similarity from a result's world to that of its true poses."""
    poses = np.array([camera.T_world_camera for camera in read_result(folder).cameras])
    return align(poses[:, :3, 3], truth[: len(poses), :3, 3])
