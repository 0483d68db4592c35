"""Batched steps: several streams through one network, each in its own batch slot, one frame of each per step.

A small network's step takes a GPU as long for sixteen frames as for one, as it waits for kernels to start. So streams
with a frame ready are stepped together. Each has its own caches and keyframe policy; a released slot is used again.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from stream_recon.app.engine.device_transfer import Precision, StepGraph, computes_in_half, plain_precision
from stream_recon.app.engine.keyframes import Decision, flow_since, keyframe_policy
from stream_recon.app.engine.stream import (
    SHORT_TOKENS,
    OdometrySlots,
    StepOutput,
    attention_sizes,
    available_memory,
    searches_rotation,
    stream_schema,
)
from stream_recon.cache.attention import AttentionBackend, KVCache, TorchAttention
from stream_recon.cache.batch_slots import BatchSlots
from stream_recon.cache.block_manager import CacheUse
from stream_recon.cache.kernels.choose import build_kernel, runs_triton
from stream_recon.cache.kernels.compilation import compile_kernels
from stream_recon.cache.step_metadata import StepMetadata
from stream_recon.configs.schema import Preset
from stream_recon.models.int8 import separate_frames
from stream_recon.models.network import StreamingNetwork
from stream_recon.models.prediction import Prediction

MEMORY_SHARE = 0.8
"""Share of free memory that caches may take: the rest is for activations of steps of all sizes."""


@dataclass(frozen=True)
class RunningStep:
    """A step that has been started."""

    slots: Sequence[int]
    output: StepOutput


class StreamBatch:
    """Runs several streams on tensors; the host waits once a step, to learn which frames are keyframes."""

    def __init__(
        self,
        network: StreamingNetwork,
        preset: Preset,
        grid: tuple[int, int],
        slots: int,
        precision: Precision | None = None,
    ) -> None:
        """``slots``: most streams at once; fewer if memory for their caches is short. ``grid``: patch rows and columns;
        ``precision``: see `StepOptions`.

        Raises ResourceError if there is no memory for a single stream.
        """
        self.grid = grid
        self._network = network
        self._config = preset.stream
        self._device = device = network.image_mean.device
        self._half = computes_in_half(precision or plain_precision(device), device)
        separate_frames(network)
        schema = replace(stream_schema(preset, grid, device, half=self._half), max_score=network.aggregator.max_score)
        available = available_memory(device)
        schema.check_fits(available)
        count = max(1, min(slots, int(MEMORY_SHARE * available) // schema.bytes))
        by_kernels = device.type == "cuda" and self._half and runs_triton()
        self.attention = "triton" if by_kernels else "sdpa"

        def backend(metadata: StepMetadata | None) -> AttentionBackend:
            if metadata is None:
                return TorchAttention()
            return build_kernel("triton", attention_sizes(schema), device, metadata)

        self._slots = BatchSlots(schema, preset.stream, count, device, backend, by_kernels=by_kernels)
        self._policies = [keyframe_policy(self._config) for _ in range(count)]
        self._used = [False] * count
        self._last = OdometrySlots(preset.network, grid, count, device)
        self._searches = searches_rotation(self._config, device)
        side = preset.network.patch_size
        self._images: Tensor | None = None
        self._first_images = torch.zeros(0)
        self._graphs: dict[int, StepGraph[StepOutput]] = {}
        self._compiled: set[int] = set()
        """Numbers of frames of steps whose kernels are compiled; 0: of a slot's first step."""
        self._first_graphs: list[StepGraph[StepOutput]] = []
        """One for each slot, as each has its own pool positions."""
        if by_kernels:
            self._images = torch.zeros(count, 3, grid[0] * side, grid[1] * side, device=device)
            scale = preset.stream.scale_frames
            self._first_images = torch.zeros(scale, *self._images.shape[1:], device=device)
            pool = torch.cuda.graph_pool_handle()
            self._graphs = {size: StepGraph(pool) for size in step_sizes(count)}
            if scale * schema.frames.frame_tokens <= SHORT_TOKENS:
                self._first_graphs = [StepGraph(pool) for _ in range(count)]

    @property
    def slots(self) -> int:
        """Most streams at once."""
        return len(self._used)

    @property
    def used(self) -> int:
        """Slots in use."""
        return sum(self._used)

    def allocate_slot(self, min_gap: int = 1) -> int | None:
        """A free slot for a new stream; None if all are in use. ``min_gap``: see `keyframe_policy`."""
        free = self._used.index(False) if False in self._used else None
        if free is not None:
            self._used[free] = True
            self.reset_slot(free, min_gap)
        return free

    def release_slot(self, slot: int) -> None:
        """Free a slot whose stream has ended."""
        self._used[slot] = False

    def reset_slot(self, slot: int, min_gap: int = 1) -> None:
        """Drop all frames of a slot, for another stream."""
        self._slots.caches[slot].reset()
        self._policies[slot] = keyframe_policy(self._config, min_gap)

    def use_of(self, slot: int) -> CacheUse:
        """Frames in the cache of a slot's stream, between two steps."""
        return self._slots.caches[slot].use

    @torch.no_grad()
    def begin(self, slot: int, images: Tensor) -> tuple[Prediction, Decision]:
        """images [S, 3, h, w] in [0, 1], the scale frames of a new stream in an empty slot."""
        kv_cache = self._slots.caches[slot]
        assert kv_cache.frames == 0
        if self._images is not None and 0 not in self._compiled:
            self._compiled.add(0)
            kv_cache.begin(len(images))
            compile_kernels(lambda: self._forward_first(kv_cache, images.to(self._device)))
            self._slots.end_step([], [slot])
        kv_cache.begin(len(images))
        if self._first_graphs and len(images) == len(self._first_images):
            self._first_images.copy_(images, non_blocking=True)
            output = self._first_graphs[slot].run(partial(self._forward_first, kv_cache, self._first_images))
        else:
            output = self._forward_first(kv_cache, images.to(self._device))
        self._slots.end_step([slot], [])
        self._last.store(output.prediction, output.state, [0], [slot])
        return output.prediction, Decision(True, None)

    @torch.no_grad()
    def step(self, slots: Sequence[int], images: Tensor) -> tuple[Prediction, list[Decision]]:
        """images [N, 3, h, w] in [0, 1], the next frames of the streams in N slots -> prediction of N one-frame clips,
        and whether each is a keyframe.

        A frame that is no keyframe changes no cache. The next step may overwrite the prediction.
        """
        return self.finish(self.start(slots, images))

    @torch.no_grad()
    def start(self, slots: Sequence[int], images: Tensor) -> RunningStep:
        """The first half of `step`: on a GPU it waits for nothing, so the host has time for other work before
        `finish`."""
        assert len(set(slots)) == len(slots) == len(images)
        evict_first = [self._policies[slot].evicts_first for slot in slots]
        if self._images is not None:
            self._compile(slots, evict_first)
        self._slots.begin(slots, evict_first)
        output = self._by_kernels(images) if self._images is not None else self._one_by_one(slots, images)
        return RunningStep(slots, output)

    @torch.no_grad()
    def finish(self, running: RunningStep, keep: Collection[int] = ()) -> tuple[Prediction, list[Decision]]:
        """The second half of `step`, the host's own work between them; ``keep``: slots with a keyframe in any case."""
        slots, output = running.slots, running.output
        policies = [self._policies[slot] for slot in slots]
        flows = output.flow.tolist() if policies[0].needs_flow else [None] * len(slots)
        decisions = [policy.decide(flow) for policy, flow in zip(policies, flows, strict=True)]
        decisions = [Decision(d.is_keyframe or s in keep, d.flow) for d, s in zip(decisions, slots, strict=True)]
        keyframe_rows = [row for row, decision in enumerate(decisions) if decision.is_keyframe]
        rejected = [slot for slot, decision in zip(slots, decisions, strict=True) if not decision.is_keyframe]
        keyframe_slots = [slots[row] for row in keyframe_rows]
        self._slots.end_step(keyframe_slots, rejected)
        if keyframe_rows:
            self._last.store(output.prediction, output.state, keyframe_rows, keyframe_slots)
        return output.prediction, decisions

    def _compile(self, slots: Sequence[int], evict_first: Sequence[bool]) -> None:
        """Compile the kernels of a step of so many frames, if it is the first one."""
        size = self._step_size(len(slots))
        if size in self._compiled:
            return
        self._compiled.add(size)
        self._slots.begin(slots, evict_first)
        self._slots.upload(len(slots), size)
        compile_kernels(lambda: self._forward_rows(size))
        self._slots.end_step([], slots)

    def _step_size(self, count: int) -> int:
        return next(size for size in step_sizes(self.slots) if size >= count)

    def _forward_first(self, kv_cache: KVCache, images: Tensor) -> StepOutput:
        with self._autocast():
            prediction, state = self._network(images[None], kv_cache, rotation_search=self._searches)
        return StepOutput(prediction, state, torch.zeros(1, device=self._device))

    def _one_by_one(self, slots: Sequence[int], images: Tensor) -> StepOutput:
        rows = torch.tensor(list(slots), device=self._device)
        return self._forward(images.to(self._device), self._slots.step(slots), rows)

    def _by_kernels(self, images: Tensor) -> StepOutput:
        assert self._images is not None
        count = len(images)
        size = self._step_size(count)
        self._images[:count].copy_(images, non_blocking=True)
        self._images[count:size] = self._images[count - 1]
        self._slots.upload(count, size)
        body = partial(self._forward_rows, size)
        output = self._graphs[size].run(body) if self._graphs else body()
        # Without the padding; the state keeps it, and only its first rows are stored.
        return StepOutput(output.prediction.first_clips(count), output.state, output.flow[:count])

    def _forward_rows(self, rows: int) -> StepOutput:
        assert self._images is not None
        return self._forward(self._images[:rows], self._slots.kernel_step(rows), self._slots.slot_of_row[:rows])

    def _forward(self, images: Tensor, kv_cache: KVCache, slots: Tensor) -> StepOutput:
        """``slots``: of each row, on the device."""
        with self._autocast():
            last = self._last.select(slots)
            prediction, state = self._network(images[:, None], kv_cache, last, rotation_search=self._searches)
        if not self._policies[0].needs_flow:
            return StepOutput(prediction, state, torch.zeros(len(images), device=self._device))
        flow = flow_since(prediction, self._last.head_pose, slots, by_kernel=self._images is not None)
        return StepOutput(prediction, state, flow)

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self._device.type, torch.bfloat16, enabled=self._half)


def step_sizes(slots: int) -> list[int]:
    """Batch sizes for which steps are captured; a smaller batch is padded with copies of its last frame."""
    return [*(2**k for k in range(slots.bit_length()) if 2**k < slots), slots]
