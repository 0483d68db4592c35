"""Tables of the program on a 1080p video, compared with the bare step, and of the embedded network."""

import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console

from bench.gpu.measure import begin_table, release_memory, row
from bench.gpu.pictures import frame_at, sample_frames
from bench.pipeline import Watch, describe_video, watched_parts, write_video
from stream_recon.app.cli.progress import TerminalObserver
from stream_recon.app.core.types import Frame, FrameEngine, FrameResult, PreparedFrame
from stream_recon.app.engine.engine import Engine, prepare_network
from stream_recon.app.engine.stream import Stream
from stream_recon.app.result.run_record import RunInfo, RunSummary
from stream_recon.app.result.writer import ResultWriter
from stream_recon.app.run.pipeline import reconstruct
from stream_recon.app.sources.capture import open_capture
from stream_recon.app.sources.frame_choice import FrameChoice
from stream_recon.app.sources.readers import Reader, VideoReader
from stream_recon.app.sources.source import Source
from stream_recon.configs.schema import Preset, load_preset
from stream_recon.models.embedded import EMBEDDED_PRESET, EMBEDDED_WEIGHTS
from stream_recon.models.network import StreamingNetwork
from stream_recon.models.weights import load_network

NO_WEIGHTS = "0" * 64
GENERATED_FRAMES = 300
WARM_FRAMES = 100
"""Left out where the window is not full earlier."""
BAR = 0.9
"""Of the bare step's speed, which the program is to reach."""


class LoopedReader(Reader):
    """A video file played again and again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = self._open()
        super().__init__(path.name, self._file.rate)
        self._index = -1

    def grab(self) -> tuple[int, float] | None:
        if self._file.grab() is None:
            self._file.close()
            self._file = self._open()
            self._file.grab()
        self._index += 1
        return self._index, self._index / self.rate

    def retrieve(self) -> NDArray[np.uint8] | None:
        return self._file.retrieve()

    def close(self) -> None:
        self._file.close()

    def _open(self) -> VideoReader:
        return VideoReader(open_capture(self._path, self._path.name), self._path.name)


class RecordingEngine:
    """An engine that records its input images and the time of each result."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.device = engine.device
        self.images: list[NDArray[np.uint8]] = []
        self.keyframes: list[bool] = []

    @property
    def attention(self) -> str:
        return self._engine.attention

    @property
    def submaps(self) -> int:
        return self._engine.submaps

    @property
    def reference_frames(self) -> tuple[int, ...]:
        return self._engine.reference_frames

    def prepare(self, frame: Frame) -> PreparedFrame:
        return self._engine.prepare(frame)

    def push(self, frame: PreparedFrame) -> list[FrameResult]:
        self.images.append(frame.rgb)
        results = self._engine.push(frame)
        self.keyframes += [result.is_keyframe for result in results]
        return results

    def finish(self) -> list[FrameResult]:
        return self._engine.finish()


class TimedWriter(ResultWriter):
    """Notes when each frame had been written."""

    def __init__(self, folder: Path, info: RunInfo) -> None:
        super().__init__(folder, info)
        self.times: list[float] = []

    def add(self, result: FrameResult) -> None:
        super().add(result)
        self.times.append(time.perf_counter())


@dataclass
class ProgramRun:
    summary: RunSummary
    written: list[float]
    """When each frame was finished, in seconds."""
    images: list[NDArray[np.uint8]]
    keyframes: list[bool]
    watch: Watch = field(default_factory=Watch)

    def steady_from(self, preset: Preset) -> int:
        """First frame that counts: the window is full, or 100 frames are over."""
        full = preset.stream.scale_frames + preset.stream.window
        reached = next((i for i, count in enumerate(np.cumsum(self.keyframes)) if count >= full), len(self.images))
        return reached if reached + WARM_FRAMES <= len(self.images) else WARM_FRAMES


