"""The aggregator's cache: patch tokens of few frames, special tokens of all, in one pool a layer.

Layout of a layer's pool, in tokens::

    [ ... free | special tokens, newest to oldest ][ patch slot 0 | patch slot 1 | ... ]
                                                   ^ base

The special stream grows towards lower addresses from ``base``, where the patch slots begin. So while the window
fills, and whenever it is full, all that is visible is one contiguous run that dense kernels read in place.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from stream_recon.cache.attention import AttentionBackend, Span
from stream_recon.cache.block_manager import SlotLease, SlotWindow, SpecialLog
from stream_recon.cache.step_metadata import StepMetadata
from stream_recon.configs.schema import NetworkConfig, StreamConfig


@dataclass(frozen=True)
class FrameCacheSchema:
    """Sizes of the pools, computed once before anything is allocated."""

    layers: int
    heads: int
    head_dim: int
    special: int
    """Special tokens a frame."""
    patches: int
    """Patch tokens a frame."""
    patch_slots: int
    special_slots: int

    @staticmethod
    def of(network: NetworkConfig, stream: StreamConfig, patches: int) -> "FrameCacheSchema":
        """Sizes for a network, the budgets of a stream, and frames of so many ``patches``."""
        return FrameCacheSchema(
            layers=network.depth,
            heads=network.heads,
            head_dim=network.head_dim,
            special=network.special_tokens,
            patches=patches,
            patch_slots=SlotWindow(stream.scale_frames, stream.window).total,
            special_slots=SpecialLog(stream.scale_frames, stream.special_budget).capacity,
        )

    @property
    def frame_tokens(self) -> int:
        return self.special + self.patches

    @property
    def base(self) -> int:
        return self.special_slots * self.special

    @property
    def tokens(self) -> int:
        return self.base + self.patch_slots * self.patches

    def token_bytes(self, tokens: int, dtype: torch.dtype) -> int:
        """Bytes of the keys and values of so many tokens, in all layers."""
        return 2 * self.layers * self.heads * self.head_dim * tokens * dtype.itemsize


@dataclass(frozen=True)
class FramePools:
    """What a cache keeps tensors in: its own, or a seat's part of those of several streams."""

    keys: Tensor
    """[L, C, H, D]."""
    values: Tensor
    """[L, C, H, D], or of the lowest positions alone."""
    key_norms: Tensor
    """float32 [L, H], the largest norm of a key so far, for kernels that bound scores by it."""
    kept_norms: Tensor
    """float32 [L, H], the same of committed frames alone."""

    @staticmethod
    def empty(schema: FrameCacheSchema, device: torch.device, dtype: torch.dtype, seats: int = 1) -> "FramePools":
        """Pools of all tokens for each of ``seats``, one seat after the other; norms are [L, seats, H] here."""
        shape = (schema.layers, seats * schema.tokens, schema.heads, schema.head_dim)
        # Zeros: a paged kernel may load a whole page before it masks, and NaN times zero is NaN.
        keys, values = (torch.zeros(shape, device=device, dtype=dtype) for _ in range(2))
        return FramePools.unseen(keys, values, seats)

    @staticmethod
    def unseen(keys: Tensor, values: Tensor, seats: int = 1) -> "FramePools":
        """Around pools that no frame was written to: norms are zero, [L, seats, H]."""
        layers, _, heads, _ = keys.shape
        now, kept = (torch.zeros(layers, seats, heads, device=keys.device) for _ in range(2))
        return FramePools(keys, values, now, kept)

    def of_seat(self, seat: int, seats: int) -> "FramePools":
        """The part of one of all seats."""
        keys, values = (pool.unflatten(1, (seats, -1))[:, seat] for pool in (self.keys, self.values))
        return FramePools(keys, values, self.key_norms[:, seat], self.kept_norms[:, seat])


