# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"
"""Writing one frame's keys and values into a pool, where the step's numbers say (Triton)."""

import triton
import triton.language as tl
from torch import Tensor

from stream_recon.cache.step_inputs import StepInputs

TOKENS_AT_ONCE = 4


@triton.jit
def _store(new_keys, new_values, key_stride, value_stride, keys, values, special_at, patch_at, key_norms, tokens,
           special, H: tl.constexpr, D: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_H: tl.constexpr):  # fmt: skip
    token = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)[:, None, None]
    head = tl.arange(0, BLOCK_H)[None, :, None]
    channel = tl.arange(0, D)[None, None, :]
    mask = (token < tokens) & (head < H)
    column = head * D + channel
    k = tl.load(new_keys + token * key_stride + column, mask=mask, other=0.0)
    v = tl.load(new_values + token * value_stride + column, mask=mask, other=0.0)
    place = tl.where(token < special, tl.load(special_at) + token, tl.load(patch_at) + token - special).to(tl.int64)
    tl.store(keys + place * (H * D) + column, k, mask=mask)
    tl.store(values + place * (H * D) + column, v, mask=mask)
    k32 = k.to(tl.float32)
    norms = tl.max(tl.sqrt(tl.sum(k32 * k32, 2)), 0)
    heads = tl.arange(0, BLOCK_H)
    # Most keys are no longer than one before them: look first, so that few programs write.
    known = tl.load(key_norms + heads, mask=heads < H, other=0.0)
    tl.atomic_max(key_norms + heads, norms, mask=(heads < H) & (norms > known))


@triton.jit
def _fill_ones(out):
    tl.store(out, 1.0)


def fill_ones(out: Tensor) -> Tensor:
    """Write 1 to a tensor of one element: the least that shows that kernels run."""
    _fill_ones[(1,)](out)
    return out


def store_frame(
    k: Tensor, v: Tensor, keys: Tensor, values: Tensor, key_norms: Tensor, special: int, inputs: StepInputs
) -> None:
    """Put k, v [T, H, D], the first ``special`` tokens and the patches each where ``inputs`` says, into pools
    [C, H, D]; raise ``key_norms`` [H] to the largest norm of a key."""
    tokens, heads, channels = k.shape
    assert k.stride()[1:] == v.stride()[1:] == (channels, 1), "heads and channels of a token lie together"
    _store[(triton.cdiv(tokens, TOKENS_AT_ONCE),)](
        k,
        v,
        k.stride(0),
        v.stride(0),
        keys,
        values,
        inputs.special_at,
        inputs.patch_at,
        key_norms,
        tokens,
        special,
        H=heads,
        D=channels,
        BLOCK_T=TOKENS_AT_ONCE,
        BLOCK_H=triton.next_power_of_2(heads),
    )
