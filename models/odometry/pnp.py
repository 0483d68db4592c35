"""Rigid motion from points in space and where they are seen; and how poses follow such motions."""

import math
from functools import cache

import torch
from torch import Tensor

from stream_recon.models.pose import matrix_to_quaternion, pose_to_matrix

ITERATIONS = 5
ROBUST_FROM = 2
"""Iterations from which on a match far from the motion counts less (Cauchy's weight)."""
ROBUST_ANGLE = 0.008
"""Radians; a match so far off counts half."""
DEPTH_SIGMA = 0.2
"""Of the logarithm of a point's depth, beside ..."""
MATCH_SIGMA = 0.004
"""... what a match of weight 1 is taken to be off by, in radians."""
MIN_DEPTH = 0.01
"""Units of the reconstruction; what comes nearer to the camera before is left out."""
DAMPING = 1e-3
"""Of the information's diagonal."""
SHARE_OF_TURN = 0.97
"""Of a step, in a pose: the rest is the camera head's. So an error of a step is forgotten within some 33 cached frames,
..."""
SHARE_OF_SHIFT = 0.99
"""... and within some hundred, where it is one of position: with depths in one unit, lengths err less."""
LENGTH_OF_HEAD = 0.35
"""Share, in logarithms, of the camera head's length of a step; the rest is the step's own."""
LENGTHS_APART = 1.5
"""The camera head's length of a step counts as at most so many times the step's own, or that part of it: one
frame's slip of the head must not become the trajectory's."""
SUPPORTED = 0.4
"""Steps with less support are not trusted: the camera head's own take their place."""
TINY = 1e-9


