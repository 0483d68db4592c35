"""What a run on a GPU takes: bytes of its memory, and seconds of a step. Everything follows from the configuration.

The parts of the memory, and of the time, are computed from shapes; what cannot be is a constant here.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

import torch

from stream_recon.app.step_trace import network_size, trace_step
from stream_recon.cache.flashinfer_attention import WORKSPACE_BYTES
from stream_recon.cache.fp8_pages import FP8
from stream_recon.cache.stream import StreamSchema
from stream_recon.configs.schema import NetworkConfig, Preset

MEBIBYTE = 2**20
COMPUTE = torch.bfloat16
"""Of matrix work on a GPU, and of the camera head's cache."""

# Constants of the memory. An H200 held at most 12.3 GB of tensors and workspaces in the full-size stream at 504x378,
# with 10.2 GB of weights and caches; the context and the share that torch reserves beyond are estimated.
CONTEXT_BYTES = 550 * MEBIBYTE
"""CUDA's context and loaded kernels: outside of torch's own count."""
KERNEL_BYTES = 96 * MEBIBYTE
"""Workspaces of cuBLAS, one a CUDA stream."""
ALLOCATOR_SLACK = 1.7
"""What torch's allocator reserves for each byte of activations: cuDNN's workspaces, and blocks that are rounded and
cannot always be reused."""

# Constants of the time: the parts of the full-size step at 504x378 on an H200, 22.7 ms in all, against the rates that
# `measure_rates` gives there.
ATTENTION_EFFICIENCY = 0.6
"""Share of the device's matrix rate that attention reaches: 0.60 ms for 978 queries and 71,000 keys."""
FP8_ATTENTION_EFFICIENCY = 0.43
"""The same over a cache in e4m3: 0.83 ms, since values have to become bf16."""
MATRIX_EFFICIENCY = 0.42
"""Of encoder and aggregator without their attention, with the cheap operations between: 5.4 ms."""
CONVOLUTION_EFFICIENCY = 0.18
"""The same of the depth head: 1.5 ms."""
CAMERA_EFFICIENCY = 0.3
"""Share of the device's bandwidth at which the camera head reads its weights: 1.3 ms."""
BLOCK_SECONDS = 2e-5
"""A transformer block takes no less, whatever its size: ten kernels, one after the other (estimated)."""
BETWEEN_SECONDS = 8e-4
"""Of a step beside all that: the image's way to the device, the flow, and the host's turn."""


@dataclass(frozen=True)
class RunMemory:
    """Bytes on the device at the worst moment of a stream."""

    weights: int
    """As `StreamingNetwork.fuse_for_gpu` keeps them."""
    caches: int
    """`StreamSchema.bytes`: allocated whole before the first frame."""
    activations: int
    """Of the first step with all scale frames, and of the later ones: a captured step keeps memory of its own, which
    the first one's cannot serve. See `trace_step`."""
    workspace: int
    """Of matrix products, and of attention where FlashInfer is installed and so may be the faster."""
    context: int

    @property
    def by_torch(self) -> int:
        """Without the CUDA context: what torch reserves, and what its memory fraction limits."""
        return self.weights + self.caches + self.activations + self.workspace

    @property
    def total(self) -> int:
        return self.by_torch + self.context


def run_memory(preset: Preset, grid: tuple[int, int], cache_dtype: torch.dtype = COMPUTE) -> RunMemory:
    """Of a stream of ``grid`` patch rows and columns with every budget of the preset used up.

    ``cache_dtype``: of the aggregator's keys and values; the camera head's are always in bf16. Attention by torch
    (``--attention sdpa``), which copies a layer's visible keys and values together, takes more.
    """
    network, stream = preset.network, preset.stream
    schema = StreamSchema.of(network, stream, grid[0] * grid[1], cache_dtype, COMPUTE)
    first, later = (trace_step(network, grid, frames).peak_bytes for frames in (stream.scale_frames, 1))
    return RunMemory(
        weights=network_size(network).bytes,
        caches=schema.bytes,
        activations=int((first + later) * ALLOCATOR_SLACK),
        workspace=KERNEL_BYTES + (WORKSPACE_BYTES if find_spec("flashinfer") and cache_dtype != FP8 else 0),
        context=CONTEXT_BYTES,
    )


