# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"
"""Rounds of the flow head as one kernel each, and its motion with evidence for depth as another (Triton)."""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from stream_recon.models.layers import Mlp
from stream_recon.models.odometry import flow_head, pnp
from stream_recon.models.odometry.depth_filter import EVIDENCE_SIGMA
from stream_recon.models.odometry.kernels.geometry import (
    ONE_BINARY,
    add_products,
    gelu,
    load_focal,
    newton_step,
    no_products,
    product,
    rotation_exp,
    store_transform,
    total_products,
    turn,
    with_translation,
)
from stream_recon.models.odometry.sampling import FARTHEST

POINTS, WARPS = 16, 4
"""Matches and warps of one program of a round: few matches, so that one frame keeps many multiprocessors busy."""
PRECISION = "tf32x3"
"""Of matrix products: three of tensor cores, nearly as exact as fp32."""
SOLVE_WARPS = 8
"""Of the program that solves a frame's motion."""


@triton.jit
def _bilinear(x, y, W, H):
    """Cells and shares of bilinear sampling at positions in cells; beyond the border the border's value."""
    x = tl.minimum(tl.maximum(x, 0.0), W - 1.0)
    y = tl.minimum(tl.maximum(y, 0.0), H - 1.0)
    left, top = tl.floor(x), tl.floor(y)
    column, row = left.to(tl.int32), top.to(tl.int32)
    right, below = tl.minimum(column + 1, W - 1), tl.minimum(row + 1, H - 1)
    return column, right, row, below, x - left, y - top


