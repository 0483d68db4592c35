# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"
"""Temporal depth fusion and pose fusion of a frame in four kernels (Triton): see `depth_filter` and `fusion`."""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from stream_recon.models.odometry import depth_filter, fusion, pnp
from stream_recon.models.odometry.depth_filter import DepthState
from stream_recon.models.odometry.fusion import LastPose
from stream_recon.models.odometry.kernels.flow import Grid
from stream_recon.models.odometry.kernels.geometry import (
    ONE_BINARY,
    load_focal,
    load_pose,
    load_transform,
    product,
    product_back,
    relative,
    rotation_exp,
    rotation_log,
    store_code,
    turn,
    with_translation,
)
from stream_recon.models.odometry.kernels.warp import log_depth_difference, warp, warp_all

PIXELS = 1024
"""Of one program."""
SCALE_WARPS = 16
"""Of the program that finds a frame's scale."""


@triton.jit
def _rank_key(value):
    """An integer in the order of a float."""
    bits = value.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _lower_median(value, chosen, count):
    """The lower median of the chosen values of a block, exact: by halving the range of their bit patterns."""
    key = tl.where(chosen, _rank_key(value), 0x7FFFFFFF)
    rank = (count - 1) // 2
    low, high = tl.min(key, 0).to(tl.int64), tl.max(tl.where(chosen, key, -0x7FFFFFFF), 0).to(tl.int64)
    while low < high:
        middle = (low + high) >> 1
        below = tl.sum((chosen & (key <= middle)).to(tl.int32), 0)
        low, high = tl.where(below > rank, low, middle + 1), tl.where(below > rank, middle, high)
    bits = low.to(tl.int32)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _update(difference, change, own_confidence, last_confidence, trusted, SURFACE: tl.constexpr):
    """How fusion changes a log depth: see `depth_filter._fuse`."""
    residual = difference - change
    residual = tl.where(residual == residual, residual, 0.0)
    share = tl.exp(residual * residual * (-0.5 / (SURFACE * SURFACE))) / (
        1.0 + tl.exp(own_confidence - last_confidence)
    )
    return tl.where(trusted, share * residual, 0.0)


@triton.jit
def _from_cells(cells, column, row, mask, Y: tl.constexpr, X: tl.constexpr, SIDE: tl.constexpr):
    """Values of cells in memory, bilinear at pixels."""
    x = tl.maximum((column.to(tl.float32) + 0.5) * (1.0 / SIDE) - 0.5, 0.0)
    y = tl.maximum((row.to(tl.float32) + 0.5) * (1.0 / SIDE) - 0.5, 0.0)
    left, top = tl.minimum(x.to(tl.int32), X - 1), tl.minimum(y.to(tl.int32), Y - 1)
    x, y = x - left.to(tl.float32), y - top.to(tl.float32)
    right, below = tl.minimum(left + 1, X - 1), tl.minimum(top + 1, Y - 1)
    upper = tl.load(cells + top * X + left, mask=mask, other=0.0) * (1 - x)
    upper += tl.load(cells + top * X + right, mask=mask, other=0.0) * x
    lower = tl.load(cells + below * X + left, mask=mask, other=0.0) * (1 - x)
    lower += tl.load(cells + below * X + right, mask=mask, other=0.0) * x
    return upper * (1 - y) + lower * y


@triton.jit
def _around(cells, point, mask, Y: tl.constexpr, X: tl.constexpr):
    """The mean over a cell and its neighbours, of cells in memory."""
    column, row = point % X, point // X
    total = column.to(tl.float32) * 0.0
    count = total
    for down in tl.static_range(-1, 2):
        for across in tl.static_range(-1, 2):
            inside = mask & (column + across >= 0) & (column + across < X) & (row + down >= 0) & (row + down < Y)
            total += tl.load(cells + point + down * X + across, mask=inside, other=0.0)
            count += inside.to(tl.float32)
    return total / tl.maximum(count, 1.0)


@triton.jit
def _zero_mean(correction, information, mask, PRIOR: tl.constexpr, MOST: tl.constexpr):
    """A correction without its weighted mean: see `depth_filter._zero_mean`."""
    share = tl.where(mask, information / (information + PRIOR), 0.0)
    mean = tl.sum(correction * share, 0) / tl.maximum(tl.sum(share, 0), 1e-9)
    return tl.minimum(tl.maximum(correction - mean, -MOST), MOST)


