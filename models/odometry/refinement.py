"""Windowed pose refinement: poses and depths corrected by matches with several keyframes."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from stream_recon.models.odometry.depth_filter import DepthState, add_evidence, average_neighbours
from stream_recon.models.odometry.keyframe_matcher import KeyframeMatcher, MatchingHistory
from stream_recon.models.odometry.pose_only_ba import PoseOnlyResult, pose_only_ba
from stream_recon.models.odometry.rotation_search import is_surely_none, search_rotation
from stream_recon.models.odometry.sampling import CellPoints, camera_rays, unproject, width_height
from stream_recon.models.pose import inverse_pose, matrix_to_quaternion, pose_to_matrix, so3_exp, so3_log

LAGS = (1, 2, 4)
"""Keyframes back that are matched."""
ROTATION_GAIN = 0.7
"""Share of the rotation's correction that is applied: poses of the keyframes have errors too."""
TRANSLATION_GAIN = 0.6
"""Share of the translation's correction that is applied: less, as lengths also depend on the field of view."""
LARGE_ROTATION = math.radians(2)
"""Corrections much larger than this are applied in full: a pose with so large an error is not worth mixing in."""
DEPTH_GAIN = 0.05
"""Share of the matches' evidence for depth that counts. It has the poses' errors, and neighbours' are correlated. More
of it improves the scale of some outdoor walks, and worsens depths that are nearly right."""
MAX_LOG_PRECISION = 3.0
"""Logarithm of the largest precision that a match counts with, in 1 / pixels^2."""
MIN_OVERLAP = 0.2
"""Share of the points that has to be in view of a keyframe to match it."""
SUPPORTED = 0.3
"""Poses with less support are not trusted."""
MIN_PRECISION_GAIN = 1.2
"""A searched rotation is accepted if its matches agree with at least this multiple of the precision without it."""
MIN_PRECISION = 0.1
"""It must also have more precision per point than this, in 1 / pixels^2, unless the similarity without it is below
`LOW_SIMILARITY`."""
LOW_SIMILARITY = 0.2


@dataclass(frozen=True)
class QueryFrame:
    """Inputs of refinement for B frames, one of each stream."""

    features: Tensor  # [B, M, 24]: `KeyframeMatcher.describe`
    context: Tensor  # [B, 2*gh, 2*gw, 16]: `KeyframeMatcher.read_context`
    head_pose: Tensor  # [B, 9]: pose codes of the camera head, of which only the field of view is used


@dataclass(frozen=True)
class _Window:
    """B frames without their poses, and the L keyframes that each is matched with."""

    features: Tensor
    context: Tensor
    """As of `QueryFrame`."""
    points: CellPoints
    others: Tensor  # [B, L, M, 24]: features of the keyframes
    T_other_world: Tensor  # [B, L, 4, 4]: poses of the keyframes
    exists: Tensor  # bool [B, L]: whether there is such a keyframe

    def repeated(self) -> "_Window":
        """All frames twice, [2 * B]."""
        xyz, focal, features, context = (
            torch.cat([x, x]) for x in (self.points.xyz, self.points.focal, self.features, self.context)
        )
        others = (torch.cat([x, x]) for x in (self.others, self.T_other_world, self.exists))
        return _Window(features, context, CellPoints(xyz, focal, self.points.size), *others)


def refine_pose(
    matcher: KeyframeMatcher,
    query: QueryFrame,
    pose: Tensor,
    depth: DepthState,
    history: MatchingHistory,
    rotation_search: bool = True,
) -> tuple[Tensor, DepthState]:
    """Refine poses and depths of B frames, one of each stream.

    Args:
        pose: pose codes [B, 9], in the world of ``history``.
        depth: of the same frames.
        rotation_search: whether to search for a large error of rotation first.

    Returns refined pose codes and depth.
    """
    size = (depth.maps.shape[-2], depth.maps.shape[-1])
    context = query.context
    rays, focal = camera_rays(size, (context.shape[1], context.shape[2]), query.head_pose)
    others, poses = (torch.stack([x[:, lag - 1] for lag in LAGS], dim=1) for x in (history.features, history.poses))
    exists = torch.stack([history.count >= lag for lag in LAGS], dim=1)
    points = CellPoints(unproject(rays, depth.log_depth_at_centers), focal, size)
    window = _Window(query.features, context, points, others, inverse_pose(pose_to_matrix(poses)), exists)
    if rotation_search:
        pose, adjusted = _search_and_adjust(matcher, window, pose)
    else:
        adjusted = _adjust(matcher, window, pose)[0]
    trusted = (adjusted.support > SUPPORTED) & adjusted.T_world_camera.isfinite().all(-1).all(-1)
    refined = _mix(pose_to_matrix(pose), adjusted.T_world_camera, pose)
    evidence = average_neighbours(adjusted.evidence.unflatten(2, points.xyz.shape[1:3])) * DEPTH_GAIN
    depth = add_evidence(depth, torch.where(trusted[:, None, None, None], evidence, 0))
    return torch.where(trusted[:, None], refined, pose), depth


