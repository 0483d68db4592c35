"""A camera's pose from matches with several frames whose poses are known."""

from dataclasses import dataclass

import torch
from torch import Tensor

from stream_recon.models.rigid import MIN_DEPTH, TINY, rotation_from_vector, solve_small

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
class Settled:
    """Of N frames."""

    T_world_camera: Tensor
    """[N, 4, 4]"""
    support: Tensor
    """[N], in [0, 1]: the share of the matches, as their precision weighs them, that agrees with it."""
    evidence: Tensor
    """[N, 2, P], for the logarithm of each point's depth, to first order: information (1 / variance) times what is to
    be added, and the information."""

    def second_where(self, chosen: Tensor) -> "Settled":
        """Of twice as many frames one half: the second of each pair where it is ``chosen``, bool [N / 2]."""

        def picked(x: Tensor) -> Tensor:
            first, second = x.chunk(2)
            return torch.where(chosen.view(-1, *(1,) * (x.dim() - 1)), second, first)

        return Settled(picked(self.T_world_camera), picked(self.support), picked(self.evidence))


def settle(points: Tensor, target: Tensor, precision: Tensor, T_other_world: Tensor, T_world_camera: Tensor) -> Settled:
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
    for _ in range(ITERATIONS):
        places = _Places.of(points, T_other_world @ T_world_camera[:, None])
        off = places.uv - target
        by_depth = (places.by_shift @ points[:, None, :, :, None])[..., 0]
        weight = _weights(off, by_depth, precision * places.in_front) * INDEPENDENT
        # How places change with a turn (rotation vector) and a shift in the camera's own space.
        by_pose = torch.cat([_turned(places.by_shift, points), places.by_shift], dim=-1)
        along = (by_depth[..., None] * by_pose).sum(-2)
        shared = (weight[..., None] * along).sum(1)
        known = (weight * by_depth.square().sum(-1)).sum(1) + DEPTH_SIGMA**-2
        pulled = (weight * (by_depth * off).sum(-1)).sum(1)
        weighted = (weight[..., None, None] * by_pose).flatten(1, 3).transpose(1, 2)
        reduced = (shared / known[..., None]).transpose(1, 2)
        information = weighted @ by_pose.flatten(1, 3) - reduced @ shared
        gradient = (weighted @ off.flatten(1, 3)[..., None] - reduced @ pulled[..., None])[..., 0]
        diagonal = information.diagonal(dim1=1, dim2=2)
        damping = DAMPING * diagonal + 1e-6 * diagonal.mean(-1, keepdim=True) + TINY
        T_world_camera = T_world_camera @ _moved(-solve_small(information + torch.diag_embed(damping), gradient))
    places = _Places.of(points, T_other_world @ T_world_camera[:, None])
    off = places.uv - target
    by_depth = (places.by_shift @ points[:, None, :, :, None])[..., 0]
    precision = precision * places.in_front
    weight = _weights(off, by_depth, precision)
    agreeing = weight.sum((1, 2)) / precision.sum((1, 2)).clamp_min(TINY) * (STUDENT / (STUDENT + 2))
    evidence = torch.stack([-(by_depth * off).sum(-1), by_depth.square().sum(-1)], dim=1)
    return Settled(T_world_camera, agreeing, (weight[:, None] * evidence).sum(2))


@dataclass(frozen=True)
class _Places:
    uv: Tensor
    """[N, L, P, 2]"""
    by_shift: Tensor
    """[N, L, P, 2, 3]: how these change with a shift of the point in the camera's space."""
    in_front: Tensor
    """bool [N, L, P]"""

    @staticmethod
    def of(points: Tensor, motion: Tensor) -> "_Places":
        """points [N, P, 3]; motion [N, L, 4, 4] from the camera's space to each other frame's."""
        R, t = motion[..., :3, :3], motion[..., None, :3, 3]
        x, y, z = (points[:, None] @ R.transpose(-1, -2) + t).unbind(-1)
        inverse = 1 / z.clamp_min(MIN_DEPTH)
        uv = torch.stack([x * inverse, y * inverse], dim=-1)
        across = R[:, :, None, :2] - uv[..., None] * R[:, :, None, 2:]
        return _Places(uv, across * inverse[..., None, None], z > MIN_DEPTH)


def _weights(off: Tensor, by_depth: Tensor, precision: Tensor) -> Tensor:
    """Of matches [N, L, P], by Student's distribution of how far each is off, beside what its depth explains."""
    along, squared = (by_depth * off).sum(-1), by_depth.square().sum(-1)
    explained = (precision * along).square() / (precision * squared + DEPTH_SIGMA**-2)
    return precision * ((STUDENT + 2) / (STUDENT + precision * off.square().sum(-1) - explained))


def _turned(by_shift: Tensor, points: Tensor) -> Tensor:
    """How places change with a turn of the camera's points [N, P, 3], from how they do with a shift."""
    x, y, z = points[:, None, :, None].unbind(-1)
    a, b, c = by_shift.unbind(-1)
    return torch.stack([c * y - b * z, a * z - c * x, b * x - a * y], dim=-1)


def _moved(change: Tensor) -> Tensor:
    """Turns and shifts [N, 6] -> [N, 4, 4]"""
    R = rotation_from_vector(change[:, :3])
    top = torch.cat([R, change[:, 3:, None]], dim=-1)
    # From a tensor: assigning would copy from the host, which no captured graph may.
    bottom = torch.zeros_like(top[:, :1])
    bottom[..., 3].fill_(1)
    return torch.cat([top, bottom], dim=1)
