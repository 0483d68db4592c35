# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"
"""The depth of the keyframe before, warped to a frame (Triton): see `depth_filter`."""

import triton
import triton.language as tl

from stream_recon.models.odometry.kernels.geometry import ONE_BINARY, load_focal, load_transform, turn


@triton.jit
def warp(column, row, log_depth, T, focal, H: tl.constexpr, W: tl.constexpr, NEAR: tl.constexpr):
    """Where a pixel of this frame lies in the keyframe before: index of the nearest pixel, whether it is in view, and
    the third component of its turned ray."""
    x = (column.to(tl.float32) + (0.5 - 0.5 * W)) / focal[0]
    y = (row.to(tl.float32) + (0.5 - 0.5 * H)) / focal[1]
    ray = turn(T, x, y, 1.0)
    depth = tl.exp(log_depth)
    z = ray[2] * depth + T[11]
    inverse = 1.0 / tl.maximum(z, NEAR)
    u = (ray[0] * depth + T[9]) * inverse * focal[0] + 0.5 * W
    v = (ray[1] * depth + T[10]) * inverse * focal[1] + 0.5 * H
    in_view = (u > 0.0) & (u < W) & (v > 0.0) & (v < H) & (z > NEAR)
    at = tl.where(in_view, v, 0.0).to(tl.int32) * W + tl.where(in_view, u, 0.0).to(tl.int32)
    return at, in_view, ray[2]


@triton.jit
def log_depth_difference(sampled, in_view, ray_z, log_depth, T, NEAR: tl.constexpr):
    """The warped log depth minus this frame's; NaN where out of view."""
    warped = (tl.exp(sampled) - T[11]) / ray_z
    in_view = in_view & (warped > NEAR)
    return tl.where(in_view, tl.log(tl.maximum(warped, NEAR)) - log_depth, float("nan"))


@triton.jit(**ONE_BINARY)
def warp_all(own, own_stride, last, motion, codes, difference_out, confidence_out, count_out,
              H: tl.constexpr, W: tl.constexpr, NEAR: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    image = tl.program_id(0).to(tl.int64)
    pixel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = pixel < H * W
    T, focal = load_transform(motion + image * 12), load_focal(codes + image * 9, H, W)
    log_depth = tl.load(own + image * own_stride + pixel, mask=mask, other=0.0)
    at, in_view, ray_z = warp(pixel % W, pixel // W, log_depth, T, focal, H, W, NEAR)
    before = last + image * 2 * H * W + at
    sampled = tl.load(before, mask=mask & in_view, other=0.0)
    difference = log_depth_difference(sampled, in_view, ray_z, log_depth, T, NEAR)
    tl.store(difference_out + image * H * W + pixel, difference, mask=mask)
    tl.store(confidence_out + image * H * W + pixel, tl.load(before + H * W, mask=mask & in_view, other=0.0), mask=mask)
    is_known = tl.where(mask & (difference == difference), 1.0, 0.0)
    tl.store(count_out + image * tl.num_programs(1) + tl.program_id(1), tl.sum(is_known, 0))
