# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"
"""Features of frames, normalised and pooled by kernels (Triton)."""

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from stream_recon.models.fused_maps import Activation, product, sum_maps
from stream_recon.models.heads import project_channels
from stream_recon.models.odometry.flow_head import FlowHead
from stream_recon.models.odometry.keyframe_matcher import LEVELS, KeyframeMatcher, level_slice

CHANNELS = 32
"""Lanes for channels: at least as many as features have."""
ROWS = 64
"""Pixels of one program."""


@triton.jit(do_not_specialize=("total", "pixels"))
def _unit_rows(x, out, total, pixels, out_stride, C: tl.constexpr, PITCH: tl.constexpr, LANES: tl.constexpr,
               BLOCK: tl.constexpr):  # fmt: skip
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    channel = tl.arange(0, LANES)[None, :]
    mask = (row < total)[:, None] & (channel < C)
    value = tl.load(x + row[:, None] * PITCH + channel, mask=mask, other=0.0).to(tl.float32)
    length = tl.sqrt(tl.sum(value * value, 1))[:, None]
    offset = row // pixels * out_stride + row % pixels * C
    tl.store(out + offset[:, None] + channel, value / tl.maximum(length, 1e-12), mask=mask)


@triton.jit(do_not_specialize=("total", "first", "cells", "columns", "height", "width", "side"))
def _pool_rows(features, total, stride, first, cells, columns, height, width, side, C: tl.constexpr,
               LANES: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    cell = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    channel = tl.arange(0, LANES)[None, :]
    inside = cell < total
    is_channel = channel < C
    frame, cell = cell // cells * stride, cell % cells
    row, column = cell // columns * side, cell % columns * side
    mean = tl.zeros([BLOCK, LANES], tl.float32)
    for step in range(side * side):
        y, x = row + step // side, column + step % side
        at = frame + (y * width + x) * C
        mask = (inside & (y < height) & (x < width))[:, None] & is_channel
        mean += tl.load(features + at[:, None] + channel, mask=mask, other=0.0)
    count = tl.minimum(height - row, side) * tl.minimum(width - column, side)
    out = features + (frame + (first + cell) * C)[:, None] + channel
    tl.store(out, mean / count.to(tl.float32)[:, None], mask=inside[:, None] & is_channel)


def describe_flow(head: FlowHead, detail: Tensor) -> Tensor:
    """`FlowHead.describe`, channels last."""
    x = project_channels(_hidden(detail, head.features1), head.features2)
    frames, channels, height, width = x.shape
    out = torch.empty(frames, height, width, channels, device=x.device)
    _normalise(x, out, height * width * channels)
    return out.permute(0, 3, 1, 2)


def describe_matching(matcher: KeyframeMatcher, detail: Tensor) -> Tensor:
    """`KeyframeMatcher.describe`."""
    x = project_channels(_hidden(detail, matcher.features1), matcher.features2)
    frames, channels, height, width = x.shape
    size = (LEVELS[0] * height, LEVELS[0] * width)
    levels = [level_slice(cell, size) for cell in LEVELS]
    last_first, last_rows, last_columns = levels[-1]
    out = torch.empty(frames, last_first + last_rows * last_columns, channels, device=x.device)
    _normalise(x, out, out.stride(0))
    for cell, (first, rows, columns) in zip(LEVELS[1:], levels[1:], strict=True):
        _pool_rows[(triton.cdiv(frames * rows * columns, ROWS),)](
            out,
            frames * rows * columns,
            out.stride(0),
            first,
            rows * columns,
            columns,
            height,
            width,
            cell // LEVELS[0],
            C=channels,
            LANES=CHANNELS,
            BLOCK=ROWS,
            num_warps=4,
        )
    return out


def _hidden(detail: Tensor, conv: nn.Conv2d) -> Tensor:
    """A convolution and GELU."""
    return sum_maps((detail.shape[2], detail.shape[3]), product(detail, conv), activation=Activation.GELU)


def _normalise(x: Tensor, out: Tensor, stride: int) -> None:
    """Pixels of x [N, C, H, W], as `project_channels` gives it, with length 1, to ``out``: C numbers a pixel, and
    ``stride`` from one frame to the next."""
    frames, channels, height, width = x.shape
    pitch = x.stride(3)
    assert x.stride() == (height * width * pitch, 1, width * pitch, pitch) and channels <= CHANNELS
    _unit_rows[(triton.cdiv(frames * height * width, ROWS),)](
        x,
        out,
        frames * height * width,
        height * width,
        stride,
        C=channels,
        PITCH=pitch,
        LANES=CHANNELS,
        BLOCK=ROWS,
        num_warps=4,
    )