@triton.jit
def _fuse_pose(T, trusted, log_scale, last_pose, last_head, head, out, GAIN: tl.constexpr, SHIFT: tl.constexpr,
               LENGTH: tl.constexpr, RATIO: tl.constexpr):  # fmt: skip
    """See `fuse_poses`."""
    before, before_head, after_head = load_pose(last_pose), load_pose(last_head), load_pose(head)
    own = relative(before_head, after_head)
    length = tl.sqrt(own[9] * own[9] + own[10] * own[10] + own[11] * own[11]) + 1e-9
    ratio = length / (tl.sqrt(T[9] * T[9] + T[10] * T[10] + T[11] * T[11]) + 1e-9)
    ratio = tl.exp(LENGTH * tl.log(tl.minimum(tl.maximum(ratio, 1.0 / RATIO), RATIO)))
    grow = tl.exp(log_scale)
    x = tl.where(trusted, T[9] * ratio, own[9]) * grow
    y = tl.where(trusted, T[10] * ratio, own[10]) * grow
    z = tl.where(trusted, T[11] * ratio, own[11]) * grow
    R = (tl.where(trusted, T[0], own[0]), tl.where(trusted, T[1], own[1]), tl.where(trusted, T[2], own[2]),
         tl.where(trusted, T[3], own[3]), tl.where(trusted, T[4], own[4]), tl.where(trusted, T[5], own[5]),
         tl.where(trusted, T[6], own[6]), tl.where(trusted, T[7], own[7]), tl.where(trusted, T[8], own[8]))  # fmt: skip
    R = product(before, R)
    t = turn(before, x, y, z)
    x, y, z = t[0] + before[9], t[1] + before[10], t[2] + before[11]
    off = rotation_log(product_back(R, after_head))
    R = product(R, rotation_exp(off[0] * GAIN, off[1] * GAIN, off[2] * GAIN))
    x, y, z = x + (after_head[9] - x) * SHIFT, y + (after_head[10] - y) * SHIFT, z + (after_head[11] - z) * SHIFT
    store_code(out, with_translation(R, x, y, z), head)


