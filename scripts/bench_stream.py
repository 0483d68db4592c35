"""What the geometry of a running stream costs: as the stream goes on, and beside a network on a GPU."""

import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import cast

import cv2
import numpy as np
from bench_pipeline import NETWORK_SIZE, SAMPLE, StandIn, Watch

from stream_recon.app.core.protocols import FrameEngine
from stream_recon.app.core.transforms import rotation_matrix
from stream_recon.app.core.types import Frame, FrameResult, ImageTransform, Intrinsics, PreparedFrame, Revision
from stream_recon.app.engine.engine import Engine
from stream_recon.app.pipeline.listeners import DelegatingBackEnd
from stream_recon.app.pipeline.pipeline import RunSetup, reconstruct
from stream_recon.app.pipeline.process import peak_host_memory_mb
from stream_recon.app.result.run_record import RunInfo, RunSummary
from stream_recon.app.result.writer import ResultWriter
from stream_recon.app.slam.online.back_end import OnlineBackEnd
from stream_recon.app.slam.online.process import ProcessBackEnd
from stream_recon.app.sources.source import open_source
from stream_recon.configs.schema import load_preset

SIZE = (640, 360)
STEP_PX = 6
FOCAL, DISTANCE = 500.0, 2.0
EVERY = 500
WARM_FRAMES = 120
START_S = 8
"""A program loads the network's weights meanwhile: the stage's processes are up when the first frame comes."""


def bench_stream(frames: int = 5_000) -> None:
    """A camera that looks at a wall and moves along it, there and back; a network that errs by some percent."""
    rng = np.random.default_rng(0)
    wall = _texture(rng, SIZE[1], SIZE[0] + STEP_PX * 400)
    back_end, spent = OnlineBackEnd(together=8), []
    revised = 0
    for index in range(frames):
        place = abs((index + 400) % 800 - 400) * STEP_PX
        result, frame = _frame(index, wall[:, place : place + SIZE[0]], place / FOCAL * DISTANCE, rng)
        begun = time.perf_counter()
        items = back_end.push(result, frame)
        spent.append(1e3 * (time.perf_counter() - begun))
        revised += len(items)
        if (index + 1) % EVERY == 0:
            last = spent[-EVERY:]
            mean, p95 = sum(last) / EVERY, sorted(last)[int(0.95 * EVERY)]
            print(
                f"| {index + 1} frames | {mean:.1f} ms a frame (median {median(last):.1f}, p95 {p95:.1f}, "
                f"most {max(last):.0f}) | {peak_host_memory_mb():.0f} MB at most |",
                flush=True,
            )
    back_end.finish()


