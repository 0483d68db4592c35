"""Frame rate of the program with and without the online back end, and the time of its calls."""

import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import cv2
import numpy as np

from bench import SAMPLE
from bench.pipeline import NETWORK_SIZE, StandIn, Watch
from stream_recon.app.core.transforms import rotation_matrix
from stream_recon.app.core.types import Frame, FrameEngine, FrameResult, Intrinsics, PreparedFrame, Revision
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
        super().__init__(seconds, Watch())
        self._random_results = random_results
        self._random = np.random.default_rng(0)

    def _result(self, frame: PreparedFrame) -> FrameResult:
        count = len(self._poses)
        place = abs((frame.index + count - 1) % (2 * count - 2) - (count - 1))
        pose, depth = self._poses[place].copy(), self._depths[place // self._every].copy()
        pose[:3, 3] /= self._unit
        if self._random_results:
            pose[:3, 3] = self._random.normal(0, 0.1, 3)
            pose[:3, :3] = rotation_matrix(np.array([*self._random.normal(0, 0.02, 3), 1.0]))
            coarse = self._random.normal(0, 0.3, (NETWORK_SIZE[1] // 14, NETWORK_SIZE[0] // 14))
            depth = np.exp(cv2.resize(coarse.astype(np.float32), NETWORK_SIZE))
        width, height = frame.transform.source_size
        focal = self._focal * width
        camera = Intrinsics(focal, focal, width / 2, height / 2)
        confidence = 1 + 4 / (1 + depth)
        return FrameResult(
            frame.index, frame.timestamp, pose, camera, depth, confidence, frame.rgb, frame.transform, True, 2.0
        )


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
        frame = PreparedFrame(result.index, result.timestamp, result.rgb, result.transform)
        known = self._result(frame)
        size = result.depth.shape[::-1]
        if known.depth.shape == result.depth.shape:
            return known
        return replace(known, depth=cv2.resize(known.depth, size), confidence=cv2.resize(known.confidence, size))


class Watched(DelegatingBackEnd):
    """A back end that records the time of each call, in the calling thread."""

    def __init__(self, back_end: OnlineBackEnd | ProcessBackEnd) -> None:
        super().__init__(back_end)
        if isinstance(back_end, ProcessBackEnd):
            time.sleep(START_S)
        self.wall: list[float] = []
        self.cpu: list[float] = []
        self.finish_s = 0.0

    def push(self, result: FrameResult, frame: PreparedFrame) -> Sequence[FrameResult | Revision]:
        wall, cpu = time.perf_counter(), time.thread_time()
        items = super().push(result, frame)
        self.wall.append(1e3 * (time.perf_counter() - wall))
        self.cpu.append(1e3 * (time.thread_time() - cpu))
        return items

    def finish(self) -> Sequence[FrameResult | Revision]:
        begun = time.perf_counter()
        items = super().finish()
        self.finish_s = time.perf_counter() - begun
        return items

    @property
    def shown(self) -> str:
        wall = np.array(self.wall)
        parts = f"{wall.mean():.1f} ms a frame (median {np.median(wall):.1f}, p95 {np.percentile(wall, 95):.1f}"
        return f"{parts}, most {wall.max():.0f}), processor of its thread here {np.mean(self.cpu):.1f}"


def bench_back_end(video: Path | None, step_ms: float, frames: int, network: bool) -> None:
    """Print frames/s of the program with full-size images, without and with the back end.

    Also printed: the rate without the back end's last adjustment, and the time of a call without a network's step
    between calls. The back end keeps up where that time is below the step's.

    Args:
        network: use steps of the full-size network on a GPU in place of pauses of ``step_ms``.
    """
    with tempfile.TemporaryDirectory() as folder:
        if video is None:
            video = Path(folder) / "generated.mp4"
            _write_shuttle_video(video, frames)
        engine = full_size() if network else None
        step = "the full-size network" if engine else f"a step of {step_ms:g} ms"

        def stepping(random_results: bool) -> Shuttle:
            return Shuttle(step_ms / 1000, random_results) if engine is None else FullSize(engine, random_results)

        if engine is not None:
            # What is compiled and captured once is not timed.
            _run(video, stepping(False), None, WARM_FRAMES, Path(folder) / "warm")
        for random_results in (False, True):
            results = "random results" if random_results else "true results"
            bare = _run(video, stepping(random_results), None, frames, Path(folder) / f"{random_results}")
            for kind, name in ((OnlineBackEnd, "in a thread"), (ProcessBackEnd, "in processes")):
                place = Path(folder) / f"{random_results}{kind.__name__}"
                back_end = Watched(kind())
                summary = _run(video, stepping(random_results), back_end, frames, place)
                assert summary.stream is not None
                steady = summary.frames_reconstructed / (summary.seconds - back_end.finish_s)
                print(
                    f"| {results}, {step}, back end {name} | {summary.fps:.1f} frames/s, "
                    f"{100 * summary.fps / bare.fps:.1f} % of {bare.fps:.1f} without; "
                    f"without the last adjustment {steady:.1f}, "
                    f"{100 * steady / bare.fps:.1f} %; last adjustment {back_end.finish_s:.2f} s |"
                )
                print(f"| a call of the back end | {back_end.shown}; {summary.stream['keyframes']} keyframes |")
                back_end = Watched(kind())
                _run(video, Shuttle(0.0, random_results), back_end, frames, place.with_suffix(".fast"))
                print(
                    f"| a call without steps | {back_end.shown}; last adjustment {back_end.finish_s:.2f} s |",
                    flush=True,
                )


def full_size() -> Engine:
    """The full-size network with random weights."""
    from bench.gpu.measure import random_network

    preset = load_preset("lingbot-map", {"stream.keyframes": "every"})
    return Engine(random_network(preset), preset, "0" * 64)


def _run(video: Path, engine: Shuttle, back_end: Watched | None, frames: int, out: Path) -> RunSummary:
    with open_source(str(video), FrameChoice(max_frames=frames)) as source:
        writer = ResultWriter(out, RunInfo(video.name, load_preset("lingbot-map"), "0" * 64, engine.device))
        return reconstruct(source, cast(FrameEngine, engine), writer, setup=RunSetup(back_end))


def _write_shuttle_video(path: Path, frames: int) -> None:
    """The sample at 640x480."""
    capture, images = cv2.VideoCapture(str(SAMPLE)), []
    while True:
        ok, image = capture.read()
        if not ok:
            break
        images.append(cv2.resize(image, (640, 480), interpolation=cv2.INTER_CUBIC))
    file = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"mp4v"), 30, (640, 480))
    if not file.isOpened():
        raise SystemExit("OpenCV cannot write a video here: give one")
    for index in range(frames):
        file.write(images[abs((index + len(images) - 1) % (2 * len(images) - 2) - (len(images) - 1))])
    file.release()


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("video", type=Path, nargs="?", metavar="VIDEO", help="default: the sample at 640x480")
    parser.add_argument("--frames", type=int, default=900)
    parser.add_argument("--step-ms", type=float, default=28.0)
    parser.add_argument("--network", action="store_true", help="the full-size network on a GPU in place of a pause")


def run(options: Namespace) -> None:
    bench_back_end(options.video, options.step_ms, options.frames, options.network)
