# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"
"""`span_attention`'s kernel over a cache in e4m3 (Triton): special tokens in bf16 first, then page after page.

Queries are scaled to e4m3 row by row, so that tensor cores multiply them with keys as these are kept. Scores then
carry the row's scale and the page's, one factor a row. Values are kept in e4m3, too, but multiplied in bf16: weights
are between 0 and 1 with most of them small, and three binary digits would be too few for them. The values' scale goes
into the weights' exponents, and out of their sum.
"""

import triton
import triton.language as tl
from torch import Tensor

from stream_recon.cache.fp8_pages import LARGEST, LEAST, Fp8Pages
from stream_recon.cache.kernels.span_attention import HEADROOM, LOG2_E, SpanAttention, _over_span
from stream_recon.cache.kernels.split import STAGES, WARPS, SplitOutput, store_tile, tile_and_part
from stream_recon.cache.kernels.waves import KEY_BLOCK, QUERY_BLOCK

WEIGHTS = tl.bfloat16
"""Of the second product. It has fp32's range, and weights need it; values in e4m3 are exact in it."""
ROUNDED = 1.13
"""By which a product of norms may grow when both vectors are rounded to e4m3: a little over (1 + 2^-4)^2."""


@triton.jit
def _patches_at(pages, descriptor, page, first, head, columns, channels, PATCHES: tl.constexpr, H: tl.constexpr,
                D: tl.constexpr, BLOCK_N: tl.constexpr, TMA: tl.constexpr):  # fmt: skip
    if TMA:
        return descriptor.load([page, first, head * D]).reshape(BLOCK_N, D)
    else:
        patch = first + columns
        place = (page * PATCHES + patch)[:, None] * (H * D) + head * D + channels[None, :]
        return tl.load(pages + place, mask=patch[:, None] < PATCHES, other=0.0)


@triton.jit
def _widened(values, WEIGHTS: tl.constexpr):
    """Values in e4m3 as the weights' type, exactly."""
    if tl.bfloat16 == WEIGHTS:
        # Digits moved to their places in bf16, whose exponents count from -127 where those of e4m3 do from -7; smallest
        # numbers come right, too. GPUs have an instruction for fp16 alone, and from there it is further.
        return tl.inline_asm_elementwise(
            """
            {
            .reg .b32 low, high, a, b, factor, zero;
            mov.b32 factor, 0x7b807b80;
            mov.b32 zero, 0x80008000;
            prmt.b32 low, 0, $2, 0x5040;
            prmt.b32 high, 0, $2, 0x7060;
            shr.b32 a, low, 4;
            shr.b32 b, high, 4;
            and.b32 a, a, 0x07f007f0;
            and.b32 b, b, 0x07f007f0;
            lop3.b32 a, a, low, 0x80008000, 0xf8;
            lop3.b32 b, b, high, 0x80008000, 0xf8;
            fma.rn.bf16x2 $0, a, factor, zero;
            fma.rn.bf16x2 $1, b, factor, zero;
            }
            """,
            constraints="=r,=r,r",
            args=[values],
            dtype=tl.bfloat16,
            is_pure=True,
            pack=4,
        )
    else:
        return values.to(WEIGHTS)


@triton.jit
def _over_block(acc, total, q, bound, keys, values, key_descriptor, value_descriptor, page, first, score_scale,
                inverse, head, columns, channels, PATCHES: tl.constexpr, H: tl.constexpr, D: tl.constexpr,
                BLOCK_N: tl.constexpr, TMA: tl.constexpr, WEIGHTS: tl.constexpr, WHOLE: tl.constexpr):  # fmt: skip
    k = _patches_at(keys, key_descriptor, page, first, head, columns, channels, PATCHES, H, D, BLOCK_N, TMA)
    weights = tl.math.exp2(tl.dot(q, k.T) * score_scale[:, None] - bound[:, None])
    if not WHOLE:
        weights = tl.where((first + columns)[None, :] < PATCHES, weights, 0.0)
    total += tl.sum(weights, 1) * inverse
    v = _patches_at(values, value_descriptor, page, first, head, columns, channels, PATCHES, H, D, BLOCK_N, TMA)
    acc = tl.dot(weights.to(WEIGHTS), _widened(v, WEIGHTS), acc)
    return acc, total


@triton.jit
def _slots(start, stop, base, PATCHES: tl.constexpr):
    """The slots of a span: the first one, and how many."""
    first = (tl.maximum(start, base) - base) // PATCHES
    return first, (tl.maximum(stop, base) - base) // PATCHES - first


