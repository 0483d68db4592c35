# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"
"""Attention kernel (Triton): a frame's queries over the visible spans of a pool, read in place.

It differs from general kernels in two points. The spans' bounds come from device memory, so a captured graph serves
every state of the cache. And where it can, it keeps no running maximum, unlike FlashAttention (Dao et al. 2022): the
largest norm of the keys is known when they are stored, and by Cauchy-Schwarz it bounds every score of a query. So the
accumulator is not rescaled, and blocks depend on one another only through sums.

A bound far above the true maximum would let all weights underflow. Where the network's weights allow such scores, each
program first reads the scores of one block of its keys: if their maximum lies within `BOUND_RANGE` of the bound, the
weight of the true maximum is a normal number. If it does not, the program keeps a running maximum.
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
from stream_recon.cache.kernels.tile_schedule import KEY_BLOCK, QUERY_BLOCK
from stream_recon.cache.step_metadata import PoolPositions

HEADROOM = 60.0
"""Binary orders by which weights may exceed 1: the bound lies above the true maximum, and small weights would
underflow."""
BOUND_RANGE = 150.0
"""Binary orders between bound and true maximum up to which the bound serves: the largest weight is 2^-90 or more, and
normal numbers of fp32 and bf16 begin at 2^-126. Weights in fp16 have no such range."""
BOUND_MARGIN = 6.0
"""Binary orders that rounding of vectors and bounds may add to twice the largest score."""
LOG2_E = math.log2(math.e)
"""Turns exponents of e into exponents of 2, for which the GPU has an instruction."""


@triton.jit
def _keys_at(pool, descriptor, start, head, columns, channels, H: tl.constexpr, D: tl.constexpr, TMA: tl.constexpr,
             stop):  # fmt: skip
    if TMA:
        return descriptor.load([start, head * D])
    else:
        token = (start + columns).to(tl.int64)  # pools of many streams exceed 2^31 numbers
        return tl.load(
            pool + token[:, None] * (H * D) + head * D + channels[None, :], mask=token[:, None] < stop, other=0.0
        )


@triton.jit
def _scores(q, k, scale, bias, start, columns, stop, BIASED: tl.constexpr):
    scores = tl.dot(q, k.T) * scale
    if BIASED:
        scores += tl.load(bias + start + columns, mask=start + columns < stop, other=0.0)[None, :]
    return scores


@triton.jit
def _over_span_rescaling(acc, total, best, q, keys, values, key_descriptor, value_descriptor, bias, start, stop, scale,
                         head, columns, channels, H: tl.constexpr, D: tl.constexpr, BLOCK_N: tl.constexpr,
                         STAGES: tl.constexpr, TMA: tl.constexpr, BIASED: tl.constexpr):  # fmt: skip
    for block in tl.range(start, stop, BLOCK_N, num_stages=STAGES):
        k = _keys_at(keys, key_descriptor, block, head, columns, channels, H, D, TMA, stop)
        scores = _scores(q, k, scale, bias, block, columns, stop, BIASED)
        scores = tl.where((block + columns)[None, :] < stop, scores, -float("inf"))
        higher = tl.maximum(best, tl.ceil(tl.max(scores, 1)))
        shrink = tl.math.exp2(best - higher)
        weights = tl.math.exp2(scores - higher[:, None])
        total = total * shrink + tl.sum(weights, 1)
        v = _keys_at(values, value_descriptor, block, head, columns, channels, H, D, TMA, stop)
        acc = tl.dot(weights.to(v.dtype), v, acc * shrink[:, None])
        best = higher
    return acc, total, best


@triton.jit
def _over_span(acc, total, q, bound, keys, values, key_descriptor, value_descriptor, bias, start, stop, scale, head,
               columns, channels, H: tl.constexpr, D: tl.constexpr, BLOCK_N: tl.constexpr, STAGES: tl.constexpr,
               TMA: tl.constexpr, BIASED: tl.constexpr):  # fmt: skip
    full = start + (stop - start) // BLOCK_N * BLOCK_N
    for block in tl.range(start, full, BLOCK_N, num_stages=STAGES):
        k = _keys_at(keys, key_descriptor, block, head, columns, channels, H, D, TMA, stop)
        weights = tl.math.exp2(_scores(q, k, scale, bias, block, columns, stop, BIASED) - bound[:, None])
        total += tl.sum(weights, 1)
        v = _keys_at(values, value_descriptor, block, head, columns, channels, H, D, TMA, stop)
        acc = tl.dot(weights.to(v.dtype), v, acc)
    if full < stop:
        k = _keys_at(keys, key_descriptor, full, head, columns, channels, H, D, TMA, stop)
        weights = tl.math.exp2(_scores(q, k, scale, bias, full, columns, stop, BIASED) - bound[:, None])
        weights = tl.where((full + columns)[None, :] < stop, weights, 0.0)
        total += tl.sum(weights, 1)
        v = _keys_at(values, value_descriptor, full, head, columns, channels, H, D, TMA, stop)
        acc = tl.dot(weights.to(v.dtype), v, acc)
    return acc, total


@triton.jit
def _over_part(acc, total, best, q, keys, values, key_descriptor, value_descriptor, bias, spans, first, last, scale,
               head, columns, channels, H: tl.constexpr, D: tl.constexpr, BLOCK_N: tl.constexpr, STAGES: tl.constexpr,
               TMA: tl.constexpr, RESCALES: tl.constexpr, BIASED: tl.constexpr, SPANS: tl.constexpr):  # fmt: skip
    before = 0
    for span in tl.static_range(SPANS):
        begin, end = tl.load(spans + 2 * span), tl.load(spans + 2 * span + 1)
        start = begin + tl.maximum(first - before, 0) * BLOCK_N
        stop = tl.minimum(end, begin + tl.maximum(last - before, 0) * BLOCK_N)
        if RESCALES:
            acc, total, best = _over_span_rescaling(acc, total, best, q, keys, values, key_descriptor,
                                                    value_descriptor, bias, start, stop, scale, head, columns,
                                                    channels, H, D, BLOCK_N, STAGES, TMA, BIASED)  # fmt: skip
        else:
            acc, total = _over_span(acc, total, q, best, keys, values, key_descriptor, value_descriptor, bias, start,
                                    stop, scale, head, columns, channels, H, D, BLOCK_N, STAGES, TMA,
                                    BIASED)  # fmt: skip
        before += tl.cdiv(end - begin, BLOCK_N)
    return acc, total, best


@triton.jit
def _block_start(spans, number, BLOCK_N: tl.constexpr, SPANS: tl.constexpr):
    """First position of a block of keys, counted over all spans, and the end of its span."""
    before = 0
    start, stop = 0, 0
    for span in tl.static_range(SPANS):
        begin, end = tl.load(spans + 2 * span), tl.load(spans + 2 * span + 1)
        is_later = number >= before
        start = tl.where(is_later, begin + (number - before) * BLOCK_N, start)
        stop = tl.where(is_later, end, stop)
        before += tl.cdiv(end - begin, BLOCK_N)
    return start, stop


@triton.jit
def _attend(queries, keys, values, key_descriptor, value_descriptor, bias, out, sums, totals, maxima, spans,
            batch_slot, metadata_stride, key_norms, tokens, full_tiles, split_tiles, row_blocks, scale, max_bias,
            headroom, bound_range, H: tl.constexpr, D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
            STAGES: tl.constexpr, TMA: tl.constexpr, PARTS: tl.constexpr, CHECKED: tl.constexpr, BIASED: tl.constexpr,
            SPANS: tl.constexpr):  # fmt: skip
    tile, part, parts = tile_and_part(full_tiles, split_tiles, PARTS)
    stream, head = tile // row_blocks // H, tile // row_blocks % H
    spans += stream * metadata_stride
    key_norms += tl.load(batch_slot + stream * metadata_stride) * H
    rows = tile % row_blocks * BLOCK_M + tl.arange(0, BLOCK_M)
    columns, channels = tl.arange(0, BLOCK_N), tl.arange(0, D)
    offset = (stream * tokens + rows[:, None]) * (H * D) + head * D + channels[None, :]
    q = tl.load(queries + offset, mask=rows[:, None] < tokens, other=0.0)
    q32 = q.to(tl.float32)
    # Integer powers of two: another bound then changes exponents and no digit of the result.
    bound = tl.ceil(tl.sqrt(tl.sum(q32 * q32, 1)) * tl.load(key_norms + head) * scale)
    if BIASED:
        bound += tl.ceil(max_bias)
    acc = tl.zeros([BLOCK_M, D], tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    # Blocks are numbered over all spans; this part reads those from first to last.
    all_blocks = 0
    for span in tl.static_range(SPANS):
        all_blocks += tl.cdiv(tl.load(spans + 2 * span + 1) - tl.load(spans + 2 * span), BLOCK_N)
    first, last = all_blocks * part // parts, all_blocks * (part + 1) // parts
    if CHECKED:
        # A maximum over some of the keys, which the true one is not below.
        start, stop = _block_start(spans, first, BLOCK_N, SPANS)
        k = _keys_at(keys, key_descriptor, start, head, columns, channels, H, D, TMA, stop)
        scores = _scores(q, k, scale, bias, start, columns, stop, BIASED)
        known = tl.max(tl.where((start + columns)[None, :] < stop, scores, -float("inf")), 1)
        if (first == last) | (tl.max(bound - known, 0) <= bound_range):
            acc, total, best = _over_part(acc, total, bound - headroom, q, keys, values, key_descriptor,
                                          value_descriptor, bias, spans, first, last, scale, head, columns, channels,
                                          H, D, BLOCK_N, STAGES, TMA, False, BIASED, SPANS)  # fmt: skip
        else:
            acc, total, best = _over_part(acc, total, tl.ceil(known), q, keys, values, key_descriptor,
                                          value_descriptor, bias, spans, first, last, scale, head, columns, channels,
                                          H, D, BLOCK_N, STAGES, TMA, True, BIASED, SPANS)  # fmt: skip
    else:
        acc, total, best = _over_part(acc, total, bound - headroom, q, keys, values, key_descriptor, value_descriptor,
                                      bias, spans, first, last, scale, head, columns, channels, H, D, BLOCK_N,
                                      STAGES, TMA, False, BIASED, SPANS)  # fmt: skip
    store_tile(acc, total, best, out, offset, rows[:, None] < tokens, sums, totals, maxima, tile, part, full_tiles,
               split_tiles, channels, BLOCK_M, D, PARTS)  # fmt: skip


def attend_spans(
    q: Tensor,
    keys: "SpanPool",
    values: "SpanPool",
    positions: PoolPositions,
    key_norms: Tensor,
    visible: int,
    bias: Tensor | None = None,
    max_bias: float = 0.0,
) -> Tensor:
    """Attention of q [R, T, H, D], frames of R streams, over each row's spans in pools [C, H, D] -> [R, T, H, D].

    The result has the type of the values; queries and keys have that type too, or both are in e4m3. ``key_norms``:
    float32 [batch slots, H], at least the norm of every key visible to that slot's stream; ``visible``: most tokens
    that one stream sees. ``bias``: float32 [C], added to the scores of each token, at most ``max_bias`` as an exponent
    of 2.
    """
    _, tokens, heads, channels = q.shape
    q = q.contiguous()
    output = SplitOutput.allocate(q, triton.cdiv(visible, KEY_BLOCK), values.tensor.dtype)
    schedule = output.schedule
    # No score lies further below the bound than the bound above zero; rounding adds a little to both.
    below_bound = 2 * positions.max_score + max_bias + BOUND_MARGIN
    checked = values.tensor.dtype == torch.float16 or below_bound > BOUND_RANGE
    _attend[(schedule.programs,)](
        q,
        keys.tensor,
        values.tensor,
        keys.descriptor,
        values.descriptor,
        bias,
        output.out,
        output.sums,
        output.totals,
        output.maxima,
        positions.spans,
        positions.batch_slot,
        positions.stride,
        key_norms,
        tokens,
        schedule.full_tiles,
        schedule.split_tiles,
        output.row_blocks,
        channels**-0.5 * LOG2_E,
        max_bias,
        HEADROOM,
        BOUND_RANGE if values.tensor.dtype != torch.float16 else -math.inf,
        H=heads,
        D=channels,
        BLOCK_M=QUERY_BLOCK,
        BLOCK_N=KEY_BLOCK,
        STAGES=STAGES,
        TMA=keys.by_tma,
        PARTS=schedule.parts,
        CHECKED=checked,
        BIASED=bias is not None,
        SPANS=positions.max_spans,
        num_warps=WARPS,
    )
    return output.merged()


class SpanPool:
    """A pool [C, H, D], or its pages [S, P, H, D], as kernel argument: read by TMA where the GPU has it, else by
    pointers."""

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
    """The kernel as `AttentionBackend`. It can be captured, as ``plan`` only fills `PoolPositions`."""

    name = "triton"
    capturable = True

    def __init__(self, positions: PoolPositions, bias: Tensor | None = None, max_bias: float = 0.0) -> None:
        """``bias``, ``max_bias``: see `attend_spans`, but ``bias`` in exponents of e."""
        self._positions = positions
        self._bias = None if bias is None else bias * LOG2_E
        self._max_bias = max_bias
        self._pools: dict[int, SpanPool] = {}

    def plan(self, queries: int, spans: list[Span]) -> None:
        self._positions.set_spans(merge_spans(spans))

    def attend(self, q: Tensor, keys: Tensor, values: Tensor, key_norms: Tensor) -> Tensor:
        pools, norms = (self._pool(keys), self._pool(values)), key_norms[None]
        return attend_spans(q[None], *pools, self._positions, norms, len(keys), self._bias, self._max_bias)[0]

    def _pool(self, tensor: Tensor) -> SpanPool:
        pool = self._pools.get(tensor.data_ptr())
        if pool is None:
            pool = self._pools[tensor.data_ptr()] = SpanPool(tensor)
        return pool
