# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"
"""Attention of the camera head in a step of one frame: store its token, read all visible ones (Triton).

One program per head would leave most of the GPU idle. So several programs share a head's slots, and a second kernel
joins their sums (split-K, as in Flash-Decoding, Dao et al. 2023).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from stream_recon.cache.step_metadata import StepMetadata

BLOCK = 64
"""Slots that a program reads at once."""
PARTS = 8
"""Programs per head."""


@triton.jit
def _attend_part(query, new_key, new_value, query_stride, key_stride, value_stride, keys, values, slot_at, limit_at,
                 visible, batch_slot_at, metadata_stride, sums, weights_of, best_of, slots, scale, D: tl.constexpr,
                 BLOCK: tl.constexpr):  # fmt: skip
    head, part, parts, row = tl.program_id(0), tl.program_id(1), tl.num_programs(1), tl.program_id(2)
    heads = tl.num_programs(0)
    query += row * query_stride
    new_key += row * key_stride
    new_value += row * value_stride
    metadata = row * metadata_stride
    slot_at, limit_at, visible = slot_at + metadata, limit_at + metadata, visible + metadata
    channel = tl.arange(0, D)
    own = head * D + channel
    q = tl.load(query + own).to(tl.float32) * scale
    k, v = tl.load(new_key + own).to(tl.float32), tl.load(new_value + own).to(tl.float32)
    slot, limit = tl.load(slot_at), tl.load(limit_at)
    base = (tl.load(batch_slot_at + metadata) * heads + head).to(tl.int64) * slots * D
    if part == 0:
        tl.store(keys + base + slot * D + channel, k.to(keys.dtype.element_ty))
        tl.store(values + base + slot * D + channel, v.to(values.dtype.element_ty))
    # The frame's own token comes from registers, in the first part; all others from the pool.
    best = tl.sum(q * k, 0)
    is_first = (part == 0).to(tl.float32)
    total = is_first
    acc = v * is_first
    rows = tl.arange(0, BLOCK)
    for first in range(part * BLOCK, limit, parts * BLOCK):
        past = first + rows
        is_past = (tl.load(visible + past, mask=past < slots, other=0) != 0) & (past != slot)
        offset = base + past[:, None] * D + channel[None, :]
        past_keys = tl.load(keys + offset, mask=is_past[:, None], other=0.0).to(tl.float32)
        scores = tl.where(is_past, tl.sum(past_keys * q[None, :], 1), -1e30)
        higher = tl.maximum(best, tl.max(scores, 0))
        weights = tl.where(is_past, tl.exp(scores - higher), 0.0)
        shrink = tl.exp(best - higher)
        past_values = tl.load(values + offset, mask=is_past[:, None], other=0.0).to(tl.float32)
        acc = acc * shrink + tl.sum(past_values * weights[:, None], 0)
        total = total * shrink + tl.sum(weights, 0)
        best = higher
    offset = (row * heads + head) * parts + part
    tl.store(sums + offset * D + channel, acc)
    tl.store(weights_of + offset, total)
    tl.store(best_of + offset, best)


@triton.jit
def _join_parts(sums, weights_of, best_of, out, D: tl.constexpr, PARTS: tl.constexpr):
    head = tl.program_id(0)
    channel = tl.arange(0, D)
    offset = head * PARTS + tl.arange(0, PARTS)
    best = tl.load(best_of + offset)
    shrink = tl.exp(best - tl.max(best, 0))
    total = tl.sum(tl.load(weights_of + offset) * shrink, 0)
    acc = tl.sum(tl.load(sums + offset[:, None] * D + channel[None, :]) * shrink[:, None], 0)
    tl.store(out + head * D + channel, (acc / total).to(out.dtype.element_ty))


def attend_slots(q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, metadata: StepMetadata) -> Tensor:
    """Store k, v [R, H, D] of R streams in the pools [batch slots, H, slots, D] and attend to the visible slots.

    q [R, H, D] -> [R, H, D].
    """
    rows, heads, channels = q.shape
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    out = q.new_empty(q.shape)
    sums = torch.empty(rows, heads, PARTS, channels, device=q.device)
    weights, best = torch.empty(2, rows, heads, PARTS, device=q.device)
    _attend_part[(heads, PARTS, rows)](
        q,
        k,
        v,
        q.stride(0),
        k.stride(0),
        v.stride(0),
        keys,
        values,
        metadata.camera_slot,
        metadata.camera_limit,
        metadata.camera_visible,
        metadata.batch_slot,
        metadata.stride,
        sums,
        weights,
        best,
        keys.shape[2],
        channels**-0.5,
        D=channels,
        BLOCK=BLOCK,
    )
    _join_parts[(rows * heads,)](sums, weights, best, out, D=channels, PARTS=PARTS)
    return out
