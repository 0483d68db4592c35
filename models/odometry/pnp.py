"""Camera motion from points in space and their matches in an image (perspective-n-point, PnP)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from stream_recon.models.pose import TINY, identity, so3_exp

ITERATIONS = 5
"""Fixed: a captured CUDA graph cannot stop earlier."""
ROBUST_FROM = 2
"""First iteration that weights matches by their residual (Cauchy). Residuals of earlier ones do not show outliers."""
ROBUST_ANGLE = 0.008
"""Radians: residual at which a match counts half."""
DEPTH_SIGMA = 0.2
"""Standard deviation of the logarithm of a point's depth."""
MATCH_SIGMA = 0.004
"""Radians: standard deviation of a match of weight 1."""
MIN_DEPTH = 0.01
"""Units of the reconstruction. Points nearer to the other camera are left out."""
DAMPING = 1e-3
"""Share of the information's diagonal that is added to it."""
SUPPORTED = 0.4
"""Motions with less support are not trusted; the camera head's poses replace them."""


@dataclass(frozen=True)
class RelativeMotion:
    """Motion of D frames of each of B clips to the keyframe before each, in the scale of the frame's own depth."""

    flows: Tensor
    """[R, B, D, 2*gh, 2*gw, 2]: flow (x, y) in patches to the keyframe before, from tokens and after each round."""
    motion: Tensor  # [B, D, 3, 4]: rotation and translation from this camera's frame to the one before
    support: Tensor  # [B, D], in [0, 1]: the weighted share of the matches that agrees with the motion
    evidence: Tensor  # [B, D, 2, 2*gh, 2*gw]: evidence of the matches for depth (`disparity_evidence`)
    focal: Tensor  # [B, D, 2]: focal lengths (x, y) in pixels

    def select(self, frames: slice) -> "RelativeMotion":
        """The motion of these frames, as views."""
        each = (x[:, frames] for x in (self.motion, self.support, self.evidence, self.focal))
        return RelativeMotion(self.flows[:, :, frames], *each)


def solve_pnp(
    points: Tensor, target: Tensor, weight: Tensor, depth_sigma: float = DEPTH_SIGMA
) -> tuple[Tensor, Tensor]:
    """Perspective-n-point by Gauss-Newton, starting without motion.

    The depths of points are uncertain. A wrong depth displaces a point along a line in the image once the camera has
    moved, which looks like rotation. So each match counts less along that line, the more its position depends on the
    depth. The gradient is that of the last iteration, which is the solution's where it has converged.

    Args:
        points: [N, P, 3].
        target: [N, P, 2], their matches (x / z, y / z).
        weight: [N, P], above 0.
        depth_sigma: standard deviation of the logarithm of a point's depth.

    Returns the motion [N, 3, 4], and its support [N]: the share of the weights that robust weighting left.
    """
    # Points last: small dimensions last are slow on a CPU.
    points, target = points.transpose(1, 2).contiguous(), target.transpose(1, 2)
    R = identity(3, points.dtype, points.device).expand(len(points), 3, 3)
    t = torch.zeros_like(points[:, :, 0])
    share, depth_variance = weight, (depth_sigma / MATCH_SIGMA) ** 2
    for iteration in range(ITERATIONS):
        with torch.set_grad_enabled(torch.is_grad_enabled() and iteration == ITERATIONS - 1):
            rotated = R @ points
            moved = rotated + t[..., None]
            z = moved[:, 2:]
            inverse = 1 / z.clamp_min(MIN_DEPTH)
            uv = moved[:, :2] * inverse
            # Derivatives of u and v by rotation (vector, from the left), translation and logarithm of the depth.
            by_translation = projection_jacobian(uv, inverse)
            by_rotation = torch.linalg.cross(moved[:, None].expand_as(by_translation), by_translation, dim=2)
            by_depth = (rotated[:, :2] - uv * rotated[:, 2:]) * inverse
            # The residual is the last column, so that one product gives information and gradient.
            jacobian = torch.cat([by_rotation, by_translation, (uv - target)[:, :, None]], dim=2)
            # The covariance is I + depth_variance * g g^T with g = by_depth, inverted by Sherman and Morrison.
            along = (by_depth[:, :, None] * jacobian).sum(1)
            less = depth_variance / (1 + depth_variance * by_depth.square().sum(1))
            share = weight * (z[:, 0] > MIN_DEPTH)
            if iteration >= ROBUST_FROM:
                squared = (jacobian[:, :, 6].square().sum(1) - less * along[:, 6].square()).detach()
                share = share / (1 + squared / ROBUST_ANGLE**2)
            terms = torch.cat([jacobian, along[:, None]], dim=1)
            weights = torch.stack([share, share, -share * less], dim=1)
            normal = ((weights[:, :, None] * terms[:, :, :6]) @ terms.transpose(2, 3)).sum(1)
            step = newton_step(normal, DAMPING)
            rotation = so3_exp(step[:, :3])
            R, t = rotation @ R, (rotation @ t[..., None])[..., 0] + step[:, 3:]
    support = share.sum(1) / weight.sum(1).clamp_min(TINY)
    return torch.cat([R, t[..., None]], dim=-1), support.detach()


def projection_jacobian(uv: Tensor, inverse: Tensor, R: Tensor | None = None) -> Tensor:
    """Derivatives [..., 2, 3, P] of projections uv [..., 2, P] (x / z, y / z) by a translation of the points.

    ``inverse``: inverse depths [..., 1, P]. The translation is in the frame of the camera that sees uv or, with R
    [..., 3, 3], in the frame that R rotates from.
    """
    axes = (R if R is not None else identity(3, uv.dtype, uv.device))[..., None]
    return (axes[..., :2, :, :] - uv[..., None, :] * axes[..., 2:, :, :]) * inverse[..., None, :]


def newton_step(normal: Tensor, damping: float) -> Tensor:
    """The Gauss-Newton step [N, n] of normal equations [N, n, n + 1]: information, then the gradient as last column.

    Damped by a share of the information's diagonal, and by 1e-6 of the diagonal's mean.
    """
    information, gradient = normal[..., :-1], normal[..., -1]
    one = identity(information.shape[1], information.dtype, information.device)
    mean = information.diagonal(dim1=1, dim2=2).mean(-1)[:, None, None] + TINY
    information = torch.addcmul(torch.addcmul(information, information, one, value=damping), mean, one, value=1e-6)
    return -solve_small(information, gradient)


def solve_small(A: Tensor, b: Tensor) -> Tensor:
    """Positive definite A [N, n, n], b [N, n] -> x [N, n] of A x = b, for small n."""
    if A.device.type != "cpu":
        return eliminate(A, b)
    x: Tensor = torch.linalg.solve_ex(A, b).result
    return x


def eliminate(A: Tensor, b: Tensor) -> Tensor:
    """`solve_small` by Gauss-Jordan elimination in plain operations.

    These can be captured as a CUDA graph; the libraries' solvers, which ask the host, cannot.
    """
    rows = torch.cat([A, b[..., None]], dim=-1)
    is_pivot = identity(A.shape[1], torch.bool, A.device)
    for pivot in range(A.shape[1]):
        row = rows[:, pivot, None] / rows[:, pivot, None, pivot, None]
        rows = torch.where(is_pivot[pivot, :, None], row, rows - rows[:, :, pivot, None] * row)
    return rows[..., -1]