class There(StandIn):
    """The sample there and back; every frame is a keyframe. ``blind``: it says what random weights say."""

    def __init__(self, seconds: float, blind: bool) -> None:
        super().__init__(seconds, Watch())
        self._blind = blind
        self._random = np.random.default_rng(0)

    def _result(self, frame: PreparedFrame) -> FrameResult:
        count = len(self._poses)
        place = abs((frame.index + count - 1) % (2 * count - 2) - (count - 1))
        pose, depth = self._poses[place].copy(), self._depths[place // self._every].copy()
        pose[:3, 3] /= self._unit
        if self._blind:
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


class FullSize(There):
    """As `There`, but the full-size network, with random weights, makes its steps on a GPU, every frame a keyframe."""

    def __init__(self, engine: Engine, blind: bool) -> None:
        super().__init__(0.0, blind)
        self._engine, self.device = engine, engine.device
        engine.reset()

    def prepare(self, frame: Frame) -> PreparedFrame:
        return self._engine.prepare(frame)

    def push(self, frame: PreparedFrame) -> list[FrameResult]:
        return [self._told(result) for result in self._engine.push(frame)]

    def finish(self) -> list[FrameResult]:
        return [self._told(result) for result in self._engine.finish()]

    def _told(self, result: FrameResult) -> FrameResult:
        frame = PreparedFrame(result.index, result.timestamp, result.rgb, result.transform)
        told = self._result(frame)
        size = result.depth.shape[::-1]
        if told.depth.shape == result.depth.shape:
            return told
        return replace(told, depth=cv2.resize(told.depth, size), confidence=cv2.resize(told.confidence, size))


class Watched(DelegatingBackEnd):
    """A stage; notes what each call took of whoever called it."""

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


def bench_beside(video: Path | None, step_ms: float, frames: int, network: bool) -> None:
    """Frames/s of the program around a step that sleeps, full-size images, without and with geometry, in turn.

    With geometry also without what it does once the last frame is in; and what a frame costs where no step is waited
    for: below the step's length a stage keeps up.

    Args:
        network: around the full-size network's own steps, on a GPU.
    """
    with tempfile.TemporaryDirectory() as folder:
        if video is None:
            video = Path(folder) / "made.mp4"
            _write_there_and_back(video, frames)
        engine = full_size() if network else None
        step = "the full-size network" if engine else f"a step of {step_ms:g} ms"

        def stepping(blind: bool) -> There:
            return There(step_ms / 1000, blind) if engine is None else FullSize(engine, blind)

        if engine is not None:
            # What is compiled and captured once is not timed.
            _run(video, stepping(False), None, WARM_FRAMES, Path(folder) / "warm")
        for blind in (False, True):
            results = "random results" if blind else "true results"
            bare = _run(video, stepping(blind), None, frames, Path(folder) / f"{blind}")
            for kind, name in ((OnlineBackEnd, "in a thread"), (ProcessBackEnd, "in processes of its own")):
                place = Path(folder) / f"{blind}{kind.__name__}"
                back_end = Watched(kind())
                summary = _run(video, stepping(blind), back_end, frames, place)
                assert summary.stream is not None
                steady = summary.frames_reconstructed / (summary.seconds - back_end.finish_s)
                print(
                    f"| {results}, {step}, geometry {name} | {summary.fps:.1f} frames/s, "
                    f"{100 * summary.fps / bare.fps:.1f} % of {bare.fps:.1f} without; before its end {steady:.1f}, "
                    f"{100 * steady / bare.fps:.1f} %; its end {back_end.finish_s:.2f} s |"
                )
                print(f"| a call of the stage | {back_end.shown}; {summary.stream['keyframes']} keyframes of the map |")
                back_end = Watched(kind())
                _run(video, There(0.0, blind), back_end, frames, place.with_suffix(".fast"))
                print(
                    f"| likewise, with no step between | {back_end.shown}; its end {back_end.finish_s:.2f} s |",
                    flush=True,
                )


def full_size() -> Engine:
    """The full-size network with random weights."""
    from bench_gpu.measure import random_network

    preset = load_preset("lingbot-map", {"stream.keyframes": "every"})
    return Engine(random_network(preset), preset, "0" * 64)


def _run(video: Path, engine: There, back_end: Watched | None, frames: int, out: Path) -> RunSummary:
    with open_source(str(video), max_frames=frames) as source:
        writer = ResultWriter(out, RunInfo(video.name, load_preset("lingbot-map"), "0" * 64, engine.device))
        return reconstruct(source, cast(FrameEngine, engine), writer, setup=RunSetup(back_end))


def _write_there_and_back(path: Path, frames: int) -> None:
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


def _texture(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
    picture = np.zeros((height, width), np.float32)
    for size in (4, 16, 64):
        coarse = rng.normal(0, 25, (height // size + 2, width // size + 2)).astype(np.float32)
        picture += cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
    return np.clip(128 + picture, 0, 255).astype(np.uint8)


def _frame(index: int, grey: np.ndarray, x: float, rng: np.random.Generator) -> tuple[FrameResult, PreparedFrame]:
    small = (224, 126)
    T = np.eye(4)
    T[:3, 3] = x + rng.normal(0, 0.003), *rng.normal(0, 0.003, 2)
    transform = ImageTransform(SIZE, (0.0, 0.0, float(SIZE[0]), float(SIZE[1])), small)
    rgb = np.zeros((small[1], small[0], 3), np.uint8)
    depth = np.full(rgb.shape[:2], DISTANCE * np.exp(rng.normal(0, 0.02)), np.float32)
    camera = Intrinsics(FOCAL, FOCAL, SIZE[0] / 2, SIZE[1] / 2)
    result = FrameResult(index, index / 30, T, camera, depth, np.ones_like(depth), rgb, transform, True)
    noisy = np.clip(grey + rng.normal(0, 1.5, grey.shape), 0, 255).astype(np.uint8)
    return result, PreparedFrame(index, index / 30, rgb, transform, noisy)


if __name__ == "__main__":
    bench_stream()
