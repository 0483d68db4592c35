"""Random steps of several streams in batch slots, compared with lists of the frames that are kept."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from stream_recon.cache.attention import AttentionBackend, KVCache, TorchAttention
from stream_recon.cache.batch_slots import BatchSlots
from stream_recon.cache.block_manager import SlidingWindow
from stream_recon.cache.cache_dtypes import cache_policy
from stream_recon.cache.camera import CameraCacheSchema
from stream_recon.cache.compressed_frame_cache import CompressedSchema
from stream_recon.cache.frame_cache import FrameCacheSchema
from stream_recon.cache.step_metadata import StepMetadata
from stream_recon.cache.stream_cache import StreamSchema
from stream_recon.configs.schema import StreamConfig
from tests.networks import tiny_preset

CPU = torch.device("cpu")
CHANNELS = 16
TOLERANCE = 1e-4

Rows = tuple[Tensor, Tensor]
"""Keys and values [n, H, D] of one layer."""


@dataclass(frozen=True)
class Sizes:
    """What a run of random steps is made with."""

    layers: int
    heads: int
    special: int
    grid: tuple[int, int]
    batch_slots: int
    stream: StreamConfig

    @property
    def patches(self) -> int:
        """Patches per frame."""
        return self.grid[0] * self.grid[1]

    def is_compressed(self, layer: int) -> bool:
        """Whether a layer keeps blocks of patches."""
        return self.stream.compressed_from is not None and layer >= self.stream.compressed_from


@dataclass
class NaiveStream:
    """A stream that keeps each frame's keys and values in lists: of its patches, special tokens and camera token."""

    config: StreamConfig
    scale: list[int] = field(default_factory=list)
    window: list[int] = field(default_factory=list)
    camera: list[int] = field(default_factory=list)
    log: list[int] = field(default_factory=list)
    """Frames that keep their special tokens."""

    def visible(self, *, evict_first: bool) -> tuple[list[int], list[int], list[int]]:
        """Kept frames whose patches, special tokens and camera tokens a step sees."""
        window = self.window[1:] if evict_first and len(self.window) == self.config.window else self.window
        return self.scale + window, self.log, self.scale + self.camera

    def commit(self, new: list[int]) -> None:
        self.log += new
        if not self.scale:
            self.scale = new
        else:
            self.window = (self.window + new)[-self.config.window :]
            self.camera = (self.camera + new)[-self.config.camera_window :]
        if len(self.log) > max(self.config.special_budget, self.config.scale_frames + 4):
            pinned, rest = self.log[: len(self.scale)], self.log[len(self.scale) :]
            half = len(rest) // 2
            self.log = pinned + rest[:half][1::2] + rest[half:]


def attention(q: Tensor, rows: list[Rows], blocks: Sequence[Rows] = (), sizes: Sequence[int] = ()) -> Tensor:
    """q [n, H, D] over rows of keys and values, and over blocks of ``sizes`` patches each, in float64."""
    keys, values = (torch.cat(parts).double() for parts in zip(*rows, *blocks, strict=True))
    counts = torch.cat([torch.ones(len(row[0])) for row in rows] + [torch.tensor(sizes)] * len(blocks)).double()
    weights = torch.einsum("qhd,khd->hqk", q.double(), keys).div(q.shape[-1] ** 0.5).exp() * counts
    return torch.einsum("hqk,khd->qhd", weights / weights.sum(-1, keepdim=True), values)


def in_blocks(grid: tuple[int, int], side: int) -> list[list[int]]:
    """Patches of each block of a frame, row by row."""
    return [
        [y * grid[1] + x for y in range(top, min(top + side, grid[0])) for x in range(left, min(left + side, grid[1]))]
        for top in range(0, grid[0], side)
        for left in range(0, grid[1], side)
    ]


def assert_same(got: Tensor, expected: Tensor, what: str) -> None:
    error = float((got.double() - expected).norm() / expected.norm())
    assert error < TOLERANCE, f"{what}: relative error {error}"


