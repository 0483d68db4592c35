"""What a run on a GPU takes: bytes of its memory, and seconds of a step. Everything follows from the configuration.

The parts of the memory, and of the time, are computed from shapes; what cannot be is a constant here.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from stream_recon.app.step_trace import network_size, trace_step
from stream_recon.cache.flashinfer_attention import WORKSPACE_BYTES
from stream_recon.cache.fp8_pages import FP8
from stream_recon.cache.stream import StreamSchema
from stream_recon.configs.schema import NetworkConfig, Preset

MEBIBYTE = 2**20
COMPUTE = torch.bfloat16
"""Of matrix work on a GPU, and of the camera head's cache."""

# Constants of the memory: estimated, not measured yet.
CONTEXT_BYTES = 550 * MEBIBYTE
"""CUDA's context and loaded kernels: outside of torch's own count."""
KERNEL_BYTES = 96 * MEBIBYTE
"""Workspaces of cuBLAS and cuDNN."""
ALLOCATOR_SLACK = 1.15
"""What torch's allocator reserves for each byte of activations: blocks are rounded and cannot always be reused."""

# Constants of the time. The attention's is from one H200: 0.70 ms for 978 queries, 69,984 keys and 16 heads of 64
# channels, 400 TFLOP/s. The others are estimated, so that the full-size step at 504x378 takes the 22 to 24 ms seen.
ATTENTION_EFFICIENCY = 0.5
"""Share of the device's matrix rate that attention reaches."""
FP8_ATTENTION = 0.7 / 0.83
"""Attention's rate over a cache in e4m3, of that over bf16: as measured there."""
MATRIX_EFFICIENCY = 0.6
"""The same of all other matrix work, with the cheap operations between."""
CAMERA_PASSES = 2
"""Times that each iteration moves the camera head's weights: they are kept in fp32, read, cast, and read in bf16."""
BLOCK_LAUNCH_SECONDS = 1e-4
"""A transformer block's kernels are issued in this time: with less work than that, a step takes no less."""


@dataclass(frozen=True)
class RunMemory:
    """Bytes on the device at the worst moment of a stream."""

    weights: int
    """As `StreamingNetwork.store_matrices_in_half` keeps them."""
    caches: int
    """`StreamSchema.bytes`: allocated whole before the first frame."""
    activations: int
    """The larger step, the first one with all scale frames or a later one with what attention gathers from the
    cache; see `trace_step`."""
    workspace: int
    """Of attention (FlashInfer's) and of other kernels."""
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

    ``cache_dtype``: of the aggregator's keys and values, as `StreamSchema` has it; the camera head's are in bf16.
    """
    network, stream = preset.network, preset.stream
    schema = StreamSchema.of(network, stream, grid[0] * grid[1], cache_dtype, COMPUTE)
    # Torch's attention copies a layer's visible keys and values together where they are not one run. What is in e4m3
    # is read in place.
    gathered = 0 if cache_dtype == FP8 else 2 * schema.frames.tokens * network.dim * COMPUTE.itemsize
    first = trace_step(network, grid, stream.scale_frames).peak_bytes
    later = trace_step(network, grid, 1).peak_bytes + gathered
    return RunMemory(
        weights=network_size(network).bytes,
        caches=schema.bytes,
        activations=int(max(first, later) * ALLOCATOR_SLACK),
        workspace=WORKSPACE_BYTES + KERNEL_BYTES,
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
    and values if that takes longer; the camera head's weights, which every iteration reads for a single token.
    """
    network, stream = preset.network, preset.stream
    size = network_size(network)
    tokens = network.special_tokens + grid[0] * grid[1]
    # The encoder has a class token and registers in the place of the special tokens: one less.
    dense = 2 * size.token_products * tokens + trace_step(network, grid, 1).convolution_flops
    within = (network.encoder_depth + network.depth) * _attention_flops(network, tokens, tokens)
    keys = (stream.scale_frames + stream.window + 1) * tokens
    attention_rate = rates.matrix_flops * ATTENTION_EFFICIENCY
    across = max(
        _attention_flops(network, tokens, keys) / (attention_rate * (FP8_ATTENTION if cache_dtype == FP8 else 1)),
        2 * keys * network.dim * cache_dtype.itemsize / rates.bandwidth,
    )
    camera = CAMERA_PASSES * network.camera_iterations * size.camera_bytes / rates.bandwidth
    on_device = (
        dense / (rates.matrix_flops * MATRIX_EFFICIENCY) + within / attention_rate + network.depth * across + camera
    )
    blocks = network.encoder_depth + 2 * network.depth + network.camera_iterations * network.camera_depth
    return max(on_device, blocks * BLOCK_LAUNCH_SECONDS)


def _attention_flops(network: NetworkConfig, queries: int, keys: int) -> int:
    """Of one layer: two products for each pair of tokens."""
    return 4 * queries * keys * network.dim
