"""Refined results of the synthetic room, with the images of their source."""

import dataclasses
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.transforms import Similarity, align
from stream_recon.app.pipeline.refine import refine_result
from stream_recon.app.result.folder import read_result
from stream_recon.app.result.run_record import RunSummary
from stream_recon.app.result.writer import ResultWriter
from stream_recon.app.sources.source import open_source
from tests.app.fake_engine import run_info
from tests.app.slam.room import Video, drifting

FloatArray = NDArray[np.float64]


def write_refined(folder: Path, truth: FloatArray, draw: int = 0) -> Video:
    """Write a refined result of a walk ``truth`` [N, 4, 4], and its images beside it."""
    video = Video(truth, drifting(truth, turn_deg=0.3, move=0.05), draw=draw)
    images = folder.with_name(folder.name + "-images")
    video.write_images(images)
    info = dataclasses.replace(run_info(), options={"source": str(images)}, source=images.name)
    writer = ResultWriter(folder, info)
    for result in video.results:
        writer.add(result)
    writer.finish(RunSummary(interrupted=False, frames_read=len(truth), frames_reconstructed=len(truth)))
    refine_result(read_result(folder), partial(open_source, str(images)))
    return video


def to_truth(folder: Path, truth: FloatArray) -> Similarity:
    """Similarity from a result's world to that of its true poses."""
    poses = np.array([camera.T_world_camera for camera in read_result(folder).cameras])
    return align(poses[:, :3, 3], truth[: len(poses), :3, 3])
