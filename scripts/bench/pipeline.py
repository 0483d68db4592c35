"""Frame rate of the program compared with its network's: real decoding, resizing and writing around a step that sleeps.

A step on a GPU leaves the CPU to the other threads, so a pause of the same length replaces it. Depth and poses are the
sample's ground truth, repeated with an offset for each repetition, so that the cloud grows as in a new room.
"""

import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import cast

import cv2
import numpy as np

from bench.films import Picture, describe_film, sample_frames, write_film
from bench.scenarios.sample import SampleTruth
from bench.table import row
from stream_recon.app.core.types import Frame, FrameEngine, FrameResult, ImageTransform, PreparedFrame
from stream_recon.app.result.run_record import RunInfo
from stream_recon.app.result.writer import ResultWriter
from stream_recon.app.run.pipeline import reconstruct
from stream_recon.app.sources.frame_choice import FrameChoice
from stream_recon.app.sources.preprocess import prepare
from stream_recon.app.sources.source import open_source
from stream_recon.configs.schema import load_preset

VIDEO_SIZE = (1920, 1080)
NETWORK_SIZE = (504, 378)
"""The largest that the full-size preset takes for usual cameras."""
LAP_M = 0.3
"""Offset between two repetitions of the sample, so that new voxels appear at a usual rate."""


class StandIn:
    """An engine whose step is a pause of ``seconds``, and whose results are the sample's truth."""

    device, attention, submaps, reference_frames, threads = "cpu", "none", 1, (), 0

    def __init__(self, seconds: float) -> None:
        self._seconds, self._truth = seconds, SampleTruth(NETWORK_SIZE, LAP_M, keyframe_every=6)

    def prepare(self, frame: Frame) -> PreparedFrame:
        height, width = frame.rgb.shape[:2]
        return prepare(frame, ImageTransform((width, height), (0.0, 0.0, float(width), float(height)), NETWORK_SIZE))

    def push(self, frame: PreparedFrame) -> list[FrameResult]:
        end = time.perf_counter() + self._seconds
        result = self._truth.result(frame)
        time.sleep(max(0.0, end - time.perf_counter()))
        return [result]

    def finish(self) -> list[FrameResult]:
        return []


def pictures(frames: int) -> Iterator[Picture]:
    """The sample at 1080p, with a finer texture that moves."""
    noise, (width, height) = np.random.default_rng(0), VIDEO_SIZE
    wide = (width + frames, height)
    texture = np.full((height, width + frames, 3), 24.0, np.float32)
    for cells in (8, 32, 128, 512):
        texture += cv2.resize(noise.normal(0, 8, (cells, 2 * cells, 3)).astype(np.float32), wide)
    grain, sample = np.clip(texture, 0, 255).astype(np.uint8), sample_frames(None)
    for shift in range(frames):
        large = cv2.resize(sample[shift % len(sample)], VIDEO_SIZE)
        yield np.asarray(cv2.add(large, grain[:, shift : shift + width]), np.uint8)


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("video", type=Path, nargs="?", metavar="VIDEO", help="default: a generated 1080p video")
    parser.add_argument("--frames", type=int, default=300)
    parser.add_argument("--step-ms", type=float, default=20.0)
    parser.add_argument("--viewer", action="store_true")


def run(options: Namespace) -> None:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        video = options.video or folder / "generated.mp4"
        if options.video is None:
            write_film(video, pictures(options.frames), ("avc1", "mp4v"))
        preset, engine, viewers = load_preset("lingbot-map"), StandIn(options.step_ms / 1000), []
        if options.viewer:
            from stream_recon.app.viewer.viewer import Viewer

            viewers = [stack.enter_context(Viewer(preset.points, port=0))]
        source = stack.enter_context(open_source(str(video), FrameChoice(max_frames=options.frames)))
        writer = ResultWriter(folder / "out", RunInfo(video.name, preset, "0" * 64, engine.device))
        summary = reconstruct(source, cast(FrameEngine, engine), writer, viewers)
        row("video", f"{describe_film(video)}, {summary.frames_read} frames")
        share = 0.1 * summary.fps * options.step_ms
        row(f"program around a step of {options.step_ms:g} ms", f"{summary.fps:.1f} frames/s, {share:.1f} %")
