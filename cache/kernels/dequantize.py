# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"
"""One layer's visible values from pages in e4m3 to a pool in bf16, where attention reads them (Triton).

Reading 1 byte and writing 2 for each number takes a tenth of the time of the attention that follows. Attention that
turns values into bf16 on the way took longer on an H200 than both: 0.9 to 1.0 ms a layer at 978 queries and 70,000
keys, and so did one with all of it in e4m3.
"""

import triton
import triton.language as tl
from torch import Tensor

from stream_recon.cache.fp8_pages import ValuePages
from stream_recon.cache.step_metadata import StepMetadata

TOKENS_AT_ONCE = 8
EVERYTHING, ALL_BUT_OWN = range(2)
"""What is widened of all that is visible: also what the step itself wrote, or all else."""


@triton.jit
def _widen(log, pages, scales, pool, spans, special_at, patch_at, base, special, stop, WHAT: tl.constexpr,
           PATCHES: tl.constexpr, H: tl.constexpr, D: tl.constexpr, BLOCK_T: tl.constexpr,
           BLOCK_H: tl.constexpr):  # fmt: skip
    token = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    seen = (token >= tl.load(spans)) & (token < tl.load(spans + 1))
    seen = seen | ((token >= tl.load(spans + 2)) & (token < tl.load(spans + 3)))
    first, own_page = tl.load(special_at), tl.load(patch_at)
    is_own = ((token >= first) & (token < first + special)) | ((token >= own_page) & (token < own_page + PATCHES))
    if WHAT == 1:
        seen = seen & (is_own == 0)
    seen = seen & (token < stop)
    if tl.max(seen.to(tl.int32), 0) > 0:
        head, channel = tl.arange(0, BLOCK_H)[None, :, None], tl.arange(0, D)[None, None, :]
        place = token[:, None, None].to(tl.int64) * (H * D) + head * D + channel
        is_special = token < base
        if tl.max((seen & is_special).to(tl.int32), 0) > 0:
            wanted = (seen & is_special)[:, None, None] & (head < H)
            tl.store(pool + place, tl.load(log + place, mask=wanted, other=0.0), mask=wanted)
        wanted = (seen & (is_special == 0))[:, None, None] & (head < H)
        scale = (tl.maximum(token - base, 0) // PATCHES)[:, None, None] * H + head
        v = tl.load(pages + place - base.to(tl.int64) * (H * D), mask=wanted, other=0.0).to(tl.float32)
        v *= tl.load(scales + scale, mask=seen[:, None, None] & (head < H), other=0.0)
        tl.store(pool + place, v.to(pool.dtype.element_ty), mask=wanted)


def widen(log: Tensor, pages: ValuePages, pool: Tensor, special: int, inputs: StepMetadata, what: int) -> None:
    """Values of all visible special tokens, in the ``log`` [C, H, D], and of pages, which count on from C, to the same
    positions of ``pool`` [C + S * P, H, D]. ``special``: tokens a frame; ``what``: see `EVERYTHING`."""
    tokens, heads, channels = pool.shape
    _widen[(triton.cdiv(tokens, TOKENS_AT_ONCE),)](
        log,
        pages.values,
        pages.scales,
        pool,
        inputs.spans,
        inputs.special_at,
        inputs.patch_at,
        len(log),
        special,
        tokens,
        WHAT=what,
        PATCHES=pages.values.shape[1],
        H=heads,
        D=channels,
        BLOCK_T=TOKENS_AT_ONCE,
        BLOCK_H=triton.next_power_of_2(heads),
    )
