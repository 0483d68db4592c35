"""The aggregator's cache at about half its size: keys and the patches' values in e4m3, special tokens' values in bf16.

Positions are those of `FrameCache`'s pool, special tokens below ``base`` and patch slots from there, so one plan of
visible spans serves both. Keys lie in such a pool in e4m3, and attention multiplies them as they are, by queries in
e4m3. Of the values only the special tokens' lie in a pool; the slots are pages of their own. What a layer sees of
values is widened to bf16 in one more pool, of a single layer: the next layer's beside what the network does between
two layers' attention.
"""

import torch
from torch import Tensor

from stream_recon.cache.attention import AttentionBackend
from stream_recon.cache.fp8_pages import FP8, SPECIAL_DTYPE, ValuePages, hadamard_rotate, rounded
from stream_recon.cache.frame_cache import FrameCache, FrameCacheSchema, FramePools
from stream_recon.cache.step_metadata import StepMetadata
from stream_recon.configs.schema import StreamConfig


class Fp8FrameCache(FrameCache):
    """`FrameCache` with keys and the patches' values in e4m3."""

    def __init__(
        self,
        schema: FrameCacheSchema,
        stream: StreamConfig,
        backend: AttentionBackend,
        device: torch.device,
        inputs: StepMetadata | None = None,
    ) -> None:
        """``inputs``: where a step finds its places; see `FrameCache`."""
        super().__init__(schema, stream, backend, device, SPECIAL_DTYPE, inputs)
        self._pages = [_pages(schema, device) for _ in range(schema.layers)]
        self._widened = torch.zeros(schema.tokens, schema.heads, schema.head_dim, device=device, dtype=SPECIAL_DTYPE)
        self._beside = torch.cuda.Stream(device) if device.type == "cuda" else None

    @staticmethod
    def _empty_pools(schema: FrameCacheSchema, device: torch.device, dtype: torch.dtype) -> FramePools:
        shape = (schema.heads, schema.head_dim)
        keys = torch.zeros(schema.layers, schema.tokens, *shape, device=device, dtype=FP8)
        return FramePools.unseen(keys, torch.zeros(schema.layers, schema.base, *shape, device=device, dtype=dtype))

    @staticmethod
    def bytes(schema: FrameCacheSchema, dtype: torch.dtype) -> int:
        """Bytes of keys and patches' values in e4m3, of the special tokens' values in bf16, of the pages' scales, and
        of one layer's values in bf16, whatever the run's ``dtype``."""
        scales = schema.layers * schema.heads * schema.patch_slots
        return (
            schema.token_bytes(schema.tokens, FP8) // 2
            + schema.token_bytes(schema.patch_slots * schema.patches, FP8) // 2
            + schema.token_bytes(schema.base, SPECIAL_DTYPE) // 2
            + scales * torch.float32.itemsize
            + schema.token_bytes(schema.tokens, SPECIAL_DTYPE) // (2 * schema.layers)
        )

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        assert self._written is not None, "attend outside a step"
        keys, key_norms = self._keys[layer], self._key_norms[layer]
        if self._inputs is not None and len(self._written[0].written) == 1:
            queries = self._store_frame(layer, q, k, v, self._inputs)
            y = self.backend.attend(queries, keys, self._widened, key_norms)
            self._widen_beside(layer + 1, self._inputs)
            return y
        new_keys = rounded(hadamard_rotate(k))
        self._store_in_pages(layer, new_keys, v)
        torch.maximum(key_norms, new_keys.float().norm(dim=-1).amax(0), out=key_norms)
        if self._inputs is not None:
            from stream_recon.cache.kernels.dequantize import EVERYTHING  # needs Triton

            self._widen(layer, EVERYTHING, self._inputs)
            return self.backend.attend(rounded(hadamard_rotate(q)), keys, self._widened, key_norms)
        self._widened[: self.schema.base], self._widened[self.schema.base :] = (
            self._values[layer],
            self._pages[layer].restored(),
        )
        # Other kernels multiply no e4m3: by the same numbers in bf16.
        queries = rounded(hadamard_rotate(q)).to(SPECIAL_DTYPE)
        return self.backend.attend(queries, keys.to(SPECIAL_DTYPE), self._widened, key_norms)

    def _store_frame(self, layer: int, q: Tensor, k: Tensor, v: Tensor, inputs: StepMetadata) -> Tensor:
        """To their places and to what is widened; all else is there from the second layer on. Gives the queries in
        e4m3."""
        from stream_recon.cache.kernels.dequantize import ALL_BUT_OWN
        from stream_recon.cache.kernels.fp8_store import store_frame  # needs Triton

        assert self._beside is not None
        if layer == 0:
            self._widen(layer, ALL_BUT_OWN, inputs)
        else:
            torch.cuda.current_stream().wait_stream(self._beside)
        keys, values, key_norms = self._keys[layer], self._values[layer], self._key_norms[layer]
        return store_frame(q, k, v, keys, values, self._pages[layer], self._widened, key_norms, inputs)

    def _widen_beside(self, layer: int, inputs: StepMetadata) -> None:
        """All that a layer will see but the step's own frame, while the network goes on."""
        from stream_recon.cache.kernels.dequantize import ALL_BUT_OWN

        if layer == self.schema.layers:
            return
        assert self._beside is not None
        self._beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._beside):
            self._widen(layer, ALL_BUT_OWN, inputs)

    def _widen(self, layer: int, what: int, inputs: StepMetadata) -> None:
        from stream_recon.cache.kernels.dequantize import widen

        widen(self._values[layer], self._pages[layer], self._widened, self.schema.special, inputs, what)

    def _store_in_pages(self, layer: int, new_keys: Tensor, v: Tensor) -> None:
        assert self._written is not None
        keys, values, pages = self._keys[layer], self._values[layer], self._pages[layer]
        frames = zip(*(lease.written for lease in self._written), strict=True)
        special, size = self.schema.special, self.schema.special + self.schema.patches
        for (slot, entry), frame_k, frame_v in zip(frames, new_keys.split(size), v.split(size), strict=True):
            keys[slice(*self._special_span(entry))] = frame_k[:special]
            keys[slice(*self._patch_span(slot))] = frame_k[special:]
            values[slice(*self._special_span(entry))] = frame_v[:special]
            pages.write(slot, frame_v[special:])


def _pages(schema: FrameCacheSchema, device: torch.device) -> ValuePages:
    values = torch.zeros(schema.patch_slots, schema.patches, schema.heads, schema.head_dim, device=device, dtype=FP8)
    return ValuePages(values, torch.ones(schema.patch_slots, schema.heads, device=device))