@dataclass(frozen=True)
class DeviceRates:
    name: str
    matrix_flops: float
    """Floating-point operations a second of a large bf16 matrix product."""
    bandwidth: float
    """Bytes a second, read and written, of a large copy."""


H200 = DeviceRates("NVIDIA H200", 790e12, 4.3e12)
"""As measured on one; the device to speak of where there is none."""


def measure_rates(device: torch.device, seconds: float = 0.1) -> DeviceRates:
    """Rates of a CUDA device, measured in about twice ``seconds`` with 0.5 GiB of its memory."""
    a, b, out = (torch.ones(6144, 6144, device=device, dtype=COMPUTE) for _ in range(3))
    source, target = (torch.zeros(128 * MEBIBYTE, device=device, dtype=torch.uint8) for _ in range(2))

    def multiply() -> None:
        torch.mm(a, b, out=out)
        torch.cuda.synchronize(device)

    def copy() -> None:
        target.copy_(source)
        torch.cuda.synchronize(device)

    return DeviceRates(
        name=torch.cuda.get_device_name(device),
        matrix_flops=2.0 * len(a) ** 3 * calls_per_second(multiply, seconds),
        bandwidth=2.0 * source.nbytes * calls_per_second(copy, seconds),
    )


def calls_per_second(work: Callable[[], None], seconds: float) -> float:
    """How often ``work`` is done in a second: after two calls to warm up, over at least ``seconds`` and one call."""
    for _ in range(2):
        work()
    begin, calls, passed = time.perf_counter(), 0, 0.0
    while not calls or passed < seconds:
        work()
        calls += 1
        passed = time.perf_counter() - begin
    return calls / passed


def step_seconds(
    preset: Preset, grid: tuple[int, int], rates: DeviceRates, cache_dtype: torch.dtype = COMPUTE
) -> float:
    """Expected time of a one-frame step, the window just full: later, in a long video, attention also reads the
    special tokens of all keyframes.

    Matrix work at the device's rate times an efficiency; a layer's attention at its own, or the reading of its keys
    and values if that takes longer; depth head and camera head run side by side, and of the latter's weights every
    iteration reads all for a single token.
    """
    network, stream = preset.network, preset.stream
    size = network_size(network)
    tokens = network.special_tokens + grid[0] * grid[1]
    # The encoder has a class token and registers in the place of the special tokens: one less.
    dense = 2 * size.token_products * tokens / (rates.matrix_flops * MATRIX_EFFICIENCY)
    attention_rate = rates.matrix_flops * ATTENTION_EFFICIENCY
    within = (network.encoder_depth + network.depth) * _attention_flops(network, tokens, tokens) / attention_rate
    keys = (stream.scale_frames + stream.window + 1) * tokens
    across_rate = rates.matrix_flops * FP8_ATTENTION_EFFICIENCY if cache_dtype == FP8 else attention_rate
    across = max(
        _attention_flops(network, tokens, keys) / across_rate,
        2 * keys * network.dim * cache_dtype.itemsize / rates.bandwidth,
    )
    heads = max(
        trace_step(network, grid, 1).convolution_flops / (rates.matrix_flops * CONVOLUTION_EFFICIENCY),
        network.camera_iterations * size.camera_bytes / (rates.bandwidth * CAMERA_EFFICIENCY),
    )
    blocks = network.encoder_depth + 2 * network.depth + network.camera_iterations * network.camera_depth
    return max(dense + within + network.depth * across + heads, blocks * BLOCK_SECONDS) + BETWEEN_SECONDS


def _attention_flops(network: NetworkConfig, queries: int, keys: int) -> int:
    """Of one layer: two products for each pair of tokens."""
    return 4 * queries * keys * network.dim
