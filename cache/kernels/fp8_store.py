# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"
"""Quantising one frame's keys and values into the page, and its special tokens' place, that the step says (Triton).

Two kernels, since a page's scale has to be known before its first number is written. The first one leaves the largest
number of every few tokens; each program of the second takes the largest of these, so nothing has to be reset between
steps.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from stream_recon.cache.fp8_pages import LARGEST, LEAST, Fp8Pages
from stream_recon.cache.step_inputs import StepInputs

TOKENS_AT_ONCE = 32


@triton.jit
def _largest(x, is_patch):
    return tl.max(tl.max(tl.where(is_patch, tl.abs(x), 0.0), 1), 0)


@triton.jit
def _measure(new_keys, new_values, key_stride, value_stride, keys, values, special_at, key_norms, largest, tokens,
             special, H: tl.constexpr, D: tl.constexpr, BLOCK_T: tl.constexpr):  # fmt: skip
    chunk, head, chunks = tl.program_id(0), tl.program_id(1), tl.num_programs(0)
    token = chunk * BLOCK_T + tl.arange(0, BLOCK_T)[:, None]
    column = head * D + tl.arange(0, D)[None, :]
    mask, is_patch = token < tokens, token >= special
    k = tl.load(new_keys + token * key_stride + column, mask=mask, other=0.0)
    v = tl.load(new_values + token * value_stride + column, mask=mask, other=0.0)
    place = (tl.load(special_at) + token).to(tl.int64) * (H * D) + column
    tl.store(keys + place, k, mask=mask & (token < special))
    tl.store(values + place, v, mask=mask & (token < special))
    k32, v32 = k.to(tl.float32), v.to(tl.float32)
    tl.store(largest + head * chunks + chunk, _largest(k32, is_patch))
    tl.store(largest + (H + head) * chunks + chunk, _largest(v32, is_patch))
    norm = tl.max(tl.sqrt(tl.sum(k32 * k32, 1)), 0)
    # Most keys are no longer than one before them: look first, so that few programs write.
    tl.atomic_max(key_norms + head, norm, mask=norm > tl.load(key_norms + head))


@triton.jit
def _quantise(new_keys, new_values, key_stride, value_stride, keys, values, key_scales, value_scales, patch_at,
              largest, chunks, base, special, PATCHES: tl.constexpr, H: tl.constexpr, D: tl.constexpr,
              BLOCK_T: tl.constexpr, BLOCK_C: tl.constexpr, LARGEST: tl.constexpr, LEAST: tl.constexpr):  # fmt: skip
    head = tl.program_id(1)
    part = tl.arange(0, BLOCK_C)
    k_largest = tl.max(tl.load(largest + head * chunks + part, mask=part < chunks, other=0.0), 0)
    v_largest = tl.max(tl.load(largest + (H + head) * chunks + part, mask=part < chunks, other=0.0), 0)
    k_largest, v_largest = tl.maximum(k_largest, LEAST), tl.maximum(v_largest, LEAST)
    slot = (tl.load(patch_at) - base) // PATCHES
    patch = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)[:, None]
    column = head * D + tl.arange(0, D)[None, :]
    mask = patch < PATCHES
    k = tl.load(new_keys + (special + patch) * key_stride + column, mask=mask, other=0.0).to(tl.float32)
    v = tl.load(new_values + (special + patch) * value_stride + column, mask=mask, other=0.0).to(tl.float32)
    place = (slot * PATCHES + patch).to(tl.int64) * (H * D) + column
    tl.store(keys + place, (k * tl.div_rn(LARGEST, k_largest)).to(tl.float8e4nv), mask=mask)
    tl.store(values + place, (v * tl.div_rn(LARGEST, v_largest)).to(tl.float8e4nv), mask=mask)
    if tl.program_id(0) == 0:
        tl.store(key_scales + slot * H + head, k_largest / LARGEST)
        tl.store(value_scales + slot * H + head, v_largest / LARGEST)


def store_frame(
    k: Tensor, v: Tensor, keys: Tensor, values: Tensor, pages: Fp8Pages, key_norms: Tensor, inputs: StepInputs
) -> None:
    """Put one frame's k, v [T, H, D] where ``inputs`` says: its special tokens, all before the last P, into pools
    [C, H, D], and its P patches into a page, as `quantise` does; raise ``key_norms`` [H] to the largest norm of a key.
    """
    tokens, heads, channels = k.shape
    assert k.stride()[1:] == v.stride()[1:] == (channels, 1), "heads and channels of a token lie together"
    patches = pages.keys.shape[1]
    special = tokens - patches
    chunks = triton.cdiv(tokens, TOKENS_AT_ONCE)
    largest = torch.empty(2, heads, chunks, device=k.device)
    _measure[(chunks, heads)](
        k,
        v,
        k.stride(0),
        v.stride(0),
        keys,
        values,
        inputs.special_at,
        key_norms,
        largest,
        tokens,
        special,
        H=heads,
        D=channels,
        BLOCK_T=TOKENS_AT_ONCE,
    )
    _quantise[(triton.cdiv(patches, TOKENS_AT_ONCE), heads)](
        k,
        v,
        k.stride(0),
        v.stride(0),
        pages.keys,
        pages.values,
        pages.key_scales,
        pages.value_scales,
        inputs.patch_at,
        largest,
        chunks,
        len(keys),
        special,
        PATCHES=patches,
        H=heads,
        D=channels,
        BLOCK_T=TOKENS_AT_ONCE,
        BLOCK_C=triton.next_power_of_2(chunks),
        LARGEST=LARGEST,
        LEAST=LEAST,
    )
