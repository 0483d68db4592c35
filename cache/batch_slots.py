"""Memory for several streams side by side, and what a step sees that takes a frame of some of them at once.

Each stream has a seat: caches, counters and a table of places of its own, in its part of one pool. A step's row i is
the frame of some stream; it reads and writes that stream's seat and no other.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from stream_recon.cache.attention import AttentionBackend
from stream_recon.cache.camera import camera_pools
from stream_recon.cache.frame_cache import FramePools
from stream_recon.cache.protocols import Memory
from stream_recon.cache.step_metadata import StepMetadata
from stream_recon.cache.stream_cache import SlotPools, StreamMemory, StreamSchema
from stream_recon.configs.schema import StreamConfig


class BatchedStep:
    """The `Memory` of a step of streams with a frame each (B rows, S = 1), each by its own caches, in turn."""

    def __init__(self, memories: Sequence[StreamMemory]) -> None:
        self._memories = memories

    @property
    def times(self) -> Tensor:
        return torch.cat([memory.times for memory in self._memories])

    @property
    def is_later_frame(self) -> Tensor:
        # One for all: they are all streamed frames.
        return self._memories[0].is_later_frame

    @property
    def is_streamed_frame(self) -> Tensor:
        return self._memories[0].is_streamed_frame

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        rows = zip(self._memories, q.split(1), k.split(1), v.split(1), strict=True)
        return torch.cat([memory.attend(layer, *row) for memory, *row in rows])

    def attend_camera(self, slot: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        rows = zip(self._memories, q.split(1), k.split(1), v.split(1), strict=True)
        return torch.cat([memory.attend_camera(slot, *row) for memory, *row in rows])


@dataclass(frozen=True)
class SharedPools:
    """Keys and values of all seats."""

    seats: int
    frames: FramePools
    camera: tuple[Tensor, Tensor]
    visible: int
    """Most tokens that one stream sees."""
    special: int

    @staticmethod
    def empty(schema: StreamSchema, seats: int, device: torch.device) -> "SharedPools":
        frames = FramePools.empty(schema.frames, device, schema.dtype, seats)
        camera = camera_pools(schema.camera, device, schema.camera_dtype, seats)
        return SharedPools(seats, frames, camera, schema.frames.tokens, schema.frames.special)

    def of_seat(self, seat: int) -> SlotPools:
        camera = (self.camera[0][:, seat], self.camera[1][:, seat])
        return SlotPools(self.frames.of_seat(seat, self.seats), camera)


class BatchedKernelStep:
    """`BatchedStep` by kernels that take all rows at once and find their places on the device: it can be captured."""

    def __init__(self, pools: SharedPools, inputs: StepMetadata, rows: int) -> None:
        """``inputs``: of which the first ``rows`` count."""
        from stream_recon.cache.kernels.span_attention import SpanPool  # needs Triton

        self._pools = pools
        self._inputs = inputs
        self._rows = rows
        self._keys = [SpanPool(layer) for layer in pools.frames.keys]
        self._values = [SpanPool(layer) for layer in pools.frames.values]
        one = torch.ones(1, dtype=torch.int64, device=pools.frames.keys.device)
        self.is_later_frame = self.is_streamed_frame = one

    @property
    def times(self) -> Tensor:
        return self._inputs.time[: self._rows].long()[:, None]

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        from stream_recon.cache.kernels.span_attention import attend_spans
        from stream_recon.cache.kernels.store import store_frame

        keys, values, norms = self._keys[layer], self._values[layer], self._pools.frames.key_norms[layer]
        store_frame(k, v, keys.tensor, values.tensor, norms, self._pools.special, self._inputs)
        y = attend_spans(q.to(keys.tensor.dtype), keys, values, self._inputs, norms, self._pools.visible)
        return y.to(v.dtype)

    def attend_camera(self, slot: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        from stream_recon.cache.kernels.camera_step import attend_slots

        keys, values = (pool[slot] for pool in self._pools.camera)
        return attend_slots(q[:, 0], k[:, 0], v[:, 0], keys, values, self._inputs)[:, None].to(v.dtype)


class BatchSlots:
    """All seats, and their part in steps of several streams: ``begin``, the `Memory` of the step, ``settle``.

    Args:
        backend: makes the attention that a seat's first step, of several frames, goes through.
        by_kernels: steps of one frame a stream are done by `BatchedKernelStep`, else by `BatchedStep`.
    """

    def __init__(
        self,
        schema: StreamSchema,
        stream: StreamConfig,
        seats: int,
        device: torch.device,
        backend: Callable[[StepMetadata | None], AttentionBackend],
        *,
        by_kernels: bool,
    ) -> None:
        self._pools = SharedPools.empty(schema, seats, device)
        self._tokens = schema.frames.tokens
        self._own = [StepMetadata(schema.camera.slots, device) if by_kernels else None for _ in range(seats)]
        self.memories = [
            StreamMemory(schema, stream, backend(inputs), device, inputs, self._pools.of_seat(seat))
            for seat, inputs in enumerate(self._own)
        ]
        self._inputs = StepMetadata(schema.camera.slots, device, seats) if by_kernels else None
        self._kernel_rows: dict[int, BatchedKernelStep] = {}

    def begin(self, rows: Sequence[int], evict_first: Sequence[bool]) -> None:
        """Open a step of one frame for each of these seats, each named once."""
        if self._inputs is not None:
            self._inputs.open()
        for row, (seat, evict) in enumerate(zip(rows, evict_first, strict=True)):
            self.memories[seat].begin(1, evict_first=evict, upload=False)
            own = self._own[seat]
            if self._inputs is not None and own is not None:
                self._inputs.copy_row(row, own, seat, seat * self._tokens)

    def upload(self, rows: int, padded: int) -> None:
        """Send the numbers of a step of ``rows``; rows up to ``padded`` do what the last one does, once more."""
        assert self._inputs is not None
        self._inputs.repeat_row(rows - 1, padded)
        self._inputs.upload()

    def memory(self, rows: Sequence[int]) -> Memory:
        """What a step of these seats sees, each by its own caches."""
        return BatchedStep([self.memories[seat] for seat in rows])

    def kernel_memory(self, rows: int) -> BatchedKernelStep:
        """What a step of so many rows sees, whichever seats they are: for a captured graph."""
        assert self._inputs is not None
        if rows not in self._kernel_rows:
            self._kernel_rows[rows] = BatchedKernelStep(self._pools, self._inputs, rows)
        return self._kernel_rows[rows]

    @property
    def seat_of_row(self) -> Tensor:
        """int32 [seats] on the device, of the step that was uploaded."""
        assert self._inputs is not None
        return self._inputs.seat

    def settle(self, kept: Sequence[int], dropped: Sequence[int]) -> None:
        """End a step: commit the frames of some seats, roll back those of others."""
        norms, kept_norms = self._pools.frames.key_norms, self._pools.frames.kept_norms
        if dropped:
            is_kept = torch.ones(self._pools.seats, dtype=torch.bool)
            is_kept[list(dropped)] = False
            norms.copy_(torch.where(is_kept.to(norms.device)[:, None], norms, kept_norms))
        kept_norms.copy_(norms)
        for seat in kept:
            self.memories[seat].commit()
        for seat in dropped:
            self.memories[seat].rollback()
