"""KV cache of the aggregator's full layers: patch tokens of few frames, special tokens of all, a pool per layer.

Layout of a layer's pool, in tokens::

    [ ... free | special tokens, newest to oldest ][ patch slot 0 | patch slot 1 | ... ]
                                                   ^ base

Special tokens grow towards lower addresses from ``base``, where the patch slots begin. While the window fills, and
when it is full, the visible tokens form one contiguous run, which dense kernels read in place.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from stream_recon.cache.attention import AttentionBackend, Span
from stream_recon.cache.block_manager import FrameAllocation, SlidingWindow, StepAllocation, TokenLog
from stream_recon.cache.step_metadata import PoolPositions
from stream_recon.configs.schema import NetworkConfig, StreamConfig


@dataclass(frozen=True)
class FrameCacheSchema:
    """Sizes of the pools, computed once before anything is allocated."""

    layers: int
    heads: int
    head_dim: int
    special: int
    """Special tokens per frame."""
    patches: int
    """Patch tokens per frame."""
    patch_slots: int
    """Frames whose patch tokens fit."""
    special_slots: int
    """Frames whose special tokens fit."""
    grid: tuple[int, int] = (0, 0)
    """Patch rows and columns of a frame that are stored in blocks; none in full layers."""
    block_side: int = 1
    """Patches of a block's side; blocks at the right and lower border may be smaller."""

    @staticmethod
    def from_config(network: NetworkConfig, stream: StreamConfig, patches: int) -> "FrameCacheSchema":
        """Sizes for the full layers of a network, the budgets of a stream, and frames of ``patches`` patches."""
        return FrameCacheSchema(
            layers=network.depth if stream.compressed_from is None else stream.compressed_from,
            heads=network.heads,
            head_dim=network.head_dim,
            special=network.special_tokens,
            patches=patches,
            patch_slots=SlidingWindow(stream.scale_frames, stream.window).total,
            special_slots=TokenLog(stream.scale_frames, stream.special_budget).capacity,
        )

    @property
    def frame_tokens(self) -> int:
        """Tokens per frame."""
        return self.special + self.patches

    @property
    def base(self) -> int:
        """Pool position where special tokens end."""
        return self.special_slots * self.special

    @property
    def first_slot(self) -> int:
        """Pool position of the first patch slot."""
        return self.base

    @property
    def slot_tokens(self) -> int:
        """Tokens of a patch slot."""
        return self.patches

    @property
    def max_bias(self) -> float:
        """Largest number that is added to scores, as an exponent of 2: of a whole block."""
        return 2 * math.log2(self.block_side)

    @property
    def tokens(self) -> int:
        """Tokens of a layer's pool (C)."""
        return self.first_slot + self.patch_slots * self.slot_tokens

    def token_bytes(self, tokens: int, dtype: torch.dtype) -> int:
        """Bytes of keys and values of ``tokens`` tokens in all layers."""
        return 2 * self.layers * self.heads * self.head_dim * tokens * dtype.itemsize


@dataclass(frozen=True)
class FramePools:
    """Tensors of a cache: of one stream, or of all batch slots."""

    keys: Tensor  # [L, C, H, D]
    values: Tensor  # [L, C, H, D], or only the positions below ``base``
    key_norms: Tensor  # float32 [L, H], the largest norm of any key, by which kernels bound scores
    committed_norms: Tensor  # float32 [L, H], the same for committed frames alone
    shared: bool = False
    """Whether this is one batch slot's part: `BatchSlots` then commits and restores the norms of all slots at once."""

    @staticmethod
    def allocate(
        schema: FrameCacheSchema,
        device: torch.device,
        dtype: torch.dtype,
        batch_slots: int = 1,
        *,
        by_kernels: bool = False,
    ) -> "FramePools":
        """Pools of ``batch_slots`` streams, one after the other along C; norms are [L, batch_slots, H] here.

        ``by_kernels``: contiguous on every device, as our kernels need them.
        """
        shape = (schema.layers, batch_slots * schema.tokens, schema.heads, schema.head_dim)
        heads_first = device.type == "cpu" and not by_kernels
        if heads_first:
            # A CPU multiplies head by head: with each head's tokens in one piece, products read them without a copy.
            shape = (shape[0], shape[2], shape[1], shape[3])
        # Zeros: a paged kernel may load a full page before it masks, and NaN times zero is NaN.
        keys, values = (torch.zeros(shape, device=device, dtype=dtype) for _ in range(2))
        if heads_first:
            keys, values = keys.transpose(1, 2), values.transpose(1, 2)
        norms, committed = (torch.zeros(schema.layers, batch_slots, schema.heads, device=device) for _ in range(2))
        return FramePools(keys, values, norms, committed)

    def slot_view(self, batch_slot: int, batch_slots: int, *, shared: bool) -> "FramePools":
        """One of ``batch_slots`` parts."""
        keys, values = (pool.unflatten(1, (batch_slots, -1))[:, batch_slot] for pool in (self.keys, self.values))
        norms, committed = self.key_norms[:, batch_slot], self.committed_norms[:, batch_slot]
        return FramePools(keys, values, norms, committed, shared)


