# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"
"""Triton kernels between the convolutions of the depth head and of the encoder's stem, for inference on a GPU.

Maps are channels last. Sums and interpolation are computed in fp32, and rounded once to the convolutions' type.
"""

from collections.abc import Sequence
from enum import IntEnum

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor, nn

from stream_recon.models import fused
from stream_recon.models.heads import (
    NEIGHBOURS,
    DPTHead,
    Fusion,
    ResidualConv,
    add_position,
    position_grid,
    project_channels,
)
from stream_recon.models.odometry.kernels.geometry import gelu

Product = tuple[Tensor, Tensor]
"""A convolution's output [F, C, H, W] without its bias, and the bias [C]."""
ELEMENTS = 2048
"""Numbers of one program of a sum."""
PIXELS = 128
"""Pixels of one program of convex upsampling."""


class Activation(IntEnum):
    """What follows a sum."""

    NONE, RELU, GELU = range(3)


@triton.jit(
    do_not_specialize=("total", "H", "W", "h", "w", "has_product", "has_skip", "has_table", "has_coarse", "activation")
)
def _sum_maps(product, bias, skip, table, coarse, coarse_bias, out, total, H, W, h, w, down, across, has_product,
              has_skip, has_table, has_coarse, activation, C: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    # Flags are numbers, not constants: one binary serves all sums of so many channels.
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    channel = tl.arange(0, C)
    mask = (pixel < total)[:, None]
    at = pixel[:, None] * C + channel[None, :]
    value = tl.load(product + at, mask=(pixel < total * has_product)[:, None], other=0.0).to(tl.float32)
    value += tl.load(bias + channel, mask=channel < C * has_product, other=0.0).to(tl.float32)[None, :]
    value += tl.load(coarse_bias + channel, mask=channel < C * has_coarse, other=0.0).to(tl.float32)[None, :]
    value += tl.load(skip + at, mask=(pixel < total * has_skip)[:, None], other=0.0).to(tl.float32)
    table_at = (pixel % (H * W))[:, None] * C + channel[None, :]
    value += tl.load(table + table_at, mask=(pixel < total * has_table)[:, None], other=0.0).to(tl.float32)
    # Bilinear, corners aligned.
    y, x = (pixel // W % H).to(tl.float32) * down, (pixel % W).to(tl.float32) * across
    top, left = tl.minimum(y.to(tl.int32), h - 1), tl.minimum(x.to(tl.int32), w - 1)
    low, right = tl.minimum(top + 1, h - 1), tl.minimum(left + 1, w - 1)
    y, x = (y - top.to(tl.float32))[:, None], (x - left.to(tl.float32))[:, None]
    first = pixel // (H * W) * (h * w)
    read = (pixel < total * has_coarse)[:, None]
    upper, lower = (first + top * w)[:, None] * C, (first + low * w)[:, None] * C
    left_, right_ = left[:, None] * C + channel[None, :], right[:, None] * C + channel[None, :]
    above = tl.load(coarse + upper + left_, mask=read, other=0.0).to(tl.float32) * (1 - x)
    above += tl.load(coarse + upper + right_, mask=read, other=0.0).to(tl.float32) * x
    below = tl.load(coarse + lower + left_, mask=read, other=0.0).to(tl.float32) * (1 - x)
    below += tl.load(coarse + lower + right_, mask=read, other=0.0).to(tl.float32) * x
    value += above * (1 - y) + below * y
    if activation == 1:
        value = tl.maximum(value, 0.0)
    elif activation == 2:
        value = gelu(value)
    tl.store(out + at, value.to(out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=("total", "H", "W"))
def _mix_convex(x, shares, out, total, H, W, x_stride: tl.constexpr, shares_stride: tl.constexpr, C: tl.constexpr,
                K: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    part = tl.program_id(1)  # of the four new pixels
    mask = pixel < total
    column, row, image = pixel % W, pixel // W % H, pixel // (H * W)
    k = tl.arange(0, 16)[None, :]
    inside = mask[:, None] & (k < K)
    score = tl.load(shares + pixel[:, None] * shares_stride + part * K + k, mask=inside, other=0.0).to(tl.float32)
    score = tl.where(k < K, score, -float("inf"))
    share = tl.exp(score - tl.max(score, 1)[:, None])
    share = share / tl.sum(share, 1)[:, None]
    near_row = tl.minimum(tl.maximum(row[:, None] + k // 3 - 1, 0), H - 1)
    near_column = tl.minimum(tl.maximum(column[:, None] + k % 3 - 1, 0), W - 1)
    near = ((image * H)[:, None] + near_row) * W + near_column
    new = (2 * row + part // 2) * (2 * W) + 2 * column + part % 2
    for channel in tl.static_range(C):
        value = tl.load(x + near * x_stride + channel, mask=inside, other=0.0).to(tl.float32)
        tl.store(out + (image * C + channel) * (4 * H * W) + new, tl.sum(value * share, 1), mask=mask)


def sum_maps(
    size: tuple[int, int],
    product: Product | None = None,
    skip: Tensor | None = None,
    *,
    table: Tensor | None = None,
    coarse: Product | None = None,
    activation: Activation = Activation.NONE,
) -> Tensor:
    """Sum of a product with its bias, a map, a table of positions and a resized product -> [F, C, *size].

    Args:
        product, skip: [F, C, H, W]; ``table``: [1, C, H, W].
        coarse: [F, C, h, w], resized to H x W after its bias, bilinear with aligned corners.
        activation: what follows.
    """
    like = product or coarse
    assert like is not None
    (height, width), (frames, channels) = size, like[0].shape[:2]
    assert channels & (channels - 1) == 0, "a power of two"
    other = like[0]
    own, bias = product or like
    small, small_bias = coarse or like
    out = torch.empty(
        frames, channels, height, width, dtype=other.dtype, device=other.device, memory_format=torch.channels_last
    )
    maps = (own, other if skip is None else skip, other if table is None else table, small)
    own, skip_, table_, small = (x.contiguous(memory_format=torch.channels_last) for x in maps)
    pixels, block = frames * height * width, ELEMENTS // channels
    rows, columns = small.shape[-2:]
    _sum_maps[(triton.cdiv(pixels, block),)](
        own,
        bias,
        skip_,
        table_,
        small,
        small_bias,
        out,
        pixels,
        height,
        width,
        rows,
        columns,
        (rows - 1) / max(height - 1, 1),
        (columns - 1) / max(width - 1, 1),
        int(product is not None),
        int(skip is not None),
        int(table is not None),
        int(coarse is not None),
        activation,
        C=channels,
        BLOCK=block,
        num_warps=4,
    )
    return out


def mix_convex(x: Tensor, scores: Tensor) -> Tensor:
    """`ConvexUpsampling` of x [F, C, h, w] by scores [F, 36, h, w], as `project_channels` gives both, in fp32."""
    frames, channels, height, width = x.shape
    x, scores = x.permute(0, 2, 3, 1), scores.permute(0, 2, 3, 1)
    for map_ in (x, scores):
        pitch = map_.stride(2)
        assert map_.stride() == (height * width * pitch, width * pitch, pitch, 1)
    out = torch.empty(frames, channels, 2 * height, 2 * width, device=x.device)
    pixels = frames * height * width
    _mix_convex[(triton.cdiv(pixels, PIXELS), 4)](
        x,
        scores,
        out,
        pixels,
        height,
        width,
        x_stride=x.stride(2),
        shares_stride=scores.stride(2),
        C=channels,
        K=NEIGHBOURS,
        BLOCK=PIXELS,
        num_warps=4,
    )
    return out


def dense_outputs(head: DPTHead, taps: Sequence[Tensor], grid: tuple[int, int], detail: Tensor) -> Tensor:
    """`DPTHead` with convex upsampling."""
    assert head.detail is not None and head.sharpen is not None and head.upsample is not None
    aspect, levels = grid[1] / grid[0], []
    normed = fused.norm_each(taps, head.norm, head.out1.weight.dtype)
    for tokens, project, resize, reduce in zip(normed, head.projects, head.resize, head.reduce, strict=True):
        assert isinstance(project, nn.Conv2d)
        x = F.linear(tokens, project.weight.flatten(1), project.bias).unflatten(1, grid).permute(0, 3, 1, 2)
        levels.append(reduce(resize(add_position(x, aspect))))
    coarse: Product | None = None
    for level, fusion in zip((3, 2, 1, 0), reversed(head.fusions), strict=True):
        assert isinstance(fusion, Fusion)
        x = F.relu(levels[level])
        if coarse is not None:
            assert fusion.skip is not None
            x = _residual(fusion.skip, x, coarse)
        x = _residual(fusion.refine, x, activation=Activation.NONE)
        coarse = product(x, fusion.out)
    assert coarse is not None
    x = sum_maps((2 * x.shape[2], 2 * x.shape[3]), coarse=coarse)
    last = (grid[0] * head.patch_size // 2, grid[1] * head.patch_size // 2)
    sharp = product(detail, head.detail)
    assert list(sharp[0].shape[-2:]) == list(last)
    table = position_grid(last, sharp[0].shape[1], aspect, detail.device, torch.float32, channels_last=True)
    x = sum_maps(last, sharp, table=table, coarse=product(x, head.out1))
    x = sum_maps(last, product(x, head.out2), activation=Activation.RELU)
    x = _residual(head.sharpen, x)
    return mix_convex(project_channels(x, head.out3), project_channels(x, head.upsample.mixture))


def _residual(
    block: ResidualConv, x: Tensor, coarse: Product | None = None, activation: Activation = Activation.RELU
) -> Tensor:
    """Sum of a residual block, which gets rectified x [F, C, H, W], and of a coarser map; by default rectified."""
    size = (x.shape[2], x.shape[3])
    inner = sum_maps(size, product(x, block.conv1), activation=Activation.RELU)
    return sum_maps(size, product(inner, block.conv2), x, coarse=coarse, activation=activation)


def product(x: Tensor, conv: nn.Conv2d) -> Product:
    assert conv.bias is not None
    return _convolve(x, conv), conv.bias


def _convolve(x: Tensor, conv: nn.Conv2d) -> Tensor:
    """A convolution without its bias."""
    if conv.kernel_size == (1, 1):
        return F.linear(x.permute(0, 2, 3, 1), conv.weight.flatten(1)).permute(0, 3, 1, 2)
    return F.conv2d(x, conv.weight, None, conv.stride, conv.padding)