def _search_and_adjust(matcher: KeyframeMatcher, window: _Window, pose: Tensor) -> tuple[Tensor, PoseOnlyResult]:
    """Pose codes [B, 9], rotated where a search found a better rotation and matches confirm it; and adjusted poses."""
    rotated, worth, similarity = _search(window, pose)
    if is_surely_none(worth):
        return pose, _adjust(matcher, window, pose)[0]
    # Both in one batch, so that a GPU launches no more kernels.
    both, precision = _adjust(matcher, window.repeated(), torch.cat([pose, rotated]))
    without, with_search = precision.chunk(2)
    is_clear = with_search > MIN_PRECISION_GAIN * without
    accepted = worth & is_clear & ((with_search > MIN_PRECISION) | (similarity < LOW_SIMILARITY))
    return torch.where(accepted[:, None], rotated, pose), both.second_where(accepted)


def _search(window: _Window, pose: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Pose codes [B, 9] rotated by what `search_rotation` found in the last keyframe, and its other results."""
    T_last_world = window.T_other_world[:, 0]
    motion = (T_last_world @ pose_to_matrix(pose))[:, :3]
    rotation, worth, similarity = search_rotation(window.features, window.others[:, 0], window.points, motion)
    R = T_last_world[:, :3, :3].transpose(1, 2) @ rotation @ motion[..., :3]
    rotated = torch.cat([pose[:, :3], matrix_to_quaternion(R), pose[:, 7:]], dim=-1)
    return rotated, worth & window.exists[:, 0], similarity


def _adjust(matcher: KeyframeMatcher, window: _Window, pose: Tensor) -> tuple[PoseOnlyResult, Tensor]:
    """Poses adjusted to matches with keyframes, and the agreeing precision per point with the last one, [B] in
    1 / pixels^2."""
    T_world_camera = pose_to_matrix(pose)
    motion = (window.T_other_world @ T_world_camera[:, None])[..., :3, :]
    points, focal = window.points, window.points.focal
    matches = matcher(window.features, window.others, window.context, points, motion)
    usable = window.exists & (matches.in_view.float().mean((2, 3)) > MIN_OVERLAP)
    precision = matches.log_precision.clamp_max(MAX_LOG_PRECISION).exp()
    precision = precision * (matches.in_view & usable[..., None, None])
    with_last = precision[:, 0].mean((1, 2))
    precision = precision * focal.prod(-1)[:, None, None, None]
    target = (matches.pixels[-1] - width_height(points.size, focal.device) / 2) / focal[:, None, None, None]
    adjusted = pose_only_ba(
        points.xyz.flatten(1, 2), target.flatten(2, 3), precision.flatten(2), window.T_other_world, T_world_camera
    )
    return adjusted, with_last * adjusted.support


def _mix(before: Tensor, after: Tensor, pose: Tensor) -> Tensor:
    """Pose codes [B, 9] between the poses [B, 4, 4] before and after adjustment; ``pose`` has the field of view."""
    R, t = before[:, :3, :3], before[:, :3, 3]
    rotation = so3_log(R.transpose(1, 2) @ after[:, :3, :3])
    left_out = (1 - ROTATION_GAIN) / (1 + (rotation / LARGE_ROTATION).square().sum(-1, keepdim=True))
    R = R @ so3_exp(rotation * (1 - left_out))
    t = t + (after[:, :3, 3] - t) * TRANSLATION_GAIN
    return torch.cat([t, matrix_to_quaternion(R), pose[:, 7:]], dim=-1)
