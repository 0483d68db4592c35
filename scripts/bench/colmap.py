"""Poses by COLMAP (pycolmap: sequential matching, incremental mapper) and by this program, of the same frames.

Neither knows the camera; COLMAP is told that all images have one. Both use all cores, and the GPU where they can. Times
are from the images to the poses, the start of the program included. The error is that of the images that got a pose,
after Sim(3) alignment, divided by the length of the true path of all frames.
"""

import multiprocessing
import shutil
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from bench import SAMPLE
from bench.command import children_seconds, run_program
from bench.table import header, row
from stream_recon.app.core.transforms import invert_pose
from stream_recon.app.datasets.sequence import read_sequence
from stream_recon.app.evaluation.metrics import pose_errors
from stream_recon.app.result.folder import read_result
from stream_recon.app.sources.frame_choice import FrameChoice
from stream_recon.app.sources.source import open_source

Poses = Mapping[int, NDArray[np.float64]]
"""Camera-to-world poses [4, 4] by number of the image."""


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("sequences", nargs="*", type=Path, help="folders with rgb/ and poses.txt; default: the sample")
    parser.add_argument("--stride", type=int, default=1)
    parser.add_argument("--frames", type=int, default=120, help="most frames (default 120)")
    parser.add_argument("--overlap", type=int, default=10, help="images that each one is matched with (default 10)")


def run(options: Namespace) -> None:
    header("sequence, frames", "program", "images with a pose", "ATE / path", "seconds", "core seconds")
    for sequence in options.sequences or [SAMPLE]:
        with tempfile.TemporaryDirectory() as work:
            images = Path(work) / "images"
            images.mkdir()
            write = sample_images if sequence == SAMPLE else sequence_images
            truth = write(sequence, images, options.stride, options.frames)
            name = f"{sequence.stem}, {len(truth)}"
            poses, *times = timed_colmap(images, Path(work), options.overlap)
            row(name, "COLMAP", *figures(poses, truth), *times)
            done = run_program(images, "--dense", "off", "--no-mesh", "--no-viewer", out=Path(work) / "result")
            cameras = read_result(Path(work) / "result").cameras
            poses = {camera.index: camera.T_world_camera for camera in cameras}
            row(name, "stream-recon", *figures(poses, truth), f"{done.seconds:.1f}", f"{done.cpu_seconds:.0f}")


def sequence_images(folder: Path, images: Path, stride: int, count: int) -> Poses:
    """Copy the chosen images of a sequence, numbered from 0; returns their true poses."""
    sequence, truth = read_sequence(folder), {}
    for number, position in enumerate(range(0, len(sequence.images), stride)[:count]):
        path = sequence.images[position]
        shutil.copyfile(path, images / f"{number:06d}{path.suffix}")
        if position in sequence.poses:
            truth[number] = sequence.poses[position]
    return truth


def sample_images(video: Path, images: Path, stride: int, count: int) -> Poses:
    """Write the chosen frames of the sample; returns their true poses."""
    poses, truth = np.load(video.with_suffix(".truth.npz"))["T_world_camera"], {}
    with open_source(str(video), FrameChoice(stride, max_frames=count)) as source:
        for number, frame in enumerate(source):
            cv2.imwrite(str(images / f"{number:06d}.png"), cv2.cvtColor(frame.rgb, cv2.COLOR_RGB2BGR))
            truth[number] = poses[frame.index]
    return truth


def figures(poses: Poses, truth: Poses) -> tuple[str, str]:
    """How many images have a pose, and its error."""
    found = sorted(set(poses) & set(truth))
    path = np.linalg.norm(np.diff([T[:3, 3] for T in truth.values()], axis=0), axis=1).sum()
    own, true = (np.array([each[number] for number in found]).reshape(-1, 4, 4) for each in (poses, truth))
    ate = pose_errors(own, true, np.diff(found) == 1).ate_m
    return f"{len(found)} of {len(truth)}", "" if ate is None else f"{ate / path:.4f}"


def timed_colmap(images: Path, work: Path, overlap: int) -> tuple[Poses, str, str]:
    """Poses of the largest model, seconds, and seconds of all cores."""
    begin, before = time.perf_counter(), children_seconds()
    process = multiprocessing.get_context("spawn").Process(target=colmap, args=(images, work, overlap))
    process.start()
    process.join()
    seconds, core_seconds = time.perf_counter() - begin, children_seconds() - before
    if process.exitcode:
        raise SystemExit("COLMAP failed")
    with np.load(work / "poses.npz") as found:
        poses = dict(zip(found["numbers"].tolist(), found["poses"], strict=True))
    return poses, f"{seconds:.1f}", f"{core_seconds:.0f}"


def colmap(images: Path, work: Path, overlap: int) -> None:
    """COLMAP's way for video, with its own settings; writes ``poses.npz``."""
    import pycolmap

    database = work / "database.db"
    pycolmap.extract_features(database, images, camera_mode=pycolmap.CameraMode.SINGLE)
    pycolmap.match_sequential(database, pairing_options=pycolmap.SequentialPairingOptions(overlap=overlap))
    models = pycolmap.incremental_mapping(database, images, work / "models")
    best = max(models.values(), key=lambda model: model.num_reg_images(), default=None)
    registered = [] if best is None else [best.images[number] for number in best.reg_image_ids()]
    matrices = [np.vstack([image.cam_from_world().matrix(), [0, 0, 0, 1]]) for image in registered]
    numbers = [int(Path(image.name).stem) for image in registered]
    np.savez(work / "poses.npz", numbers=numbers, poses=invert_pose(np.reshape(matrices, (-1, 4, 4))))