class RandomSteps:
    """Batch slots, their naive twins and one counter of slots for each."""

    def __init__(self, sizes: Sizes, seed: int, *, by_kernels: bool) -> None:
        self.sizes, stream = sizes, sizes.stream
        self.chance, self.generator = random.Random(seed), torch.Generator().manual_seed(seed)
        self.by_kernels = by_kernels
        camera_slots = SlidingWindow(stream.scale_frames, stream.camera_window).total
        network = replace(
            tiny_preset().network,
            dim=sizes.heads * CHANNELS,
            heads=sizes.heads,
            depth=sizes.layers,
            output_layers=(0, 0, 0, 0),
            registers=sizes.special - 2,
        )
        schema = StreamSchema(
            FrameCacheSchema.from_config(network, stream, sizes.patches),
            CompressedSchema.of_stream(network, stream, sizes.grid),
            CameraCacheSchema(sizes.layers, sizes.heads, CHANNELS, camera_slots),
            torch.float32,
            torch.float32,
            cache_policy("full"),
        )
        self.slots = BatchSlots(schema, stream, sizes.batch_slots, CPU, self._backend, by_kernels=by_kernels)
        self.naive = [NaiveStream(stream) for _ in range(sizes.batch_slots)]
        self.counters = [SlidingWindow(stream.scale_frames, stream.window) for _ in range(sizes.batch_slots)]
        self.tokens: list[list[tuple[Rows, Rows, Rows]]] = []
        """Patches, special tokens and camera token of each layer of each frame that there was."""

    @staticmethod
    def _backend(metadata: StepMetadata | None) -> AttentionBackend:
        if metadata is None:
            return TorchAttention()
        from stream_recon.cache.kernels.span_attention import SpanAttention  # needs Triton

        return SpanAttention(metadata.full)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            empty = [slot for slot, stream in enumerate(self.naive) if not stream.scale]
            if empty and self.chance.random() < 0.7:
                self._first_step(self.chance.choice(empty))
            elif len(empty) < len(self.naive):
                begun = [slot for slot in range(len(self.naive)) if slot not in empty]
                self._step(self.chance.sample(begun, self.chance.randint(1, len(begun))))
            if self.chance.random() < 0.03:
                self._reset(self.chance.randrange(len(self.naive)))
            for kv_cache, naive in zip(self.slots.caches, self.naive, strict=True):
                held = len(naive.scale) + len(naive.window), len(naive.log)
                assert (kv_cache.use.patches, kv_cache.use.special) == held

    def _reset(self, slot: int) -> None:
        self.slots.caches[slot].reset()
        self.naive[slot] = NaiveStream(self.sizes.stream)
        self.counters[slot].reset()
        self._check_counts(slot, pending=0)

    def _first_step(self, slot: int) -> None:
        count = self.chance.randint(1, self.sizes.stream.scale_frames)
        keep = self.chance.random() < 0.8
        self.slots.caches[slot].begin(count)
        self._attend([slot], [False], count, [keep], self.slots.step([slot]))
        self.slots.end_step([slot] if keep else [], [] if keep else [slot])

    def _step(self, rows: list[int]) -> None:
        evict = [self.chance.random() < 0.3 for _ in rows]
        keep = [self.chance.random() < 0.6 for _ in rows]
        self.slots.begin(rows, evict)
        if self.by_kernels:
            self.slots.upload(len(rows), len(rows))
        kv_cache = self.slots.kernel_step(len(rows)) if self.by_kernels else self.slots.step(rows)
        assert kv_cache.times[:, 0].tolist() == [self.slots.caches[slot].frames for slot in rows]
        self._attend(rows, evict, 1, keep, kv_cache)
        pairs = list(zip(rows, keep, strict=True))
        self.slots.end_step([slot for slot, kept in pairs if kept], [slot for slot, kept in pairs if not kept])

    def _attend(self, rows: list[int], evict: list[bool], count: int, keep: list[bool], kv_cache: KVCache) -> None:
        """Attend to ``count`` new frames of each row, compare, and end the step in the naive streams."""
        new = [[len(self.tokens) + row * count + frame for frame in range(count)] for row in range(len(rows))]
        self.tokens += [[] for _ in range(len(rows) * count)]
        for layer in range(self.sizes.layers):
            self._attend_layer(layer, rows, evict, new, keep, kv_cache)
        for slot, frames, kept, evicts in zip(rows, new, keep, evict, strict=True):
            self.counters[slot].begin(count, evict_first=evicts)
            self._check_counts(slot, pending=count)
            if kept:
                self.counters[slot].commit()
                self.naive[slot].commit(frames)
            else:
                self.counters[slot].rollback()
            self._check_counts(slot, pending=0)

    def _attend_layer(
        self, layer: int, rows: list[int], evict: list[bool], new: list[list[int]], keep: list[bool], kv_cache: KVCache
    ) -> None:
        special, count = self.sizes.special, len(new[0])
        q, k, v = (self._randn(len(rows), count, special + self.sizes.patches) for _ in range(3))
        camera = [self._randn(len(rows), count) for _ in range(3)]
        for row, kept in enumerate(keep):
            if not kept:  # a trace of a rejected frame would show
                k[row] *= 30
                v[row] += 100
            elif self.chance.random() < 0.1:
                k[row, 0, self.chance.randrange(special)] *= 20
            for frame, number in enumerate(new[row]):
                keys, values = k[row, frame], v[row, frame]
                own = (camera[1][row, frame, None], camera[2][row, frame, None])
                self.tokens[number].append(
                    ((keys[special:], values[special:]), (keys[:special], values[:special]), own)
                )
        got = kv_cache.attend(layer, *(x.flatten(1, 2) for x in (q, k, v)))
        got_camera = kv_cache.attend_camera(layer, *camera)
        for row, slot in enumerate(rows):
            patches, log, cameras = self.naive[slot].visible(evict_first=evict[row])
            seen = [self.tokens[f][layer][0] for f in new[row]] + [self.tokens[f][layer][1] for f in log + new[row]]
            kept = [self.tokens[f][layer][0] for f in patches]
            blocks = in_blocks(self.sizes.grid, self.sizes.stream.block_side if self.sizes.is_compressed(layer) else 1)
            means = [(self._means(keys, blocks), self._means(values, blocks)) for keys, values in kept]
            expected = attention(q[row].flatten(0, 1), seen, means, [len(block) for block in blocks])
            assert_same(got[row], expected, f"layer {layer}, slot {slot}, frames {new[row]}")
            seen = [self.tokens[f][layer][2] for f in cameras + new[row]]
            assert_same(got_camera[row], attention(camera[0][row], seen), f"slot {slot}, camera of {new[row]}")

    @staticmethod
    def _means(tokens: Tensor, blocks: list[list[int]]) -> Tensor:
        return torch.stack([tokens[block].mean(0) for block in blocks])

    def _randn(self, *shape: int) -> Tensor:
        return torch.randn(*shape, self.sizes.heads, CHANNELS, generator=self.generator)

    def _check_counts(self, slot: int, pending: int) -> None:
        counter, naive = self.counters[slot], self.naive[slot]
        assert counter.free + counter.allocated == counter.total
        assert counter.allocated == len(naive.scale) + len(naive.window) + pending


def stream_config(
    scale: int, window: int, budget: int, camera: int, compressed_from: int | None = None, block_side: int = 2
) -> StreamConfig:
    return StreamConfig(
        scale_frames=scale,
        window=window,
        special_budget=budget,
        camera_window=camera,
        compressed_from=compressed_from,
        block_side=block_side,
    )


SIZES = [
    Sizes(layers=2, heads=2, special=6, grid=(2, 3), batch_slots=3, stream=stream_config(3, 4, 9, 5)),
    Sizes(layers=2, heads=3, special=2, grid=(1, 13), batch_slots=2, stream=stream_config(1, 1, 1, 1)),
    Sizes(layers=3, heads=1, special=5, grid=(5, 7), batch_slots=4, stream=stream_config(2, 3, 12, 2, 1)),
    Sizes(layers=2, heads=2, special=3, grid=(5, 6), batch_slots=2, stream=stream_config(1, 2, 1, 1, 1, 4)),
]
