"""Table of the embedded network: one stream."""

import time
from concurrent.futures import ThreadPoolExecutor
from statistics import mean, median

import numpy as np
import torch

from bench.films import frame_at, sample_frames
from bench.gpu.measure import begin_table, release_memory
from bench.table import row
from stream_recon.app.core.types import Frame
from stream_recon.app.engine.engine import Engine, prepare_network
from stream_recon.configs.schema import Preset, load_preset
from stream_recon.models.embedded import EMBEDDED_PRESET, EMBEDDED_WEIGHTS
from stream_recon.models.network import StreamingNetwork
from stream_recon.models.weights import load_network

NO_WEIGHTS = "0" * 64
WARM_FRAMES = 100
"""Left out where the window is not full earlier."""


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
