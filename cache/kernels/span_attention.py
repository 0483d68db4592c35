# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"
"""Our own attention kernel (Triton): a frame's queries over the visible runs of a pool, read in place.

It differs from general kernels in two points that this cache allows. The runs' bounds come from device memory, so a
captured graph serves every state of the cache. And there is no running maximum (as FlashAttention has it, Dao et al.
2022): the largest norm of the keys is known since they were written, and by Cauchy and Schwarz it bounds every score of
a query. Without maxima the accumulator is never rescaled, and blocks depend on one another through sums alone.
"""

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from stream_recon.cache.attention import Span, merge_spans
from stream_recon.cache.kernels.split import STAGES, WARPS, SplitOutput, store_tile, tile_and_part
from stream_recon.cache.kernels.wave_schedule import KEY_BLOCK, QUERY_BLOCK
from stream_recon.cache.step_metadata import StepMetadata

HEADROOM = 60.0
"""Binary orders by which weights may exceed 1: the bound lies above the true maximum, and small ones need the room."""
LOG2_E = math.log2(math.e)


@triton.jit
def _keys_at(pool, descriptor, start, head, columns, channels, H: tl.constexpr, D: tl.constexpr, TMA: tl.constexpr,
             stop):  # fmt: skip
    if TMA:
        return descriptor.load([start, head * D])
    else:
        token = (start + columns).to(tl.int64)  # the pools of many streams are longer than 2^31 numbers
        return tl.load(
            pool + token[:, None] * (H * D) + head * D + channels[None, :], mask=token[:, None] < stop, other=0.0
        )


@triton.jit
def _over_span(acc, total, q, bound, keys, values, key_descriptor, value_descriptor, start, stop, scale, head,
               columns, channels, H: tl.constexpr, D: tl.constexpr, BLOCK_N: tl.constexpr, STAGES: tl.constexpr,
               TMA: tl.constexpr):  # fmt: skip
    full = start + (stop - start) // BLOCK_N * BLOCK_N
    for block in tl.range(start, full, BLOCK_N, num_stages=STAGES):
        k = _keys_at(keys, key_descriptor, block, head, columns, channels, H, D, TMA, stop)
        weights = tl.math.exp2(tl.dot(q, k.T) * scale - bound[:, None])
        total += tl.sum(weights, 1)
        v = _keys_at(values, value_descriptor, block, head, columns, channels, H, D, TMA, stop)
        acc = tl.dot(weights.to(v.dtype), v, acc)
    if full < stop:
        k = _keys_at(keys, key_descriptor, full, head, columns, channels, H, D, TMA, stop)
        weights = tl.math.exp2(tl.dot(q, k.T) * scale - bound[:, None])
        weights = tl.where((full + columns)[None, :] < stop, weights, 0.0)
        total += tl.sum(weights, 1)
        v = _keys_at(values, value_descriptor, full, head, columns, channels, H, D, TMA, stop)
        acc = tl.dot(weights.to(v.dtype), v, acc)
    return acc, total


