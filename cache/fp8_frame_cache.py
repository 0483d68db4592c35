"""The aggregator's cache at about half its size: patches in e4m3, special tokens in bf16.

Positions are those of `FrameCache`'s pool, special tokens below ``base`` and patch slots from there, so one plan of
visible spans serves both. Only the special tokens lie in that pool here; the slots are pages of their own.
"""

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from stream_recon.cache.attention import AttentionBackend
from stream_recon.cache.fp8_pages import FP8, SPECIAL_DTYPE, Fp8Pages
from stream_recon.cache.frame_cache import FrameCache, FrameCacheSchema
from stream_recon.cache.step_inputs import StepInputs
from stream_recon.configs.schema import StreamConfig


@runtime_checkable
class PagedAttention(AttentionBackend, Protocol):
    def attend_pages(self, q: Tensor, keys: Tensor, values: Tensor, pages: Fp8Pages, key_norms: Tensor) -> Tensor:
        """q [T, H, D] over the planned spans of special tokens [C, H, D] and of pages, which count on from C, P
        positions each -> [T, H, D]; ``key_norms`` [H]: no visible key was longer before it was quantised."""
        ...


class Fp8FrameCache(FrameCache):
    """`FrameCache` with the patches' keys and values in e4m3."""

    def __init__(
        self,
        schema: FrameCacheSchema,
        stream: StreamConfig,
        backend: PagedAttention,
        device: torch.device,
        inputs: StepInputs | None = None,
    ) -> None:
        """``inputs``: where steps of one frame find their places; see `FrameCache`."""
        super().__init__(schema, stream, backend, device, SPECIAL_DTYPE, inputs)
        self._attention = backend
        self._pages = [_pages(schema, device) for _ in range(schema.layers)]

    @staticmethod
    def pool_tokens(schema: FrameCacheSchema) -> int:
        return schema.base

    @staticmethod
    def bytes(schema: FrameCacheSchema, dtype: torch.dtype) -> int:
        """Bytes of special tokens in bf16, of patches in e4m3, and of their scales, whatever the run's ``dtype``."""
        scales = 2 * schema.layers * schema.heads * schema.patch_slots
        return (
            schema.token_bytes(schema.base, SPECIAL_DTYPE)
            + schema.token_bytes(schema.patch_slots * schema.patches, FP8)
            + scales * torch.float32.itemsize
        )

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        assert self._written is not None, "attend outside a step"
        keys, values, key_norms = self._keys[layer], self._values[layer], self._key_norms[layer]
        pages = self._pages[layer]
        if self._inputs is not None and len(self._written[0].written) == 1:
            from stream_recon.cache.kernels.fp8_store import store_frame  # needs Triton

            store_frame(k, v, keys, values, pages, key_norms, self._inputs)
        else:
            self._store_in_pages(k, v, keys, values, pages)
            torch.maximum(key_norms, k.float().norm(dim=-1).amax(0), out=key_norms)
        return self._attention.attend_pages(q.to(keys.dtype), keys, values, pages, key_norms)

    def _store_in_pages(self, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, pages: Fp8Pages) -> None:
        assert self._written is not None
        frames = zip(*(lease.written for lease in self._written), strict=True)
        size = self.schema.special + self.schema.patches
        for (slot, entry), frame_k, frame_v in zip(frames, k.split(size), v.split(size), strict=True):
            for pool, new in ((keys, frame_k), (values, frame_v)):
                pool[slice(*self._special_span(entry))] = new[: self.schema.special]
            pages.write(slot, frame_k[self.schema.special :], frame_v[self.schema.special :])


def _pages(schema: FrameCacheSchema, device: torch.device) -> Fp8Pages:
    shape = (schema.patch_slots, schema.patches, schema.heads, schema.head_dim)
    keys, values = (torch.zeros(shape, device=device, dtype=FP8) for _ in range(2))
    scales = torch.ones(2, schema.patch_slots, schema.heads, device=device)
    return Fp8Pages(keys, values, scales[0], scales[1])
