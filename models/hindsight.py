"""Poses and depths of a stream, mended by what is seen again of frames further back."""

import torch
from torch import Tensor

from stream_recon.models.depth_filter import KeptDepth, amend
from stream_recon.models.look_back import LookBack, Past
from stream_recon.models.parallax import spread
from stream_recon.models.pose import matrix_to_quaternion, pose_to_matrix
from stream_recon.models.rigid import rotation_from_vector, vector_from_rotation
from stream_recon.models.sampling import far_corner, in_space, rays_of, sample_places
from stream_recon.models.settle import settle
from stream_recon.models.turn_search import search_turn

LAGS = (1, 2, 4)
"""Cached frames back."""
SHARE_OF_TURN = 0.7
"""Of what matches with frames back change in a pose; their own poses are not free of errors, and ..."""
SHARE_OF_SHIFT = 0.4
"""... lengths depend on the field of view as well."""
SHARE_OF_DEPTH = 0.05
"""Of their evidence for depth: it is as wrong as these poses are, and in neighbours alike. More of it mends an unknown
walk further, and spoils what is nearly right."""
PRECISE = 3.0
"""Logarithm of the largest precision that is believed, in 1 / pixels^2."""
SEEN = 0.2
"""Share of the points that has to be in view of a frame back."""
SUPPORTED = 0.3
"""Poses with less support are not trusted."""


def hindsight(
    look_back: LookBack,
    features: Tensor,
    context: Tensor,
    said: Tensor,
    pose_code: Tensor,
    kept: KeptDepth,
    past: Past,
) -> tuple[Tensor, KeptDepth]:
    """Mend what is known of B frames, one of each stream.

    Args:
        features, context: [B, M, 24] and [B, 2*gh, 2*gw, 16], as `Sight` has them.
        said: pose codes [B, 9] of the camera head, of which the field of view counts.
        pose_code: [B, 9], in the world of ``past``.

    Returns:
        pose codes and depth.
    """
    size = (kept.maps.shape[-2], kept.maps.shape[-1])
    others, poses = (torch.stack([x[:, lag - 1] for lag in LAGS], dim=1) for x in (past.features, past.poses))
    T_other_world = _inverse(pose_to_matrix(poses))
    rays, lengths = rays_of(size, (context.shape[1], context.shape[2]), said)
    points = in_space(rays, kept.log_depth_at_places)
    pose_code = _searched(features, past, points, T_other_world[:, 0], pose_code, lengths, size)
    T_world_camera = pose_to_matrix(pose_code)
    motion = (T_other_world @ T_world_camera[:, None])[..., :3, :]
    matches = look_back(features, others, context, points, motion, lengths, size)
    there = torch.stack([past.count >= lag for lag in LAGS], dim=1)
    there = there & (matches.in_view.float().mean((2, 3)) > SEEN)
    precision = matches.log_precision.clamp_max(PRECISE).exp() * (matches.in_view & there[..., None, None])
    precision = precision * lengths.prod(-1)[:, None, None, None]
    target = (matches.places[-1] - far_corner(size, lengths.device) / 2) / lengths[:, None, None, None]
    settled = settle(points.flatten(1, 2), target.flatten(2, 3), precision.flatten(2), T_other_world, T_world_camera)
    trusted = (settled.support > SUPPORTED) & settled.T_world_camera.isfinite().all(-1).all(-1)
    code = _between(T_world_camera, settled.T_world_camera, pose_code)
    evidence = spread(settled.evidence.unflatten(2, points.shape[1:3])) * SHARE_OF_DEPTH
    depth = amend(kept, torch.where(trusted[:, None, None, None], evidence, 0))
    return torch.where(trusted[:, None], code, pose_code), depth


def _searched(
    features: Tensor,
    past: Past,
    points: Tensor,
    T_last_world: Tensor,
    pose_code: Tensor,
    lengths: Tensor,
    size: tuple[int, int],
) -> Tensor:
    """Pose codes [B, 9], turned to where what the last cached frame saw is seen again, if they clearly miss that."""
    places = sample_places(size, (points.shape[1], points.shape[2]), points.device)
    # Half of the points along each axis say it as well.
    places, points = places[::2, ::2].flatten(0, 1), points[:, ::2, ::2].flatten(1, 2)
    T_last_camera = T_last_world @ pose_to_matrix(pose_code)
    motion = T_last_camera[:, :3]
    turn, better = search_turn(features, past.features[:, 0], places, points, motion, lengths, size)
    R = T_last_world[:, :3, :3].transpose(1, 2) @ turn @ motion[..., :3]
    code = torch.cat([pose_code[:, :3], matrix_to_quaternion(R), pose_code[:, 7:]], dim=-1)
    return torch.where((better & (past.count > 0))[:, None], code, pose_code)


def _between(before: Tensor, after: Tensor, pose_code: Tensor) -> Tensor:
    """Pose codes [B, 9] a part of the way from one pose [B, 4, 4] to the other."""
    R, t = before[:, :3, :3], before[:, :3, 3]
    turn = vector_from_rotation(R.transpose(1, 2) @ after[:, :3, :3])
    R = R @ rotation_from_vector(turn * SHARE_OF_TURN)
    t = t + (after[:, :3, 3] - t) * SHARE_OF_SHIFT
    return torch.cat([t, matrix_to_quaternion(R), pose_code[:, 7:]], dim=-1)


def _inverse(T: Tensor) -> Tensor:
    """Of rigid motions [..., 4, 4]."""
    R = T[..., :3, :3].transpose(-1, -2)
    inverse = torch.zeros_like(T)
    inverse[..., :3, :3] = R
    inverse[..., :3, 3:] = -R @ T[..., :3, 3:]
    inverse[..., 3, 3].fill_(1)
    return inverse