@triton.jit
def _attend(queries, keys, values, key_descriptor, value_descriptor, out, sums, totals, spans, seat, inputs_stride,
            key_norms, tokens, whole, rest, row_blocks, scale, headroom, H: tl.constexpr, D: tl.constexpr,
            BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, STAGES: tl.constexpr, TMA: tl.constexpr,
            PARTS: tl.constexpr):  # fmt: skip
    tile, part, parts = tile_and_part(whole, rest, PARTS)
    stream, head = tile // row_blocks // H, tile // row_blocks % H
    spans += stream * inputs_stride
    key_norms += tl.load(seat + stream * inputs_stride) * H
    rows = tile % row_blocks * BLOCK_M + tl.arange(0, BLOCK_M)
    columns, channels = tl.arange(0, BLOCK_N), tl.arange(0, D)
    place = (stream * tokens + rows[:, None]) * (H * D) + head * D + channels[None, :]
    q = tl.load(queries + place, mask=rows[:, None] < tokens, other=0.0)
    q32 = q.to(tl.float32)
    # Whole binary orders: another bound then shifts exponents and changes no digit of the result.
    bound = tl.ceil(tl.sqrt(tl.sum(q32 * q32, 1)) * tl.load(key_norms + head) * scale) - headroom
    acc = tl.zeros([BLOCK_M, D], tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    # Blocks of both spans are counted through, and those from first to last are this part's.
    blocks = tl.cdiv(tl.load(spans + 1) - tl.load(spans), BLOCK_N)
    blocks_in_all = blocks + tl.cdiv(tl.load(spans + 3) - tl.load(spans + 2), BLOCK_N)
    first, last = blocks_in_all * part // parts, blocks_in_all * (part + 1) // parts
    for span in tl.static_range(2):
        begin, end = tl.load(spans + 2 * span), tl.load(spans + 2 * span + 1)
        before = blocks * span
        start = begin + tl.maximum(first - before, 0) * BLOCK_N
        stop = tl.minimum(end, begin + tl.maximum(last - before, 0) * BLOCK_N)
        acc, total = _over_span(acc, total, q, bound, keys, values, key_descriptor, value_descriptor, start, stop,
                                scale, head, columns, channels, H, D, BLOCK_N, STAGES, TMA)  # fmt: skip
    store_tile(acc, total, out, place, rows[:, None] < tokens, sums, totals, tile, part, whole, rest, channels,
               BLOCK_M, D, PARTS)  # fmt: skip


def attend_spans(
    q: Tensor, keys: "SpanPool", values: "SpanPool", inputs: StepMetadata, key_norms: Tensor, visible: int
) -> Tensor:
    """Attention of q [R, T, H, D], frames of R streams, over the spans of each row of ``inputs`` in pools [C, H, D]
    -> [R, T, H, D], in what the values are in. Queries and keys are both in that, or both in e4m3.

    ``key_norms``: float32 [seats, H], at least the norm of every key that the stream of that seat sees; ``visible``:
    most tokens that one of them sees.
    """
    _, tokens, heads, channels = q.shape
    q = q.contiguous()
    output = SplitOutput.of(q, triton.cdiv(visible, KEY_BLOCK), values.tensor.dtype)
    waves = output.waves
    _attend[(waves.programs,)](
        q,
        keys.tensor,
        values.tensor,
        keys.descriptor,
        values.descriptor,
        output.out,
        output.sums,
        output.totals,
        inputs.spans,
        inputs.seat,
        inputs.stride,
        key_norms,
        tokens,
        waves.whole,
        waves.rest,
        output.row_blocks,
        channels**-0.5 * LOG2_E,
        HEADROOM,
        H=heads,
        D=channels,
        BLOCK_M=QUERY_BLOCK,
        BLOCK_N=KEY_BLOCK,
        STAGES=STAGES,
        TMA=keys.by_tma,
        PARTS=waves.parts,
        num_warps=WARPS,
    )
    return output.merged()


class SpanPool:
    """A pool [C, H, D], or pages [S, P, H, D] of one, as kernels take it: by tensor copies (TMA) where the GPU has
    them, else by pointers."""

    def __init__(self, tensor: Tensor) -> None:
        *pages, tokens, heads, channels = tensor.shape
        width = heads * channels
        self.tensor = tensor
        self.by_tma = tensor.is_cuda and torch.cuda.get_device_capability(tensor.device)[0] >= 9
        self.descriptor: Any = tensor
        if self.by_tma:
            strides = [*(tokens * width for _ in pages), width, 1]
            block = [*(1 for _ in pages), KEY_BLOCK, channels]
            self.descriptor = TensorDescriptor(tensor, [*pages, tokens, width], strides, block)


class SpanAttention:
    """The kernel as an `AttentionBackend`. Capturable: ``plan`` only fills `StepMetadata`."""

    name = "triton"
    capturable = True

    def __init__(self, inputs: StepMetadata) -> None:
        self._inputs = inputs
        self._pools: dict[int, SpanPool] = {}

    def plan(self, queries: int, spans: list[Span]) -> None:
        self._inputs.set_spans(merge_spans(spans))

    def attend(self, q: Tensor, keys: Tensor, values: Tensor, key_norms: Tensor) -> Tensor:
        return attend_spans(q[None], self._pool(keys), self._pool(values), self._inputs, key_norms[None], len(keys))[0]

    def _pool(self, tensor: Tensor) -> SpanPool:
        known = self._pools.get(tensor.data_ptr())
        if known is None:
            known = self._pools[tensor.data_ptr()] = SpanPool(tensor)
        return known