class FrameCache:
    """Keys and values of cached frames, for layers of one kind; one block table serves all of them."""

    def __init__(
        self,
        schema: FrameCacheSchema,
        backend: AttentionBackend,
        pools: FramePools,
        positions: PoolPositions | None = None,
    ) -> None:
        """``positions``: device buffers from which captured steps of one frame read their positions."""
        self.schema = schema
        self.backend = backend
        self._keys, self._values = pools.keys, pools.values
        self._key_norms, self._committed_norms = pools.key_norms, pools.committed_norms
        self._shares_norms = pools.shared
        self._positions = positions
        self._allocated: FrameAllocation | None = None
        self._planned: FrameAllocation | None = None

    @staticmethod
    def allocate_pools(schema: FrameCacheSchema, device: torch.device, dtype: torch.dtype) -> FramePools:
        """Pools of one stream in a run of ``dtype``."""
        return FramePools.allocate(schema, device, dtype).slot_view(0, 1, shared=False)

    @staticmethod
    def bytes(schema: FrameCacheSchema, dtype: torch.dtype) -> int:
        """Bytes of all keys and values in ``dtype``."""
        return schema.token_bytes(schema.tokens, dtype)

    def begin(self, allocation: FrameAllocation) -> None:
        """Open a step and plan its attention, unless it is the one planned last."""
        self._allocated = allocation
        if allocation is self._planned:
            return
        self._planned = allocation
        patches, special = allocation.patches, allocation.special
        special_start = self._special_span(len(special.block_table) - 1)[0]
        queries = len(patches.slot_mapping) * self.schema.frame_tokens
        self.backend.plan(queries, self._visible_spans(patches, special_start))
        if self._positions is not None:
            special_at, _ = self._special_span(special.slot_mapping[0])
            self._positions.set_frame(special_at, *self._patches_at(patches.slot_mapping[0]))

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Write the step's keys and values of ``layer`` and attend to all visible ones; [T, H, D] each."""
        self._write(layer, k, v)
        keys = self._keys[layer]
        return self.backend.attend(q.to(keys.dtype), keys, self._values[layer], self._key_norms[layer])

    def commit(self, kept: tuple[int, ...] | None) -> None:
        """Keep the step's frames. ``kept``: where special tokens were thinned, see `FrameTable.commit`."""
        self._allocated = None
        if not self._shares_norms:
            self._committed_norms.copy_(self._key_norms)
        if kept is not None:
            self._compact(kept)

    def rollback(self) -> None:
        """Drop the step's frames."""
        self._allocated = None
        if not self._shares_norms:
            self._key_norms.copy_(self._committed_norms)

    def reset(self) -> None:
        """Drop all frames. Their numbers stay in the pool, invisible and finite."""
        self._allocated = None
        self._key_norms.zero_()
        self._committed_norms.zero_()

    def _visible_spans(self, patches: StepAllocation, special_start: int) -> list[Span]:
        """What a step sees; special tokens begin at ``special_start``."""
        slots = [self._patch_span(slot) for slot in patches.block_table]
        return [*slots, (special_start, self.schema.base)]

    def _patches_at(self, slot: int) -> tuple[int, int]:
        """Where a frame's patches are written whole, and where compressed."""
        return self._patch_span(slot)[0], 0

    def _write(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Write the step's keys and values of ``layer`` to their slots."""
        assert self._allocated is not None, "attend outside a step"
        keys, values, key_norms = self._keys[layer], self._values[layer], self._key_norms[layer]
        if self._positions is not None and len(self._allocated.patches.slot_mapping) == 1:
            from stream_recon.cache.kernels.store import store_frame  # needs Triton

            store_frame(k[None], v[None], keys, values, key_norms[None], self.schema, self._positions)
            return
        self._store(k, v, keys, values)
        if self._positions is not None:
            torch.maximum(key_norms, k.float().norm(dim=-1).amax(0), out=key_norms)

    def _store(self, k: Tensor, v: Tensor, keys: Tensor, values: Tensor) -> None:
        assert self._allocated is not None
        size = self.schema.frame_tokens
        slots = zip(self._allocated.patches.slot_mapping, self._allocated.special.slot_mapping, strict=True)
        for frame, (slot, entry) in enumerate(slots):
            first = frame * size
            patch_first = first + self.schema.special
            for pool, new in ((keys, k), (values, v)):
                pool[slice(*self._special_span(entry))] = new[first:patch_first]
                self._store_patches(pool, slot, new[patch_first : first + size])

    def _store_patches(self, pool: Tensor, slot: int, new: Tensor) -> None:
        pool[slice(*self._patch_span(slot))] = new

    def _patch_span(self, slot: int) -> Span:
        start = self.schema.first_slot + slot * self.schema.slot_tokens
        return start, start + self.schema.slot_tokens

    def _special_span(self, entry: int) -> Span:
        stop = self.schema.base - entry * self.schema.special
        return stop - self.schema.special, stop

    def _compact(self, kept: tuple[int, ...]) -> None:
        """Move the kept special tokens together, in their order."""
        source = torch.cat([torch.arange(*self._special_span(entry)) for entry in reversed(kept)])
        source = source.to(self._keys.device)
        start = self._special_span(len(kept) - 1)[0]
        # Layer by layer, so that no copy of all layers is made.
        for layer in (*self._keys, *self._values):
            numbers = layer.view(torch.uint8)  # e4m3 tensors do not support indexing
            numbers[start : self.schema.base] = numbers[source]
