# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"
"""The keyframe matcher's rounds as one kernel each, and pose refinement as another (Triton)."""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from stream_recon.models.odometry import keyframe_matcher, pnp, pose_only_ba, refinement
from stream_recon.models.odometry.kernels.flow import PRECISION, Grid
from stream_recon.models.odometry.kernels.geometry import (
    ONE_BINARY,
    add_products,
    compose,
    gelu,
    load_focal,
    load_pose,
    newton_step,
    no_products,
    product,
    product_back,
    relative,
    rotation_exp,
    rotation_log,
    store_code,
    total_products,
    turn,
    with_translation,
)
from stream_recon.models.odometry.keyframe_matcher import KeyframeMatcher, MatchingHistory, MatchIteration
from stream_recon.models.odometry.sampling import FARTHEST

POINTS, WARPS = 16, 4
"""Matches and warps of one program of a round: few matches, so that one frame keeps many multiprocessors busy."""
SOLVE_WARPS = 8
"""Of the program that refines a frame's pose."""


@triton.jit
def _point(log_depth, point, mask, focal, X: tl.constexpr, SIDE: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
           FARTHEST: tl.constexpr):  # fmt: skip
    """Points of cells, by the log depth of cells in memory."""
    z = tl.minimum(tl.exp(tl.load(log_depth + point, mask=mask, other=0.0)), FARTHEST)
    column, row = point % X * SIDE + SIDE // 2, point // X * SIDE + SIDE // 2
    x = (column.to(tl.float32) + (0.5 - 0.5 * W)) / focal[0]
    y = (row.to(tl.float32) + (0.5 - 0.5 * H)) / focal[1]
    return x * z, y * z, z