@triton.jit
def _attend(queries, special_keys, special_values, special_key_descriptor, special_value_descriptor, keys, values,
            key_descriptor, value_descriptor, key_scales, value_scales, out, sums, totals, spans, base, key_norms,
            tokens, whole, rest, row_blocks, scale, headroom, PATCHES: tl.constexpr, H: tl.constexpr, D: tl.constexpr,
            BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, STAGES: tl.constexpr, TMA: tl.constexpr,
            PARTS: tl.constexpr, WEIGHTS: tl.constexpr, LARGEST: tl.constexpr, LEAST: tl.constexpr,
            ROUNDED: tl.constexpr):  # fmt: skip
    tile, part, parts = tile_and_part(whole, rest, PARTS)
    head = tile // row_blocks
    rows = tile % row_blocks * BLOCK_M + tl.arange(0, BLOCK_M)
    columns, channels = tl.arange(0, BLOCK_N), tl.arange(0, D)
    place = rows[:, None] * (H * D) + head * D + channels[None, :]
    q = tl.load(queries + place, mask=rows[:, None] < tokens, other=0.0)
    q32 = q.to(tl.float32)
    # Whole binary orders, as in the kernel for one pool.
    bound = tl.ceil(tl.sqrt(tl.sum(q32 * q32, 1)) * (tl.load(key_norms + head) * scale * ROUNDED)) - headroom
    acc = tl.zeros([BLOCK_M, D], tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    # The special tokens end where the pages begin, and nothing of them is ever hidden: they are in the first span.
    start, stop = tl.load(spans), tl.load(spans + 1)
    special_stop = tl.minimum(stop, base)
    first_slot, count = _slots(start, stop, base, PATCHES)
    other_slot, others = _slots(tl.load(spans + 2), tl.load(spans + 3), base, PATCHES)
    # Shared out are pages, after as many special tokens at a time as a page has patches.
    heaps = tl.cdiv(tl.maximum(special_stop - start, 0), PATCHES)
    shares = heaps + count + others
    begin, end = shares * part // parts, shares * (part + 1) // parts
    acc, total = _over_span(acc, total, q, bound, special_keys, special_values, special_key_descriptor,
                            special_value_descriptor, start + begin * PATCHES,
                            tl.minimum(special_stop, start + end * PATCHES), scale, head, columns, channels,
                            H, D, BLOCK_N, STAGES, TMA)  # fmt: skip
    largest = tl.maximum(tl.max(tl.abs(q32), 1), LEAST)
    q8 = (q32 * (LARGEST / largest)[:, None]).to(tl.float8e4nv)
    row_scale = largest * (scale / LARGEST)
    for index in tl.range(tl.maximum(begin - heaps, 0), tl.maximum(end - heaps, 0)):
        page = tl.where(index < count, first_slot + index, other_slot + index - count)
        score_scale = tl.load(key_scales + page * H + head) * row_scale
        value_scale = tl.load(value_scales + page * H + head)
        page_bound, inverse = bound - tl.math.log2(value_scale), 1.0 / value_scale
        for block in tl.range(0, PATCHES // BLOCK_N, num_stages=STAGES):
            acc, total = _over_block(acc, total, q8, page_bound, keys, values, key_descriptor, value_descriptor, page,
                                     block * BLOCK_N, score_scale, inverse, head, columns, channels, PATCHES, H, D,
                                     BLOCK_N, TMA, WEIGHTS, True)  # fmt: skip
        if PATCHES % BLOCK_N:
            acc, total = _over_block(acc, total, q8, page_bound, keys, values, key_descriptor, value_descriptor, page,
                                     PATCHES // BLOCK_N * BLOCK_N, score_scale, inverse, head, columns, channels,
                                     PATCHES, H, D, BLOCK_N, TMA, WEIGHTS, False)  # fmt: skip
    store_tile(acc, total, out, place, rows[:, None] < tokens, sums, totals, tile, part, whole, rest, channels,
               BLOCK_M, D, PARTS)  # fmt: skip


class Fp8Attention(SpanAttention):
    """`PagedAttention` by the kernel; capturable as the one for a single pool is."""

    def attend_pages(self, q: Tensor, keys: Tensor, values: Tensor, pages: Fp8Pages, key_norms: Tensor) -> Tensor:
        special_keys, special_values = self._pool(keys), self._pool(values)
        page_keys, page_values = self._pool(pages.keys), self._pool(pages.values)
        tokens, heads, channels = q.shape
        q = q.contiguous()
        slots, patches = pages.keys.shape[:2]
        output = SplitOutput.of(q[None], triton.cdiv(len(keys), KEY_BLOCK) + slots * triton.cdiv(patches, KEY_BLOCK))
        waves = output.waves
        _attend[(waves.programs,)](
            q,
            special_keys.tensor,
            special_values.tensor,
            special_keys.descriptor,
            special_values.descriptor,
            page_keys.tensor,
            page_values.tensor,
            page_keys.descriptor,
            page_values.descriptor,
            pages.key_scales,
            pages.value_scales,
            output.out,
            output.sums,
            output.totals,
            self._inputs.spans,
            len(keys),
            key_norms,
            tokens,
            waves.whole,
            waves.rest,
            output.row_blocks,
            channels**-0.5 * LOG2_E,
            HEADROOM,
            PATCHES=patches,
            H=heads,
            D=channels,
            BLOCK_M=QUERY_BLOCK,
            BLOCK_N=KEY_BLOCK,
            STAGES=STAGES,
            TMA=special_keys.by_tma,
            PARTS=waves.parts,
            WEIGHTS=WEIGHTS,
            LARGEST=LARGEST,
            LEAST=LEAST,
            ROUNDED=ROUNDED,
            num_warps=WARPS,
        )
        return output.merged()[0]
