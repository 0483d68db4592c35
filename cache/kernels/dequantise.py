# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"
"""Dequantise one layer's visible values from e4m3 pages to a bf16 pool, where attention reads them (Triton).

Reading 1 byte and writing 2 for each number takes a tenth of the time of the attention that follows. Attention that
converts values itself took longer on an H200 than both, 0.9 to 1.0 ms a layer at 978 queries and 70,000 keys. So did
attention with values and weights in e4m3.
"""

import triton
import triton.language as tl
from torch import Tensor

from stream_recon.cache.fp8_pages import ValuePages
from stream_recon.cache.step_metadata import PoolPositions

TOKENS_AT_ONCE = 8
"""Tokens of a program."""
ALL_VISIBLE, PAST_ONLY = range(2)
"""Which visible tokens are dequantised: all, or all but those that the step itself wrote."""


@triton.jit
def _dequantise(log, pages, scales, pool, spans, special_at, patch_at, base, special, stop, PART: tl.constexpr,
           PATCHES: tl.constexpr, H: tl.constexpr, D: tl.constexpr, BLOCK_T: tl.constexpr,
           BLOCK_H: tl.constexpr):  # fmt: skip
    token = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    visible = (token >= tl.load(spans)) & (token < tl.load(spans + 1))
    visible = visible | ((token >= tl.load(spans + 2)) & (token < tl.load(spans + 3)))
    first, own_page = tl.load(special_at), tl.load(patch_at)
    is_own = ((token >= first) & (token < first + special)) | ((token >= own_page) & (token < own_page + PATCHES))
    if PART == 1:
        visible = visible & (is_own == 0)
    visible = visible & (token < stop)
    if tl.max(visible.to(tl.int32), 0) > 0:
        head, channel = tl.arange(0, BLOCK_H)[None, :, None], tl.arange(0, D)[None, None, :]
        offset = token[:, None, None].to(tl.int64) * (H * D) + head * D + channel
        is_special = token < base
        if tl.max((visible & is_special).to(tl.int32), 0) > 0:
            read = (visible & is_special)[:, None, None] & (head < H)
            tl.store(pool + offset, tl.load(log + offset, mask=read, other=0.0), mask=read)
        read = (visible & (is_special == 0))[:, None, None] & (head < H)
        scale = (tl.maximum(token - base, 0) // PATCHES)[:, None, None] * H + head
        v = tl.load(pages + offset - base.to(tl.int64) * (H * D), mask=read, other=0.0).to(tl.float32)
        v *= tl.load(scales + scale, mask=visible[:, None, None] & (head < H), other=0.0)
        tl.store(pool + offset, v.to(pool.dtype.element_ty), mask=read)


def dequantise(log: Tensor, pages: ValuePages, pool: Tensor, special: int, positions: PoolPositions, part: int) -> None:
    """Copy visible special tokens' values from ``log`` [C, H, D], and pages' values, whose positions follow, to the
    same positions of ``pool`` [C + S * P, H, D]. ``special``: tokens per frame; ``part``: see `ALL_VISIBLE`."""
    tokens, heads, channels = pool.shape
    _dequantise[(triton.cdiv(tokens, TOKENS_AT_ONCE),)](
        log,
        pages.values,
        pages.scales,
        pool,
        positions.spans,
        positions.special_at,
        positions.patch_at,
        len(log),
        special,
        tokens,
        PART=part,
        PATCHES=pages.values.shape[1],
        H=heads,
        D=channels,
        BLOCK_T=TOKENS_AT_ONCE,
        BLOCK_H=triton.next_power_of_2(heads),
    )
