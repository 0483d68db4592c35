"""Poses and depths of a stream, mended by what is seen again of frames further back."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from stream_recon.models.odometry.depth_filter import DepthState, amend, box_filter
from stream_recon.models.odometry.keyframe_matcher import KeyframeMatcher, MatchingHistory
from stream_recon.models.odometry.pnp import rotation_from_vector, vector_from_rotation
from stream_recon.models.odometry.pose_only_ba import PoseOnlyResult, pose_only_ba
from stream_recon.models.odometry.rotation_search import known_to_be_none, search_turn
from stream_recon.models.odometry.sampling import far_corner, in_space, rays_of, sample_places
from stream_recon.models.pose import matrix_to_quaternion, pose_to_matrix

LAGS = (1, 2, 4)
"""Cached frames back."""
SHARE_OF_TURN = 0.7
"""Of what matches with frames back change in a pose; their own poses are not free of errors, and ..."""
SHARE_OF_SHIFT = 0.6
"""... lengths depend on the field of view as well."""
MISJUDGED = math.radians(2)
"""Of turns by much more than this all is taken: a step that is off by so much is not to be mixed with what is right."""
SHARE_OF_DEPTH = 0.05
"""Of their evidence for depth: it is as wrong as these poses are, and in neighbours alike. More of it mends an unknown
walk further, and spoils what is nearly right."""
PRECISE = 3.0
"""Logarithm of the largest precision that is believed, in 1 / pixels^2."""
SEEN = 0.2
"""Share of the points that has to be in view of a frame back."""
SUPPORTED = 0.3
"""Poses with less support are not trusted."""
CLEARER = 1.2
"""A turn that was searched is right if its matches tell so many times what they tell without it, and ..."""
FOUND, STRANGE = 0.1, 0.2
"""... more than the first, in 1 / pixels^2 a point, or if without it hardly anything looks alike: less than the
second."""


def refine_pose(
    look_back: KeyframeMatcher,
    features: Tensor,
    context: Tensor,
    said: Tensor,
    pose_code: Tensor,
    kept: DepthState,
    past: MatchingHistory,
) -> tuple[Tensor, DepthState]:
    """Mend what is known of B frames, one of each stream.

    Args:
        features, context: [B, M, 24] and [B, 2*gh, 2*gw, 16], as `Sight` has them.
        said: pose codes [B, 9] of the camera head, of which the field of view counts.
        pose_code: [B, 9], in the world of ``past``.

    Returns:
        pose codes and depth.
    """
    size = (kept.maps.shape[-2], kept.maps.shape[-1])
    rays, lengths = rays_of(size, (context.shape[1], context.shape[2]), said)
    others, poses = (torch.stack([x[:, lag - 1] for lag in LAGS], dim=1) for x in (past.features, past.poses))
    there = torch.stack([past.count >= lag for lag in LAGS], dim=1)
    points = in_space(rays, kept.log_depth_at_places)
    seen = _Seen(size, features, context, points, lengths, others, _inverse(pose_to_matrix(poses)), there)
    pose_code, settled = _looked(look_back, seen, pose_code)
    trusted = (settled.support > SUPPORTED) & settled.T_world_camera.isfinite().all(-1).all(-1)
    code = _between(pose_to_matrix(pose_code), settled.T_world_camera, pose_code)
    evidence = box_filter(settled.evidence.unflatten(2, seen.points.shape[1:3])) * SHARE_OF_DEPTH
    depth = amend(kept, torch.where(trusted[:, None, None, None], evidence, 0))
    return torch.where(trusted[:, None], code, pose_code), depth


@dataclass(frozen=True)
class _Seen:
    """What is known of B frames but their poses, and of the L frames that each looks back at."""

    size: tuple[int, int]
    """Of images (height, width)."""
    features: Tensor
    context: Tensor
    points: Tensor
    """[B, 2*gh, 2*gw, 3], in a frame's space."""
    lengths: Tensor
    """Focal lengths (x, y) in pixels [B, 2]."""
    others: Tensor
    """[B, L, M, 24]: their features, ..."""
    T_other_world: Tensor
    """[B, L, 4, 4]: ... poses, ..."""
    there: Tensor
    """bool [B, L]: ... and whether they are there."""

    def twice(self) -> "_Seen":
        """All frames, and once more."""
        of_frames = (self.features, self.context, self.points, self.lengths)
        of_others = (self.others, self.T_other_world, self.there)
        return _Seen(self.size, *(torch.cat([x, x]) for x in (*of_frames, *of_others)))


