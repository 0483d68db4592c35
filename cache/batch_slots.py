"""KV caches of several streams in one pool, and the view of a batched step over some of them.

Each stream has a batch slot: its own caches, counters and block table in its part of the pool. Row i of a step is one
stream's frame; it reads and writes only that stream's slot.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from stream_recon.cache.attention import AttentionBackend, KVCache
from stream_recon.cache.camera import allocate_camera_pools
from stream_recon.cache.frame_cache import FramePools
from stream_recon.cache.step_metadata import StepMetadata
from stream_recon.cache.stream_cache import SlotPools, StreamCache, StreamSchema
from stream_recon.configs.schema import StreamConfig


class BatchedStep:
    """The `KVCache` of a step with one frame per stream (B rows, S = 1), one stream after the other."""

    def __init__(self, caches: Sequence[StreamCache]) -> None:
        self._caches = caches
        self.times = torch.cat([kv_cache.times for kv_cache in caches])
        # One value for all, as all are streamed frames.
        self.is_later_frame, self.is_streamed_frame = caches[0].is_later_frame, caches[0].is_streamed_frame

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        rows = zip(self._caches, q.split(1), k.split(1), v.split(1), strict=True)
        return torch.cat([kv_cache.attend(layer, *row) for kv_cache, *row in rows])

    def attend_camera(self, slot: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        rows = zip(self._caches, q.split(1), k.split(1), v.split(1), strict=True)
        return torch.cat([kv_cache.attend_camera(slot, *row) for kv_cache, *row in rows])


@dataclass(frozen=True)
class SharedPools:
    """Keys and values of all batch slots."""

    batch_slots: int
    frames: Sequence[FramePools]
    """Of the kinds of layers, see `StreamSchema.kinds`."""
    norms: tuple[Tensor, Tensor]
    """`FramePools.key_norms` and `FramePools.committed_norms` of all layers, which the pools share."""
    camera: tuple[Tensor, Tensor]

    @staticmethod
    def allocate(
        schema: StreamSchema, batch_slots: int, device: torch.device, *, by_kernels: bool = False
    ) -> "SharedPools":
        """Empty pools; ``by_kernels``: see `FramePools.allocate`."""
        kinds = schema.kinds
        layers = [sizes.layers for sizes in kinds]
        norms, committed = (torch.zeros(sum(layers), batch_slots, schema.frames.heads, device=device) for _ in range(2))
        parts = zip(kinds, norms.split(layers), committed.split(layers), strict=True)
        frames = [
            replace(
                FramePools.allocate(sizes, device, schema.dtype, batch_slots, by_kernels=by_kernels),
                key_norms=own,
                committed_norms=own_committed,
            )
            for sizes, own, own_committed in parts
        ]
        camera = allocate_camera_pools(schema.camera, device, schema.camera_dtype, batch_slots)
        return SharedPools(batch_slots, frames, (norms, committed), camera)

    def slot_view(self, batch_slot: int) -> SlotPools:
        """One slot's part."""
        camera = (self.camera[0][:, batch_slot], self.camera[1][:, batch_slot])
        frames = [pools.slot_view(batch_slot, self.batch_slots, shared=True) for pools in self.frames]
        return SlotPools(frames, camera)