@triton.jit
def _own_features(own, point, mask, row_mask, first_cell, height, width, cell, X: tl.constexpr, SIDE: tl.constexpr,
                  CHANNELS: tl.constexpr):  # fmt: skip
    """Features [points, 32] of a level in the middle of each cell, bilinear."""
    x = ((point % X * SIDE + SIDE // 2).to(tl.float32) + 0.5) / cell - 0.5
    y = ((point // X * SIDE + SIDE // 2).to(tl.float32) + 0.5) / cell - 0.5
    left, top = tl.floor(x).to(tl.int32), tl.floor(y).to(tl.int32)
    x, y = (x - left.to(tl.float32))[:, None], (y - top.to(tl.float32))[:, None]
    channel = tl.arange(0, 32)[None, :]
    c0, c1 = tl.minimum(tl.maximum(left, 0), width - 1), tl.minimum(tl.maximum(left + 1, 0), width - 1)
    r0, r1 = tl.minimum(tl.maximum(top, 0), height - 1), tl.minimum(tl.maximum(top + 1, 0), height - 1)
    own += first_cell * CHANNELS
    upper_row, lower_row = own + (r0 * width)[:, None] * CHANNELS, own + (r1 * width)[:, None] * CHANNELS
    at, next_at = c0[:, None] * CHANNELS + channel, c1[:, None] * CHANNELS + channel
    upper = tl.load(upper_row + at, mask=row_mask, other=0.0) * (1 - x)
    upper += tl.load(upper_row + next_at, mask=row_mask, other=0.0) * x
    lower = tl.load(lower_row + at, mask=row_mask, other=0.0) * (1 - x)
    lower += tl.load(lower_row + next_at, mask=row_mask, other=0.0) * x
    return upper * (1 - y) + lower * y


@triton.jit(**ONE_BINARY)
def _match(own, own_stride, others, others_stride, other_stride, log_depth, codes, pose, poses, pixels, geometry,
           context_in, context, hidden_in, hidden_out, mix, mix_bias, w2, b2, w1, b1, weigh, weigh_bias, precision_out,
           P, first_cell, height, width, cell, last_cell, H: tl.constexpr, W: tl.constexpr, Y: tl.constexpr,
           X: tl.constexpr, SIDE: tl.constexpr, SCALE: tl.constexpr, CHANNELS: tl.constexpr, REACH: tl.constexpr,
           CONTEXT: tl.constexpr, HIDDEN: tl.constexpr, SHARPNESS: tl.constexpr, BOUND: tl.constexpr,
           NEAR: tl.constexpr, FARTHEST: tl.constexpr, LAG0: tl.constexpr, LAG1: tl.constexpr, LAG2: tl.constexpr,
           HISTORY: tl.constexpr, PRECISION: tl.constexpr, IS_FIRST: tl.constexpr,
           IS_LAST: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    look, looks = tl.program_id(1), tl.num_programs(1)
    image = tl.program_id(0).to(tl.int64)
    lag = tl.where(look == 0, LAG0, tl.where(look == 1, LAG1, LAG2)) - 1
    point = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    mask = point < P
    row_mask = mask[:, None]
    pair = image * looks + look
    match_index = pair * P + point
    deep, wide = tl.arange(0, CONTEXT), tl.arange(0, HIDDEN)
    geometry += match_index * 5
    if IS_FIRST:
        focal = load_focal(codes + image * 9, H, W)
        x, y, z = _point(log_depth + image * P, point, mask, focal, X, SIDE, H, W, FARTHEST)
        T = relative(load_pose(poses + (image * HISTORY + lag) * 9), load_pose(pose + image * 9))
        turned = turn(T, x, y, z)
        z = turned[2] + T[11]
        inverse = 1.0 / tl.maximum(z, NEAR)
        u, v = (turned[0] + T[9]) * inverse, (turned[1] + T[10]) * inverse
        expected_x, expected_y = u * focal[0] + 0.5 * W, v * focal[1] + 0.5 * H
        along_x = (turned[0] - u * turned[2]) * inverse * focal[0]
        along_y = (turned[1] - v * turned[2]) * inverse * focal[1]
        length = tl.sqrt(along_x * along_x + along_y * along_y) + SCALE
        seen = (expected_x > 0.0) & (expected_y > 0.0) & (expected_x < W) & (expected_y < H) & (z > NEAR)
        along_x, along_y = tl.where(seen, along_x / length, 0.0), tl.where(seen, along_y / length, 0.0)
        expected_x = tl.minimum(tl.maximum(expected_x, 0.0), W)
        expected_y = tl.minimum(tl.maximum(expected_y, 0.0), H)
        tl.store(geometry, expected_x, mask=mask)
        tl.store(geometry + 1, expected_y, mask=mask)
        tl.store(geometry + 2, along_x, mask=mask)
        tl.store(geometry + 3, along_y, mask=mask)
        tl.store(geometry + 4, seen.to(tl.float32), mask=mask)
        pixel_x, pixel_y = expected_x, expected_y
        known = tl.load(context_in + (image * P + point)[:, None] * CONTEXT + deep[None, :], mask=row_mask, other=0.0)
    else:
        # The end of the round before: neighbours mixed, then the second layer.
        before = hidden_in + match_index[:, None] * HIDDEN + wide[None, :]
        column, row = point % X, point // X
        mixed = tl.zeros([BLOCK, HIDDEN], tl.float32) + tl.load(mix_bias + wide)[None, :]
        for down in range(3):  # not unrolled, which would compile for long
            for across in tl.static_range(3):
                inside = (column + across >= 1) & (column + across <= X) & (row + down >= 1) & (row + down <= Y)
                value = tl.load(
                    before + ((down - 1) * X + across - 1) * HIDDEN, mask=(mask & inside)[:, None], other=0.0
                )
                mixed += value * tl.load(mix + wide * 9 + down * 3 + across)[None, :]
        h = tl.load(before, mask=row_mask, other=0.0) + gelu(mixed)
        dx = tl.sum(h * tl.load(w2 + wide)[None, :], 1) + tl.load(b2)
        dy = tl.sum(h * tl.load(w2 + HIDDEN + wide)[None, :], 1) + tl.load(b2 + 1)
        known = tl.load(context + match_index[:, None] * CONTEXT + deep[None, :], mask=row_mask, other=0.0)
        second = tl.load(w2 + (2 + deep)[None, :] * HIDDEN + wide[:, None])
        known += tl.dot(h, second, input_precision=PRECISION) + tl.load(b2 + 2 + deep)[None, :]
        pixel_x = tl.load(pixels + match_index * 2, mask=mask, other=0.0) + dx * last_cell
        pixel_y = tl.load(pixels + match_index * 2 + 1, mask=mask, other=0.0) + dy * last_cell
        expected_x, expected_y = tl.load(geometry, mask=mask, other=0.0), tl.load(geometry + 1, mask=mask, other=0.0)
        along_x, along_y = tl.load(geometry + 2, mask=mask, other=0.0), tl.load(geometry + 3, mask=mask, other=0.0)
    tl.store(pixels + match_index * 2, pixel_x, mask=mask)
    tl.store(pixels + match_index * 2 + 1, pixel_y, mask=mask)
    if IS_LAST:
        score = tl.sum(known * tl.load(weigh + deep)[None, :], 1) + tl.load(weigh_bias)
        tl.store(precision_out + match_index, tl.minimum(tl.maximum(score, -BOUND), BOUND), mask=mask)
    else:
        tl.store(context + match_index[:, None] * CONTEXT + deep[None, :], known, mask=row_mask)
        channel = tl.arange(0, 32)
        is_channel = row_mask & (channel < CHANNELS)[None, :]
        own += image * own_stride
        described = _own_features(own, point, mask, is_channel, first_cell, height, width, cell, X, SIDE, CHANNELS)
        others += image * others_stride + lag * other_stride
        x, y = pixel_x / cell - 0.5, pixel_y / cell - 0.5
        left, top = tl.floor(x), tl.floor(y)
        x, y = (x - left)[:, None], (y - top)[:, None]
        left, top = left.to(tl.int32), top.to(tl.int32)
        window: tl.constexpr = 2 * REACH + 1
        sample = tl.arange(0, 32)
        sample_row, sample_column = (sample // window)[None, :], (sample % window)[None, :]
        is_sample = sample < window * window
        correlation = tl.zeros([BLOCK, 32], tl.float32)
        for down in range(window + 1):  # not unrolled, which would compile for long
            row = tl.minimum(tl.maximum(top + (down - REACH), 0), height - 1)
            share_y = tl.where(sample_row == down, 1 - y, 0.0) + tl.where(sample_row == down - 1, y, 0.0)
            for across in tl.static_range(window + 1):
                column = tl.minimum(tl.maximum(left + (across - REACH), 0), width - 1)
                at = (first_cell + row * width + column)[:, None] * CHANNELS + channel[None, :]
                product_ = tl.sum(described * tl.load(others + at, mask=is_channel, other=0.0), 1)[:, None]
                share_x = tl.where(sample_column == across, 1 - x, 0.0) + tl.where(sample_column == across - 1, x, 0.0)
                correlation += product_ * (share_y * share_x)
        correlation = tl.where(is_sample[None, :], correlation * SHARPNESS, 0.0)
        inputs: tl.constexpr = window * window + CONTEXT + 4
        column_ = w1 + wide * inputs + window * window
        first = tl.load(w1 + wide[None, :] * inputs + sample[:, None], mask=is_sample[:, None], other=0.0)
        h = tl.dot(correlation, first, input_precision=PRECISION)
        h += tl.dot(known, tl.load(column_[None, :] + deep[:, None]), input_precision=PRECISION)
        column_ += CONTEXT
        h += ((pixel_x - expected_x) * (1.0 / SCALE))[:, None] * tl.load(column_)[None, :]
        h += ((pixel_y - expected_y) * (1.0 / SCALE))[:, None] * tl.load(column_ + 1)[None, :]
        h += along_x[:, None] * tl.load(column_ + 2)[None, :] + along_y[:, None] * tl.load(column_ + 3)[None, :]
        h = gelu(h + tl.load(b1 + wide)[None, :])
        tl.store(hidden_out + match_index[:, None] * HIDDEN + wide[None, :], h, mask=row_mask)


@triton.jit
def _residual(T, px, py, pz, target_u, target_v, precision, NEAR: tl.constexpr, PRIOR: tl.constexpr,
              STUDENT: tl.constexpr):  # fmt: skip
    """Derivatives and residual of matches along either axis, and the numbers of `pose_only_ba._Residuals`."""
    q = turn(T, px, py, pz)
    z = q[2] + T[11]
    inverse = 1.0 / tl.maximum(z, NEAR)
    u, v = (q[0] + T[9]) * inverse, (q[1] + T[10]) * inverse
    a0, a1, a2 = (T[0] - u * T[6]) * inverse, (T[1] - u * T[7]) * inverse, (T[2] - u * T[8]) * inverse
    b0, b1, b2 = (T[3] - v * T[6]) * inverse, (T[4] - v * T[7]) * inverse, (T[5] - v * T[8]) * inverse
    du, dv = u - target_u, v - target_v
    g, k = a0 * px + a1 * py + a2 * pz, b0 * px + b1 * py + b2 * pz
    along_u = (py * a2 - pz * a1, pz * a0 - px * a2, px * a1 - py * a0, a0, a1, a2, du)
    along_v = (py * b2 - pz * b1, pz * b0 - px * b2, px * b1 - py * b0, b0, b1, b2, dv)
    precision = tl.where(z > NEAR, precision, 0.0)
    both, squared = g * du + k * dv, g * g + k * k
    explained = precision * both
    explained = explained * explained / (precision * squared + PRIOR)
    weight = precision * ((STUDENT + 2.0) / (STUDENT + precision * (du * du + dv * dv) - explained))
    return along_u, along_v, g, k, both, squared, precision, weight


@triton.jit(**ONE_BINARY)
def _refine(log_depth, codes, pose, poses, history_count, pixels, geometry, log_precision, pose_out, evidence_out, P,
            H: tl.constexpr, W: tl.constexpr, X: tl.constexpr, SIDE: tl.constexpr, LAG0: tl.constexpr,
            LAG1: tl.constexpr, LAG2: tl.constexpr, HISTORY: tl.constexpr, NEAR: tl.constexpr, FARTHEST: tl.constexpr,
            ITERATIONS: tl.constexpr, OVERLAP: tl.constexpr, MOST: tl.constexpr, INDEPENDENT: tl.constexpr,
            PRIOR: tl.constexpr, STUDENT: tl.constexpr, DAMPING: tl.constexpr, SUPPORTED: tl.constexpr,
            GAIN: tl.constexpr, SHIFT: tl.constexpr, LARGE: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    image = tl.program_id(0).to(tl.int64)
    point = tl.arange(0, BLOCK)
    mask = point < P
    focal = load_focal(codes + image * 9, H, W)
    px, py, pz = _point(log_depth + image * P, point, mask, focal, X, SIDE, H, W, FARTHEST)
    zero = px * 0.0
    T_before = load_pose(pose + image * 9)
    r0, r1, r2, r3, r4, r5 = T_before[0], T_before[1], T_before[2], T_before[3], T_before[4], T_before[5]
    r6, r7, r8, t0, t1, t2 = T_before[6], T_before[7], T_before[8], T_before[9], T_before[10], T_before[11]
    agreeing, total, weighted, information = zero, zero, zero, zero
    # The last pass only evaluates.
    for iteration in range(ITERATIONS + 1):
        T = (r0, r1, r2, r3, r4, r5, r6, r7, r8, t0, t1, t2)
        sums = no_products(zero)
        shared = (zero, zero, zero, zero, zero, zero, zero)
        depth_information = zero + PRIOR
        agreeing, total, weighted, information = zero, zero, zero, zero
        for look in range(3):
            lag = tl.where(look == 0, LAG0, tl.where(look == 1, LAG1, LAG2))
            match_index = (image * 3 + look) * P + point
            inside = tl.load(geometry + match_index * 5 + 4, mask=mask, other=0.0)
            seen = tl.where(tl.load(history_count + image) >= lag, tl.sum(inside, 0), 0.0)
            precision = tl.exp(tl.minimum(tl.load(log_precision + match_index, mask=mask, other=0.0), MOST)) * inside
            precision = tl.where(seen > OVERLAP * P, precision * (focal[0] * focal[1]), 0.0)
            u = (tl.load(pixels + match_index * 2, mask=mask, other=0.0) - 0.5 * W) / focal[0]
            v = (tl.load(pixels + match_index * 2 + 1, mask=mask, other=0.0) - 0.5 * H) / focal[1]
            motion = relative(load_pose(poses + (image * HISTORY + lag - 1) * 9), T)
            a, b, g, k, both, squared, precision, weight = _residual(motion, px, py, pz, u, v, precision, NEAR,
                                                                     PRIOR, STUDENT)  # fmt: skip
            agreeing += weight
            total += precision
            weighted -= weight * both
            information += weight * squared
            weight = weight * INDEPENDENT
            sums = add_products(add_products(sums, weight, a), weight, b)
            depth_information += weight * squared
            g, k = g * weight, k * weight
            shared = (shared[0] + g * a[0] + k * b[0], shared[1] + g * a[1] + k * b[1],
                      shared[2] + g * a[2] + k * b[2], shared[3] + g * a[3] + k * b[3],
                      shared[4] + g * a[4] + k * b[4], shared[5] + g * a[5] + k * b[5],
                      shared[6] + g * a[6] + k * b[6])  # fmt: skip
        if iteration < ITERATIONS:
            sums = add_products(sums, -1.0 / depth_information, shared)
            step = newton_step(total_products(sums), DAMPING)
            T = compose(T, with_translation(rotation_exp(step[0], step[1], step[2]), step[3], step[4], step[5]))
            r0, r1, r2, r3, r4, r5 = T[0], T[1], T[2], T[3], T[4], T[5]
            r6, r7, r8, t0, t1, t2 = T[6], T[7], T[8], T[9], T[10], T[11]
    support = tl.sum(agreeing, 0) / tl.maximum(tl.sum(total, 0), 1e-9) * (STUDENT / (STUDENT + 2.0))
    # A sum that is not finite minus itself is not 0.
    checksum = r0 + r1 + r2 + r3 + r4 + r5 + r6 + r7 + r8 + t0 + t1 + t2
    trusted = tl.where(checksum - checksum == 0.0, support, 0.0) > SUPPORTED
    adjusted = (r0, r1, r2, r3, r4, r5, r6, r7, r8)
    off = rotation_log(product_back(T_before, adjusted))
    gain = 1.0 - (1.0 - GAIN) / (1.0 + (off[0] * off[0] + off[1] * off[1] + off[2] * off[2]) / (LARGE * LARGE))
    gain = tl.where(trusted, gain, 0.0)
    off = (tl.where(trusted, off[0], 0.0), tl.where(trusted, off[1], 0.0), tl.where(trusted, off[2], 0.0))
    R = product(T_before, rotation_exp(off[0] * gain, off[1] * gain, off[2] * gain))
    x = T_before[9] + tl.where(trusted, (t0 - T_before[9]) * SHIFT, 0.0)
    y = T_before[10] + tl.where(trusted, (t1 - T_before[10]) * SHIFT, 0.0)
    z = T_before[11] + tl.where(trusted, (t2 - T_before[11]) * SHIFT, 0.0)
    store_code(pose_out + image * 9, with_translation(R, x, y, z), pose + image * 9)
    weighted, information = tl.where(trusted, weighted, 0.0), tl.where(trusted, information, 0.0)
    tl.store(evidence_out + image * 2 * P + point, weighted, mask=mask)
    tl.store(evidence_out + (image * 2 + 1) * P + point, information, mask=mask)


@dataclass(frozen=True)
class Query:
    """What is matched of N frames, one of each stream."""

    features: Tensor  # [N, M, 24], rows contiguous
    context: Tensor  # [N, Y, X, 16]
    codes: Tensor  # [N, 9]: pose codes, of which only the field of view is used
    log_depth_at_centers: Tensor  # [N, Y, X]


def refine(
    matcher: KeyframeMatcher, query: Query, pose: Tensor, history: MatchingHistory, grid: Grid
) -> tuple[Tensor, Tensor]:
    """`refine_pose` without a search for a rotation: pose codes [N, 9], and evidence for depth [N, 2, Y, X] before it
    is averaged over neighbours; 0 where the pose is not trusted."""
    count, looks, points = len(pose), len(refinement.LAGS), grid.points
    pixels, geometry = pose.new_empty(count, looks, points, 2), pose.new_empty(count, looks, points, 5)
    context = pose.new_empty(count, looks, points, keyframe_matcher.CONTEXT)
    hidden = pose.new_empty(2, count, looks, points, keyframe_matcher.HIDDEN)
    log_precision = pose.new_empty(count, looks, points)
    poses, features, own = history.poses.contiguous(), history.features, query.features
    assert own.stride()[1:] == features.stride()[2:] == (keyframe_matcher.FEATURES, 1)
    rounds = [update for update in matcher.rounds if isinstance(update, MatchIteration)]
    cells = keyframe_matcher.ROUNDS
    lags = {f"LAG{i}": lag for i, lag in enumerate(refinement.LAGS)}
    for number in range(len(cells) + 1):
        is_last = number == len(cells)
        cell = cells[min(number, len(cells) - 1)]
        before, after = rounds[max(number - 1, 0)], rounds[min(number, len(cells) - 1)]
        _match[(count, looks, triton.cdiv(points, POINTS))](
            own,
            own.stride(0),
            features,
            features.stride(0),
            features.stride(1),
            query.log_depth_at_centers,
            query.codes,
            pose,
            poses,
            pixels,
            geometry,
            query.context,
            context,
            hidden[(number + 1) % 2],
            hidden[number % 2],
            before.mix.weight,
            before.mix.bias,
            before.fc2.weight,
            before.fc2.bias,
            after.fc1.weight,
            after.fc1.bias,
            matcher.weigh.weight,
            matcher.weigh.bias,
            log_precision,
            points,
            *keyframe_matcher.level_slice(cell, grid.size),
            cell,
            cells[max(number - 1, 0)],
            H=grid.size[0],
            W=grid.size[1],
            Y=grid.cells[0],
            X=grid.cells[1],
            SIDE=grid.side,
            SCALE=cells[0],
            CHANNELS=keyframe_matcher.FEATURES,
            REACH=keyframe_matcher.REACH,
            CONTEXT=keyframe_matcher.CONTEXT,
            HIDDEN=keyframe_matcher.HIDDEN,
            SHARPNESS=keyframe_matcher.SHARPNESS,
            BOUND=keyframe_matcher.MAX_LOG_PRECISION,
            NEAR=pnp.MIN_DEPTH,
            FARTHEST=FARTHEST,
            **lags,
            HISTORY=keyframe_matcher.HISTORY,
            PRECISION=PRECISION,
            IS_FIRST=number == 0,
            IS_LAST=is_last,
            BLOCK=POINTS,
            num_warps=WARPS,
        )
    refined, evidence = torch.empty_like(pose), pose.new_empty(count, 2, *grid.cells)
    _refine[(count,)](
        query.log_depth_at_centers,
        query.codes,
        pose,
        poses,
        history.count,
        pixels,
        geometry,
        log_precision,
        refined,
        evidence,
        points,
        H=grid.size[0],
        W=grid.size[1],
        X=grid.cells[1],
        SIDE=grid.side,
        **lags,
        HISTORY=keyframe_matcher.HISTORY,
        NEAR=pnp.MIN_DEPTH,
        FARTHEST=FARTHEST,
        ITERATIONS=pose_only_ba.ITERATIONS,
        OVERLAP=refinement.MIN_OVERLAP,
        MOST=refinement.MAX_LOG_PRECISION,
        INDEPENDENT=pose_only_ba.INDEPENDENT,
        PRIOR=pose_only_ba.DEPTH_SIGMA**-2,
        STUDENT=pose_only_ba.STUDENT,
        DAMPING=pose_only_ba.DAMPING,
        SUPPORTED=refinement.SUPPORTED,
        GAIN=refinement.ROTATION_GAIN,
        SHIFT=refinement.TRANSLATION_GAIN,
        LARGE=refinement.LARGE_ROTATION,
        BLOCK=triton.next_power_of_2(points),
        num_warps=SOLVE_WARPS,
    )
    return refined, evidence
