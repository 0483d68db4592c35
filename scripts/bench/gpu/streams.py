"""Tables of many streams at once under the embedded network: frames a second in all, and scenes an hour of a folder."""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import torch

from bench.command import run_program
from bench.films import SIZE, Picture, frame_at, sample_frames, write_film
from bench.gpu.measure import begin_table, release_memory
from bench.gpu.program import describe_weights, embedded_network
from bench.table import row
from stream_recon.app.core.types import Frame
from stream_recon.app.engine.batched import StreamBatch
from stream_recon.app.engine.device_transfer import to_host, to_images
from stream_recon.app.sources.preprocess import plan_image, prepare
from stream_recon.configs.schema import Preset, load_preset
from stream_recon.models.embedded import EMBEDDED_PRESET, EMBEDDED_WEIGHTS
from stream_recon.models.network import StreamingNetwork

COUNTS = (1, 4, 8, 16, 32, 64)
STEPS, WARM_STEPS = 120, 30
CLIP_FRAMES = 200
MAX_SECONDS = 150
"""Of one way through the folder; what is not done by then is said to be too slow."""


def bench_streams() -> None:
    """Decoded frames in, results in host memory out, for several numbers of streams."""
    begin_table(f"streams at once, the embedded preset, {describe_weights()}, {os.cpu_count()} processors")
    frames, preset = sample_frames(), load_preset(EMBEDDED_PRESET)
    network = embedded_network(preset)
    for count in COUNTS:
        release_memory()
        seconds, steps = run_streams(network, preset, frames, count)
        peak = torch.cuda.max_memory_allocated() / 1e9
        each = f"{1e3 * median(seconds):.2f} ms (p95 {1e3 * sorted(seconds)[int(0.95 * len(seconds))]:.2f})"
        shown = f"{count * len(seconds) / sum(seconds):.0f} frames/s; {each} a step, {1e3 * median(steps):.2f} of it"
        row(f"{count} streams of 640x480", f"{shown} the network's; peak {peak:.2f} GB allocated")


def run_streams(
    network: StreamingNetwork, preset: Preset, frames: Sequence[Picture], count: int
) -> tuple[list[float], list[float]]:
    """Seconds from step to step, and of the network's part, the device waited for. Threads resize the next step's
    frames while the device works."""
    transform = plan_image(SIZE, preset.image, preset.network.patch_size)
    side, device = preset.network.patch_size, network.image_mean.device
    grid = (transform.network_size[1] // side, transform.network_size[0] // side)
    batch = StreamBatch(network, preset, grid, count)
    assert batch.slots == count, "there is no memory for so many"
    slots = [batch.allocate_slot() for _ in range(count)]
    crops = [(float(SIZE[0]), float(SIZE[1]))] * count

    def prepared(stream: int, index: int) -> Picture:
        frame = Frame(index, index / 30, frame_at(frames, 7 * stream + index))
        return prepare(frame, transform).rgb

    scale = preset.stream.scale_frames
    for stream, slot in enumerate(slots):
        assert slot is not None
        first = np.stack([prepared(stream, index) for index in range(scale)])
        batch.begin(slot, to_images(first, device))
    active = [slot for slot in slots if slot is not None]
    seconds, steps = [], []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        ahead = list(pool.map(partial(prepared, index=scale), range(count)))
        for index in range(scale, scale + WARM_STEPS + STEPS):
            begin = time.perf_counter()
            running = batch.start(active, to_images(np.stack(ahead), device))
            coming = pool.map(partial(prepared, index=index + 1), range(count))
            prediction, _ = batch.finish(running)
            torch.cuda.synchronize()
            steps.append(time.perf_counter() - begin)
            results = to_host(prediction.pose[:, 0], prediction.depth[:, 0], prediction.confidence[:, 0], crops)
            assert len(list(results)) == count
            ahead = list(coming)
            seconds.append(time.perf_counter() - begin)
    return seconds[WARM_STEPS:], steps[WARM_STEPS:]


def bench_folder(clips: int) -> None:
    """Scenes an hour of `stream-recon batch` on so many clips of 200 frames, one after the other and side by side, the
    start of processes and loading included; encoding is not counted."""
    if not EMBEDDED_WEIGHTS.is_file():
        row("a folder of clips", "not here: the embedded weights are missing")
        return
    begin_table(f"batch on clips of {CLIP_FRAMES} frames of 640x480 (MPEG-4), {os.cpu_count()} processors")
    release_memory()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        root = Path(folder) / "clips"
        write_clips(root, clips)
        ways = {
            "by itself": [],
            "--streams 16": ["--streams", "16"],
            "--streams 32": ["--streams", "32"],
            "8 processes": ["--workers", "8"],
            "one after the other": ["--workers", "1"],
        }
        for name, options in ways.items():
            out = Path(folder) / "out"
            row(f"{name}, {clips} clips", run_batch(root, out, [*options, "--mapping", "off", "--no-mesh"]))
            shutil.rmtree(out, ignore_errors=True)


def write_clips(root: Path, count: int) -> None:
    """So many files, each from another place of the sample on."""
    frames = sample_frames()
    root.mkdir()

    def write(number: int) -> None:
        write_film(
            root / f"clip{number:02d}.mp4", (frame_at(frames, 3 * number + index) for index in range(CLIP_FRAMES))
        )

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(write, range(count)))


def run_batch(root: Path, out: Path, options: list[str]) -> str:
    try:
        record = run_program("batch", root, *options, out=out, timeout=MAX_SECONDS).record
    except subprocess.TimeoutExpired:
        return f"not done after {MAX_SECONDS} s"
    totals = record["totals"]
    print(f"phases: {totals['phases']}; of the first scene: {record['scenes'][0].get('phases')}", flush=True)
    rate = totals["frames"] / totals["seconds"]
    return f"{totals['scenes_per_hour']:.0f} scenes/hour: {totals['seconds']:.1f} s, {rate:.0f} frames/s in all"
