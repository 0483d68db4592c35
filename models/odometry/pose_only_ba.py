"""Pose-only bundle adjustment: a camera's pose from matches with several frames whose poses are known."""

from dataclasses import dataclass

import torch
from torch import Tensor

from stream_recon.models.odometry.pnp import MIN_DEPTH, newton_step, projection_jacobian
from stream_recon.models.pose import TINY, rigid_matrix, so3_exp

ITERATIONS = 2
"""Fixed: a captured CUDA graph cannot stop earlier."""
STUDENT = 4.0
"""Degrees of freedom of the matches' errors, with which their precision was trained."""
INDEPENDENT = 0.1
"""Share of the matches that count as independent: errors of neighbours are correlated."""
DEPTH_SIGMA = 0.4
"""Standard deviation of the logarithm of a point's depth."""
DAMPING = 1e-4
"""Share of the information's diagonal that is added to it."""


@dataclass(frozen=True)
class PoseOnlyResult:
    """Adjusted poses of N frames."""

    T_world_camera: Tensor  # [N, 4, 4]
    support: Tensor  # [N], in [0, 1]: the share of the matches, weighted by precision, that agrees with the pose
    evidence: Tensor
    """[N, 2, P]: evidence for the logarithm of each point's depth, to first order: information (1 / variance) times
    the correction, and the information."""

    def second_where(self, chosen: Tensor) -> "PoseOnlyResult":
        """Of two halves of N frames each, the second one's result where ``chosen`` (bool [N]), else the first one's."""

        def select(x: Tensor) -> Tensor:
            first, second = x.chunk(2)
            return torch.where(chosen.view(-1, *(1,) * (x.dim() - 1)), second, first)

        return PoseOnlyResult(select(self.T_world_camera), select(self.support), select(self.evidence))


def pose_only_ba(
    points: Tensor, target: Tensor, precision: Tensor, T_other_world: Tensor, T_world_camera: Tensor
) -> PoseOnlyResult:
    """Bundle adjustment of one camera's pose with the depths of its points marginalised, by Gauss-Newton.

    An error of a point's depth is common to all its matches. So each depth is an unknown, eliminated in closed form
    (Schur complement). Weights follow Student's distribution, so outliers count less.

    Args:
        points: [N, P, 3], in the camera's frame.
        target: [N, L, P, 2], their matches in L other frames (x / z, y / z).
        precision: [N, L, P], along either axis; 0: no match.
        T_other_world: [N, L, 4, 4].
        T_world_camera: [N, 4, 4], to start from.
    """
    # Points last: small dimensions last are slow on a CPU.
    points, target = points.transpose(1, 2).contiguous(), target.transpose(2, 3)
    for _ in range(ITERATIONS):
        matches = _Residuals.evaluate(points, target, precision, T_other_world @ T_world_camera[:, None])
        weight = matches.weight * INDEPENDENT
        # Derivatives by rotation (vector) and translation in the camera's own frame. The residual is the last column,
        # so that one product gives information and gradient.
        by_translation = matches.by_translation
        by_rotation = torch.linalg.cross(points[:, None, None].expand_as(by_translation), by_translation, dim=3)
        jacobian = torch.cat([by_rotation, by_translation, matches.residual[:, :, :, None]], dim=3)
        along = (matches.by_depth[:, :, :, None] * jacobian).sum(2)
        shared = (weight[:, :, None] * along).sum(1)
        depth_information = (weight * matches.squared).sum(1) + DEPTH_SIGMA**-2
        weighted = weight[:, :, None, None] * jacobian[..., :6, :]
        normal = (weighted @ jacobian.transpose(3, 4)).sum((1, 2))
        normal = normal - (shared[:, :6] / depth_information[:, None]) @ shared.transpose(1, 2)
        step = newton_step(normal, DAMPING)
        T_world_camera = T_world_camera @ rigid_matrix(so3_exp(step[:, :3]), step[:, 3:])
    matches = _Residuals.evaluate(points, target, precision, T_other_world @ T_world_camera[:, None])
    agreeing = matches.weight.sum((1, 2)) / matches.precision.sum((1, 2)).clamp_min(TINY) * (STUDENT / (STUDENT + 2))
    evidence = torch.stack([-matches.product, matches.squared], dim=1)
    return PoseOnlyResult(T_world_camera, agreeing, (matches.weight[:, None] * evidence).sum(2))


@dataclass(frozen=True)
class _Residuals:
    """Residuals of the matches under a pose, with their derivatives and weights."""

    residual: Tensor  # [N, L, 2, P]
    by_translation: Tensor  # [N, L, 2, 3, P]: derivatives by a translation of the point in the camera's frame
    by_depth: Tensor  # [N, L, 2, P]: derivatives by the logarithm of the point's depth
    product: Tensor  # [N, L, P]: product of `by_depth` and `residual`
    squared: Tensor  # [N, L, P]: product of `by_depth` and itself
    precision: Tensor  # [N, L, P], 0 behind the other camera
    weight: Tensor  # [N, L, P]: by Student's distribution of the residual that remains after the depth's correction

    @staticmethod
    def evaluate(points: Tensor, target: Tensor, precision: Tensor, motion: Tensor) -> "_Residuals":
        """points [N, 3, P], target [N, L, 2, P]; motion [N, L, 4, 4] from the camera's frame to each other frame's."""
        R, t = motion[..., :3, :3], motion[..., :3, 3:]
        moved = R @ points[:, None] + t
        z = moved[:, :, 2:]
        inverse = 1 / z.clamp_min(MIN_DEPTH)
        uv = moved[:, :, :2] * inverse
        by_translation = projection_jacobian(uv, inverse, R)
        by_depth = (by_translation * points[:, None, None]).sum(3)
        residual = uv - target
        precision = precision * (z[:, :, 0] > MIN_DEPTH)
        product, squared = (by_depth * residual).sum(2), by_depth.square().sum(2)
        explained = (precision * product).square() / (precision * squared + DEPTH_SIGMA**-2)
        weight = precision * ((STUDENT + 2) / (STUDENT + precision * residual.square().sum(2) - explained))
        return _Residuals(residual, by_translation, by_depth, product, squared, precision, weight)
