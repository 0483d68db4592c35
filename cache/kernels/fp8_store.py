# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"
"""One frame's queries and keys to e4m3, its values to a page and its special tokens' to a pool, where the step says,
and both to where attention reads them (Triton).

Two kernels, since a page's scale has to be known before its first number is written. The first one spreads and rounds
queries and keys, and leaves the largest value of every few tokens; each program of the second takes the largest of
these, so nothing has to be reset between steps.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from stream_recon.cache.fp8_pages import FP8, LARGEST, LEAST, ValuePages, hadamard_matrix
from stream_recon.cache.step_metadata import StepMetadata

TOKENS_AT_ONCE = 32


@triton.jit
def _spread_and_rounded(x, matrix, scale, LARGEST: tl.constexpr):
    spread = tl.dot(x.to(tl.bfloat16), matrix) * scale
    return tl.minimum(tl.maximum(spread, -LARGEST), LARGEST).to(tl.float8e4nv)


@triton.jit
def _store(new_queries, new_keys, new_values, query_stride, key_stride, value_stride, hadamard, scale, queries, keys,
           values, widened, special_at, patch_at, key_norms, largest, tokens, special, H: tl.constexpr, D: tl.constexpr,
           BLOCK_T: tl.constexpr, LARGEST: tl.constexpr):  # fmt: skip
    chunk, head, chunks = tl.program_id(0), tl.program_id(1), tl.num_programs(0)
    token = chunk * BLOCK_T + tl.arange(0, BLOCK_T)[:, None]
    column = head * D + tl.arange(0, D)[None, :]
    mask, is_patch = token < tokens, token >= special
    matrix = tl.load(hadamard + tl.arange(0, D)[:, None] * D + tl.arange(0, D)[None, :])
    q = tl.load(new_queries + token * query_stride + column, mask=mask, other=0.0)
    tl.store(queries + token * (H * D) + column, _spread_and_rounded(q, matrix, scale, LARGEST), mask=mask)
    at_special = tl.load(special_at)
    place = tl.where(is_patch, tl.load(patch_at) + token - special, at_special + token).to(tl.int64)
    k = tl.load(new_keys + token * key_stride + column, mask=mask, other=0.0)
    k = _spread_and_rounded(k, matrix, scale, LARGEST)
    tl.store(keys + place * (H * D) + column, k, mask=mask)
    v = tl.load(new_values + token * value_stride + column, mask=mask, other=0.0)
    tl.store(values + place * (H * D) + column, v, mask=mask & (token < special))
    tl.store(widened + place * (H * D) + column, v, mask=mask & (token < special))
    tl.store(largest + head * chunks + chunk, tl.max(tl.max(tl.where(is_patch, tl.abs(v.to(tl.float32)), 0.0), 1), 0))
    k32 = k.to(tl.float32)
    norm = tl.max(tl.sqrt(tl.sum(k32 * k32, 1)), 0)
    # Most keys are no longer than one before them: look first, so that few programs write.
    tl.atomic_max(key_norms + head, norm, mask=norm > tl.load(key_norms + head))


@triton.jit
def _quantise(new_values, value_stride, values, scales, widened, patch_at, largest, chunks, base, special,
              PATCHES: tl.constexpr, H: tl.constexpr, D: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_C: tl.constexpr,
              LARGEST: tl.constexpr, LEAST: tl.constexpr):  # fmt: skip
    head = tl.program_id(1)
    part = tl.arange(0, BLOCK_C)
    v_largest = tl.maximum(tl.max(tl.load(largest + head * chunks + part, mask=part < chunks, other=0.0), 0), LEAST)
    at_patches = tl.load(patch_at)
    slot = (at_patches - base) // PATCHES
    patch = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)[:, None]
    column = head * D + tl.arange(0, D)[None, :]
    mask = patch < PATCHES
    v = tl.load(new_values + (special + patch) * value_stride + column, mask=mask, other=0.0).to(tl.float32)
    place = (slot * PATCHES + patch).to(tl.int64) * (H * D) + column
    kept = (v * tl.div_rn(LARGEST, v_largest)).to(tl.float8e4nv)
    scale = v_largest / LARGEST
    tl.store(values + place, kept, mask=mask)
    place = (at_patches + patch).to(tl.int64) * (H * D) + column
    tl.store(widened + place, (kept.to(tl.float32) * scale).to(widened.dtype.element_ty), mask=mask)
    if tl.program_id(0) == 0:
        tl.store(scales + slot * H + head, scale)


def store_frame(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keys: Tensor,
    values: Tensor,
    pages: ValuePages,
    widened: Tensor,
    key_norms: Tensor,
    inputs: StepMetadata,
) -> Tensor:
    """Put one frame's k [T, H, D] where ``inputs`` says: spread, in e4m3, into a pool ``keys`` [C, H, D]; v of its
    special tokens, all before the last P, into a pool ``values`` [base, H, D]; v of its P patches into a page, as
    `quantise` does; and all of v, as it is kept, into a pool ``widened`` [C, H, D], where attention reads it. Raise
    ``key_norms`` [H] to the largest norm of a key in e4m3. Gives q, spread, in e4m3 [T, H, D]. k and q are in bf16."""
    tokens, heads, channels = k.shape
    assert all(x.stride()[1:] == (channels, 1) for x in (q, k, v)), "heads and channels of a token lie together"
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
        widened,
        inputs.special_at,
        inputs.patch_at,
        key_norms,
        largest,
        tokens,
        special,
        H=heads,
        D=channels,
        BLOCK_T=TOKENS_AT_ONCE,
        LARGEST=LARGEST,
    )
    _quantise[(triton.cdiv(patches, TOKENS_AT_ONCE), heads)](
        v,
        v.stride(0),
        pages.values,
        pages.scales,
        widened,
        inputs.patch_at,
        largest,
        chunks,
        len(values),
        special,
        PATCHES=patches,
        H=heads,
        D=channels,
        BLOCK_T=TOKENS_AT_ONCE,
        BLOCK_C=triton.next_power_of_2(chunks),
        LARGEST=LARGEST,
        LEAST=LEAST,
    )
    return queries
