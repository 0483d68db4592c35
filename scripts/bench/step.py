"""Time of a network step on the CPU, compared with the time of its matrix work alone."""

import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bench.table import row
from stream_recon.app.engine.device_transfer import Precision, computes_in_half, fast_precision
from stream_recon.app.engine.engine import prepare_network
from stream_recon.app.engine.stream import StepOptions, StreamRunner
from stream_recon.configs.schema import CacheChoice, load_preset
from stream_recon.models.embedded import EMBEDDED_PRESET, EMBEDDED_WEIGHTS
from stream_recon.models.weights import load_network

MATRIX_WORK = ("linear", "mm", "addmm", "bmm", "conv", "scaled_dot_product", "softmax")
"""Parts of operation names that count as matrix work; softmax, since attention may run as one kernel or as three."""


class MatrixWork(TorchDispatchMode):
    """Records matrix products, convolutions and attention with their operands, to run them alone later."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[Callable[[], Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(word in func.__name__ for word in MATRIX_WORK) and "upsample" not in func.__name__:
            self.calls.append(lambda: func(*args, **kwargs))
        return func(*args, **kwargs)


def bench_step(frames: int, precision: Precision, cache: CacheChoice) -> None:
    """Median step of a full window of keyframes at the default size, and the share of its matrix work."""
    preset = load_preset(EMBEDDED_PRESET, {"stream.keyframes": "every"})
    network = load_network(EMBEDDED_WEIGHTS, preset.network)
    prepare_network(network, torch.device("cpu"), precision)
    stream = StreamRunner(network, preset, (12, 16), StepOptions("sdpa", precision, cache))
    images = torch.rand(frames + 1, 3, 168, 224)
    scale = preset.stream.scale_frames
    stream.step(images[:scale])
    warm = scale + preset.stream.window + 2
    for image in images[scale:warm]:
        stream.step(image[None])
    recorder = MatrixWork()
    with torch.no_grad(), recorder:
        stream.step(images[warm][None])
    steps, alone = [], []
    # Alternating, so that both see the same load of the machine.
    for image in images[warm:frames]:
        begin = time.perf_counter()
        stream.step(image[None])
        steps.append(time.perf_counter() - begin)
        with torch.no_grad():
            begin = time.perf_counter()
            for call in recorder.calls:
                call()
            alone.append(time.perf_counter() - begin)
    step, matrix = median(steps), median(alone)
    p95 = sorted(steps)[int(0.95 * len(steps))]
    shown = f"{1e3 * step:.0f} ms (p95 {1e3 * p95:.0f}) = {1 / step:.1f} frames/s"
    said = "" if cache == "full" else f", cache {cache}"
    row(f"step at 224x168, window full, {precision}{said}", shown)
    row(f"its matrix work alone ({len(recorder.calls)} calls){said}", f"{1e3 * matrix:.0f} ms")
    row(f"ratio{said}", f"{step / matrix:.2f}")


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--frames", type=int, default=80)


def run(options: Namespace) -> None:
    """Measure in fp32, and in all precisions that the program may use here."""
    cpu = torch.device("cpu")
    half: tuple[Precision, ...] = ("bf16",) if computes_in_half("int8", cpu) else ()
    for precision in dict.fromkeys(("fp32", *half, fast_precision(cpu))):
        bench_step(options.frames, precision, "full")
        bench_step(options.frames, precision, "compressed")
