"""Several streams through one network at once: each with a seat of its own, a frame of each in one step.

A small network's step takes a GPU as long for sixteen frames as for one: it waits for kernels to start. So streams that
have a frame ready are stepped together. Each has its own caches, keyframe policy and end; a seat that is left serves
the next stream.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from stream_recon.app.engine.device_transfer import Precision, StepGraph, plain_precision
from stream_recon.app.engine.keyframes import Decision, KeyframePolicy, keyframe_policy, mean_flow
from stream_recon.app.engine.stream import (
    SHORT_TOKENS,
    OdometrySlots,
    StepOutput,
    attention_sizes,
    available_memory,
    searches_rotation,
    stream_schema,
)
from stream_recon.cache.attention import AttentionBackend, TorchAttention
from stream_recon.cache.batch_slots import BatchSlots
from stream_recon.cache.kernels.choose import build_kernel
from stream_recon.cache.kernels.timing import runs_triton
from stream_recon.cache.protocols import Memory
from stream_recon.cache.step_metadata import StepMetadata
from stream_recon.configs.schema import Preset
from stream_recon.models.network import StreamingNetwork
from stream_recon.models.prediction import Prediction

MEMORY_SHARE = 0.8
"""Of what is free, that caches may take: the rest is for the steps themselves, of all sizes."""


@dataclass
class _Seat:
    policy: KeyframePolicy
    taken: bool = False


class StreamBatch:
    """Works on tensors. The host waits for the device once a step, to learn which frames are keyframes."""

    def __init__(
        self,
        network: StreamingNetwork,
        preset: Preset,
        grid: tuple[int, int],
        seats: int,
        precision: Precision | None = None,
        *,
        capture: bool = True,
    ) -> None:
        """``seats``: streams at once, at most; fewer if memory for their caches is short. ``grid``, ``precision`` and
        ``capture`` as `Stream` has them.

        Raises ResourceError if there is no memory for a single one.
        """
        self.grid = grid
        self._network = network
        self._config = preset.stream
        self._device = device = network.image_mean.device
        self._half = (precision or plain_precision(device)) == "bf16"
        schema = stream_schema(preset, grid, device, half=self._half)
        available = available_memory(device)
        schema.check_fits(available)
        count = max(1, min(seats, int(MEMORY_SHARE * available) // schema.bytes))
        by_kernels = device.type == "cuda" and self._half and runs_triton()
        self.attention = "triton" if by_kernels else "sdpa"

        def backend(inputs: StepMetadata | None) -> AttentionBackend:
            return (
                TorchAttention() if inputs is None else build_kernel("triton", attention_sizes(schema), device, inputs)
            )

        self._seats = BatchSlots(schema, preset.stream, count, device, backend, by_kernels=by_kernels)
        self._state = [_Seat(keyframe_policy(self._config)) for _ in range(count)]
        self._last = OdometrySlots(preset.network, grid, count, device)
        self._searches = searches_rotation(self._config, device)
        side = preset.network.patch_size
        self._images: Tensor | None = None
        self._first_images = torch.zeros(0)
        self._graphs: dict[int, StepGraph[StepOutput]] = {}
        self._first_graphs: list[StepGraph[StepOutput]] = []
        """Of each seat, whose places are its own."""
        if by_kernels:
            self._images = torch.zeros(count, 3, grid[0] * side, grid[1] * side, device=device)
            scale = preset.stream.scale_frames
            self._first_images = torch.zeros(scale, *self._images.shape[1:], device=device)
            pool = torch.cuda.graph_pool_handle() if capture else None
            self._graphs = {size: StepGraph(pool) for size in step_sizes(count)} if capture else {}
            if capture and scale * schema.frames.frame_tokens <= SHORT_TOKENS:
                self._first_graphs = [StepGraph(pool) for _ in range(count)]

    @property
    def seats(self) -> int:
        return len(self._state)

    @property
    def taken(self) -> int:
        return sum(seat.taken for seat in self._state)

    def take(self) -> int | None:
        """A free seat for a stream that begins; None where all are taken."""
        free = next((number for number, seat in enumerate(self._state) if not seat.taken), None)
        if free is not None:
            self._state[free].taken = True
            self.clear(free)
        return free

    def leave(self, seat: int) -> None:
        """The stream in that seat has ended."""
        self._state[seat].taken = False

    def clear(self, seat: int) -> None:
        """The next frames in that seat are another stream's."""
        self._seats.memories[seat].reset()
        self._state[seat].policy = keyframe_policy(self._config)

    @torch.no_grad()
    def begin(self, seat: int, images: Tensor) -> tuple[Prediction, Decision]:
        """images [S, 3, h, w] in [0, 1], the scale frames of a stream in a seat just taken or cleared."""
        memory = self._seats.memories[seat]
        assert memory.frames == 0
        memory.begin(len(images))
        if self._first_graphs and len(images) == len(self._first_images):
            self._first_images.copy_(images, non_blocking=True)
            output = self._first_graphs[seat].run(partial(self._forward_first, memory, self._first_images))
        else:
            output = self._forward_first(memory, images.to(self._device))
        self._seats.settle([seat], [])
        self._last.store(output.prediction, output.state, [0], [seat])
        return output.prediction, Decision(True, None)

    @torch.no_grad()
    def step(self, seats: Sequence[int], images: Tensor) -> tuple[Prediction, list[Decision]]:
        """images [N, 3, h, w] in [0, 1], the next frame of each of N streams, by their seats -> prediction of N clips
        of one frame, and whether each is a keyframe.

        A frame that is none leaves no trace in its stream's caches. The next step may overwrite the prediction.
        """
        assert len(set(seats)) == len(seats) == len(images)
        policies = [self._state[seat].policy for seat in seats]
        self._seats.begin(seats, [policy.evicts_first for policy in policies])
        output = self._by_kernels(images) if self._images is not None else self._in_turn(seats, images)
        flows = output.flow.tolist() if policies[0].needs_flow else [None] * len(seats)
        decisions = [policy.decide(flow) for policy, flow in zip(policies, flows, strict=True)]
        kept = [row for row, decision in enumerate(decisions) if decision.is_keyframe]
        dropped = [seat for seat, decision in zip(seats, decisions, strict=True) if not decision.is_keyframe]
        kept_seats = [seats[row] for row in kept]
        self._seats.settle(kept_seats, dropped)
        if kept:
            self._last.store(output.prediction, output.state, kept, kept_seats)
        return output.prediction, decisions

    def _forward_first(self, memory: Memory, images: Tensor) -> StepOutput:
        with self._autocast():
            prediction, state = self._network(images[None], memory, rotation_search=self._searches)
        return StepOutput(prediction, state, torch.zeros(1, device=self._device))

    def _in_turn(self, seats: Sequence[int], images: Tensor) -> StepOutput:
        rows = torch.tensor(list(seats), device=self._device)
        return self._forward(images.to(self._device), self._seats.memory(seats), rows)

    def _by_kernels(self, images: Tensor) -> StepOutput:
        assert self._images is not None
        count = len(images)
        size = next(size for size in step_sizes(self.seats) if size >= count)
        self._images[:count].copy_(images, non_blocking=True)
        self._images[count:size] = self._images[count - 1]
        self._seats.upload(count, size)
        body = partial(self._forward_rows, size)
        output = self._graphs[size].run(body) if self._graphs else body()
        return first_rows(output, count)

    def _forward_rows(self, rows: int) -> StepOutput:
        assert self._images is not None
        return self._forward(self._images[:rows], self._seats.kernel_memory(rows), self._seats.seat_of_row[:rows])

    def _forward(self, images: Tensor, memory: Memory, seats: Tensor) -> StepOutput:
        """``seats``: of each row, on the device."""
        with self._autocast():
            last = self._last.select(seats)
            prediction, state = self._network(images[:, None], memory, last, rotation_search=self._searches)
        if not self._state[0].policy.needs_flow:
            return StepOutput(prediction, state, torch.zeros(len(images), device=self._device))
        references = self._last.head_pose.index_select(0, seats)
        flow = mean_flow(prediction.head_pose[-1, :, -1], prediction.head_depth[:, -1], references)
        return StepOutput(prediction, state, flow)

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self._device.type, torch.bfloat16, enabled=self._half)


def step_sizes(seats: int) -> list[int]:
    """Numbers of frames for which there is a step: one with fewer fills up with copies of its last one."""
    return [*(2**k for k in range(seats.bit_length()) if 2**k < seats), seats]


def first_rows(output: StepOutput, count: int) -> StepOutput:
    """A step's output without the copies at its end; the state keeps them, and only its first rows are stored."""
    return StepOutput(output.prediction.first_clips(count), output.state, output.flow[:count])