def solve_pnp(points: Tensor, target: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Perspective-n-point by Gauss-Newton, from rest.

    A point whose depth is wrong is seen elsewhere along a line once the camera has moved. So each match counts less
    along that line, the more its place depends on the depth: else wrong depths, which look like a turn, would be taken
    for one. The gradient is that of the last iteration, which is the solution's where it has converged.

    Args:
        points: [N, P, 3].
        target: [N, P, 2], where they are to project to (x / z, y / z).
        weight: [N, P], above 0.

    Returns:
        The motion [N, 3, 4], and the share of the weights [N] that is left after those far from it lost theirs.
    """
    # Points last: small dimensions last are slow on a CPU.
    points, target = points.transpose(1, 2).contiguous(), target.transpose(1, 2)
    R = unit_matrix(3, points.dtype, points.device).expand(len(points), 3, 3)
    t = torch.zeros_like(points[:, :, 0])
    share, doubt = weight, (DEPTH_SIGMA / MATCH_SIGMA) ** 2
    for iteration in range(ITERATIONS):
        with torch.set_grad_enabled(torch.is_grad_enabled() and iteration == ITERATIONS - 1):
            turned = R @ points
            moved = turned + t[..., None]
            z = moved[:, 2:]
            inverse = 1 / z.clamp_min(MIN_DEPTH)
            uv = moved[:, :2] * inverse
            # How u and v change with a turn (rotation vector, from the left), a shift, and the logarithm of the depth.
            by_shift = change_of_places(uv, inverse)
            by_turn = torch.linalg.cross(moved[:, None].expand_as(by_shift), by_shift, dim=2)
            by_depth = (turned[:, :2] - uv * turned[:, 2:]) * inverse
            # Beside them how far they are off: so its products come with the others.
            change = torch.cat([by_turn, by_shift, (uv - target)[:, :, None]], dim=2)
            # The covariance is I + doubt * g g^T, g being the change with depth; its inverse by Sherman and Morrison.
            along = (by_depth[:, :, None] * change).sum(1)
            less = doubt / (1 + doubt * by_depth.square().sum(1))
            share = weight * (z[:, 0] > MIN_DEPTH)
            if iteration >= ROBUST_FROM:
                distance = (change[:, :, 6].square().sum(1) - less * along[:, 6].square()).detach()
                share = share / (1 + distance / ROBUST_ANGLE**2)
            terms = torch.cat([change, along[:, None]], dim=1)
            weights = torch.stack([share, share, -share * less], dim=1)
            products = ((weights[:, :, None] * terms[:, :, :6]) @ terms.transpose(2, 3)).sum(1)
            step = newton_step(products, DAMPING)
            turn = rotation_from_vector(step[:, :3])
            R, t = turn @ R, (turn @ t[..., None])[..., 0] + step[:, 3:]
    support = share.sum(1) / weight.sum(1).clamp_min(TINY)
    return torch.cat([R, t[..., None]], dim=-1), support.detach()


def change_of_places(uv: Tensor, inverse: Tensor, R: Tensor | None = None) -> Tensor:
    """How places uv [..., 2, P] (x / z, y / z) change with a shift of the points, [..., 2, 3, P], whose ``inverse``
    depths [..., 1, P] are given: in the camera's space or, with R [..., 3, 3], in that which it turns from."""
    axes = (R if R is not None else unit_matrix(3, uv.dtype, uv.device))[..., None]
    return (axes[..., :2, :, :] - uv[..., None, :] * axes[..., 2:, :, :]) * inverse[..., None, :]


def newton_step(products: Tensor, share: float) -> Tensor:
    """The step [N, n] that information and gradient ask for, side by side in ``products`` [N, n, n + 1]; damped by a
    ``share`` of the information's diagonal, and a little of the mean of that."""
    information, gradient = products[..., :-1], products[..., -1]
    one = unit_matrix(information.shape[1], information.dtype, information.device)
    little = information.diagonal(dim1=1, dim2=2).mean(-1)[:, None, None] + TINY
    information = torch.addcmul(torch.addcmul(information, information, one, value=share), little, one, value=1e-6)
    return -solve_small(information, gradient)


def solve_small(A: Tensor, b: Tensor) -> Tensor:
    """Positive definite A [N, n, n], b [N, n] -> x [N, n] of A x = b, for small n."""
    if A.device.type != "cpu":
        return eliminate(A, b)
    x: Tensor = torch.linalg.solve_ex(A, b).result
    return x


def eliminate(A: Tensor, b: Tensor) -> Tensor:
    """`solve_small` in plain operations: these can be captured as a CUDA graph, which the libraries' solvers, that ask
    the host, cannot."""
    rows = torch.cat([A, b[..., None]], dim=-1)
    here = unit_matrix(A.shape[1], torch.bool, A.device)
    for pivot in range(A.shape[1]):
        row = rows[:, pivot, None] / rows[:, pivot, None, pivot, None]
        rows = torch.where(here[pivot, :, None], row, rows - rows[:, :, pivot, None] * row)
    return rows[..., -1]


def rotation_from_vector(vector: Tensor) -> Tensor:
    """Rotation vectors [N, 3] in radians -> matrices [N, 3, 3] (Rodrigues)."""
    which, signs = _cross_terms(vector.dtype, vector.device)
    K = (vector.index_select(-1, which) * signs).unflatten(-1, (3, 3))
    angle = torch.linalg.vector_norm(vector, dim=-1)[:, None, None] / math.pi
    # sin(a) / a, and (1 - cos(a)) / a^2 from half of the angle, which is exact where the angle is small.
    first, second = torch.sinc(angle), torch.sinc(angle / 2).square()
    rotation = torch.addcmul(unit_matrix(3, vector.dtype, vector.device), first, K)
    return torch.addcmul(rotation, second, K @ K, value=0.5)


@cache
def unit_matrix(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Made once, as all constants of a step are: on a GPU each costs a launch."""
    return torch.eye(size, dtype=dtype, device=device)


@cache
def _cross_terms(dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Which component of a vector each entry of the matrix of its cross product is, row by row, and its sign."""
    which, signs = (0, 2, 1, 2, 0, 0, 1, 0, 0), (0, -1, 1, 1, 0, -1, -1, 1, 0)
    return torch.tensor(which, device=device), torch.tensor(signs, dtype=dtype, device=device)


def vector_from_rotation(R: Tensor) -> Tensor:
    """Rotation matrices [..., 3, 3], of less than half a turn -> rotation vectors [..., 3] in radians."""
    off = [R[..., 2, 1] - R[..., 1, 2], R[..., 0, 2] - R[..., 2, 0], R[..., 1, 0] - R[..., 0, 1]]
    axis = torch.stack(off, dim=-1) / 2
    sine = axis.norm(dim=-1, keepdim=True)
    cosine = (R.diagonal(dim1=-2, dim2=-1).sum(-1, keepdim=True) - 1) / 2
    vector: Tensor = axis * (torch.atan2(sine, cosine) / sine.clamp_min(TINY))
    return vector


def fuse_poses(
    said: Tensor, motion: Tensor, support: Tensor, units: Tensor, last: Tensor | None, last_said: Tensor | None
) -> Tensor:
    """Poses that go by steps from frame to frame, and are drawn towards those that the camera head says.

    Rotation and direction of a step are the motion's; its length is a mean, of logarithms, of the motion's and of the
    head's, which err apart from one another, in the unit that the depths are brought to: both follow the depth's drift.

    Args:
        said: pose codes [B, S, 9] of the camera head.
        motion, support: [B, S, 3, 4] and [B, S], as `solve_pnp` gives them, since the frame before.
        units: logarithms [B, S] of what frames' depths are multiplied by (`depth_filter.carry`).
        last: the pose code [B, 9] that this gave for the cached frame before the first; None: there is none, and the
            first frame's is as said.
        last_said: the camera head's of that frame.
    """
    heads, codes = pose_to_matrix(said), []
    pose = pose_to_matrix(last) if last is not None else heads[:, 0]
    head = pose_to_matrix(last_said) if last_said is not None else heads[:, 0]
    for frame in range(said.shape[1]):
        if frame == 0 and last is None:
            codes.append(said[:, 0])
            continue
        R_head, t_head = heads[:, frame, :3, :3], heads[:, frame, :3, 3]
        back = head[:, :3, :3].transpose(1, 2)
        R_own, t_own = back @ R_head, (back @ (t_head - head[:, :3, 3])[..., None])[..., 0]
        R_step, t_step = motion[:, frame, :, :3], motion[:, frame, :, 3]
        ratio = (t_own.norm(dim=-1) + TINY) / (t_step.norm(dim=-1) + TINY)
        ratio = ratio.clamp(1 / LENGTHS_APART, LENGTHS_APART)
        trusted = support[:, frame, None] > SUPPORTED
        t_step = torch.where(trusted, t_step * ratio[:, None] ** LENGTH_OF_HEAD, t_own)
        t_step = t_step * units[:, frame, None].exp()
        R_step = torch.where(trusted[..., None], R_step, R_own)
        R = pose[:, :3, :3] @ R_step
        t = pose[:, :3, 3] + (pose[:, :3, :3] @ t_step[..., None])[..., 0]
        apart = vector_from_rotation(R.transpose(1, 2) @ R_head)
        R = R @ rotation_from_vector(apart * (1 - SHARE_OF_TURN))
        t = t + (t_head - t) * (1 - SHARE_OF_SHIFT)
        codes.append(torch.cat([t, matrix_to_quaternion(R), said[:, frame, 7:]], dim=-1))
        pose, head = pose_to_matrix(codes[-1]), heads[:, frame]
    return torch.stack(codes, dim=1)
