# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"
"""Triton kernels before the encoder's blocks, for inference on a GPU."""

from functools import partial

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from stream_recon.models import fused
from stream_recon.models.encoder import Encoder, unfolded_product
from stream_recon.models.fused_maps import Activation, product, sum_maps
from stream_recon.models.layers import Block, attend_within

ALIGNED = 8
"""Tensor cores read rows of 16 bytes, which is this number of channels in bf16."""
PIXELS = 256
"""Pixels of one program."""


@triton.jit(do_not_specialize=("total", "H", "W"))
def _normalise(images, mean, deviation, out, patches, total, H, W, SIDE: tl.constexpr, WIDTH: tl.constexpr,
               LANES: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    # One program also fills the padding of its pixels' channels; that of patches is filled by the first pixel of each.
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = pixel < total
    image, row, column = pixel // (H * W), pixel // W % H, pixel % W
    channel = tl.arange(0, LANES)[None, :]
    colour = mask[:, None] & (channel < 3)
    at = (image * 3)[:, None] * (H * W) + channel * (H * W) + (pixel % (H * W))[:, None]
    value = tl.load(images + at, mask=colour, other=0.0).to(tl.float32)
    value = (value - tl.load(mean + channel, mask=channel < 3, other=0.0)) / tl.load(
        deviation + channel, mask=channel < 3, other=1.0
    )
    value = tl.where(colour, value, 0.0)
    tl.store(out + pixel[:, None] * LANES + channel, value.to(out.dtype.element_ty), mask=mask[:, None])
    patch = (image * (H // SIDE) + row // SIDE) * (W // SIDE) + column // SIDE
    inside = row % SIDE * SIDE + column % SIDE
    offset = patch * WIDTH + inside * 3
    tl.store(patches + offset[:, None] + channel, value.to(patches.dtype.element_ty), mask=colour)
    padding: tl.constexpr = WIDTH - SIDE * SIDE * 3
    if padding > 0:
        is_padding = mask[:, None] & (inside == 0)[:, None] & (channel < padding)
        end = (patch * WIDTH + SIDE * SIDE * 3)[:, None] + channel
        tl.store(patches + end, (value * 0.0).to(patches.dtype.element_ty), mask=is_padding)


@triton.jit(do_not_specialize=("patches", "tokens"))
def _embed(product, features, positions, leading, weight, bias, out, normed, eps, patches, tokens,
           C: tl.constexpr, BLOCK: tl.constexpr, HAS_FEATURES: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    frame, token = row // tokens, row % tokens
    first = tokens - patches
    channel = tl.arange(0, BLOCK)
    mask = channel < C
    tokens_of = token + 0 * channel
    is_patch, is_leading = mask & (tokens_of >= first), mask & (tokens_of < first)
    offset = (frame * patches + token - first) * C + channel
    x = tl.load(leading + token * C + channel, mask=is_leading, other=0.0)
    patch = tl.load(product + offset, mask=is_patch, other=0.0).to(tl.float32)
    if HAS_FEATURES:
        patch += tl.load(features + offset, mask=is_patch, other=0.0).to(tl.float32)
    x += patch + tl.load(positions + (token - first) * C + channel, mask=is_patch, other=0.0)
    tl.store(out + row * C + channel, x, mask=mask)
    centred = tl.where(mask, x - tl.sum(x, 0) / C, 0.0)
    y = centred * tl.rsqrt(tl.sum(centred * centred, 0) / C + eps)
    y = y * tl.load(weight + channel, mask=mask) + tl.load(bias + channel, mask=mask)
    tl.store(normed + row * C + channel, y.to(normed.dtype.element_ty), mask=mask)


def encode(encoder: Encoder, images: Tensor, mean: Tensor, deviation: Tensor) -> tuple[Tensor, Tensor | None]:
    """`Encoder.forward` of images [F, 3, H, W] in [0, 1] that are not normalised; mean and deviation [3, 1, 1]."""
    frames, _, height, width = images.shape
    side, weight, bias = encoder.patch_size, encoder.patch_embed.weight, encoder.patch_embed.bias
    assert bias is not None
    grid, dim = (height // side, width // side), weight.shape[0]
    columns = side * side * 3
    padded = columns + -columns % ALIGNED
    pixels = torch.empty(
        frames, ALIGNED, height, width, dtype=weight.dtype, device=images.device, memory_format=torch.channels_last
    )
    patches = torch.empty(frames, grid[0] * grid[1], padded, dtype=weight.dtype, device=images.device)
    count = frames * height * width
    _normalise[(triton.cdiv(count, PIXELS),)](
        images.contiguous(),
        mean,
        deviation,
        pixels,
        patches,
        count,
        height,
        width,
        SIDE=side,
        WIDTH=padded,
        LANES=ALIGNED,
        BLOCK=PIXELS,
        num_warps=4,
    )
    x = F.linear(patches, encoder.constant("patches", weight, partial(_as_matrix, columns=padded)), bias)
    detail, features = None, None
    if encoder.stem is not None:
        stem = encoder.stem
        first = encoder.constant("stem", stem.conv1.weight, _with_padding)
        half = F.conv2d(pixels, first, None, stem.conv1.stride, stem.conv1.padding)
        assert stem.conv1.bias is not None
        size = (half.shape[2], half.shape[3])
        half = sum_maps(size, (half, stem.conv1.bias), activation=Activation.GELU)
        detail = sum_maps(size, product(half, stem.conv2), activation=Activation.GELU)
        features = unfolded_product(detail, stem.proj).contiguous()
    leading = encoder.constant("leading", encoder.pos_embed, lambda _: encoder.leading_tokens()[0].contiguous())
    blocks = [block for block in encoder.blocks if isinstance(block, Block)]
    tokens = len(leading) + x.shape[1]
    out = torch.empty(frames, tokens, dim, device=images.device)
    normed = torch.empty(frames, tokens, dim, device=images.device, dtype=weight.dtype)
    norm1 = blocks[0].norm1
    _embed[(frames * tokens,)](
        x,
        features if features is not None else x,
        encoder.positions(grid).contiguous(),
        leading,
        norm1.weight,
        norm1.bias,
        out,
        normed,
        norm1.eps,
        x.shape[1],
        tokens,
        C=dim,
        BLOCK=triton.next_power_of_2(dim),
        HAS_FEATURES=features is not None,
        num_warps=4,
    )
    calls = [fused.BlockCall(block, attend_within) for block in blocks]
    _, y = fused.run_blocks(out, calls, normed=normed, last=encoder.norm, dtype=torch.float32)
    return y[:, len(leading) :], detail


def _as_matrix(weight: Tensor, columns: int) -> Tensor:
    """Weights [C, 3, side, side] of a patch projection -> [C, columns], colours last, padded with zeros."""
    flat = weight.permute(0, 2, 3, 1).flatten(1)
    return F.pad(flat, (0, columns - flat.shape[1]))


def _with_padding(weight: Tensor) -> Tensor:
    """Weights of a convolution with input channels of zeros up to `ALIGNED`, channels last."""
    padded = F.pad(weight, (0, 0, 0, 0, 0, ALIGNED - weight.shape[1]))
    return padded.contiguous(memory_format=torch.channels_last)
