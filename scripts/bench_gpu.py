"""`scripts/bench gpu`: the network's step on a GPU, part by part, and beside the original's profiler."""

import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from stream_recon.app.engine import Engine, prepare_network
from stream_recon.app.results import Frame
from stream_recon.app.step_graph import StepGraph
from stream_recon.app.stream import Stream
from stream_recon.cache.attention import TorchAttention
from stream_recon.cache.choose import AttentionSizes, _build, _candidates, time_backend
from stream_recon.cache.stream import StreamSchema
from stream_recon.configs.schema import Preset, load_preset
from stream_recon.models.network import StreamingNetwork
from stream_recon.models.weights import EMBEDDED_WEIGHTS, load_network

GRID = (27, 36)
"""504 x 378, at which the original's profiler runs."""
GIGABYTE = 1e9


def describe_gpu() -> str:
    versions = [f"torch {torch.__version__}"]
    for name in ("triton", "flashinfer"):
        if importlib.util.find_spec(name):
            package = "flashinfer-python" if name == "flashinfer" else name
            versions.append(f"{name} {importlib.metadata.version(package)}")
    return ", ".join([torch.cuda.get_device_name(), *versions])


def milliseconds(call: Callable[[], object], runs: int = 20) -> float:
    """Median time on the device."""
    for _ in range(3):
        call()
    times = []
    for _ in range(runs):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return median(times)


def matmul_rate(side: int = 8192) -> float:
    """Floating-point operations a second of a large bf16 product."""
    a, b = (torch.randn(side, side, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    return 2 * side**3 / (1e-3 * milliseconds(lambda: a @ b))


def random_network(preset: Preset) -> StreamingNetwork:
    """The full-size network with random weights, laid out as the program does it."""
    torch.manual_seed(0)
    with torch.device("cuda"):
        network = StreamingNetwork(preset.network).eval().requires_grad_(False)
    prepare_network(network, torch.device("cuda"))
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return network


def run_steps(stream: Stream, preset: Preset, frames: int, image: Tensor) -> list[float]:
    """Host milliseconds of each streamed step, the device waited for; the first ones are left out until the window is
    full."""
    scale = preset.stream.scale_frames
    stream.step(image.expand(scale, -1, -1, -1))
    times = []
    for _ in range(frames):
        begin = time.perf_counter()
        stream.step(image[None])
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - begin))
    return times[preset.stream.window + 2 :]


def image_of(grid: tuple[int, int]) -> Tensor:
    return torch.rand(3, grid[0] * 14, grid[1] * 14, device="cuda", generator=torch.Generator("cuda").manual_seed(0))


def bench_attention(preset: Preset) -> None:
    """Every kernel on one layer's pool, full."""
    config, patches = preset.network, GRID[0] * GRID[1]
    schema = StreamSchema.of(config, preset.stream, patches, torch.bfloat16).frames
    tokens = (preset.stream.scale_frames + preset.stream.window) * patches
    sizes = AttentionSizes(config.heads, config.head_dim, schema.special, patches, tokens, torch.bfloat16)
    from stream_recon.cache.step_inputs import StepInputs

    inputs = StepInputs(8, torch.device("cuda"))
    work = 4 * sizes.frame_tokens * tokens * config.dim
    backends = [*(_build(name, sizes, torch.device("cuda"), inputs) for name in _candidates("auto"))]
    for backend in [*backends, TorchAttention(cudnn=True), TorchAttention()]:
        took = time_backend(backend, sizes, torch.device("cuda"), inputs)
        print(
            f"| attention of a layer, {sizes.frame_tokens} queries, {tokens} keys, {backend.name} | {took:.3f} ms, {work / took / 1e9:.0f} TFLOP/s |",
            flush=True,
        )


def bench_parts(stream: Stream, network: StreamingNetwork, preset: Preset, rate: float) -> None:
    """Each part of the step captured alone, in the state that the stream is in."""
    config, memory = preset.network, stream.memory
    image = image_of(GRID)[None]
    memory.begin(1, evict_first=True)
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        patches, detail = network.encoder(image.contiguous(memory_format=torch.channels_last))
        taps = network.aggregator(patches[None], GRID, memory)
        tokens = taps[-1][:, :, 0]
        spatial = [tap[:, :, config.special_tokens :].flatten(0, 1) for tap in taps]
        q = torch.randn(
            1,
            config.special_tokens + GRID[0] * GRID[1],
            config.heads,
            config.head_dim,
            device="cuda",
            dtype=torch.bfloat16,
        )
        parts: dict[str, Callable[[], Any]] = {
            "encoder": lambda: network.encoder(image.contiguous(memory_format=torch.channels_last)),
            "aggregator": lambda: network.aggregator(patches[None], GRID, memory),
            "its global attention": lambda: [memory.attend(layer, q, q, q) for layer in range(config.depth)],
            "camera head": lambda: network.camera_head(tokens, memory),
            "depth head": lambda: network.depth_head(spatial, GRID, detail),
        }
        keys = sum(stop - start for start, stop in visible_spans(stream))
        for name, part in parts.items():
            with FlopCounterMode(display=False) as counter:
                part()
            flops = counter.get_total_flops()
            if "attention" in name:
                flops = 4 * q.shape[1] * keys * config.dim * config.depth
            elif name == "aggregator":
                flops += 4 * q.shape[1] * keys * config.dim * config.depth
            graph = StepGraph(part)
            took = milliseconds(graph.run)
            limit = 1e3 * flops / rate
            print(
                f"| {name} | {took:.2f} ms, {flops / 1e12:.3f} TFLOP, {100 * limit / took:.0f} % of the limit of {limit:.2f} ms |",
                flush=True,
            )
    memory.rollback()


