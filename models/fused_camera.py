# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"
"""Triton kernels of the camera head between its blocks and matrix products, for inference on a GPU."""

from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from stream_recon.cache.attention import KVCache
from stream_recon.models import fused
from stream_recon.models.layers import Block, in_fp32
from stream_recon.models.odometry.kernels.geometry import gelu

if TYPE_CHECKING:
    from stream_recon.models.heads import CameraHead


@triton.jit
def _modulate(tokens, modulation, weight, bias, out, normed, eps, own_eps, C: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    channel = tl.arange(0, BLOCK)
    mask = channel < C
    token = tl.load(tokens + row * C + channel, mask=mask, other=0.0).to(tl.float32)
    centred = tl.where(mask, token - tl.sum(token, 0) / C, 0.0)
    plain = centred * tl.rsqrt(tl.sum(centred * centred, 0) / C + own_eps)
    modulation += row * (3 * C) + channel
    shift = tl.load(modulation, mask=mask, other=0.0).to(tl.float32)
    scale = tl.load(modulation + C, mask=mask, other=0.0).to(tl.float32)
    gate = tl.load(modulation + 2 * C, mask=mask, other=0.0).to(tl.float32)
    x = token + gate * (plain * (1.0 + scale) + shift)
    tl.store(out + row * C + channel, x, mask=mask)
    centred = tl.where(mask, x - tl.sum(x, 0) / C, 0.0)
    y = centred * tl.rsqrt(tl.sum(centred * centred, 0) / C + eps)
    y = y * tl.load(weight + channel, mask=mask) + tl.load(bias + channel, mask=mask)
    tl.store(normed + row * C + channel, y.to(normed.dtype.element_ty), mask=mask)


@triton.jit(
    do_not_specialize=("before_stride", "keeps", "corrects"), do_not_specialize_on_alignment=("before", "after", "code")
)
def _correct(before, before_stride, keeps, corrects, hidden, hidden_bias, weight, bias, after, code, embed_weight,
             embed_bias, embedded, C: tl.constexpr, HIDDEN: tl.constexpr, CODE: tl.constexpr, BLOCK: tl.constexpr,
             HIDDEN_BLOCK: tl.constexpr):  # fmt: skip
    # Flags are numbers, not constants: one binary serves all iterations.
    row = tl.program_id(0).to(tl.int64)
    channel, inner = tl.arange(0, BLOCK), tl.arange(0, HIDDEN_BLOCK)
    mask, is_inner = channel < C, inner < HIDDEN
    h = tl.load(hidden + row * HIDDEN + inner, mask=is_inner & (inner < HIDDEN * corrects), other=0.0)
    h = gelu(h + tl.load(hidden_bias + inner, mask=is_inner, other=0.0))
    embedding = tl.load(embed_bias + channel, mask=mask, other=0.0).to(tl.float32)
    for number in tl.static_range(CODE):
        change = tl.sum(h * tl.load(weight + number * HIDDEN + inner, mask=is_inner, other=0.0), 0)
        change = (change + tl.load(bias + number)) * corrects
        total = tl.load(before + row * before_stride + number) * keeps + change
        tl.store(after + row * CODE + number, total)
        tl.store(code + row * CODE + number, total if number < CODE - 2 else tl.maximum(total, 0.0))
        column = tl.load(embed_weight + channel * CODE + number, mask=mask, other=0.0).to(tl.float32)
        embedding += total * column
    embedding = embedding / (1.0 + tl.exp(-embedding))
    tl.store(embedded + row * C + channel, embedding.to(embedded.dtype.element_ty), mask=mask)


def camera_poses(head: "CameraHead", camera_tokens: Tensor, kv_cache: KVCache) -> Tensor:
    """`CameraHead.forward`."""
    half = head.modulation.weight.dtype
    is_projected = isinstance(head.project, torch.nn.Linear)
    tokens = fused.norm(camera_tokens, head.token_norm, half if is_projected else torch.float32)
    tokens = head.project(tokens)
    clips, frames, channels = tokens.shape
    blocks = [block for block in head.trunk if isinstance(block, Block)]
    totals = torch.empty(head.iterations + 1, clips, frames, head.pose_branch.fc2.out_features, device=tokens.device)
    poses = torch.empty_like(totals)
    embedded = _correction(head, None, head.empty_pose, totals[0], poses[0], is_first=True)
    for iteration in range(head.iterations):
        x = torch.empty(tokens.shape, device=tokens.device)
        normed = torch.empty(tokens.shape, device=tokens.device, dtype=half)
        _modulate[(clips * frames,)](
            tokens,
            head.modulation(embedded),
            blocks[0].norm1.weight,
            blocks[0].norm1.bias,
            x,
            normed,
            blocks[0].norm1.eps,
            MODULATED_EPS,
            C=channels,
            BLOCK=triton.next_power_of_2(channels),
            num_warps=4,
        )
        # Each of the B * S tokens is a row, and the cache takes clips apart.
        calls = [
            fused.BlockCall(block, partial(kv_cache.attend_camera, iteration * len(blocks) + depth))
            for depth, block in enumerate(blocks)
        ]
        _, normed = fused.run_blocks(x, calls, normed=normed, last=head.trunk_norm, dtype=torch.float32)
        with in_fp32(x):
            hidden = F.linear(normed, head.pose_branch.fc1.weight)
        embedded = _correction(
            head, hidden, totals[iteration], totals[iteration + 1], poses[iteration + 1], is_first=iteration == 0
        )
    return poses[1:]


MODULATED_EPS = 1e-6
"""Of the layer norm without weights before modulation."""


def _correction(
    head: "CameraHead", hidden: Tensor | None, before: Tensor, after: Tensor, code: Tensor, *, is_first: bool
) -> Tensor:
    """Add a correction to pose codes, and embed the sum: SiLU of [B, S, C].

    Args:
        hidden: fp32 [B, S, hidden], the first product of the pose branch, without its bias; None: no correction.
        before: [B, S, 9], or one code for all.
        after, code: [B, S, 9], where the sum goes, and the sum with fields of view not negative.
        is_first: whether the correction alone is the sum.
    """
    channels, branch = head.embed_pose.out_features, head.pose_branch
    rows = after.numel() // after.shape[-1]
    embedded = torch.empty(*after.shape[:-1], channels, device=after.device, dtype=head.modulation.weight.dtype)
    _correct[(rows,)](
        before,
        before.shape[-1] if before.numel() > before.shape[-1] else 0,
        int(hidden is None or not is_first),
        int(hidden is not None),
        hidden if hidden is not None else branch.fc1.weight,
        branch.fc1.bias,
        branch.fc2.weight,
        branch.fc2.bias,
        after,
        code,
        head.embed_pose.weight,
        head.embed_pose.bias,
        embedded,
        C=channels,
        HIDDEN=branch.fc1.out_features,
        CODE=after.shape[-1],
        BLOCK=triton.next_power_of_2(channels),
        HIDDEN_BLOCK=triton.next_power_of_2(branch.fc1.out_features),
        num_warps=4,
    )
    return embedded