@triton.jit(**ONE_BINARY)
def _fuse_scale(own, own_stride, difference_in, confidence_in, counts, programs, motion, support, evidence, last,
                last_scale, last_correction, last_pose, last_head, codes, pose_out, scale_out, change_out,
                correction_out, coarse_out,
                H: tl.constexpr, W: tl.constexpr, Y: tl.constexpr, X: tl.constexpr, SIDE: tl.constexpr,
                NEAR: tl.constexpr, SUPPORTED: tl.constexpr, SURFACE: tl.constexpr, FLOOR: tl.constexpr,
                OVERLAP: tl.constexpr, SMALL: tl.constexpr, LOG_DECAY: tl.constexpr, KEPT: tl.constexpr,
                PRIOR: tl.constexpr, MOST: tl.constexpr, SPACING: tl.constexpr, GAIN: tl.constexpr,
                SHIFT: tl.constexpr, LENGTH: tl.constexpr, RATIO: tl.constexpr, COUNTS: tl.constexpr,
                SAMPLES: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    image = tl.program_id(0).to(tl.int64)
    own += image * own_stride
    difference_in += image * H * W
    confidence_in += image * H * W
    last += image * 2 * H * W
    last_correction += image * 2 * Y * X
    number = tl.arange(0, COUNTS)
    known = tl.sum(tl.load(counts + image * programs + number, mask=number < programs, other=0.0), 0)
    overlap = tl.maximum(known / (H * W), OVERLAP)
    trusted = tl.load(support + image) > SUPPORTED
    # The median change over pixels that are confident in both frames.
    across: tl.constexpr = (W + SPACING - 1) // SPACING
    samples: tl.constexpr = (H + SPACING - 1) // SPACING * across
    sample = tl.arange(0, SAMPLES)
    mask = sample < samples
    pixel = sample // across * SPACING * W + sample % across * SPACING
    difference = tl.load(difference_in + pixel, mask=mask, other=float("nan"))
    own_confidence = tl.load(own + H * W + pixel, mask=mask, other=0.0)
    floor = _lower_median(own_confidence, mask, samples) + FLOOR
    least = tl.minimum(own_confidence, tl.load(confidence_in + pixel, mask=mask, other=0.0))
    # Out of view, and not behind an edge alone, samples are NaN already.
    chosen = mask & (least > floor) & (difference == difference)
    count = tl.sum(chosen.to(tl.int32), 0)
    median = _lower_median(tl.where(chosen, difference, 0.0), chosen, count)
    median = tl.where(count > OVERLAP * samples, median, 0.0)
    change = tl.where(trusted, median * median * median / (median * median + SMALL * SMALL), 0.0)
    log_scale = tl.exp(LOG_DECAY / overlap) * tl.load(last_scale + image) + change
    tl.store(change_out + image, change)
    tl.store(scale_out + image, log_scale)
    T = load_transform(motion + image * 12)
    _fuse_pose(T, trusted, log_scale, last_pose + image * 9, last_head + image * 9, codes + image * 9,
               pose_out + image * 9, GAIN, SHIFT, LENGTH, RATIO)  # fmt: skip
    # The correction, in the middle of each cell.
    point = tl.arange(0, BLOCK)
    mask = point < Y * X
    column, row = point % X * SIDE + SIDE // 2, point // X * SIDE + SIDE // 2
    pixel = row * W + column
    log_depth = tl.load(own + pixel, mask=mask, other=0.0)
    difference = tl.load(difference_in + pixel, mask=mask, other=float("nan"))
    update = _update(difference, change, tl.load(own + H * W + pixel, mask=mask, other=0.0),
                     tl.load(confidence_in + pixel, mask=mask, other=0.0), trusted, SURFACE)  # fmt: skip
    focal = load_focal(codes + image * 9, H, W)
    at, in_view, ray_z = warp(column, row, log_depth, T, focal, H, W, NEAR)
    in_view = in_view & mask
    sampled = tl.load(last + at, mask=in_view, other=0.0)
    sampled += _from_cells(last_correction, at % W, at // W, in_view, Y, X, SIDE)
    information = _from_cells(last_correction + Y * X, at % W, at // W, in_view, Y, X, SIDE)
    residual = log_depth_difference(sampled, in_view, ray_z, log_depth, T, NEAR) - change - update
    known = mask & (residual == residual)
    residual = tl.where(known, residual, 0.0)
    information = tl.where(known, KEPT * information * tl.exp(residual * residual * (-0.5 / (SURFACE * SURFACE))), 0.0)
    added = tl.where(trusted, _around(evidence + image * 2 * Y * X, point, mask, Y, X), 0.0)
    new = tl.where(trusted, _around(evidence + (image * 2 + 1) * Y * X, point, mask, Y, X), 0.0)
    correction = (information * residual + added - new * update) / (information + new + PRIOR)
    information = tl.where(trusted, information + new, 0.0)
    correction = tl.where(trusted, _zero_mean(correction, information, mask, PRIOR, MOST), 0.0)
    tl.store(correction_out + image * 2 * Y * X + point, correction, mask=mask)
    tl.store(correction_out + (image * 2 + 1) * Y * X + point, information, mask=mask)
    tl.store(coarse_out + image * Y * X + point, log_depth + update + log_scale + correction, mask=mask)


@triton.jit(**ONE_BINARY)
def _add_evidence(correction_in, evidence, correction_out, Y: tl.constexpr, X: tl.constexpr, GAIN: tl.constexpr,
                  PRIOR: tl.constexpr, MOST: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    image = tl.program_id(0).to(tl.int64)
    point = tl.arange(0, BLOCK)
    mask = point < Y * X
    first, second = image * 2 * Y * X + point, (image * 2 + 1) * Y * X + point
    weighted = _around(evidence + image * 2 * Y * X, point, mask, Y, X) * GAIN
    new = _around(evidence + (image * 2 + 1) * Y * X, point, mask, Y, X) * GAIN
    information = tl.load(correction_in + second, mask=mask, other=0.0) + new
    correction = tl.load(correction_in + first, mask=mask, other=0.0) + weighted / (information + PRIOR)
    tl.store(correction_out + first, _zero_mean(correction, information, mask, PRIOR, MOST), mask=mask)
    tl.store(correction_out + second, information, mask=mask)


@triton.jit(**ONE_BINARY)
def _finish(own, own_stride, difference_in, confidence_in, support, change, log_scale, correction, maps_out, depth_out,
            H: tl.constexpr, W: tl.constexpr, Y: tl.constexpr, X: tl.constexpr, SIDE: tl.constexpr,
            SUPPORTED: tl.constexpr, SURFACE: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    image = tl.program_id(0).to(tl.int64)
    pixel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = pixel < H * W
    own += image * own_stride
    log_depth = tl.load(own + pixel, mask=mask, other=0.0)
    confidence = tl.load(own + H * W + pixel, mask=mask, other=0.0)
    log_depth += _update(tl.load(difference_in + image * H * W + pixel, mask=mask, other=float("nan")),
                         tl.load(change + image), confidence,
                         tl.load(confidence_in + image * H * W + pixel, mask=mask, other=0.0),
                         tl.load(support + image) > SUPPORTED, SURFACE)  # fmt: skip
    tl.store(maps_out + image * 2 * H * W + pixel, log_depth, mask=mask)
    tl.store(maps_out + (image * 2 + 1) * H * W + pixel, confidence, mask=mask)
    added = _from_cells(correction + image * 2 * Y * X, pixel % W, pixel // W, mask, Y, X, SIDE)
    tl.store(depth_out + image * H * W + pixel, log_depth + tl.load(log_scale + image) + added, mask=mask)


class DepthFusion:
    """Fusion of a frame's depth and pose of each of N streams, begun before refinement and finished after it."""

    def __init__(
        self,
        maps: Tensor,
        codes: Tensor,
        motion: tuple[Tensor, Tensor, Tensor],
        last: DepthState,
        last_pose: LastPose,
        grid: Grid,
    ) -> None:
        """``maps`` [N, 2, H, W]: the depth head's. ``codes`` [N, 9]: pose codes of the camera head. ``motion``: what
        `solve_motion` gives."""
        (height, width), (rows, columns) = grid.size, grid.cells
        self._grid, self._maps = grid, maps
        count, programs = len(maps), triton.cdiv(height * width, PIXELS)
        transform, self._support, evidence = motion
        sizes = {"H": height, "W": width}
        self._difference, self._confidence = maps.new_empty(2, count, height, width)
        counts = maps.new_empty(count, programs)
        warp_all[(count, programs)](
            maps,
            maps.stride(0),
            last.maps.contiguous(),
            transform,
            codes,
            self._difference,
            self._confidence,
            counts,
            **sizes,
            NEAR=pnp.MIN_DEPTH,
            BLOCK=PIXELS,
            num_warps=4,
        )
        self.pose = torch.empty_like(codes)
        """[N, 9]: fused pose codes."""
        self.log_scale, self._change = maps.new_empty(2, count)
        self.correction = maps.new_empty(count, 2, rows, columns)
        """[N, 2, Y, X]: see `DepthState`."""
        self.log_depth_at_centers = maps.new_empty(count, rows, columns)
        """[N, Y, X]: fused log depth in the middle of the correction's cells."""
        spacing = depth_filter.SPACING
        samples = triton.cdiv(height, spacing) * triton.cdiv(width, spacing)
        _fuse_scale[(count,)](
            maps,
            maps.stride(0),
            self._difference,
            self._confidence,
            counts,
            programs,
            transform,
            self._support,
            evidence,
            last.maps.contiguous(),
            last.log_scale.contiguous(),
            last.correction.contiguous(),
            last_pose.pose.contiguous(),
            last_pose.head_pose.contiguous(),
            codes,
            self.pose,
            self.log_scale,
            self._change,
            self.correction,
            self.log_depth_at_centers,
            **sizes,
            Y=rows,
            X=columns,
            SIDE=grid.side,
            NEAR=pnp.MIN_DEPTH,
            SUPPORTED=pnp.SUPPORTED,
            SURFACE=depth_filter.SAME_SURFACE,
            FLOOR=math.log(depth_filter.MIN_CONFIDENCE),
            OVERLAP=depth_filter.MIN_OVERLAP,
            SMALL=depth_filter.SMALL_CHANGE,
            LOG_DECAY=math.log(depth_filter.SCALE_DECAY),
            KEPT=depth_filter.EVIDENCE_DECAY,
            PRIOR=depth_filter.DEPTH_SIGMA**-2,
            MOST=depth_filter.MAX_CORRECTION,
            SPACING=spacing,
            GAIN=fusion.ROTATION_GAIN,
            SHIFT=fusion.TRANSLATION_GAIN,
            LENGTH=fusion.HEAD_LENGTH_WEIGHT,
            RATIO=fusion.MAX_LENGTH_RATIO,
            COUNTS=triton.next_power_of_2(programs),
            SAMPLES=triton.next_power_of_2(samples),
            BLOCK=triton.next_power_of_2(grid.points),
            num_warps=SCALE_WARPS,
        )

    def finish(self, evidence: Tensor | None, gain: float) -> tuple[Tensor, DepthState]:
        """Fused log depth [N, H, W] and the state, after more evidence [N, 2, Y, X], not yet averaged, by ``gain``."""
        (height, width), (rows, columns), maps = self._grid.size, self._grid.cells, self._maps
        correction = self.correction
        if evidence is not None:
            correction = torch.empty_like(correction)
            _add_evidence[(len(maps),)](
                self.correction,
                evidence,
                correction,
                Y=rows,
                X=columns,
                GAIN=gain,
                PRIOR=depth_filter.DEPTH_SIGMA**-2,
                MOST=depth_filter.MAX_CORRECTION,
                BLOCK=triton.next_power_of_2(self._grid.points),
                num_warps=8,
            )
        fused, log_depth = maps.new_empty(maps.shape), maps.new_empty(len(maps), height, width)
        _finish[(len(maps), triton.cdiv(height * width, PIXELS))](
            maps,
            maps.stride(0),
            self._difference,
            self._confidence,
            self._support,
            self._change,
            self.log_scale,
            correction,
            fused,
            log_depth,
            H=height,
            W=width,
            Y=rows,
            X=columns,
            SIDE=self._grid.side,
            SUPPORTED=pnp.SUPPORTED,
            SURFACE=depth_filter.SAME_SURFACE,
            BLOCK=PIXELS,
            num_warps=4,
        )
        return log_depth, DepthState(fused, self.log_scale, correction)
