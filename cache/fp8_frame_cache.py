"""The aggregator's cache at about half its size: patches in e4m3, special tokens in bf16.

Positions are those of `FrameCache`'s pool, special tokens below ``base`` and patch slots from there, so one plan of
visible spans serves both. Only the special tokens lie in that pool here; the slots are pages of their own. What a layer
sees is widened to bf16 in one more pool, of a single layer, and attention reads that: the next layer's beside what the
network does between two layers' attention.
"""

import torch
from torch import Tensor

from stream_recon.cache.attention import AttentionBackend
from stream_recon.cache.fp8_pages import FP8, ROUNDED, SPECIAL_DTYPE, Fp8Pages
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
        shape = (schema.tokens, schema.heads, schema.head_dim)
        self._widened = (
            torch.zeros(shape, device=device, dtype=SPECIAL_DTYPE),
            torch.zeros(shape, device=device, dtype=SPECIAL_DTYPE),
        )
        self._beside = torch.cuda.Stream(device) if device.type == "cuda" else None

    @staticmethod
    def pool_tokens(schema: FrameCacheSchema) -> int:
        return schema.base

    @staticmethod
    def bytes(schema: FrameCacheSchema, dtype: torch.dtype) -> int:
        """Bytes of special tokens in bf16, of patches in e4m3, of their scales, and of one layer in bf16, whatever the
        run's ``dtype``."""
        scales = 2 * schema.layers * schema.heads * schema.patch_slots
        return (
            schema.token_bytes(schema.base, SPECIAL_DTYPE)
            + schema.token_bytes(schema.patch_slots * schema.patches, FP8)
            + scales * torch.float32.itemsize
            + schema.token_bytes(schema.tokens, SPECIAL_DTYPE) // schema.layers
        )

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        assert self._written is not None, "attend outside a step"
        keys, values, key_norms = self._keys[layer], self._values[layer], self._key_norms[layer]
        pages = self._pages[layer]
        if self._inputs is not None and len(self._written[0].written) == 1:
            self._store_frame(layer, k, v, self._inputs)
            y = self._attend_widened(q, key_norms)
            self._widen_beside(layer + 1, self._inputs)
            return y
        self._store_in_pages(k, v, keys, values, pages)
        torch.maximum(key_norms, k.float().norm(dim=-1).amax(0), out=key_norms)
        if self._inputs is not None:
            self._widen_all(layer, self._inputs)
        else:
            for widened, log, restored in zip(self._widened, (keys, values), pages.restored(), strict=True):
                widened[: self.schema.base], widened[self.schema.base :] = log, restored
        return self._attend_widened(q, key_norms)

    def _attend_widened(self, q: Tensor, key_norms: Tensor) -> Tensor:
        keys, values = self._widened
        return self.backend.attend(q.to(keys.dtype), keys, values, key_norms * ROUNDED)

    def _store_frame(self, layer: int, k: Tensor, v: Tensor, inputs: StepInputs) -> None:
        """Into its page, and from there to what is widened; all else is there from the second layer on."""
        from stream_recon.cache.kernels.fp8_store import store_frame  # needs Triton
        from stream_recon.cache.kernels.widen import OWN

        assert self._beside is not None
        store_frame(k, v, self._keys[layer], self._values[layer], self._pages[layer], self._key_norms[layer], inputs)
        if layer == 0:
            self._widen_all(layer, inputs)
            return
        torch.cuda.current_stream().wait_stream(self._beside)
        self._widen(layer, OWN, inputs)

    def _widen_all(self, layer: int, inputs: StepInputs) -> None:
        from stream_recon.cache.kernels.widen import EVERYTHING

        self._widen(layer, EVERYTHING, inputs)

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

        log = self._keys[layer], self._values[layer]
        widen(log, self._pages[layer], self._widened, self.schema.special, inputs, what)

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
