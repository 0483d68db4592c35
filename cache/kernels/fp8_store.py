# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"
"""Store one frame in a cache of e4m3: queries, keys, and values, also where attention reads them (Triton).

Two kernels, since a page's scale has to be known before its first number is written. The first one rotates and rounds
queries and keys, and writes the largest value of every `TOKENS_AT_ONCE` tokens; each program of the second takes the
largest of these, so nothing has to be reset between steps.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from stream_recon.cache.fp8_pages import E4M3_MAX, FP8, MIN_LARGEST, ValuePages, hadamard_matrix
from stream_recon.cache.step_metadata import PoolPositions

TOKENS_AT_ONCE = 32
"""Tokens of a program."""


@triton.jit
def _rotate_and_round(x, matrix, scale, E4M3_MAX: tl.constexpr):
    rotated = tl.dot(x.to(tl.bfloat16), matrix) * scale
    return tl.minimum(tl.maximum(rotated, -E4M3_MAX), E4M3_MAX).to(tl.float8e4nv)


@triton.jit
def _store(new_queries, new_keys, new_values, query_stride, key_stride, value_stride, hadamard, scale, queries, keys,
           values, dequantised, special_at, patch_at, key_norms, largest, tokens, special, H: tl.constexpr,
           D: tl.constexpr, BLOCK_T: tl.constexpr, E4M3_MAX: tl.constexpr):  # fmt: skip
    chunk, head, chunks = tl.program_id(0), tl.program_id(1), tl.num_programs(0)
    token = chunk * BLOCK_T + tl.arange(0, BLOCK_T)[:, None]
    column = head * D + tl.arange(0, D)[None, :]
    mask, is_patch = token < tokens, token >= special
    matrix = tl.load(hadamard + tl.arange(0, D)[:, None] * D + tl.arange(0, D)[None, :])
    q = tl.load(new_queries + token * query_stride + column, mask=mask, other=0.0)
    tl.store(queries + token * (H * D) + column, _rotate_and_round(q, matrix, scale, E4M3_MAX), mask=mask)
    at_special = tl.load(special_at)
    offset = tl.where(is_patch, tl.load(patch_at) + token - special, at_special + token).to(tl.int64)
    k = tl.load(new_keys + token * key_stride + column, mask=mask, other=0.0)
    k = _rotate_and_round(k, matrix, scale, E4M3_MAX)
    tl.store(keys + offset * (H * D) + column, k, mask=mask)
    v = tl.load(new_values + token * value_stride + column, mask=mask, other=0.0)
    tl.store(values + offset * (H * D) + column, v, mask=mask & (token < special))
    tl.store(dequantised + offset * (H * D) + column, v, mask=mask & (token < special))
    tl.store(largest + head * chunks + chunk, tl.max(tl.max(tl.where(is_patch, tl.abs(v.to(tl.float32)), 0.0), 1), 0))
    k32 = k.to(tl.float32)
    norm = tl.max(tl.sqrt(tl.sum(k32 * k32, 1)), 0)
    # Few keys exceed the largest norm so far: reading it first saves most atomic writes.
    tl.atomic_max(key_norms + head, norm, mask=norm > tl.load(key_norms + head))


@triton.jit
def _quantise(new_values, value_stride, values, scales, dequantised, patch_at, largest, chunks, base, special,
              PATCHES: tl.constexpr, H: tl.constexpr, D: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_C: tl.constexpr,
              E4M3_MAX: tl.constexpr, MIN_LARGEST: tl.constexpr):  # fmt: skip
    head = tl.program_id(1)
    part = tl.arange(0, BLOCK_C)
    v_largest = tl.maximum(
        tl.max(tl.load(largest + head * chunks + part, mask=part < chunks, other=0.0), 0), MIN_LARGEST
    )
    at_patches = tl.load(patch_at)
    slot = (at_patches - base) // PATCHES
    patch = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)[:, None]
    column = head * D + tl.arange(0, D)[None, :]
    mask = patch < PATCHES
    v = tl.load(new_values + (special + patch) * value_stride + column, mask=mask, other=0.0).to(tl.float32)
    offset = (slot * PATCHES + patch).to(tl.int64) * (H * D) + column
    kept = (v * tl.div_rn(E4M3_MAX, v_largest)).to(tl.float8e4nv)
    scale = v_largest / E4M3_MAX
    tl.store(values + offset, kept, mask=mask)
    offset = (at_patches + patch).to(tl.int64) * (H * D) + column
    tl.store(dequantised + offset, (kept.to(tl.float32) * scale).to(dequantised.dtype.element_ty), mask=mask)
    if tl.program_id(0) == 0:
        tl.store(scales + slot * H + head, scale)


def store_frame(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keys: Tensor,
    values: Tensor,
    pages: ValuePages,
    dequantised: Tensor,
    key_norms: Tensor,
    positions: PoolPositions,
) -> Tensor:
    """Store one frame's k and v [T, H, D] at ``positions``; returns q, rotated, in e4m3 [T, H, D].

    Args:
        keys: e4m3 [C, H, D], receives k, rotated.
        values: [base, H, D], receives v of the special tokens, which come before the last P tokens.
        pages: receive v of the P patches, as `quantise` does.
        dequantised: bf16 [C, H, D], receives all of v, as stored.
        key_norms: float32 [H], raised to the largest norm of a key in e4m3.
    """
    tokens, heads, channels = k.shape
    assert all(x.stride()[1:] == (channels, 1) for x in (q, k, v)), "heads and channels of a token must be contiguous"
    patches = pages.values.shape[1]
    special = tokens - patches
    chunks = triton.cdiv(tokens, TOKENS_AT_ONCE)
    largest = torch.empty(heads, chunks, device=k.device)
    queries = torch.empty(tokens, heads, channels, device=q.device, dtype=FP8)
    _store[(chunks, heads)](
        q,
        k,
        v,
        q.stride(0),
        k.stride(0),
        v.stride(0),
        hadamard_matrix(channels, k.device),
        channels**-0.5,
        queries,
        keys,
        values,
        dequantised,
        positions.special_at,
        positions.patch_at,
        key_norms,
        largest,
        tokens,
        special,
        H=heads,
        D=channels,
        BLOCK_T=TOKENS_AT_ONCE,
        E4M3_MAX=E4M3_MAX,
    )
    _quantise[(triton.cdiv(patches, TOKENS_AT_ONCE), heads)](
        v,
        v.stride(0),
        pages.values,
        pages.scales,
        dequantised,
        positions.patch_at,
        largest,
        chunks,
        len(values),
        special,
        PATCHES=patches,
        H=heads,
        D=channels,
        BLOCK_T=TOKENS_AT_ONCE,
        BLOCK_C=triton.next_power_of_2(chunks),
        E4M3_MAX=E4M3_MAX,
        MIN_LARGEST=MIN_LARGEST,
    )
    return queries
