# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"
"""Triton kernels for the operations between a block's matrix products, for inference in bf16 on a GPU.

The residual stream is fp32; inputs of matrix products are bf16. Norms, gains and rotations are computed in fp32.
"""

from collections.abc import Sequence
from typing import Literal

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from stream_recon.models.rope import Rotation

Turn = Literal["none", "frame", "global"]
"""Pairs of channels that RoPE rotates: none, those of `rotate_frame`, or those of `rotate_global`."""


@triton.jit(do_not_specialize=("rows",))
def _norm(x, weight, bias, out, eps, rows, stride, C: tl.constexpr, PITCH: tl.constexpr,
          BLOCK: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    channel = tl.arange(0, BLOCK)
    mask = channel < C
    x += row // rows * stride + row % rows * C
    value = tl.load(x + channel, mask=mask, other=0.0).to(tl.float32)
    mean = tl.sum(value, 0) / C
    centred = tl.where(mask, value - mean, 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, 0) / C + eps)
    y = centred * scale * tl.load(weight + channel, mask=mask) + tl.load(bias + channel, mask=mask)
    tl.store(out + row * PITCH + channel, y.to(out.dtype.element_ty), mask=mask)


@triton.jit
def _add_scaled(x, branch, gain, weight, bias, out, normed, eps, C: tl.constexpr, BLOCK: tl.constexpr,
                NORM: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    channel = tl.arange(0, BLOCK)
    mask = channel < C
    place = row * C + channel
    value = tl.load(x + place, mask=mask, other=0.0)
    value += tl.load(branch + place, mask=mask, other=0.0).to(tl.float32) * tl.load(
        gain + channel, mask=mask, other=0.0
    )
    tl.store(out + place, value, mask=mask)
    if NORM:
        mean = tl.sum(value, 0) / C
        centred = tl.where(mask, value - mean, 0.0)
        scale = tl.rsqrt(tl.sum(centred * centred, 0) / C + eps)
        y = centred * scale * tl.load(weight + channel, mask=mask) + tl.load(bias + channel, mask=mask)
        tl.store(normed + place, y.to(normed.dtype.element_ty), mask=mask)


@triton.jit
def _norm_and_turn(qkv, q_weight, q_bias, k_weight, k_bias, cosines, sines, q_out, k_out, eps, table_rows,
                   H: tl.constexpr, D: tl.constexpr, BLOCK_H: tl.constexpr, NORM: tl.constexpr,
                   TURN: tl.constexpr):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head = tl.arange(0, BLOCK_H)[:, None]
    channel = tl.arange(0, D)
    mask = head < H
    quarter: tl.constexpr = D // 4
    if TURN == 1:  # frame: channel i of each half pairs with i + D / 4
        first = (channel // quarter) % 2 == 0
        partner = tl.where(first, channel + quarter, channel - quarter)
        angle = channel // (2 * quarter) * quarter + channel % quarter
    else:  # global: neighbours pair up
        first = channel % 2 == 0
        partner = channel ^ 1
        angle = channel // 2
    for part in tl.static_range(2):
        weight, bias, out = (q_weight, q_bias, q_out) if part == 0 else (k_weight, k_bias, k_out)
        source = qkv + token * (3 * H * D) + part * (H * D) + head * D
        x = tl.load(source + channel[None, :], mask=mask, other=0.0).to(tl.float32)
        if NORM:
            mean = tl.sum(x, 1)[:, None] / D
            centred = x - mean
            scale = tl.rsqrt(tl.sum(centred * centred, 1)[:, None] / D + eps)
            x = centred * scale * tl.load(weight + channel)[None, :] + tl.load(bias + channel)[None, :]
        if TURN:
            other = tl.load(source + partner[None, :], mask=mask, other=0.0).to(tl.float32)
            if NORM:
                other = (other - mean) * scale * tl.load(weight + partner)[None, :] + tl.load(bias + partner)[None, :]
            row = token % table_rows * (D // 2) + angle
            sine = tl.load(sines + row)
            x = x * tl.load(cosines + row)[None, :] + other * tl.where(first, -sine, sine)[None, :]
        tl.store(out + token * (H * D) + head * D + channel[None, :], x.to(out.dtype.element_ty), mask=mask)


def norm(x: Tensor, layer: nn.LayerNorm, dtype: torch.dtype) -> Tensor:
    """Layer norm of fp32 x [..., C], as ``dtype``."""
    return _norm_into(x, layer, x.new_empty(x.shape, dtype=dtype))


def norm_side_by_side(xs: Sequence[Tensor], layer: nn.LayerNorm, dtype: torch.dtype) -> Tensor:
    """Layer norms of N fp32 tensors [F, P, C], as ``dtype``, [F, P, N * C]."""
    joined = xs[0].new_empty(*xs[0].shape[:-1], len(xs) * xs[0].shape[-1], dtype=dtype)
    for x, out in zip(xs, joined.chunk(len(xs), dim=-1), strict=True):
        _norm_into(x, layer, out)
    return joined


def _norm_into(x: Tensor, layer: nn.LayerNorm, out: Tensor) -> Tensor:
    """``out``: [..., C], its rows at equal distances."""
    channels = x.shape[-1]
    # Rows of a part of each frame's tokens are read where they are.
    if x.dim() != 3 or x.stride(1) != channels or x.stride(2) != 1:
        x = x.contiguous()
    rows, stride = (x.shape[1], x.stride(0)) if x.dim() == 3 else (1, channels)
    _norm[(x.numel() // channels,)](
        x,
        layer.weight,
        layer.bias,
        out,
        layer.eps,
        rows,
        stride,
        C=channels,
        PITCH=out.stride(-2) if out.dim() > 1 else channels,
        BLOCK=triton.next_power_of_2(channels),
        num_warps=4,
    )
    return out


def add_scaled(x: Tensor, branch: Tensor, gain: Tensor, layer: nn.LayerNorm | None = None) -> tuple[Tensor, Tensor]:
    """fp32 x [..., C] + branch * gain [C]; and its layer norm in ``branch``'s type (``branch`` itself without one)."""
    x, branch = x.contiguous(), branch.contiguous()
    channels = x.shape[-1]
    out = x.new_empty(x.shape)
    normed = branch.new_empty(branch.shape) if layer is not None else branch
    weight, bias, eps = (layer.weight, layer.bias, layer.eps) if layer is not None else (gain, gain, 0.0)
    _add_scaled[(x.numel() // channels,)](
        x,
        branch,
        gain,
        weight,
        bias,
        out,
        normed,
        eps,
        C=channels,
        BLOCK=triton.next_power_of_2(channels),
        NORM=layer is not None,
        num_warps=4,
    )
    return out, normed


def norm_and_rope(
    qkv: Tensor, q_norm: nn.Module, k_norm: nn.Module, turn: Turn, rotation: Rotation | None
) -> tuple[Tensor, Tensor]:
    """Queries and keys of qkv [N, T, 3, H, D], normalised over D and with RoPE applied -> two of [N, T, H, D].

    ``rotation``: cosines and sines whose rows, one for each token, repeat along N where there are fewer.
    """
    qkv = qkv.contiguous()
    heads, channels = qkv.shape[-2:]
    tokens = qkv.numel() // (3 * heads * channels)
    q, k = (qkv.new_empty(*qkv.shape[:2], heads, channels) for _ in range(2))
    has_norm = isinstance(q_norm, nn.LayerNorm) and isinstance(k_norm, nn.LayerNorm)
    vectors = (q_norm.weight, q_norm.bias, k_norm.weight, k_norm.bias) if has_norm else (qkv,) * 4
    cosines, sines = (r.contiguous() for r in rotation) if rotation is not None else (qkv, qkv)
    _norm_and_turn[(tokens,)](
        qkv,
        *vectors,
        cosines,
        sines,
        q,
        k,
        q_norm.eps if has_norm else 0.0,
        cosines.numel() // (channels // 2) if rotation is not None else 1,
        H=heads,
        D=channels,
        BLOCK_H=triton.next_power_of_2(heads),
        NORM=has_norm,
        TURN=("none", "frame", "global").index(turn),
        num_warps=4,
    )
    return q, k
