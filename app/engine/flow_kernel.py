# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"
"""`mean_flow` as one kernel, for a captured step on a GPU (Triton)."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from stream_recon.models.odometry.kernels.geometry import ONE_BINARY, load_focal, load_pose, relative, turn


@triton.jit(**ONE_BINARY)
def _mean_flow(codes, log_depth, depth_stride, references, reference_rows, row_stride, out, H: tl.constexpr,
               W: tl.constexpr, STEP: tl.constexpr, NEAR: tl.constexpr, BY_ROW: tl.constexpr,
               BLOCK: tl.constexpr):  # fmt: skip
    image = tl.program_id(0).to(tl.int64)
    across: tl.constexpr = (W + STEP - 1) // STEP
    down: tl.constexpr = (H + STEP - 1) // STEP
    sample = tl.arange(0, BLOCK)
    mask = sample < across * down
    column, row = sample % across * STEP, sample // across * STEP
    depth = tl.exp(tl.load(log_depth + image * depth_stride + row * W + column, mask=mask, other=0.0))
    reference_row = tl.load(reference_rows + image * row_stride).to(tl.int64) if BY_ROW else image
    code, reference = codes + image * 9, references + reference_row * 9
    focal, other = load_focal(code, H, W), load_focal(reference, H, W)
    u, v = column.to(tl.float32), row.to(tl.float32)
    T = relative(load_pose(reference), load_pose(code))
    moved = turn(T, (u - 0.5 * W) / focal[0] * depth, (v - 0.5 * H) / focal[1] * depth, depth)
    z = moved[2] + T[11]
    inverse = 1.0 / tl.maximum(z, NEAR)
    du = (moved[0] + T[9]) * inverse * other[0] + 0.5 * W - u
    dv = (moved[1] + T[10]) * inverse * other[1] + 0.5 * H - v
    valid = mask & (depth > NEAR) & (z > NEAR)
    count = tl.sum(valid.to(tl.float32), 0)
    flow = tl.sum(tl.where(valid, tl.sqrt(du * du + dv * dv), 0.0), 0)
    tl.store(out + image, flow / tl.maximum(count, 1.0))


def mean_flow_of_rows(
    codes: Tensor, log_depth: Tensor, references: Tensor, rows: Tensor | None, step: int, near: float
) -> Tensor:
    """`mean_flow` [N] of N views.

    Args:
        codes: pose codes [N, 9].
        log_depth: [N, H, W], rows contiguous.
        references: pose codes [M, 9] of the reference cameras.
        rows: [N], each view's reference, of any stride; None: in order.
        step, near: see `FlowSampling`.
    """
    height, width = log_depth.shape[-2:]
    out = torch.empty(len(codes), device=codes.device)
    samples = triton.cdiv(height, step) * triton.cdiv(width, step)
    _mean_flow[(len(codes),)](
        codes.contiguous(),
        log_depth,
        log_depth.stride(0),
        references.contiguous(),
        rows if rows is not None else out,
        rows.stride(0) if rows is not None else 0,
        out,
        H=height,
        W=width,
        STEP=step,
        NEAR=near,
        BY_ROW=rows is not None,
        BLOCK=triton.next_power_of_2(samples),
        num_warps=8,
    )
    return out
