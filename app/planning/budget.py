"""Estimates of GPU memory and step time of a run, from its configuration: computed from shapes, else constants.

The constants were fitted to the full-size and the embedded network on an H200 with torch 2.11.0+cu130 and Triton 3.6.0:
`scripts/bench gpu --only budgets` (the full-size one at 518x294 and 448x252 in 24 and in 8 GB), and
`--only step,kernels,sizes` (no limit). tests/app/planning/test_budget.py has the measurements.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

import torch

from stream_recon.app.planning.step_trace import network_size, trace_step
from stream_recon.cache.cache_dtypes import CacheDtypePolicy, cache_policy
from stream_recon.cache.kernels.tile_schedule import KEY_BLOCK, PROGRAMS_PER_SM, QUERY_BLOCK, schedule_tiles
from stream_recon.cache.stream_cache import StreamSchema
from stream_recon.configs.schema import CacheChoice, NetworkConfig, Preset

MEBIBYTE = 2**20
COMPUTE = torch.bfloat16
"""Type of matrix work on a GPU, and of the camera head's cache."""

# Memory.
CONTEXT_BYTES = 800 * 10**6
"""CUDA's context and loaded kernels, which torch does not count: 0.80 GB in all four runs within a budget."""
KERNEL_BYTES = 96 * MEBIBYTE
"""Workspaces of cuBLAS, one per CUDA stream (estimated)."""
ALLOCATOR_SLACK = 2.1
"""Bytes that torch's allocator reserves per byte of activations where memory is tight. Tensors and cuDNN's workspaces
held 1.40 to 1.46; the rest is blocks that cannot be reused. Within 8 GB 1.6 and 2.0 were reserved; the larger one
counts, as a prediction must not be too low. Without a limit 2.5 were reserved."""

# Time.
ATTENTION_EFFICIENCY = 0.65
"""Share of the device's matrix rate that attention reaches on all multiprocessors: 14.34 ms at 504x378, for 24 layers,
71,000 keys and 256 programs where 264 run at once."""
E4M3_ATTENTION = 0.88
"""Time of attention with queries and keys in e4m3, relative to bf16: 0.84 to 0.91 at four sizes."""
DEQUANTISE_EFFICIENCY = 0.93
"""Share of the device's copy rate at which values of a cache in e4m3 are dequantised."""
MATRIX_EFFICIENCY = 0.42
"""Share of the matrix rate that encoder and aggregator reach, with cheap operations, without attention: 5.3 ms at
504x378."""
CONVOLUTION_EFFICIENCY = 0.18
"""Share of the matrix rate that the depth head reaches: 1.52 ms at 504x378."""
CAMERA_EFFICIENCY = 0.32
"""Share of the device's bandwidth at which the camera head reads its weights: 1.747 GB in 1.32 ms."""
OTHER_SECONDS = 8e-4
"""Rest of a step: transfer of the image, keyframe flow, and work of the host."""
FRAME_SECONDS = 3.5e-3
"""Least time of a frame, for any network: preset small at 224x168 took 3.55 ms from decoded image to results."""


@dataclass(frozen=True)
class RunMemory:
    """Peak bytes on the device during a stream."""

    weights: int
    """Weights, as `StreamingNetwork.fuse_for_gpu` stores them."""
    caches: int
    """Both caches, `StreamSchema.bytes`, allocated before the first frame."""
    activations: int
    """Activations of the first step, with all scale frames, plus those of later ones: a captured step cannot reuse the
    first one's memory. See `trace_step`."""
    workspace: int
    """Workspaces of matrix products."""
    context: int
    """CUDA's context."""

    @property
    def by_torch(self) -> int:
        """Bytes that torch reserves, and that its memory fraction limits: without the CUDA context."""
        return self.weights + self.caches + self.activations + self.workspace

    @property
    def total(self) -> int:
        """Bytes of the device."""
        return self.by_torch + self.context


def run_memory(preset: Preset, grid: tuple[int, int], cache: CacheChoice = "full") -> RunMemory:
    """Memory of a stream of ``grid`` patch rows and columns with every budget of the preset used up.

    ``cache``: storage of the aggregator's keys and values; the camera head's are always in bf16. Attention is that of
    ``auto`` where Triton runs. ``flashinfer`` needs 256 MiB more; ``sdpa`` a copy of a layer's visible keys and values.
    """
    network, stream = preset.network, preset.with_cache(cache).stream
    schema = StreamSchema.from_config(network, stream, grid, COMPUTE, cache=cache)
    first, later = (trace_step(network, grid, frames).peak_bytes for frames in (stream.scale_frames, 1))
    return RunMemory(
        weights=network_size(network).bytes,
        caches=schema.bytes,
        activations=int((first + later) * ALLOCATOR_SLACK),
        workspace=KERNEL_BYTES,
        context=CONTEXT_BYTES,
    )