@triton.jit(**ONE_BINARY)
def _round(own, target, own_stride, own_channel, own_row, own_column, target_stride, target_channel, target_row,
           target_column, flow, context, w1, b1, w2, b2, v1, c1, v2, c2, weight_out, flow_out, context_out, P,
           height, width, cell, spacing, is_final, X: tl.constexpr, PATCH: tl.constexpr, SIDE: tl.constexpr,
           OWN_H: tl.constexpr, OWN_W: tl.constexpr, CHANNELS: tl.constexpr, REACH: tl.constexpr,
           CONTEXT: tl.constexpr, HIDDEN: tl.constexpr, SHARPNESS: tl.constexpr, BOUND: tl.constexpr,
           LAST: tl.constexpr, PRECISION: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    image = tl.program_id(0).to(tl.int64)
    point = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = point < P
    cell_index = image * P + point
    fx = tl.load(flow + cell_index * 2, mask=mask, other=0.0)
    fy = tl.load(flow + cell_index * 2 + 1, mask=mask, other=0.0)
    center_x = (point % X * SIDE + SIDE // 2).to(tl.float32) + 0.5
    center_y = (point // X * SIDE + SIDE // 2).to(tl.float32) + 0.5
    window: tl.constexpr = 2 * REACH + 1
    sample = tl.arange(0, 32)
    is_sample = sample < window * window
    step_x = ((sample % window - REACH) * spacing).to(tl.float32)
    step_y = ((sample // window - REACH) * spacing).to(tl.float32)
    # The frame's own features have one value for every two pixels.
    c0, c1_, r0, r1, ax, ay = _bilinear(center_x * 0.5 - 0.5, center_y * 0.5 - 0.5, OWN_W, OWN_H)
    own += image * own_stride
    o00, o01 = own + r0 * own_row + c0 * own_column, own + r0 * own_row + c1_ * own_column
    o10, o11 = own + r1 * own_row + c0 * own_column, own + r1 * own_row + c1_ * own_column
    px = (center_x + fx * PATCH)[:, None] + step_x[None, :]
    py = (center_y + fy * PATCH)[:, None] + step_y[None, :]
    left, right, top, low, x, y = _bilinear(px / cell - 0.5, py / cell - 0.5, width, height)
    target += image * target_stride
    t00, t01 = target + top * target_row + left * target_column, target + top * target_row + right * target_column
    t10, t11 = target + low * target_row + left * target_column, target + low * target_row + right * target_column
    is_read = mask[:, None] & is_sample[None, :]
    correlation = tl.zeros([BLOCK, 32], tl.float32)
    for channel in range(CHANNELS):  # not unrolled, which would compile for long
        at = channel * own_channel
        upper = tl.load(o00 + at, mask=mask, other=0.0) * (1 - ax) + tl.load(o01 + at, mask=mask, other=0.0) * ax
        lower = tl.load(o10 + at, mask=mask, other=0.0) * (1 - ax) + tl.load(o11 + at, mask=mask, other=0.0) * ax
        value = upper * (1 - ay) + lower * ay
        at = channel * target_channel
        upper = tl.load(t00 + at, mask=is_read, other=0.0) * (1 - x) + tl.load(t01 + at, mask=is_read, other=0.0) * x
        lower = tl.load(t10 + at, mask=is_read, other=0.0) * (1 - x) + tl.load(t11 + at, mask=is_read, other=0.0) * x
        correlation += value[:, None] * (upper * (1 - y) + lower * y)
    correlation = tl.where(is_read, correlation * SHARPNESS, 0.0)
    inputs: tl.constexpr = window * window + CONTEXT
    hidden, deep = tl.arange(0, HIDDEN), tl.arange(0, CONTEXT)
    at = cell_index[:, None] * CONTEXT + deep[None, :]
    known = tl.load(context + at, mask=mask[:, None], other=0.0)
    first = tl.load(w1 + hidden[None, :] * inputs + sample[:, None], mask=is_sample[:, None], other=0.0)
    second = tl.load(w1 + hidden[None, :] * inputs + window * window + deep[:, None])
    h = tl.dot(correlation, first, input_precision=PRECISION) + tl.dot(known, second, input_precision=PRECISION)
    h = gelu(h + tl.load(b1 + hidden)[None, :])
    dx = tl.sum(h * tl.load(w2 + hidden)[None, :], 1) + tl.load(b2)
    dy = tl.sum(h * tl.load(w2 + HIDDEN + hidden)[None, :], 1) + tl.load(b2 + 1)
    third = tl.load(w2 + (2 + deep)[None, :] * HIDDEN + hidden[:, None])
    known += tl.dot(h, third, input_precision=PRECISION) + tl.load(b2 + 2 + deep)[None, :]
    tl.store(flow_out + cell_index * 2, fx + dx * (spacing / PATCH), mask=mask)
    tl.store(flow_out + cell_index * 2 + 1, fy + dy * (spacing / PATCH), mask=mask)
    tl.store(context_out + at, known, mask=mask[:, None])
    if is_final:
        last = tl.arange(0, LAST)
        weights = tl.load(v1 + last[None, :] * CONTEXT + deep[:, None])
        g = gelu(tl.dot(known, weights, input_precision=PRECISION) + tl.load(c1 + last)[None, :])
        score = tl.sum(g * tl.load(v2 + last)[None, :], 1) + tl.load(c2)
        tl.store(weight_out + cell_index, tl.exp(tl.minimum(tl.maximum(score, -BOUND), BOUND)), mask=mask)


@triton.jit(**ONE_BINARY)
def _solve(flow, weights, log_depth, depth_stride, codes, motion_out, support_out, evidence_out, P,
           X: tl.constexpr, H: tl.constexpr, W: tl.constexpr, PATCH: tl.constexpr, SIDE: tl.constexpr,
           FARTHEST: tl.constexpr, ITERATIONS: tl.constexpr, ROBUST_FROM: tl.constexpr, ROBUST: tl.constexpr,
           DEPTH_VARIANCE: tl.constexpr, NEAR: tl.constexpr, DAMPING: tl.constexpr, INFORMATION: tl.constexpr,
           BLOCK: tl.constexpr):  # fmt: skip
    image = tl.program_id(0).to(tl.int64)
    point = tl.arange(0, BLOCK)
    mask = point < P
    focal = load_focal(codes + image * 9, H, W)
    column, row = point % X * SIDE + SIDE // 2, point // X * SIDE + SIDE // 2
    ray_x = (column.to(tl.float32) + (0.5 - 0.5 * W)) / focal[0]
    ray_y = (row.to(tl.float32) + (0.5 - 0.5 * H)) / focal[1]
    depth = tl.exp(tl.load(log_depth + image * depth_stride + row * W + column, mask=mask, other=0.0))
    pz = tl.minimum(depth, FARTHEST)
    px, py = ray_x * pz, ray_y * pz
    at = (image * P + point) * 2
    target_u = ray_x + tl.load(flow + at, mask=mask, other=0.0) * (PATCH / focal[0])
    target_v = ray_y + tl.load(flow + at + 1, mask=mask, other=0.0) * (PATCH / focal[1])
    weight = tl.load(weights + image * P + point, mask=mask, other=0.0)
    share = weight
    zero = px * 0.0
    r0, r4, r8 = 1.0, 1.0, 1.0
    r1, r2, r3, r5, r6, r7 = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    t0, t1, t2 = 0.0, 0.0, 0.0
    for iteration in range(ITERATIONS):
        q = turn((r0, r1, r2, r3, r4, r5, r6, r7, r8), px, py, pz)
        x, y, z = q[0] + t0, q[1] + t1, q[2] + t2
        inverse = 1.0 / tl.maximum(z, NEAR)
        u, v = x * inverse, y * inverse
        # Derivatives by translation are (inverse, 0, -u inverse) and (0, inverse, -v inverse); those by rotation are
        # their cross products with the moved point.
        fall_u, fall_v = -u * inverse, -v * inverse
        by_u = (y * fall_u, z * inverse - x * fall_u, -y * inverse, inverse, zero, fall_u, u - target_u)
        by_v = (y * fall_v - z * inverse, -x * fall_v, x * inverse, zero, inverse, fall_v, v - target_v)
        g, k = (q[0] - u * q[2]) * inverse, (q[1] - v * q[2]) * inverse
        along = (g * by_u[0] + k * by_v[0], g * by_u[1] + k * by_v[1], g * by_u[2] + k * by_v[2],
                 g * by_u[3], k * by_v[4], g * by_u[5] + k * by_v[5], g * by_u[6] + k * by_v[6])  # fmt: skip
        less = DEPTH_VARIANCE / (1.0 + DEPTH_VARIANCE * (g * g + k * k))
        share = tl.where(z > NEAR, weight, 0.0)
        squared = by_u[6] * by_u[6] + by_v[6] * by_v[6] - less * along[6] * along[6]
        share = tl.where(iteration >= ROBUST_FROM, share / (1.0 + squared * (1.0 / (ROBUST * ROBUST))), share)
        sums = add_products(no_products(zero), share, by_u)
        sums = add_products(sums, share, by_v)
        sums = add_products(sums, -share * less, along)
        step = newton_step(total_products(sums), DAMPING)
        rotation = rotation_exp(step[0], step[1], step[2])
        t = turn(rotation, t0, t1, t2)
        t0, t1, t2 = t[0] + step[3], t[1] + step[4], t[2] + step[5]
        R = product(rotation, (r0, r1, r2, r3, r4, r5, r6, r7, r8))
        r0, r1, r2, r3, r4, r5, r6, r7, r8 = R[0], R[1], R[2], R[3], R[4], R[5], R[6], R[7], R[8]
    tl.store(support_out + image, tl.sum(share, 0) / tl.maximum(tl.sum(weight, 0), 1e-9))
    T = with_translation((r0, r1, r2, r3, r4, r5, r6, r7, r8), t0, t1, t2)
    store_transform(motion_out + image * 12, T)
    # Evidence for depth: see `disparity_evidence`.
    q = turn(T, px, py, pz)
    z = q[2] + t2
    inverse = 1.0 / tl.maximum(z, NEAR)
    u, v = (q[0] + t0) * inverse, (q[1] + t1) * inverse
    du, dv = u - target_u, v - target_v
    g, k = (q[0] - u * q[2]) * inverse, (q[1] - v * q[2]) * inverse
    squared = g * g + k * k
    off = du * k - dv * g
    across = off * off / tl.maximum(squared, 1e-9)
    precision = tl.where(z > NEAR, weight, 0.0) / (1.0 + across * (1.0 / (ROBUST * ROBUST))) * INFORMATION
    tl.store(evidence_out + image * 2 * P + point, -precision * (du * g + dv * k), mask=mask)
    tl.store(evidence_out + (image * 2 + 1) * P + point, precision * squared, mask=mask)


@dataclass(frozen=True)
class Grid:
    """Sizes of an image and its cells."""

    size: tuple[int, int]  # height and width in pixels
    cells: tuple[int, int]  # rows and columns
    patch: int

    @property
    def points(self) -> int:
        return self.cells[0] * self.cells[1]

    @property
    def side(self) -> int:
        """Pixels along a cell."""
        return self.size[1] // self.cells[1]


def flow_round(
    head: "flow_head.FlowHead", number: int, maps: tuple[Tensor, Tensor], state: tuple[Tensor, Tensor], grid: Grid
) -> tuple[Tensor, Tensor, Tensor]:
    """One round of `FlowHead.forward`.

    Args:
        maps: features [N, 16, h, w] of the frames, and of the keyframes before at the round's resolution.
        state: flow [N, Y, X, 2] in patches and context [N, Y, X, 16].

    Returns flow, context, and weights [N, Y, X], which only the last round sets.
    """
    own, target = maps
    flow, context = (x.contiguous() for x in state)
    update, weigh = head.rounds[number], head.weigh
    assert isinstance(update, Mlp)
    flow_out, context_out = torch.empty_like(flow), torch.empty_like(context)
    weight_out = flow.new_empty(flow.shape[:-1])
    _round[(len(flow), triton.cdiv(grid.points, POINTS))](
        own,
        target,
        *own.stride(),
        *target.stride(),
        flow,
        context,
        update.fc1.weight,
        update.fc1.bias,
        update.fc2.weight,
        update.fc2.bias,
        weigh.fc1.weight,
        weigh.fc1.bias,
        weigh.fc2.weight,
        weigh.fc2.bias,
        weight_out,
        flow_out,
        context_out,
        grid.points,
        *target.shape[2:],
        2 * own.shape[3] // target.shape[3],
        flow_head.SPACINGS[number],
        int(number == len(flow_head.SPACINGS) - 1),
        X=grid.cells[1],
        PATCH=grid.patch,
        SIDE=grid.side,
        OWN_H=own.shape[2],
        OWN_W=own.shape[3],
        CHANNELS=flow_head.FEATURES,
        REACH=flow_head.REACH,
        CONTEXT=flow_head.CONTEXT,
        HIDDEN=update.fc1.out_features,
        SHARPNESS=flow_head.SHARPNESS,
        BOUND=flow_head.MAX_LOG_WEIGHT,
        LAST=weigh.fc1.out_features,
        PRECISION=PRECISION,
        BLOCK=POINTS,
        num_warps=WARPS,
    )
    return flow_out, context_out, weight_out


def solve_motion(
    flow: Tensor, weight: Tensor, log_depth: Tensor, codes: Tensor, grid: Grid
) -> tuple[Tensor, Tensor, Tensor]:
    """`solve_pnp` and `disparity_evidence` of N frames.

    Args:
        flow, weight: [N, Y, X, 2] in patches and [N, Y, X].
        log_depth: [N, H, W], rows contiguous.
        codes: [N, 9]: pose codes, of which only the field of view is used.

    Returns motions [N, 12] (a rotation row by row, then a translation), support [N], and the evidence [N, 2, Y, X]
    before it is averaged over neighbours.
    """
    count = len(flow)
    motion, support = flow.new_empty(count, 12), flow.new_empty(count)
    evidence = flow.new_empty(count, 2, *grid.cells)
    _solve[(count,)](
        flow,
        weight,
        log_depth,
        log_depth.stride(0),
        codes.contiguous(),
        motion,
        support,
        evidence,
        grid.points,
        X=grid.cells[1],
        H=grid.size[0],
        W=grid.size[1],
        PATCH=grid.patch,
        SIDE=grid.side,
        FARTHEST=FARTHEST,
        ITERATIONS=pnp.ITERATIONS,
        ROBUST_FROM=pnp.ROBUST_FROM,
        ROBUST=pnp.ROBUST_ANGLE,
        DEPTH_VARIANCE=(pnp.DEPTH_SIGMA / pnp.MATCH_SIGMA) ** 2,
        NEAR=pnp.MIN_DEPTH,
        DAMPING=pnp.DAMPING,
        INFORMATION=EVIDENCE_SIGMA**-2,
        BLOCK=triton.next_power_of_2(grid.points),
        num_warps=SOLVE_WARPS,
    )
    return motion, support, evidence
