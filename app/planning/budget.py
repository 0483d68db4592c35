"""What a run on a GPU takes: bytes of its memory, and seconds of a step. Everything follows from the configuration.

The parts of the memory, and of the time, are computed from shapes; what cannot be is a constant here.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from math import ceil

import torch

from stream_recon.app.planning.step_trace import network_size, trace_step
from stream_recon.cache.cache_dtypes import cache_kind
from stream_recon.cache.kernels.flashinfer_attention import WORKSPACE_BYTES
from stream_recon.cache.kernels.wave_schedule import KEY_BLOCK, PROGRAMS_A_MULTIPROCESSOR, QUERY_BLOCK, plan_waves
from stream_recon.cache.stream_cache import StreamSchema
from stream_recon.configs.schema import CacheChoice, NetworkConfig, Preset

MEBIBYTE = 2**20
COMPUTE = torch.bfloat16
"""What matrix work on a GPU is done in, and the camera head's cache kept in."""

# The constants below were fitted to the full-size and the embedded network on an H200 with torch 2.11.0+cu130 and
# Triton 3.6.0: the bench `gpu --only budgets` (the full-size one at 518x294 and 448x252 in 24 and in 8 GB), and
# `--only step,kernels,sizes` (no limit). tests/app/planning/test_budget.py has what was measured.

# Constants of the memory.
CONTEXT_BYTES = 800 * 10**6
"""CUDA's context and loaded kernels, outside of torch's own count: 0.80 GB in all four runs within a budget."""
KERNEL_BYTES = 96 * MEBIBYTE
"""Workspaces of cuBLAS, one a CUDA stream (estimated)."""
ALLOCATOR_SLACK = 2.1
"""What torch's allocator reserves for each byte of activations, where memory is tight. Tensors and cuDNN's workspaces
held 1.40 to 1.46 at once; the rest is blocks that cannot be reused. Reserved were 1.6 and 2.0 within 8 GB (the larger
one counts: a prediction must not be too low), and 2.5 where nothing had to be given back."""

# Constants of the time.
ATTENTION_EFFICIENCY = 0.65
"""Share of the device's matrix rate that a full wave of attention reaches: in the step at 504x378, 14.34 ms for 24
layers, 71,000 keys and 256 of 264 places."""
E4M3_ATTENTION = 0.88
"""Of the time of attention in bf16, what it takes with queries and keys in e4m3: 0.84 to 0.91 at four sizes."""
WIDENING_EFFICIENCY = 0.93
"""Share of the rate of a copy that the step gives to widening the values of a cache in e4m3."""
MATRIX_EFFICIENCY = 0.42
"""Share that encoder and aggregator reach, less attention, with the cheap operations between: 5.3 ms at 504x378."""
CONVOLUTION_EFFICIENCY = 0.18
"""The same of the depth head: 1.52 ms."""
CAMERA_EFFICIENCY = 0.32
"""Share of the device's bandwidth at which the camera head reads its weights: 1.747 GB in 1.32 ms."""
BETWEEN_SECONDS = 8e-4
"""Time of a step beside all that: the image's way to the device, the flow, and the host's turn."""
FRAME_SECONDS = 3.5e-3
"""A frame takes no less, whatever the network's size: preset small at 224x168, from a decoded image to results on the
host, took 3.55 ms."""


@dataclass(frozen=True)
class RunMemory:
    """Bytes on the device at the worst moment of a stream."""

    weights: int
    """Bytes of the weights, as `StreamingNetwork.fuse_for_gpu` keeps them."""
    caches: int
    """Bytes of both caches, `StreamSchema.bytes`: allocated whole before the first frame."""
    activations: int
    """Activations of the first step with all scale frames, and of the later ones: a captured step keeps memory of its
    own, which the first one's cannot serve. See `trace_step`."""
    workspace: int
    """Workspaces of matrix products, and of attention where FlashInfer is installed and so may be the faster."""
    context: int

    @property
    def by_torch(self) -> int:
        """Without the CUDA context: what torch reserves, and what its memory fraction limits."""
        return self.weights + self.caches + self.activations + self.workspace

    @property
    def total(self) -> int:
        return self.by_torch + self.context


