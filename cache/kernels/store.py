# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"
"""Store frames' keys and values at the positions of a step's metadata (Triton)."""

import math

import triton
import triton.language as tl
from torch import Tensor

from stream_recon.cache.frame_cache import FrameCacheSchema
from stream_recon.cache.step_metadata import PoolPositions

TOKENS_AT_ONCE = 4
"""Tokens of a program."""


@triton.jit
def _store_tokens(program, new_keys, new_values, key_stride, value_stride, keys, values, at_special, at_patches,
                  key_norms, tokens, special, H: tl.constexpr, D: tl.constexpr, BLOCK_T: tl.constexpr,
                  BLOCK_H: tl.constexpr):  # fmt: skip
    token = program * BLOCK_T + tl.arange(0, BLOCK_T)[:, None, None]
    head = tl.arange(0, BLOCK_H)[None, :, None]
    channel = tl.arange(0, D)[None, None, :]
    mask = (token < tokens) & (head < H)
    column = head * D + channel
    k = tl.load(new_keys + token * key_stride + column, mask=mask, other=0.0)
    v = tl.load(new_values + token * value_stride + column, mask=mask, other=0.0)
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
def _store_block_means(program, new, stride, pool, at_blocks, special, rows, columns, H: tl.constexpr, D: tl.constexpr,
                       BLOCK_T: tl.constexpr, BLOCK_H: tl.constexpr, SIDE: tl.constexpr):  # fmt: skip
    """No mean is longer than the longest key, so norms need no update."""
    across = tl.cdiv(columns, SIDE)
    block = program * BLOCK_T + tl.arange(0, BLOCK_T)[:, None, None]
    head = tl.arange(0, BLOCK_H)[None, :, None]
    column = head * D + tl.arange(0, D)[None, None, :]
    mask = (block < across * tl.cdiv(rows, SIDE)) & (head < H)
    top, left = block // across * SIDE, block % across * SIDE
    total = tl.zeros([BLOCK_T, BLOCK_H, D], tl.float32)
    for y in tl.static_range(SIDE):
        for x in tl.static_range(SIDE):
            token = special + (top + y) * columns + left + x
            inside = mask & (top + y < rows) & (left + x < columns)
            total += tl.load(new + token * stride + column, mask=inside, other=0.0).to(tl.float32)
    patches = tl.minimum(rows - top, SIDE) * tl.minimum(columns - left, SIDE)
    mean = total / tl.maximum(patches, 1).to(tl.float32)
    offset = (at_blocks + block).to(tl.int64)
    tl.store(pool + offset * (H * D) + column, mean.to(pool.dtype.element_ty), mask=mask)


@triton.jit
def _store(new_keys, new_values, key_stride, value_stride, key_row_stride, value_row_stride, keys, values, special_at,
           patch_at, block_at, batch_slot, metadata_stride, key_norms, tokens, special, rows, columns, H: tl.constexpr,
           D: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_H: tl.constexpr, SIDE: tl.constexpr):  # fmt: skip
    program, row = tl.program_id(0), tl.program_id(1)
    new_keys += row.to(tl.int64) * key_row_stride
    new_values += row.to(tl.int64) * value_row_stride
    metadata = row * metadata_stride
    key_norms += tl.load(batch_slot + metadata) * H
    at_special, at_patches = tl.load(special_at + metadata), tl.load(patch_at + metadata)
    if SIDE == 1:
        _store_tokens(program, new_keys, new_values, key_stride, value_stride, keys, values, at_special, at_patches,
                      key_norms, tokens, special, H, D, BLOCK_T, BLOCK_H)  # fmt: skip
    else:
        token_programs = tl.cdiv(tokens, BLOCK_T)
        if program < token_programs:
            _store_tokens(program, new_keys, new_values, key_stride, value_stride, keys, values, at_special,
                          at_patches, key_norms, tokens, special, H, D, BLOCK_T, BLOCK_H)  # fmt: skip
        else:
            at_blocks, of_blocks = tl.load(block_at + metadata), program - token_programs
            _store_block_means(of_blocks, new_keys, key_stride, keys, at_blocks, special, rows, columns, H, D,
                               BLOCK_T, BLOCK_H, SIDE)  # fmt: skip
            _store_block_means(of_blocks, new_values, value_stride, values, at_blocks, special, rows, columns, H, D,
                               BLOCK_T, BLOCK_H, SIDE)  # fmt: skip


@triton.jit
def _fill_ones(out):
    tl.store(out, 1.0)


def fill_ones(out: Tensor) -> Tensor:
    """Write 1 to a tensor of one element: the smallest test that kernels run."""
    _fill_ones[(1,)](out)
    return out


def store_frame(
    k: Tensor,
    v: Tensor,
    keys: Tensor,
    values: Tensor,
    key_norms: Tensor,
    schema: FrameCacheSchema,
    positions: PoolPositions,
) -> None:
    """Store k, v [R, T, H, D] of R streams' frames in pools [C, H, D], at each row's ``positions``.

    The first tokens of a frame are special tokens, the others patches. ``key_norms`` [batch slots, H] are raised to the
    largest norm of a key. For a compressed layer, the means of blocks of patches are stored too.
    """
    rows, tokens, heads, channels = k.shape
    assert k.stride()[2:] == v.stride()[2:] == (channels, 1), "heads and channels of a token must be contiguous"
    blocks = math.prod(triton.cdiv(side, schema.block_side) for side in schema.grid)
    programs = triton.cdiv(tokens, TOKENS_AT_ONCE) + triton.cdiv(blocks, TOKENS_AT_ONCE)
    _store[(programs, rows)](
        k,
        v,
        k.stride(1),
        v.stride(1),
        k.stride(0),
        v.stride(0),
        keys,
        values,
        positions.special_at,
        positions.patch_at,
        positions.block_at,
        positions.batch_slot,
        positions.stride,
        key_norms,
        tokens,
        schema.special,
        *schema.grid,
        H=heads,
        D=channels,
        BLOCK_T=TOKENS_AT_ONCE,
        BLOCK_H=triton.next_power_of_2(heads),
        SIDE=schema.block_side,
    )