def _looked(look_back: KeyframeMatcher, seen: _Seen, pose_code: Tensor) -> tuple[Tensor, PoseOnlyResult]:
    """Pose codes [B, 9], turned to where what the last cached frame saw is seen again, if they clearly miss that; and
    what looking back from there says."""
    turned, worth, alike = _turned(seen, pose_code)
    if known_to_be_none(worth):
        return pose_code, _settled(look_back, seen, pose_code)[0]
    # Both at once: so a GPU launches no more.
    both, told = _settled(look_back, seen.twice(), torch.cat([pose_code, turned]))
    known, found = told.chunk(2)
    right = worth & (found > CLEARER * known) & ((found > FOUND) | (alike < STRANGE))
    return torch.where(right[:, None], turned, pose_code), both.second_where(right)


def _turned(seen: _Seen, pose_code: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Pose codes [B, 9] turned by what `search_turn` found, and what else it says."""
    places = sample_places(seen.size, (seen.points.shape[1], seen.points.shape[2]), seen.points.device)
    # Half of the points along each axis say it as well.
    places, points = places[::2, ::2].flatten(0, 1), seen.points[:, ::2, ::2].flatten(1, 2)
    T_last_world = seen.T_other_world[:, 0]
    motion = (T_last_world @ pose_to_matrix(pose_code))[:, :3]
    turn, worth, alike = search_turn(seen.features, seen.others[:, 0], places, points, motion, seen.lengths, seen.size)
    R = T_last_world[:, :3, :3].transpose(1, 2) @ turn @ motion[..., :3]
    turned = torch.cat([pose_code[:, :3], matrix_to_quaternion(R), pose_code[:, 7:]], dim=-1)
    return turned, worth & seen.there[:, 0], alike


def _settled(look_back: KeyframeMatcher, seen: _Seen, pose_code: Tensor) -> tuple[PoseOnlyResult, Tensor]:
    """Poses as matches with cached frames have them, and what those with the last one tell that agrees, [B] in
    1 / pixels^2 a point."""
    T_world_camera = pose_to_matrix(pose_code)
    motion = (seen.T_other_world @ T_world_camera[:, None])[..., :3, :]
    points, lengths = seen.points, seen.lengths
    matches = look_back(seen.features, seen.others, seen.context, points, motion, lengths, seen.size)
    there = seen.there & (matches.in_view.float().mean((2, 3)) > SEEN)
    precision = matches.log_precision.clamp_max(PRECISE).exp() * (matches.in_view & there[..., None, None])
    told = precision[:, 0].mean((1, 2))
    precision = precision * lengths.prod(-1)[:, None, None, None]
    target = (matches.places[-1] - far_corner(seen.size, lengths.device) / 2) / lengths[:, None, None, None]
    settled = pose_only_ba(
        points.flatten(1, 2), target.flatten(2, 3), precision.flatten(2), seen.T_other_world, T_world_camera
    )
    return settled, told * settled.support


def _between(before: Tensor, after: Tensor, pose_code: Tensor) -> Tensor:
    """Pose codes [B, 9] a part of the way from one pose [B, 4, 4] to the other."""
    R, t = before[:, :3, :3], before[:, :3, 3]
    turn = vector_from_rotation(R.transpose(1, 2) @ after[:, :3, :3])
    kept = (1 - SHARE_OF_TURN) / (1 + (turn / MISJUDGED).square().sum(-1, keepdim=True))
    R = R @ rotation_from_vector(turn * (1 - kept))
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