def bench_program(network: StreamingNetwork, video: Path | None, frames: int) -> None:
    """From a 1080p file to a result folder, without a viewer, at the image size that the program chooses."""
    assert frames > 2 * WARM_FRAMES
    preset = load_preset("lingbot-map")
    release_memory()
    with tempfile.TemporaryDirectory() as folder:
        if video is None:
            video = Path(folder) / "generated.mp4"
            write_video(video, GENERATED_FRAMES)
        begin_table(f"program on {describe_video(video)}, no viewer, keyframes by flow, {os.cpu_count()} processors")
        done = run_program(Engine(network, preset, NO_WEIGHTS), preset, video, frames, Path(folder) / "out")
    first = done.steady_from(preset)
    program = (len(done.written) - 1 - first) / (done.written[-1] - done.written[first])
    bare = 1 / mean(step_times(network, preset, done.images)[first:])
    height, width = done.images[0].shape[:2]
    kept = f"{sum(done.keyframes)} keyframes of {len(done.keyframes)}, window {preset.stream.window}"
    row(f"bare step at {width}x{height}, the same frames", f"{1e3 / bare:.2f} ms = {bare:.1f} frames/s; {kept}")
    row(f"program, frames {first} to {frames}", f"{program:.1f} frames/s, attention {done.summary.attention}")
    verdict = "within" if program >= BAR * bare else "NOT within"
    row("program against bare step", f"{100 * program / bare:.1f} %, {verdict} {100 - 100 * BAR:.0f} %")
    row("latency, frame in to result", f"p50 {done.summary.latency_p50_ms} ms, p95 {done.summary.latency_p95_ms} ms")
    for line in done.watch.lines():
        print(line)


def run_program(engine: Engine, preset: Preset, video: Path, frames: int, out: Path) -> ProgramRun:
    recording, watch = RecordingEngine(engine), Watch()
    with ExitStack() as stack:
        source = stack.enter_context(Source(LoopedReader(video), FrameChoice(max_frames=frames)))
        writer = TimedWriter(out, RunInfo(video.name, preset, NO_WEIGHTS, engine.device))
        terminal = Console(file=stack.enter_context(Path(os.devnull).open("w")), force_terminal=True)
        stack.enter_context(watched_parts(watch, Engine))
        show = stack.enter_context(TerminalObserver(terminal, terminal))
        summary = reconstruct(source, cast(FrameEngine, recording), writer, observer=show)
    return ProgramRun(summary, writer.times, recording.images, recording.keyframes, watch)


def step_times(network: StreamingNetwork, preset: Preset, images: list[NDArray[np.uint8]]) -> list[float]:
    """Seconds of a stream's bare steps, for each of ``images`` uint8 [h, w, 3]; the scale frames share their step's."""
    patch, scale = preset.network.patch_size, preset.stream.scale_frames
    grid = (images[0].shape[0] // patch, images[0].shape[1] // patch)
    device = network.image_mean.device
    stream = Stream(network, preset, grid)
    pixels = torch.from_numpy(np.stack(images)).to(device).permute(0, 3, 1, 2).contiguous()
    times: list[float] = []
    for batch in (pixels[:scale], *pixels[scale:].split(1)):
        image = batch.float() / 255
        wait_for(device)
        begin = time.perf_counter()
        stream.step(image)
        wait_for(device)
        times += [(time.perf_counter() - begin) / len(batch)] * len(batch)
    return times


def wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def bench_embedded(frames: int = 400) -> None:
    """Decoded frames in, results in host memory out."""
    begin_table(f"the embedded preset, {describe_weights()}")
    release_memory()
    preset = load_preset(EMBEDDED_PRESET)
    engine = Engine(embedded_network(preset), preset, NO_WEIGHTS)
    pictures, finished = sample_frames(), [time.perf_counter()]
    # As in the program, a thread prepares the next frame during the step.
    with ThreadPoolExecutor(1, "prepare") as pool:
        waiting = pool.submit(engine.prepare, Frame(0, 0.0, frame_at(pictures, 0)))
        for index in range(1, frames + 1):
            ready = waiting.result()
            waiting = pool.submit(engine.prepare, Frame(index, index / 30, frame_at(pictures, index)))
            engine.push(ready)
            finished.append(time.perf_counter())
    times = np.diff(finished).tolist()
    steady = sorted(times[WARM_FRAMES:])
    p95 = 1e3 * steady[int(0.95 * len(steady))]
    speed = f"{1e3 * median(steady):.2f} ms (p95 {p95:.2f}) = {1 / mean(steady):.0f} frames/s"
    row(f"640x480 frames to results in host memory, attention {engine.attention}, {engine.submaps} streams", speed)
    row("peak", f"{torch.cuda.max_memory_allocated() / 1e6:.0f} MB allocated")


def embedded_network(preset: Preset) -> StreamingNetwork:
    """Laid out as the program does it; with random weights where its own are not there."""
    network = (
        load_network(EMBEDDED_WEIGHTS, preset.network)
        if EMBEDDED_WEIGHTS.is_file()
        else StreamingNetwork(preset.network).eval().requires_grad_(False)
    )
    prepare_network(network, torch.device("cuda"))
    return network.cuda()


def describe_weights() -> str:
    return "its weights" if EMBEDDED_WEIGHTS.is_file() else "random weights"