class FrameCache:
    """Keys and values of cached frames, for all global layers; one page table serves every layer."""

    def __init__(
        self,
        schema: FrameCacheSchema,
        stream: StreamConfig,
        backend: AttentionBackend,
        device: torch.device,
        dtype: torch.dtype,
        inputs: StepMetadata | None = None,
        pools: FramePools | None = None,
    ) -> None:
        """``inputs``: where steps of one frame find their places, so that they can be captured as a CUDA graph.
        ``pools``: a seat's; whoever shares them out keeps or restores the norms of all seats, at once."""
        self.schema = schema
        self.slots = SlotWindow(stream.scale_frames, stream.window)
        self.log = SpecialLog(stream.scale_frames, stream.special_budget)
        self.backend = backend
        self._shares_norms = pools is not None
        if pools is None:
            pools = self._empty_pools(schema, device, dtype).of_seat(0, 1)
        self._keys, self._values = pools.keys, pools.values
        self._key_norms, self._kept_norms = pools.key_norms, pools.kept_norms
        self._inputs = inputs
        self._written: tuple[SlotLease, SlotLease] | None = None

    @staticmethod
    def _empty_pools(schema: FrameCacheSchema, device: torch.device, dtype: torch.dtype) -> FramePools:
        """What a cache of its own keeps: all tokens, unless a subclass keeps some elsewhere."""
        return FramePools.empty(schema, device, dtype)

    @staticmethod
    def bytes(schema: FrameCacheSchema, dtype: torch.dtype) -> int:
        """Bytes of all keys and values in ``dtype``."""
        return schema.token_bytes(schema.tokens, dtype)

    def begin(self, count: int, *, evict_first: bool = False) -> None:
        """Open a step of ``count`` frames and plan its attention."""
        patch_lease = self.slots.begin(count, evict_first=evict_first)
        special_lease = self.log.begin(count)
        self._written = (patch_lease, special_lease)
        tokens = count * (self.schema.special + self.schema.patches)
        spans = [self._patch_span(slot) for slot in patch_lease.visible]
        spans.append((self._special_span(len(special_lease.visible) - 1)[0], self.schema.base))
        self.backend.plan(tokens, spans)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Write the step's keys and values of ``layer`` and attend to all that is visible; [T, H, D] each."""
        assert self._written is not None, "attend outside a step"
        keys, values, key_norms = self._keys[layer], self._values[layer], self._key_norms[layer]
        if self._inputs is not None and len(self._written[0].written) == 1:
            from stream_recon.cache.kernels.store import (
                store_frame,  # needs Triton, which only GPU builds of torch bring
            )

            store_frame(k[None], v[None], keys, values, key_norms[None], self.schema.special, self._inputs)
        else:
            self._store(k, v, keys, values)
            if self._inputs is not None:
                torch.maximum(key_norms, k.float().norm(dim=-1).amax(0), out=key_norms)
        return self.backend.attend(q.to(keys.dtype), keys, values, key_norms)

    @property
    def positions_written(self) -> tuple[int, int]:
        """First pool positions of the special tokens and of the patches of the step's first frame."""
        assert self._written is not None, "no step is open"
        patch_lease, special_lease = self._written
        return self._special_span(special_lease.written[0])[0], self._patch_span(patch_lease.written[0])[0]

    def commit(self) -> None:
        """Keep the step's frames; the oldest frame of a full window leaves."""
        self._written = None
        if not self._shares_norms:
            self._kept_norms.copy_(self._key_norms)
        self.slots.commit()
        kept = self.log.commit()
        if kept is not None:
            self._compact(kept)

    def rollback(self) -> None:
        """Forget the step's frames."""
        self._written = None
        if not self._shares_norms:
            self._key_norms.copy_(self._kept_norms)
        self.slots.rollback()
        self.log.rollback()

    def reset(self) -> None:
        """Forget all frames. What they left in the pool is seen no more, and is finite."""
        self._written = None
        self._key_norms.zero_()
        self._kept_norms.zero_()
        self.slots.reset()
        self.log.reset()

    def _store(self, k: Tensor, v: Tensor, keys: Tensor, values: Tensor) -> None:
        assert self._written is not None
        size = self.schema.special + self.schema.patches
        for frame, (slot, entry) in enumerate(zip(*(lease.written for lease in self._written), strict=True)):
            first = frame * size
            patch_first = first + self.schema.special
            for pool, new in ((keys, k), (values, v)):
                pool[slice(*self._special_span(entry))] = new[first:patch_first]
                pool[slice(*self._patch_span(slot))] = new[patch_first : first + size]

    def _patch_span(self, slot: int) -> Span:
        start = self.schema.base + slot * self.schema.patches
        return start, start + self.schema.patches

    def _special_span(self, entry: int) -> Span:
        stop = self.schema.base - entry * self.schema.special
        return stop - self.schema.special, stop

    def _compact(self, kept: tuple[int, ...]) -> None:
        """Move the kept special entries together, in their order."""
        source = torch.cat([torch.arange(*self._special_span(entry)) for entry in reversed(kept)])
        source = source.to(self._keys.device)
        start = self._special_span(len(kept) - 1)[0]
        # Layer by layer, so that no copy of all of them is ever made.
        for layer in (*self._keys, *self._values):
            numbers = layer.view(torch.uint8)  # not all kinds of numbers can be picked by an index
            numbers[start : self.schema.base] = numbers[source]
