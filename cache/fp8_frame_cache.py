"""The aggregator's cache at about half its size: patches in e4m3, special tokens in bf16.

Positions are those of `FrameCache`'s pool, special tokens below ``base`` and patch slots from there, so one plan of
visible spans serves both. Only the special tokens lie in that pool here; the slots are pages of their own. Attention
multiplies the patches' keys in e4m3 as they are, by queries in e4m3. What a layer sees of values is widened to bf16 in
one more pool, of a single layer: the next layer's beside what the network does between two layers' attention.
"""

import torch
from torch import Tensor

from stream_recon.cache.attention import AttentionBackend
from stream_recon.cache.fp8_pages import FP8, SPECIAL_DTYPE, Fp8Pages, rounded
from stream_recon.cache.frame_cache import FrameCache, FrameCacheSchema
from stream_recon.cache.step_inputs import StepInputs
from stream_recon.configs.schema import StreamConfig


class Fp8FrameCache(FrameCache):
    """`FrameCache` with the patches' keys and values in e4m3."""

    def __init__(
        self,
        schema: FrameCacheSchema,
        stream: StreamConfig,
        backend: AttentionBackend,
        device: torch.device,
        inputs: StepInputs | None = None,
    ) -> None:
        """``inputs``: where a step finds its places; see `FrameCache`."""
        super().__init__(schema, stream, backend, device, SPECIAL_DTYPE, inputs)
        self._pages = [_pages(schema, device) for _ in range(schema.layers)]
        self._widened = torch.zeros(schema.tokens, schema.heads, schema.head_dim, device=device, dtype=SPECIAL_DTYPE)
        self._beside = torch.cuda.Stream(device) if device.type == "cuda" else None

    @staticmethod
    def pool_tokens(schema: FrameCacheSchema) -> int:
        return schema.base

    @staticmethod
    def bytes(schema: FrameCacheSchema, dtype: torch.dtype) -> int:
        """Bytes of special tokens in bf16, of patches in e4m3, of their values' scales, and of one layer's values in
        bf16, whatever the run's ``dtype``."""
        scales = schema.layers * schema.heads * schema.patch_slots
        return (
            schema.token_bytes(schema.base, SPECIAL_DTYPE)
            + schema.token_bytes(schema.patch_slots * schema.patches, FP8)
            + scales * torch.float32.itemsize
            + schema.token_bytes(schema.tokens, SPECIAL_DTYPE) // (2 * schema.layers)
        )

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        assert self._written is not None, "attend outside a step"
        if self._inputs is not None and len(self._written[0].written) == 1:
            queries = self._store_frame(layer, q, k, v, self._inputs)
            y = self._attend_rounded(layer, q, queries)
            self._widen_beside(layer + 1, self._inputs)
            return y
        self._store_in_pages(layer, k, v)
        if self._inputs is not None:
            from stream_recon.cache.kernels.widen import EVERYTHING  # needs Triton

            self._widen(layer, EVERYTHING, self._inputs)
            return self._attend_rounded(layer, q, rounded(q))
        keys, values = self._pages[layer].restored()
        self._widened[: self.schema.base], self._widened[self.schema.base :] = self._values[layer], values
        all_keys = torch.cat([self._keys[layer], keys.to(SPECIAL_DTYPE)])
        return self.backend.attend(q.to(SPECIAL_DTYPE), all_keys, self._widened, self._key_norms[layer])

    def _attend_rounded(self, layer: int, q: Tensor, queries: Tensor) -> Tensor:
        from stream_recon.cache.kernels.span_attention import SpanAttention  # needs Triton

        assert isinstance(self.backend, SpanAttention)
        keys, pages = self._keys[layer], self._pages[layer].keys.flatten(0, 1)
        return self.backend.attend_rounded(
            q.to(SPECIAL_DTYPE), queries, keys, pages, self._widened, self._key_norms[layer]
        )

    def _store_frame(self, layer: int, q: Tensor, k: Tensor, v: Tensor, inputs: StepInputs) -> Tensor:
        """To their places and to what is widened; all else is there from the second layer on. Gives the queries in
        e4m3."""
        from stream_recon.cache.kernels.fp8_store import store_frame  # needs Triton
        from stream_recon.cache.kernels.widen import ALL_BUT_OWN

        assert self._beside is not None
        if layer == 0:
            self._widen(layer, ALL_BUT_OWN, inputs)
        else:
            torch.cuda.current_stream().wait_stream(self._beside)
        keys, values, key_norms = self._keys[layer], self._values[layer], self._key_norms[layer]
        return store_frame(q, k, v, keys, values, self._pages[layer], self._widened, key_norms, inputs)

    def _widen_beside(self, layer: int, inputs: StepInputs) -> None:
        """All that a layer will see but the step's own frame, while the network goes on."""
        from stream_recon.cache.kernels.widen import ALL_BUT_OWN

        if layer == self.schema.layers:
            return
        assert self._beside is not None
        self._beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._beside):
            self._widen(layer, ALL_BUT_OWN, inputs)

    def _widen(self, layer: int, what: int, inputs: StepInputs) -> None:
        from stream_recon.cache.kernels.widen import widen

        widen(self._values[layer], self._pages[layer], self._widened, self.schema.special, inputs, what)

    def _store_in_pages(self, layer: int, k: Tensor, v: Tensor) -> None:
        assert self._written is not None
        keys, values, pages, key_norms = (
            self._keys[layer],
            self._values[layer],
            self._pages[layer],
            self._key_norms[layer],
        )
        frames = zip(*(lease.written for lease in self._written), strict=True)
        special, size = self.schema.special, self.schema.special + self.schema.patches
        for (slot, entry), frame_k, frame_v in zip(frames, k.split(size), v.split(size), strict=True):
            keys[slice(*self._special_span(entry))] = frame_k[:special]
            values[slice(*self._special_span(entry))] = frame_v[:special]
            pages.write(slot, frame_k[special:], frame_v[special:])
            for kept in (frame_k[:special].float(), pages.keys[slot].float()):
                torch.maximum(key_norms, kept.norm(dim=-1).amax(0), out=key_norms)


def _pages(schema: FrameCacheSchema, device: torch.device) -> Fp8Pages:
    shape = (schema.patch_slots, schema.patches, schema.heads, schema.head_dim)
    keys, values = (torch.zeros(shape, device=device, dtype=FP8) for _ in range(2))
    return Fp8Pages(keys, values, torch.ones(schema.patch_slots, schema.heads, device=device))