def visible_spans(stream: Stream) -> list[tuple[int, int]]:
    bounds = stream.memory._inputs.spans.tolist()  # type: ignore[union-attr]
    return list(zip(bounds[::2], bounds[1::2], strict=True))


def bench_original(folder: Path, frames: int) -> float | None:
    """Milliseconds a frame of the original's profiler, compiled, late in its run."""
    command = [
        sys.executable,
        "gct_profile.py",
        "--num_frames",
        str(frames),
        "--backend",
        "flashinfer",
        "--dtype",
        "bf16",
    ]
    environment = os.environ | {"PYTHONPATH": f"{folder}:{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    found = re.findall(r"\(90%\):\s*([\d.]+) ms", done.stdout)
    if not found:
        print(f"| the original failed | {done.stderr[-600:]} |")
        return None
    print(
        f"| the original, gct_profile.py, 504x378, compiled | {found[-1]} ms a frame = {1e3 / float(found[-1]):.1f} frames/s |",
        flush=True,
    )
    return float(found[-1])


def bench_step(
    preset: Preset, network: StreamingNetwork, attention: Any, frames: int, rate: float, parts: bool
) -> float:
    torch.cuda.reset_peak_memory_stats()
    stream = Stream(network, preset, GRID, attention)
    times = sorted(run_steps(stream, preset, preset.stream.window + 2 + frames, image_of(GRID)))
    p50, p95 = median(times), times[int(0.95 * len(times))]
    peak = torch.cuda.max_memory_allocated() / GIGABYTE
    print(
        f"| step at 504x378, window {preset.stream.window} full, {stream.attention} | {p50:.2f} ms (p95 {p95:.2f}) = {1e3 / p50:.1f} frames/s, peak {peak:.1f} GB |",
        flush=True,
    )
    if parts:
        bench_parts(stream, network, preset, rate)
    return p50


def bench_long(preset: Preset, network: StreamingNetwork, frames: int) -> None:
    """Whether steps and memory stay what they are."""
    stream = Stream(network, preset, GRID, "auto")
    image = image_of(GRID)
    stream.step(image.expand(preset.stream.scale_frames, -1, -1, -1))
    marks: dict[int, tuple[float, int]] = {}
    for index in range(frames + 1):
        if index in (500, 1000, frames - 500, frames):
            torch.cuda.synchronize()
            marks[index] = (time.perf_counter(), torch.cuda.memory_allocated())
        stream.step(image[None])
    early, late = ((marks[b][0] - marks[a][0]) * 2 for a, b in ((500, 1000), (frames - 500, frames)))
    growth = marks[frames][1] - marks[1000][1]
    print(
        f"| steps 500 to 1,000, and the last 500 of {frames:,} | {early:.2f} ms, {late:.2f} ms ({100 * (late / early - 1):+.1f} %); memory {growth / 2**20:+.1f} MiB |",
        flush=True,
    )


def bench_embedded(frames: int = 400) -> None:
    """Decoded frames in, results in host memory out."""
    preset = load_preset("small")
    network = (
        load_network(EMBEDDED_WEIGHTS, preset.network)
        if EMBEDDED_WEIGHTS.is_file()
        else StreamingNetwork(preset.network).eval().requires_grad_(False)
    )
    prepare_network(network, torch.device("cuda"))
    engine = Engine(network.cuda(), preset, "")
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 255, (480, 640, 3), np.uint8) for _ in range(8)]
    times = []
    for index in range(frames):
        begin = time.perf_counter()
        engine.push(Frame(index, index / 30, images[index % 8]))
        times.append(time.perf_counter() - begin)
    steady = times[100:]
    print(
        f"| embedded preset, 640x480 frames to results, {engine.attention} | {1e3 * median(steady):.2f} ms = {len(steady) / sum(steady):.0f} frames/s |",
        flush=True,
    )


def bench_gpu(original: Path | None, frames: int, only: str | None) -> None:
    print(f"| GPU | {describe_gpu()} |", flush=True)
    wanted = set((only or "attention,step,embedded,long").split(","))
    rate = matmul_rate()
    print(f"| bf16 product of 8192 | {rate / 1e12:.0f} TFLOP/s |", flush=True)
    theirs = bench_original(original, 300) if original is not None else None
    preset = load_preset("lingbot-map", {"stream.keyframes": "every"})
    if "attention" in wanted:
        bench_attention(preset)
    if "embedded" in wanted:
        bench_embedded()
    if wanted & {"step", "long"}:
        network = random_network(preset)
        if "step" in wanted:
            ours = bench_step(preset, network, "auto", 100, rate, parts=True)
            if theirs is not None:
                print(f"| ours against the original | {theirs / ours:.2f} x |", flush=True)
        if "long" in wanted:
            bench_long(preset, network, frames)
