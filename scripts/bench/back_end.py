"""Frame rate of the program with and without the online back end, and the time of its calls."""

import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

import cv2
import numpy as np

from bench.films import SIZE, frame_at, sample_frames, write_film
from bench.pipeline import NETWORK_SIZE, StandIn
from bench.table import row
from stream_recon.app.core.transforms import rotation_matrix
from stream_recon.app.core.types import Frame, FrameEngine, FrameResult, PreparedFrame, Revision
from stream_recon.app.engine.engine import Engine
from stream_recon.app.result.run_record import RunInfo, RunSummary
from stream_recon.app.result.writer import ResultWriter
from stream_recon.app.run.listeners import DelegatingBackEnd
from stream_recon.app.run.pipeline import RunSetup, reconstruct
from stream_recon.app.slam.online.back_end import OnlineBackEnd
from stream_recon.app.slam.online.process import ProcessBackEnd
from stream_recon.app.sources.frame_choice import FrameChoice
from stream_recon.app.sources.source import open_source
from stream_recon.configs.schema import load_preset

WARM_FRAMES = 120
"""Frames before timing starts: kernels are compiled and graphs captured in them."""
START_S = 8.0
"""Seconds until the processes of the back end are up; in the program the network's weights load in this time."""


class Shuttle(StandIn):
    """An engine that plays the sample forwards and backwards, every frame a keyframe.

    With ``random_results`` poses and depth are noise, as from random weights.
    """

    def __init__(self, seconds: float, random_results: bool) -> None:
        super().__init__(seconds)
        self._random_results = random_results
        self._random = np.random.default_rng(0)

    def _result(self, frame: PreparedFrame) -> FrameResult:
        count = len(self._poses)
        place = abs((frame.index + count - 1) % (2 * count - 2) - (count - 1))
        result = self._at(frame, place, 0.0, is_keyframe=True)
        if not self._random_results:
            return result
        pose = np.eye(4)
        pose[:3, 3] = self._random.normal(0, 0.1, 3)
        pose[:3, :3] = rotation_matrix(np.array([*self._random.normal(0, 0.02, 3), 1.0]))
        coarse = self._random.normal(0, 0.3, (NETWORK_SIZE[1] // 14, NETWORK_SIZE[0] // 14))
        depth = np.exp(cv2.resize(coarse.astype(np.float32), NETWORK_SIZE))
        return replace(result, T_world_camera=pose, depth=depth, confidence=1 + 4 / (1 + depth))


class FullSize(Shuttle):
    """A `Shuttle` whose steps are made by the full-size network with random weights on a GPU."""

    def __init__(self, engine: Engine, random_results: bool) -> None:
        super().__init__(0.0, random_results)
        self._engine, self.device = engine, engine.device
        engine.reset()

    def prepare(self, frame: Frame) -> PreparedFrame:
        return self._engine.prepare(frame)

    def push(self, frame: PreparedFrame) -> list[FrameResult]:
        return [self._replaced(result) for result in self._engine.push(frame)]

    def finish(self) -> list[FrameResult]:
        return [self._replaced(result) for result in self._engine.finish()]

    def _replaced(self, result: FrameResult) -> FrameResult:
        known = self._result(PreparedFrame(result.index, result.timestamp, result.rgb, result.transform))
        size = result.depth.shape[::-1]
        return replace(known, depth=cv2.resize(known.depth, size), confidence=cv2.resize(known.confidence, size))


class Watched(DelegatingBackEnd):
    """A back end that records the milliseconds of each call, in the calling thread."""

    def __init__(self, back_end: OnlineBackEnd | ProcessBackEnd) -> None:
        super().__init__(back_end)
        if isinstance(back_end, ProcessBackEnd):
            time.sleep(START_S)
        self._wall: list[float] = []
        self.finish_s = 0.0

    def push(self, result: FrameResult, frame: PreparedFrame) -> Sequence[FrameResult | Revision]:
        begun = time.perf_counter()
        items = super().push(result, frame)
        self._wall.append(1e3 * (time.perf_counter() - begun))
        return items

    def finish(self) -> Sequence[FrameResult | Revision]:
        begun = time.perf_counter()
        items = super().finish()
        self.finish_s = time.perf_counter() - begun
        return items

    @property
    def shown(self) -> str:
        wall = np.array(self._wall)
        spread = f"median {np.median(wall):.1f}, p95 {np.percentile(wall, 95):.1f}, most {wall.max():.0f}"
        return f"{wall.mean():.1f} ms a frame ({spread})"


def full_size() -> Engine:
    """The full-size network with random weights."""
    from bench.gpu.measure import random_network

    preset = load_preset("lingbot-map", {"stream.keyframes": "every"})
    return Engine(random_network(preset), preset, "0" * 64)


def _run(video: Path, engine: Shuttle, back_end: Watched | None, frames: int, out: Path) -> RunSummary:
    with open_source(str(video), FrameChoice(max_frames=frames)) as source:
        writer = ResultWriter(out, RunInfo(video.name, load_preset("lingbot-map"), "0" * 64, engine.device))
        return reconstruct(source, cast(FrameEngine, engine), writer, setup=RunSetup(back_end))


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("video", type=Path, nargs="?", metavar="VIDEO", help="default: the sample at 640x480")
    parser.add_argument("--frames", type=int, default=900)
    parser.add_argument("--step-ms", type=float, default=28.0)
    parser.add_argument("--network", action="store_true", help="the full-size network on a GPU in place of a pause")


def run(options: Namespace) -> None:
    """Print frames/s of the program, without and with the back end, also without its last adjustment."""
    with tempfile.TemporaryDirectory() as name:
        folder, frames = Path(name), options.frames
        video = options.video or folder / "generated.mp4"
        if options.video is None:
            sample = sample_frames(SIZE)
            write_film(video, (frame_at(sample, index) for index in range(frames)))
        stepping: Callable[[bool], Shuttle] = partial(Shuttle, options.step_ms / 1000)
        step = f"a step of {options.step_ms:g} ms"
        if options.network:
            stepping, step = partial(FullSize, full_size()), "the full-size network"
            # What is compiled and captured once is not timed.
            _run(video, stepping(False), None, WARM_FRAMES, folder / "warm")
        for is_random in (False, True):
            results = "random results" if is_random else "true results"
            bare = _run(video, stepping(is_random), None, frames, folder / f"{is_random}")
            for kind, where in ((OnlineBackEnd, "in a thread"), (ProcessBackEnd, "in processes")):
                back_end = Watched(kind())
                summary = _run(video, stepping(is_random), back_end, frames, folder / f"{is_random}{kind.__name__}")
                assert summary.stream is not None
                steady = summary.frames_reconstructed / (summary.seconds - back_end.finish_s)
                row(
                    f"{results}, {step}, back end {where}",
                    f"{summary.fps:.1f} frames/s, {100 * summary.fps / bare.fps:.1f} % of {bare.fps:.1f} without; "
                    f"without the last adjustment {100 * steady / bare.fps:.1f} %; it takes {back_end.finish_s:.2f} s",
                )
                row("a call of the back end", f"{back_end.shown}; {summary.stream['keyframes']} keyframes")