def run_memory(preset: Preset, grid: tuple[int, int], cache: CacheChoice = "full") -> RunMemory:
    """Memory of a stream of ``grid`` patch rows and columns with every budget of the preset used up.

    ``cache``: what the aggregator's keys and values are kept in; the camera head's are always in bf16. Attention by
    torch (``--attention sdpa``), which copies a layer's visible keys and values together, takes more.
    """
    network, stream = preset.network, preset.stream
    schema = StreamSchema.of(network, stream, grid[0] * grid[1], COMPUTE, cache=cache)
    first, later = (trace_step(network, grid, frames).peak_bytes for frames in (stream.scale_frames, 1))
    return RunMemory(
        weights=network_size(network).bytes,
        caches=schema.bytes,
        activations=int((first + later) * ALLOCATOR_SLACK),
        workspace=KERNEL_BYTES + (WORKSPACE_BYTES if find_spec("flashinfer") and not cache_kind(cache).widened else 0),
        context=CONTEXT_BYTES,
    )


@dataclass(frozen=True)
class DeviceRates:
    name: str
    matrix_flops: float
    """Floating-point operations a second of a large bf16 matrix product."""
    bandwidth: float
    """Bytes a second, read and written, of a large copy."""
    multiprocessors: int


H200 = DeviceRates("NVIDIA H200", 790e12, 4.16e12, 132)
"""Rates measured on one; the device to speak of where there is none."""


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
        multiprocessors=torch.cuda.get_device_properties(device).multi_processor_count,
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


def step_seconds(preset: Preset, grid: tuple[int, int], rates: DeviceRates, cache: CacheChoice = "full") -> float:
    """Expected time of a one-frame step, the window just full: later, in a long video, attention also reads the
    special tokens of all keyframes.

    Matrix work at the device's rate times an efficiency; a layer's attention by `_attention_seconds`, or the reading of
    its keys and values if that takes longer; depth head and camera head run side by side, and of the latter's weights
    every iteration reads all for a single token.
    """
    network, stream = preset.network, preset.stream
    size = network_size(network)
    patches = grid[0] * grid[1]
    tokens = network.special_tokens + patches
    # The encoder has a class token and registers in the place of the special tokens: one less.
    dense = 2 * size.token_products * tokens / (rates.matrix_flops * MATRIX_EFFICIENCY)
    within = (network.encoder_depth + network.depth) * _attention_seconds(network, tokens, tokens, rates)
    frames = stream.scale_frames + stream.window + 1
    kind = cache_kind(cache)
    numbers = 2 * frames * tokens * network.dim
    attention = _attention_seconds(network, tokens, frames * tokens, rates) * (E4M3_ATTENTION if kind.widened else 1)
    across = max(attention, numbers * COMPUTE.itemsize / rates.bandwidth)
    if kind.widened:
        bytes_moved = numbers / 2 * (kind.patch_dtype(COMPUTE).itemsize + COMPUTE.itemsize)
        across += bytes_moved / (rates.bandwidth * WIDENING_EFFICIENCY)
    # Of the trace that `run_memory` begins with, too: it makes the position tables that the later step's finds.
    convolutions = trace_step(network, grid, stream.scale_frames).convolution_flops / stream.scale_frames
    heads = max(
        convolutions / (rates.matrix_flops * CONVOLUTION_EFFICIENCY),
        network.camera_iterations * size.camera_bytes / (rates.bandwidth * CAMERA_EFFICIENCY),
    )
    return max(dense + within + network.depth * across + heads + BETWEEN_SECONDS, FRAME_SECONDS)


def _attention_seconds(network: NetworkConfig, queries: int, keys: int, rates: DeviceRates) -> float:
    """Attention of one layer, in the waves that `plan_waves` makes of it."""
    places = PROGRAMS_A_MULTIPROCESSOR * rates.multiprocessors
    blocks = ceil(keys / KEY_BLOCK)
    waves = plan_waves(network.heads * ceil(queries / QUERY_BLOCK), blocks, places)
    # Two products for each pair of tokens, in all places at once.
    block_flops = 4 * places * QUERY_BLOCK * KEY_BLOCK * network.head_dim
    return waves.cost(blocks, places) * block_flops / (rates.matrix_flops * ATTENTION_EFFICIENCY)
