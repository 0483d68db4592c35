# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"
"""Store frames' keys and values at the positions of a step's metadata (Triton)."""

import triton
import triton.language as tl
from torch import Tensor

from stream_recon.cache.step_metadata import StepMetadata

TOKENS_AT_ONCE = 4
"""Tokens of a program."""


@triton.jit
def _store(new_keys, new_values, key_stride, value_stride, key_row_stride, value_row_stride, keys, values, special_at,
           patch_at, batch_slot, metadata_stride, key_norms, tokens, special, H: tl.constexpr, D: tl.constexpr,
           BLOCK_T: tl.constexpr, BLOCK_H: tl.constexpr):  # fmt: skip
    row = tl.program_id(1)
    new_keys += row.to(tl.int64) * key_row_stride
    new_values += row.to(tl.int64) * value_row_stride
    metadata = row * metadata_stride
    key_norms += tl.load(batch_slot + metadata) * H
    token = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)[:, None, None]
    head = tl.arange(0, BLOCK_H)[None, :, None]
    channel = tl.arange(0, D)[None, None, :]
    mask = (token < tokens) & (head < H)
    column = head * D + channel
    k = tl.load(new_keys + token * key_stride + column, mask=mask, other=0.0)
    v = tl.load(new_values + token * value_stride + column, mask=mask, other=0.0)
    at_special, at_patches = tl.load(special_at + metadata), tl.load(patch_at + metadata)
    offset = tl.where(token < special, at_special + token, at_patches + token - special).to(tl.int64)
    tl.store(keys + offset * (H * D) + column, k, mask=mask)
    tl.store(values + offset * (H * D) + column, v, mask=mask)
    k32 = k.to(tl.float32)
    norms = tl.max(tl.sqrt(tl.sum(k32 * k32, 2)), 0)
    heads = tl.arange(0, BLOCK_H)
    # Few keys exceed the largest norm so far: reading it first saves most atomic writes.
    known = tl.load(key_norms + heads, mask=heads < H, other=0.0)
    tl.atomic_max(key_norms + heads, norms, mask=(heads < H) & (norms > known))


@triton.jit
def _fill_ones(out):
    tl.store(out, 1.0)


def fill_ones(out: Tensor) -> Tensor:
    """Write 1 to a tensor of one element: the smallest test that kernels run."""
    _fill_ones[(1,)](out)
    return out


def store_frame(
    k: Tensor, v: Tensor, keys: Tensor, values: Tensor, key_norms: Tensor, special: int, metadata: StepMetadata
) -> None:
    """Store k, v [R, T, H, D] of R streams' frames in pools [C, H, D], at the positions of each row of ``metadata``.

    The first ``special`` tokens of a frame are special tokens, the others patches. ``key_norms`` [batch slots, H]
    are raised to the largest norm of a key.
    """
    rows, tokens, heads, channels = k.shape
    assert k.stride()[2:] == v.stride()[2:] == (channels, 1), "heads and channels of a token must be contiguous"
    _store[(triton.cdiv(tokens, TOKENS_AT_ONCE), rows)](
        k,
        v,
        k.stride(1),
        v.stride(1),
        k.stride(0),
        v.stride(0),
        keys,
        values,
        metadata.special_at,
        metadata.patch_at,
        metadata.batch_slot,
        metadata.stride,
        key_norms,
        tokens,
        special,
        H=heads,
        D=channels,
        BLOCK_T=TOKENS_AT_ONCE,
        BLOCK_H=triton.next_power_of_2(heads),
    )