class BatchedKernelStep:
    """`BatchedStep` by kernels that take all rows at once and read positions from the device: it can be captured."""

    def __init__(self, schema: StreamSchema, pools: SharedPools, metadata: StepMetadata, rows: int) -> None:
        """``rows``: how many rows of ``metadata`` count."""
        from stream_recon.cache.kernels.span_attention import LOG2_E, SpanPool  # needs Triton

        device, deep = metadata.time.device, schema.compressed
        biases = [None, deep.bias(device, pools.batch_slots) * LOG2_E if deep else None]
        kinds = zip(schema.kinds, (metadata.full, metadata.compressed), biases, strict=False)
        self._layers = [kind for kind in kinds for _ in range(kind[0].layers)]
        """Sizes, positions and bias of each global layer."""
        self._camera = pools.camera
        self._metadata = metadata
        self._rows = rows
        self._keys = [SpanPool(layer) for group in pools.frames for layer in group.keys]
        self._values = [SpanPool(layer) for group in pools.frames for layer in group.values]
        self._norms = pools.norms[0]
        one = torch.ones(1, dtype=torch.int64, device=device)
        self.is_later_frame = self.is_streamed_frame = one

    @property
    def times(self) -> Tensor:
        return self._metadata.time[: self._rows].long()[:, None]

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        from stream_recon.cache.kernels.span_attention import attend_spans
        from stream_recon.cache.kernels.store import store_frame

        keys, values, norms = self._keys[layer], self._values[layer], self._norms[layer]
        sizes, positions, bias = self._layers[layer]
        q = q.to(keys.tensor.dtype)
        store_frame(k, v, keys.tensor, values.tensor, norms, sizes, positions)
        return attend_spans(q, keys, values, positions, norms, sizes.tokens, bias, sizes.max_bias).to(v.dtype)

    def attend_camera(self, slot: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        from stream_recon.cache.kernels.camera_step import attend_slots

        keys, values = (pool[slot] for pool in self._camera)
        return attend_slots(q[:, 0], k[:, 0], v[:, 0], keys, values, self._metadata)[:, None].to(v.dtype)


class BatchSlots:
    """All batch slots and their steps: ``begin``, the `KVCache` of the step, ``end_step``.

    Args:
        backend: makes the attention of a slot's first step, which has several frames.
        by_kernels: whether steps of one frame per stream use `BatchedKernelStep`, else `BatchedStep`.
    """

    def __init__(
        self,
        schema: StreamSchema,
        stream: StreamConfig,
        batch_slots: int,
        device: torch.device,
        backend: Callable[[StepMetadata | None], AttentionBackend],
        *,
        by_kernels: bool,
    ) -> None:
        self._pools = SharedPools.allocate(schema, batch_slots, device, by_kernels=by_kernels)
        self._schema = schema
        self._tokens = schema.frames.tokens, schema.compressed.tokens if schema.compressed else 0
        self._rows: dict[int, np.ndarray] = {}
        """Metadata of each slot's last step."""
        self._slot_metadata = [
            StepMetadata(schema.camera.slots, device, 1, schema.max_score) if by_kernels else None
            for _ in range(batch_slots)
        ]
        self.caches = [
            StreamCache(schema, stream, backend(metadata), device, metadata, self._pools.slot_view(batch_slot))
            for batch_slot, metadata in enumerate(self._slot_metadata)
        ]
        self._metadata = (
            StepMetadata(schema.camera.slots, device, batch_slots, schema.max_score) if by_kernels else None
        )
        self._kernel_steps: dict[int, BatchedKernelStep] = {}

    def begin(self, rows: Sequence[int], evict_first: Sequence[bool]) -> None:
        """Open a step of one frame for each of these slots; none may occur twice."""
        for batch_slot, evict in zip(rows, evict_first, strict=True):
            is_new = self.caches[batch_slot].begin(1, evict_first=evict, upload=False)
            own = self._slot_metadata[batch_slot]
            if own is not None and (is_new or batch_slot not in self._rows):
                self._rows[batch_slot] = own.in_batch_slot(batch_slot, self._tokens)
        if self._metadata is not None:
            self._metadata.wait_for_upload()
            self._metadata.set_rows(np.stack([self._rows[batch_slot] for batch_slot in rows]))

    def upload(self, rows: int, padded: int) -> None:
        """Send the metadata of a step of ``rows`` rows; rows up to ``padded`` repeat the last one."""
        assert self._metadata is not None
        self._metadata.repeat_row(rows - 1, padded)
        self._metadata.upload()

    def step(self, rows: Sequence[int]) -> KVCache:
        """View of a step of these slots, one after the other."""
        return BatchedStep([self.caches[batch_slot] for batch_slot in rows])

    def kernel_step(self, rows: int) -> BatchedKernelStep:
        """View of a step of ``rows`` rows of any slots, for a captured graph."""
        assert self._metadata is not None
        if rows not in self._kernel_steps:
            self._kernel_steps[rows] = BatchedKernelStep(self._schema, self._pools, self._metadata, rows)
        return self._kernel_steps[rows]

    @property
    def slot_of_row(self) -> Tensor:
        """int32 [batch_slots] on the device, for the step that was uploaded."""
        assert self._metadata is not None
        return self._metadata.batch_slot

    def end_step(self, committed: Sequence[int], rejected: Sequence[int]) -> None:
        """End a step: commit the frames of some slots, roll back those of others."""
        norms, committed_norms = self._pools.norms
        if rejected:
            keeps = torch.ones(self._pools.batch_slots, dtype=torch.bool)
            keeps[list(rejected)] = False
            norms.copy_(torch.where(keeps.to(norms.device)[:, None], norms, committed_norms))
        committed_norms.copy_(norms)
        for batch_slot in committed:
            self.caches[batch_slot].commit()
        for batch_slot in rejected:
            self.caches[batch_slot].rollback()
