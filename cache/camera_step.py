# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"
"""The camera head's attention in a step of one frame: keep a token, read all visible ones (Triton)."""

import triton
import triton.language as tl
from torch import Tensor

from stream_recon.cache.step_inputs import StepInputs

BLOCK = 64
HIDDEN = -1e30


@triton.jit
def _attend_slots(query, new_key, new_value, keys, values, slot_at, limit_at, visible, out, slots, scale,
                  D: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    head = tl.program_id(0)
    channel = tl.arange(0, D)
    own = head * D + channel
    q = tl.load(query + own).to(tl.float32) * scale
    k, v = tl.load(new_key + own).to(tl.float32), tl.load(new_value + own).to(tl.float32)
    slot, limit = tl.load(slot_at), tl.load(limit_at)
    base = head.to(tl.int64) * slots * D
    tl.store(keys + base + slot * D + channel, k.to(keys.dtype.element_ty))
    tl.store(values + base + slot * D + channel, v.to(values.dtype.element_ty))
    # The own token from registers, all others from the pool.
    best = tl.sum(q * k, 0)
    total = 1.0
    acc = v
    rows = tl.arange(0, BLOCK)
    for first in range(0, limit, BLOCK):
        row = first + rows
        seen = (tl.load(visible + row, mask=row < slots, other=0) != 0) & (row != slot)
        place = base + row[:, None] * D + channel[None, :]
        past_keys = tl.load(keys + place, mask=seen[:, None], other=0.0).to(tl.float32)
        scores = tl.where(seen, tl.sum(past_keys * q[None, :], 1), -1e30)
        higher = tl.maximum(best, tl.max(scores, 0))
        weights = tl.where(seen, tl.exp(scores - higher), 0.0)
        shrink = tl.exp(best - higher)
        past_values = tl.load(values + place, mask=seen[:, None], other=0.0).to(tl.float32)
        acc = acc * shrink + tl.sum(past_values * weights[:, None], 0)
        total = total * shrink + tl.sum(weights, 0)
        best = higher
    tl.store(out + own, (acc / total).to(out.dtype.element_ty))


def attend_slots(q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, inputs: StepInputs) -> Tensor:
    """q, k, v [1, H, D]: store k, v in their slot of pools [H, slots, D], attend to the visible ones -> [1, H, D]."""
    _, heads, channels = q.shape
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    out = q.new_empty(q.shape)
    _attend_slots[(heads,)](
        q,
        k,
        v,
        keys,
        values,
        inputs.camera_slot,
        inputs.camera_limit,
        inputs.camera_visible,
        out,
        keys.shape[1],
        channels**-0.5,
        D=channels,
        BLOCK=BLOCK,
    )
    return out