@dataclass(frozen=True)
class DeviceRates:
    """Speed of a GPU."""

    name: str
    matrix_flops: float
    """Floating-point operations per second of a large bf16 matrix product."""
    bandwidth: float
    """Bytes per second, read and written, of a large copy."""
    multiprocessors: int


H200 = DeviceRates("NVIDIA H200", 790e12, 4.16e12, 132)
"""Measured rates of an H200, assumed where there is no CUDA device."""


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
    """Calls of ``work`` per second, after two calls to warm up, over at least ``seconds`` and one call."""
    for _ in range(2):
        work()
    begin, calls, passed = time.perf_counter(), 0, 0.0
    while not calls or passed < seconds:
        work()
        calls += 1
        passed = time.perf_counter() - begin
    return calls / passed


def step_seconds(preset: Preset, grid: tuple[int, int], rates: DeviceRates, cache: CacheChoice = "full") -> float:
    """Expected time of a one-frame step when the window has just filled.

    Later, in a long video, attention also reads the special tokens of all keyframes. Matrix work runs at the device's
    rate times an efficiency. A layer's attention takes `_attention_seconds`, or the time to read its keys and values if
    longer. Depth head and camera head run in parallel; each iteration of the latter reads all its weights.
    """
    network, stream = preset.network, preset.with_cache(cache).stream
    size = network_size(network)
    patches = grid[0] * grid[1]
    tokens = network.special_tokens + patches
    # The encoder has a class token and registers instead of the special tokens: one token less.
    dense = 2 * size.token_products * tokens / (rates.matrix_flops * MATRIX_EFFICIENCY)
    frame_attention = (network.encoder_depth + network.depth) * _attention_seconds(network, tokens, tokens, rates)
    frames = stream.scale_frames + stream.window + 1
    policy = cache_policy(cache)
    schema = StreamSchema.from_config(network, stream, grid, COMPUTE, cache=cache)
    global_attention = schema.frames.layers * _global_seconds(network, tokens, frames * tokens, rates, policy)
    if schema.compressed is not None:
        keys = patches + frames * network.special_tokens + (frames - 1) * schema.compressed.slot_tokens
        global_attention += schema.compressed.layers * _global_seconds(
            network, tokens, keys, rates, cache_policy("full")
        )
    # The first step of `run_memory`: its trace creates the position tables, which a later step's trace reuses.
    convolutions = trace_step(network, grid, stream.scale_frames).convolution_flops / stream.scale_frames
    heads = max(
        convolutions / (rates.matrix_flops * CONVOLUTION_EFFICIENCY),
        network.camera_iterations * size.camera_bytes / (rates.bandwidth * CAMERA_EFFICIENCY),
    )
    return max(dense + frame_attention + global_attention + heads + OTHER_SECONDS, FRAME_SECONDS)


def _global_seconds(
    network: NetworkConfig, queries: int, keys: int, rates: DeviceRates, policy: CacheDtypePolicy
) -> float:
    """Time of one layer's attention to so many visible keys in a cache of ``policy``."""
    numbers = 2 * keys * network.dim
    attention = _attention_seconds(network, queries, keys, rates) * (E4M3_ATTENTION if policy.dequantised else 1)
    seconds = max(attention, numbers * COMPUTE.itemsize / rates.bandwidth)
    if policy.dequantised:
        bytes_moved = numbers / 2 * (policy.patch_dtype(COMPUTE).itemsize + COMPUTE.itemsize)
        seconds += bytes_moved / (rates.bandwidth * DEQUANTISE_EFFICIENCY)
    return seconds


def _attention_seconds(network: NetworkConfig, queries: int, keys: int, rates: DeviceRates) -> float:
    """Time of one layer's attention under the schedule of `schedule_tiles`."""
    resident_programs = PROGRAMS_PER_SM * rates.multiprocessors
    blocks = ceil(keys / KEY_BLOCK)
    schedule = schedule_tiles(network.heads * ceil(queries / QUERY_BLOCK), blocks, resident_programs)
    # Two products for each pair of tokens, in all programs that run at once.
    block_flops = 4 * resident_programs * QUERY_BLOCK * KEY_BLOCK * network.head_dim
    return schedule.cost(blocks, resident_programs) * block_flops / (rates.matrix_flops * ATTENTION_EFFICIENCY)
