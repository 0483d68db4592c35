"""Common parts of all GPU tables: the machine's rates, a network with random weights, and its steps."""

import gc
import importlib.metadata
import importlib.util
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median

import torch
from torch import Tensor

from bench.table import header, row
from stream_recon.app.engine.engine import prepare_network
from stream_recon.app.engine.stream import StepOptions, StreamRunner
from stream_recon.configs.schema import Preset
from stream_recon.models.network import StreamingNetwork

GRID = (27, 36)
"""504 x 378, at which the original's profiler runs."""
GIGABYTE = 1e9
PLAIN_CAMERA = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.2)
"""A pose code at the origin that looks ahead, about 60 degrees wide."""


@dataclass(frozen=True)
class Rates:
    """Peak rates of this machine, measured in the same call as the figures compared with them."""

    matrix_flops: float
    """Floating-point operations a second of a large bf16 product."""
    bandwidth: float
    """Bytes a second, read and written, of a large copy."""


@dataclass(frozen=True)
class Variant:
    """A way to run the stream's step."""

    name: str
    options: StepOptions = field(default_factory=StepOptions)


AUTO = Variant("step")


@dataclass(frozen=True)
class StepFigures:
    attention: str
    p50: float
    """Milliseconds, the device waited for."""
    p95: float
    allocated: int
    """Most bytes that tensors and workspaces held."""
    reserved: int
    """Most bytes that torch took of the device."""

    @property
    def shown(self) -> str:
        memory = f"{self.allocated / GIGABYTE:.2f} GB allocated, {self.reserved / GIGABYTE:.2f} GB reserved"
        return f"{self.p50:.2f} ms (p95 {self.p95:.2f}) = {1e3 / self.p50:.1f} frames/s; peak {memory}"


def begin_table(title: str) -> None:
    print()
    header(title, describe_gpu())


def describe_gpu() -> str:
    versions = [f"torch {torch.__version__}", f"CUDA {torch.version.cuda}"]
    for module, package in (("triton", "triton"), ("flashinfer", "flashinfer-python")):
        if importlib.util.find_spec(module):
            versions.append(f"{module} {importlib.metadata.version(package)}")
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
    return float(median(times))


def machine_rates(side: int = 8192, copied: int = 2**30) -> Rates:
    a, b = (torch.randn(side, side, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    source, target = (torch.zeros(copied, device="cuda", dtype=torch.uint8) for _ in range(2))
    rates = Rates(
        matrix_flops=2e3 * side**3 / milliseconds(lambda: a @ b),
        bandwidth=2e3 * copied / milliseconds(lambda: target.copy_(source)),
    )
    row(f"bf16 product of {side}", f"{rates.matrix_flops / 1e12:.0f} TFLOP/s")
    row(f"copy of {copied / 2**30:.0f} GiB", f"{rates.bandwidth / 1e12:.2f} TB/s read and written")
    return rates


def release_memory() -> None:
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def random_network(preset: Preset) -> StreamingNetwork:
    """A network with random weights and a plausible camera, laid out as the program does it; alone on the device."""
    torch.manual_seed(0)
    with torch.device("cuda"):
        network = StreamingNetwork(preset.network).eval().requires_grad_(False)
    with torch.no_grad():
        correction = torch.tensor(PLAIN_CAMERA) / network.camera_head.iterations
        network.camera_head.pose_branch.fc2.bias.copy_(correction)
    prepare_network(network, torch.device("cuda"))
    # As if cast before it came here: casting in place leaves holes, and memory is measured.
    network.cpu()
    release_memory()
    return network.cuda()


def image_of(grid: tuple[int, int], patch: int = 14) -> Tensor:
    generator = torch.Generator("cuda").manual_seed(0)
    return torch.rand(3, grid[0] * patch, grid[1] * patch, device="cuda", generator=generator)


def measure_step(
    network: StreamingNetwork, preset: Preset, grid: tuple[int, int], frames: int, variant: Variant = AUTO
) -> tuple[StreamRunner, StepFigures]:
    """``frames`` steps after the window is full; every frame has to be a keyframe in ``preset``."""
    assert preset.stream.keyframes == "every"
    release_memory()
    stream = StreamRunner(network, preset, grid, variant.options)
    image = image_of(grid, preset.network.patch_size)
    stream.step(image.expand(preset.stream.scale_frames, -1, -1, -1))
    times = []
    for _ in range(preset.stream.window + 2 + frames):
        begin = time.perf_counter()
        stream.step(image[None])
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - begin))
    steady = sorted(times[-frames:])
    figures = StepFigures(
        attention=stream.attention,
        p50=median(steady),
        p95=steady[int(0.95 * frames)],
        allocated=torch.cuda.max_memory_allocated(),
        reserved=torch.cuda.max_memory_reserved(),
    )
    return stream, figures
