# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"
"""Triton kernels for the operations between a block's matrix products, for inference in bf16 on a GPU.

The residual stream is fp32; inputs of matrix products are bf16. Norms, gains and rotations are computed in fp32.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor, nn

from stream_recon.models.rope import Rotation, global_table, rotate_frame, time_frequencies

if TYPE_CHECKING:
    from stream_recon.models.layers import Attend, Block, Mlp, Rotate

Turn = Literal["none", "frame", "global"]
"""Pairs of channels that RoPE rotates: none, those of `rotate_frame`, or those of `rotate_global`."""


MAX_NORMS = 4
"""Tensors that one kernel normalises."""


TURN_ANGLE = tl.constexpr(2 * math.pi)
TURNS = tl.constexpr(0.5 / math.pi)


@triton.jit(do_not_specialize=("rows", "out_stride"))
def _norm(x0, x1, x2, x3, weight, bias, out, eps, rows, stride, pitch, out_stride, C: tl.constexpr,
          BLOCK: tl.constexpr):  # fmt: skip
    row, number = tl.program_id(0).to(tl.int64), tl.program_id(1)
    x = x0
    if number == 1:
        x = x1
    elif number == 2:
        x = x2
    elif number == 3:
        x = x3
    channel = tl.arange(0, BLOCK)
    mask = channel < C
    x += row // rows * stride + row % rows * C
    out += number.to(tl.int64) * out_stride
    value = tl.load(x + channel, mask=mask, other=0.0).to(tl.float32)
    mean = tl.sum(value, 0) / C
    centred = tl.where(mask, value - mean, 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, 0) / C + eps)
    y = centred * scale * tl.load(weight + channel, mask=mask) + tl.load(bias + channel, mask=mask)
    tl.store(out + row * pitch + channel, y.to(out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=("x_pitch", "out_pitch"))
def _add_scaled(x, branch, gain, weight, bias, out, normed, eps, x_pitch, out_pitch, C: tl.constexpr,
                BLOCK: tl.constexpr, NORM: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    channel = tl.arange(0, BLOCK)
    mask = channel < C
    offset = row * C + channel
    value = tl.load(x + row * x_pitch + channel, mask=mask, other=0.0)
    value += tl.load(branch + offset, mask=mask, other=0.0).to(tl.float32) * tl.load(
        gain + channel, mask=mask, other=0.0
    )
    tl.store(out + row * out_pitch + channel, value, mask=mask)
    if NORM:
        mean = tl.sum(value, 0) / C
        centred = tl.where(mask, value - mean, 0.0)
        scale = tl.rsqrt(tl.sum(centred * centred, 0) / C + eps)
        y = centred * scale * tl.load(weight + channel, mask=mask) + tl.load(bias + channel, mask=mask)
        tl.store(normed + offset, y.to(normed.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=("tokens",))
def _rotation(times, frequencies, space_cosines, space_sines, cosines, sines, tokens, TIMES: tl.constexpr,
              HALF: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    channel = tl.arange(0, BLOCK)
    in_time, mask = channel < TIMES, channel < HALF
    angle = tl.load(times + row // tokens).to(tl.float64) * tl.load(frequencies + channel, mask=in_time, other=0.0)
    # Turns are removed in float64; what is left needs no more than fp32.
    left = (angle - tl.floor(angle * TURNS + 0.5) * TURN_ANGLE).to(tl.float32)
    offset = row % tokens * (HALF - TIMES) + channel - TIMES
    is_space = mask & (channel >= TIMES)
    cosine = tl.where(in_time, tl.cos(left), tl.load(space_cosines + offset, mask=is_space, other=0.0))
    sine = tl.where(in_time, tl.sin(left), tl.load(space_sines + offset, mask=is_space, other=0.0))
    tl.store(cosines + row * HALF + channel, cosine, mask=mask)
    tl.store(sines + row * HALF + channel, sine, mask=mask)


@triton.jit(do_not_specialize=("table_rows",))
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
    out = x.new_empty(x.shape, dtype=dtype)
    _norm_into([x], layer, out, x.shape[-1], 0)
    return out


def norm_side_by_side(xs: Sequence[Tensor], layer: nn.LayerNorm, dtype: torch.dtype) -> Tensor:
    """Layer norms of N fp32 tensors [F, P, C], as ``dtype``, [F, P, N * C]."""
    channels = xs[0].shape[-1]
    out = xs[0].new_empty(*xs[0].shape[:-1], len(xs) * channels, dtype=dtype)
    _norm_into(xs, layer, out, len(xs) * channels, channels)
    return out


def norm_each(xs: Sequence[Tensor], layer: nn.LayerNorm, dtype: torch.dtype) -> Sequence[Tensor]:
    """Layer norms of N fp32 tensors [F, P, C], as ``dtype``."""
    out = xs[0].new_empty(len(xs), *xs[0].shape, dtype=dtype)
    _norm_into(xs, layer, out, xs[0].shape[-1], xs[0].numel())
    return out.unbind()


def _norm_into(xs: Sequence[Tensor], layer: nn.LayerNorm, out: Tensor, pitch: int, stride: int) -> None:
    """Up to four tensors of one layout, [F, P, C] or [..., C]; in ``out``, rows have the distance ``pitch`` and tensors
    the distance ``stride``."""
    assert len({(x.shape, x.stride()) for x in xs}) == 1 and len(xs) <= MAX_NORMS
    channels = xs[0].shape[-1]
    # Rows of a part of each frame's tokens are read where they are.
    if xs[0].dim() != 3 or xs[0].stride(1) != channels or xs[0].stride(2) != 1:
        xs = [x.contiguous() for x in xs]
    rows, row_stride = (xs[0].shape[1], xs[0].stride(0)) if xs[0].dim() == 3 else (1, channels)
    _norm[(xs[0].numel() // channels, len(xs))](
        *xs,
        *[xs[0]] * (MAX_NORMS - len(xs)),
        layer.weight,
        layer.bias,
        out,
        layer.eps,
        rows,
        row_stride,
        pitch,
        stride,
        C=channels,
        BLOCK=triton.next_power_of_2(channels),
        num_warps=4,
    )


def add_scaled(
    x: Tensor,
    branch: Tensor,
    gain: Tensor,
    layer: nn.LayerNorm | None = None,
    *,
    dtype: torch.dtype | None = None,
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """fp32 x [..., C] + branch * gain [C]; and its layer norm as ``dtype`` (``branch`` itself without a layer).

    ``dtype``: ``branch``'s if None. ``out``: where the sum goes; rows of x and of ``out`` have one distance each.
    """
    channels, branch = x.shape[-1], branch.contiguous()
    out = x.new_empty(x.shape) if out is None else out
    normed = branch.new_empty(branch.shape, dtype=dtype) if layer is not None else branch
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
        x.view(-1, channels).stride(0),
        out.view(-1, channels).stride(0),
        C=channels,
        BLOCK=triton.next_power_of_2(channels),
        NORM=layer is not None,
        num_warps=4,
    )
    return out, normed


@dataclass(frozen=True)
class BlockCall:
    """A block with what it is called with; see `Block.forward`."""

    block: "Block"
    attend: "Attend"
    rotate: "Rotate | None" = None
    rotation: Rotation | None = None
    out: Tensor | None = None
    """Where the residual stream after the block goes, rows at one distance; None: new memory."""


def run_blocks(
    x: Tensor,
    calls: Sequence[BlockCall],
    *,
    normed: Tensor | None = None,
    last: nn.LayerNorm | None = None,
    dtype: torch.dtype = torch.bfloat16,
) -> tuple[Tensor, Tensor]:
    """Blocks one after the other on fp32 x [N, T, C]: each one's last kernel also computes the next one's layer norm.

    Args:
        x: rows at one distance.
        normed: the first block's `norm1` of x in bf16, if it is known.
        last: a layer norm after the last block, as ``dtype``.

    Returns the residual stream, and its layer norm ``last``, meaningless without one.
    """
    if normed is None:
        normed = norm(x, calls[0].block.norm1, calls[0].block.attn.qkv.weight.dtype)
    for number, call in enumerate(calls):
        block, is_last = call.block, number == len(calls) - 1
        q, k, v = project(block, normed, call.rotate, call.rotation)
        y = block.attn.proj(call.attend(q, k, v).flatten(-2))
        x, inner = add_scaled(x, y, block.ls1.gamma, block.norm2)
        layer, type_ = (last, dtype) if is_last else (calls[number + 1].block.norm1, normed.dtype)
        x, normed = add_scaled(x, perceptron(block.mlp, inner), block.ls2.gamma, layer, dtype=type_, out=call.out)
    return x, normed


def project(
    block: "Block", normed: Tensor, rotate: "Rotate | None", rotation: Rotation | None
) -> tuple[Tensor, Tensor, Tensor]:
    """`Block.project` from the layer norm of its input."""
    attention = block.attn
    qkv = attention.qkv(normed).unflatten(-1, (3, attention.heads, -1))
    if rotate is None and isinstance(attention.q_norm, nn.Identity):
        q, k, v = qkv.unbind(-3)
        return q, k, v
    turn: Turn = "none" if rotate is None else ("frame" if rotate is rotate_frame else "global")
    q, k = norm_and_rope(qkv, attention.q_norm, attention.k_norm, turn, rotation)
    return q, k, qkv[..., 2, :, :]


def perceptron(mlp: "Mlp", x: Tensor) -> Tensor:
    """`Mlp` of x [..., C]. On a GPU the product's own kernel applies GELU in its approximation by tanh, which differs
    by less than 5e-4, a rounding of bf16."""
    if not x.is_cuda:
        return F.linear(F.gelu(F.linear(x, mlp.fc1.weight, mlp.fc1.bias)), mlp.fc2.weight, mlp.fc2.bias)
    inner = torch._addmm_activation(mlp.fc1.bias, x.flatten(0, -2), mlp.fc1.weight.t(), use_gelu=True)
    return F.linear(inner, mlp.fc2.weight, mlp.fc2.bias).view(*x.shape[:-1], -1)


def global_rotation(times: Tensor, grid: tuple[int, int], special: int, head_dim: int, time_channels: int) -> Rotation:
    """`rope.global_rotation` as one kernel."""
    space = global_table(grid, special, head_dim - time_channels, times.device)
    tokens, half = len(space[0]), head_dim // 2
    cosines, sines = torch.empty(2, len(times), tokens, half, device=times.device)
    _rotation[(len(times) * tokens,)](
        times,
        time_frequencies(time_channels, times.device),
        *space,
        cosines,
        sines,
        tokens,
        TIMES=time_channels // 2,
        HALF=half,
        BLOCK=triton.next_power_of_2(half),
        num_warps=1,
    )
    return cosines, sines


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
