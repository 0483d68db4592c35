"""The parts of a step, each captured alone, beside what limits it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from bench.gpu.measure import GRID, Rates, image_of, milliseconds
from bench.table import row
from stream_recon.app.engine.device_transfer import StepGraph
from stream_recon.app.engine.stream import StreamRunner
from stream_recon.configs.schema import NetworkConfig, Preset
from stream_recon.models.network import StreamingNetwork

PATCHES = GRID[0] * GRID[1]


@dataclass(frozen=True)
class Part:
    name: str
    run: Callable[[], Any]
    bytes_read: int
    """Weights, as often as they are read, and cached keys and values."""
    attention_flops: int = 0
    """Of kernels that the counter does not know."""


def print_parts(stream: StreamRunner, network: StreamingNetwork, preset: Preset, rates: Rates) -> None:
    """Rows of each part of the step captured alone, in the state that the stream is in."""
    kv_cache = stream.kv_cache
    kv_cache.begin(1, evict_first=True)
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        for part in parts_of(stream, network, preset):
            with FlopCounterMode(display=False) as counter:
                part.run()
            flops = counter.get_total_flops() + part.attention_flops
            graph: StepGraph[object] = StepGraph()
            took = milliseconds(partial(graph.run, part.run))
            row(part.name, f"{took:.2f} ms; {describe_limit(flops, part.bytes_read, took, rates)}")
    kv_cache.rollback()


def describe_limit(flops: int, bytes_read: int, took: float, rates: Rates) -> str:
    """What binds, matrix work or bytes, and how near ``took`` milliseconds come to it."""
    by_work, by_bytes = 1e3 * flops / rates.matrix_flops, 1e3 * bytes_read / rates.bandwidth
    limit = max(by_work, by_bytes)
    what = f"{flops / 1e12:.3f} TFLOP" if by_work >= by_bytes else f"{bytes_read / 1e9:.3f} GB"
    return f"{100 * limit / took:.0f} % of the limit of {limit:.2f} ms by {what}"


def parts_of(stream: StreamRunner, network: StreamingNetwork, preset: Preset) -> Iterator[Part]:
    """To be run inside an open step, one after the other."""
    config, kv_cache = preset.network, stream.kv_cache
    image = image_of(GRID)[None]
    patches, detail = network.encode(image)
    taps = network.aggregator(patches[None], GRID, kv_cache)
    spatial = [tap[:, :, config.special_tokens :].flatten(0, 1) for tap in taps]
    queries = config.special_tokens + PATCHES
    keys = visible_tokens(stream, preset)
    q = torch.randn(1, queries, config.heads, config.head_dim, device="cuda", dtype=torch.bfloat16)
    across = config.depth * attention_flops(config, queries, keys)
    cached = 2 * config.depth * keys * config.dim * q.itemsize
    yield Part("encoder", lambda: network.encode(image), bytes_of(network.encoder))
    yield Part(
        "aggregator",
        lambda: network.aggregator(patches[None], GRID, kv_cache),
        bytes_of(network.aggregator) + cached,
        across,
    )
    yield Part(
        "its global attention",
        lambda: [kv_cache.attend(layer, q, q, q) for layer in range(config.depth)],
        cached,
        across,
    )
    yield Part(
        "camera head (in the step beside the depth head)",
        lambda: network.camera_head(taps[-1][:, :, 0], kv_cache),
        config.camera_iterations * bytes_of(network.camera_head),
    )
    yield Part("depth head", lambda: network.depth_head(spatial, GRID, detail), bytes_of(network.depth_head))


def visible_tokens(stream: StreamRunner, preset: Preset) -> int:
    """Of a step with a full window that counts the step's own frame."""
    frames = min(stream.kv_cache.frames + 1, preset.stream.special_budget)
    return (preset.stream.scale_frames + preset.stream.window) * PATCHES + frames * preset.network.special_tokens


def attention_flops(config: NetworkConfig, queries: int, keys: int) -> int:
    """Of one layer: two products for each pair of tokens."""
    return 4 * queries * keys * config.dim


def bytes_of(module: nn.Module) -> int:
    return sum(parameter.nbytes for parameter in module.parameters())
