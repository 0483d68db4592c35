"""A camera's pose from matches with several frames whose poses are known."""

from dataclasses import dataclass

import torch
from torch import Tensor

from stream_recon.models.odometry.pnp import MIN_DEPTH, TINY, change_of_places, newton_step, rotation_from_vector

ITERATIONS = 2
STUDENT = 4.0
"""Degrees of freedom of matches' errors, as their precision was learned."""
INDEPENDENT = 0.1
"""Share of the matches that tell something new: neighbours err alike."""
DEPTH_SIGMA = 0.4
"""Of the logarithm of a point's depth."""
DAMPING = 1e-4
"""Of the information's diagonal."""


@dataclass(frozen=True)
class PoseOnlyResult:
    """Of N frames."""

    T_world_camera: Tensor
    """[N, 4, 4]"""
    support: Tensor
    """[N], in [0, 1]: the share of the matches, as their precision weighs them, that agrees with it."""
    evidence: Tensor
    """[N, 2, P], for the logarithm of each point's depth, to first order: information (1 / variance) times what is to
    be added, and the information."""

    def second_where(self, chosen: Tensor) -> "PoseOnlyResult":
        """Of twice as many frames one half: the second of each pair where it is ``chosen``, bool [N / 2]."""

        def picked(x: Tensor) -> Tensor:
            first, second = x.chunk(2)
            return torch.where(chosen.view(-1, *(1,) * (x.dim() - 1)), second, first)

        return PoseOnlyResult(picked(self.T_world_camera), picked(self.support), picked(self.evidence))


def pose_only_ba(
    points: Tensor, target: Tensor, precision: Tensor, T_other_world: Tensor, T_world_camera: Tensor
) -> PoseOnlyResult:
    """Bundle adjustment of one camera and the depths of its points, these eliminated; by Gauss-Newton.

    A point's depth is as wrong in one match as in all others of it. So it is an unknown of its own, which is solved for
    in closed form (Schur's complement), and the pose is what all depths agree on with all frames. Matches far from
    that count less, as Student's distribution has it.

    Args:
        points: [N, P, 3], in the camera's space.
        target: [N, L, P, 2], where each is seen in L other frames (x / z, y / z).
        precision: [N, L, P], along either axis, 0 where there is no match.
        T_other_world: [N, L, 4, 4].
        T_world_camera: [N, 4, 4], to begin with.
    """
    # Points last: small dimensions last are slow on a CPU.
    points, target = points.transpose(1, 2).contiguous(), target.transpose(2, 3)
    for _ in range(ITERATIONS):
        seen = _Residuals.of(points, target, precision, T_other_world @ T_world_camera[:, None])
        weight = seen.weight * INDEPENDENT
        # How places change with a turn (rotation vector) and a shift in the camera's own space, and how far they are
        # off: so its products come with the others.
        by_turn = torch.linalg.cross(points[:, None, None].expand_as(seen.by_shift), seen.by_shift, dim=3)
        change = torch.cat([by_turn, seen.by_shift, seen.off[:, :, :, None]], dim=3)
        along = (seen.by_depth[:, :, :, None] * change).sum(2)
        shared = (weight[:, :, None] * along).sum(1)
        known = (weight * seen.squared).sum(1) + DEPTH_SIGMA**-2
        weighted = weight[:, :, None, None] * change[..., :6, :]
        products = (weighted @ change.transpose(3, 4)).sum((1, 2))
        products = products - (shared[:, :6] / known[:, None]) @ shared.transpose(1, 2)
        T_world_camera = T_world_camera @ _moved(newton_step(products, DAMPING))
    seen = _Residuals.of(points, target, precision, T_other_world @ T_world_camera[:, None])
    agreeing = seen.weight.sum((1, 2)) / seen.precision.sum((1, 2)).clamp_min(TINY) * (STUDENT / (STUDENT + 2))
    evidence = torch.stack([-seen.pull, seen.squared], dim=1)
    return PoseOnlyResult(T_world_camera, agreeing, (seen.weight[:, None] * evidence).sum(2))


@dataclass(frozen=True)
class _Residuals:
    """Matches, beside where points are seen by the pose so far."""

    off: Tensor
    """[N, L, 2, P]"""
    by_shift: Tensor
    """[N, L, 2, 3, P]: how places change with a shift of the point in the camera's space, ..."""
    by_depth: Tensor
    """[N, L, 2, P]: ... and with the logarithm of its depth; ..."""
    pull: Tensor
    """[N, L, P]: ... the product of that with how far they are off, ..."""
    squared: Tensor
    """[N, L, P]: ... and with itself."""
    precision: Tensor
    """[N, L, P], 0 behind the other camera."""
    weight: Tensor
    """[N, L, P]: by Student's distribution of how far each is off, beside what its depth explains."""

    @staticmethod
    def of(points: Tensor, target: Tensor, precision: Tensor, motion: Tensor) -> "_Residuals":
        """points [N, 3, P], target [N, L, 2, P]; motion [N, L, 4, 4] from the camera's space to each other frame's."""
        R, t = motion[..., :3, :3], motion[..., :3, 3:]
        moved = R @ points[:, None] + t
        z = moved[:, :, 2:]
        inverse = 1 / z.clamp_min(MIN_DEPTH)
        uv = moved[:, :, :2] * inverse
        by_shift = change_of_places(uv, inverse, R)
        by_depth = (by_shift * points[:, None, None]).sum(3)
        off = uv - target
        precision = precision * (z[:, :, 0] > MIN_DEPTH)
        pull, squared = (by_depth * off).sum(2), by_depth.square().sum(2)
        explained = (precision * pull).square() / (precision * squared + DEPTH_SIGMA**-2)
        weight = precision * ((STUDENT + 2) / (STUDENT + precision * off.square().sum(2) - explained))
        return _Residuals(off, by_shift, by_depth, pull, squared, precision, weight)


def _moved(change: Tensor) -> Tensor:
    """Turns and shifts [N, 6] -> [N, 4, 4]"""
    R = rotation_from_vector(change[:, :3])
    top = torch.cat([R, change[:, 3:, None]], dim=-1)
    # From a tensor: assigning would copy from the host, which no captured graph may.
    bottom = torch.zeros_like(top[:, :1])
    bottom[..., 3].fill_(1)
    return torch.cat([top, bottom], dim=1)
