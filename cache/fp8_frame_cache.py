"""KV cache of the aggregator at about half its size: keys and patch values in e4m3, special tokens' values in bf16.

Positions are those of `FrameCache`'s pool, special tokens below ``base`` and patch slots from there, so one plan of
visible spans serves both. Attention multiplies e4m3 keys by e4m3 queries. Of the values, only those of special tokens
lie in a pool; patch slots are pages with scales. A layer's visible values are dequantised to bf16 in one more pool of a
single layer, on a side stream while the network computes what lies between two layers' attention.
"""

import torch
from torch import Tensor

from stream_recon.cache.attention import AttentionBackend
from stream_recon.cache.fp8_pages import FP8, SPECIAL_DTYPE, ValuePages, hadamard_rotate, to_e4m3
from stream_recon.cache.frame_cache import FrameCache, FrameCacheSchema, FramePools
from stream_recon.cache.step_metadata import PoolPositions


class Fp8FrameCache(FrameCache):
    """`FrameCache` with keys and patch values in e4m3."""

    def __init__(
        self,
        schema: FrameCacheSchema,
        backend: AttentionBackend,
        pools: FramePools,
        positions: PoolPositions | None = None,
    ) -> None:
        """``pools``: of `allocate_pools`; ``positions``: see `FrameCache`."""
        super().__init__(schema, backend, pools, positions)
        device = pools.keys.device
        shape = (schema.patch_slots, schema.patches, schema.heads, schema.head_dim)
        self._pages = [
            ValuePages(
                torch.zeros(shape, device=device, dtype=FP8),
                torch.ones(schema.patch_slots, schema.heads, device=device),
            )
            for _ in range(schema.layers)
        ]
        self._dequantised = torch.zeros(schema.tokens, *shape[2:], device=device, dtype=SPECIAL_DTYPE)
        self._side_stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    @staticmethod
    def allocate_pools(schema: FrameCacheSchema, device: torch.device, dtype: torch.dtype) -> FramePools:
        """Keys of all tokens in e4m3, values of special tokens in bf16, for any ``dtype``."""
        shape = (schema.heads, schema.head_dim)
        keys = torch.zeros(schema.layers, schema.tokens, *shape, device=device, dtype=FP8)
        values = torch.zeros(schema.layers, schema.base, *shape, device=device, dtype=SPECIAL_DTYPE)
        norms, committed = (torch.zeros(schema.layers, schema.heads, device=device) for _ in range(2))
        return FramePools(keys, values, norms, committed)

    @staticmethod
    def bytes(schema: FrameCacheSchema, dtype: torch.dtype) -> int:
        """Bytes of keys, pages with their scales, special tokens' values and one dequantised layer."""
        scales = schema.layers * schema.heads * schema.patch_slots
        return (
            schema.token_bytes(schema.tokens, FP8) // 2
            + schema.token_bytes(schema.patch_slots * schema.patches, FP8) // 2
            + schema.token_bytes(schema.base, SPECIAL_DTYPE) // 2
            + scales * torch.float32.itemsize
            + schema.token_bytes(schema.tokens, SPECIAL_DTYPE) // (2 * schema.layers)
        )

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        assert self._allocated is not None, "attend outside a step"
        keys, key_norms = self._keys[layer], self._key_norms[layer]
        if self._positions is not None and len(self._allocated.patches.slot_mapping) == 1:
            queries = self._store_frame(layer, q, k, v, self._positions)
            y = self.backend.attend(queries, keys, self._dequantised, key_norms)
            self._dequantise_ahead(layer + 1, self._positions)
            return y
        new_keys = to_e4m3(hadamard_rotate(k))
        self._store_in_pages(layer, new_keys, v)
        torch.maximum(key_norms, new_keys.float().norm(dim=-1).amax(0), out=key_norms)
        if self._positions is not None:
            from stream_recon.cache.kernels.dequantise import ALL_VISIBLE  # needs Triton

            self._dequantise(layer, ALL_VISIBLE, self._positions)
            return self.backend.attend(to_e4m3(hadamard_rotate(q)), keys, self._dequantised, key_norms)
        base = self.schema.base
        self._dequantised[:base], self._dequantised[base:] = self._values[layer], self._pages[layer].dequantised()
        # Other kernels do not multiply e4m3: the same numbers in bf16.
        queries = to_e4m3(hadamard_rotate(q)).to(SPECIAL_DTYPE)
        return self.backend.attend(queries, keys.to(SPECIAL_DTYPE), self._dequantised, key_norms)

    def _store_frame(self, layer: int, q: Tensor, k: Tensor, v: Tensor, positions: PoolPositions) -> Tensor:
        """Store the frame, also in the dequantised pool, and give its queries in e4m3.

        From the second layer on, the past is in the dequantised pool already.
        """
        from stream_recon.cache.kernels.dequantise import PAST_ONLY
        from stream_recon.cache.kernels.fp8_store import store_frame  # needs Triton

        assert self._side_stream is not None
        if layer == 0:
            self._dequantise(layer, PAST_ONLY, positions)
        else:
            torch.cuda.current_stream().wait_stream(self._side_stream)
        keys, values, key_norms = self._keys[layer], self._values[layer], self._key_norms[layer]
        return store_frame(q, k, v, keys, values, self._pages[layer], self._dequantised, key_norms, positions)

    def _dequantise_ahead(self, layer: int, positions: PoolPositions) -> None:
        """Dequantise a layer's visible past on the side stream while the network computes."""
        from stream_recon.cache.kernels.dequantise import PAST_ONLY

        if layer == self.schema.layers:
            return
        assert self._side_stream is not None
        self._side_stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._side_stream):
            self._dequantise(layer, PAST_ONLY, positions)

    def _dequantise(self, layer: int, part: int, positions: PoolPositions) -> None:
        from stream_recon.cache.kernels.dequantise import dequantise

        dequantise(self._values[layer], self._pages[layer], self._dequantised, self.schema.special, positions, part)

    def _store_in_pages(self, layer: int, new_keys: Tensor, v: Tensor) -> None:
        assert self._allocated is not None
        keys, values, pages = self._keys[layer], self._values[layer], self._pages[layer]
        slots = zip(self._allocated.patches.slot_mapping, self._allocated.special.slot_mapping, strict=True)
        special, size = self.schema.special, self.schema.frame_tokens
        for (slot, entry), frame_k, frame_v in zip(slots, new_keys.split(size), v.split(size), strict=True):
            keys[slice(*self._special_span(entry))] = frame_k[:special]
            keys[slice(*self._patch_span(slot))] = frame_k[special:]
            values[slice(*self._special_span(entry))] = frame_v[:special]
            pages.write(slot, frame_v[special:])
