"""Odometry of a step by kernels: `Odometry.step` for inference on a GPU."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stream_recon.models import fused
from stream_recon.models.layers import in_fp32
from stream_recon.models.odometry import flow_head, keyframe_matcher, refinement
from stream_recon.models.odometry.depth_filter import DepthState
from stream_recon.models.odometry.fusion import LastPose
from stream_recon.models.odometry.kernels.depth import DepthFusion
from stream_recon.models.odometry.kernels.flow import Grid, flow_round, solve_motion
from stream_recon.models.odometry.kernels.matching import Query, refine
from stream_recon.models.odometry.keyframe_matcher import MatchingHistory
from stream_recon.models.odometry.sampling import SAMPLES
from stream_recon.models.prediction import NetworkFeatures, Prediction

if TYPE_CHECKING:
    from stream_recon.models.odometry.odometry import Odometry, OdometryState


@torch.no_grad()
def step(
    odometry: "Odometry", heads: Prediction, features: NetworkFeatures, state: "OdometryState | None"
) -> "tuple[Prediction, OdometryState]":
    """`Odometry.step` without a search for rotations."""
    size = (heads.head_maps.shape[-2], heads.head_maps.shape[-1])
    patches = (size[0] // odometry.patch_size, size[1] // odometry.patch_size)
    grid = Grid(size, (SAMPLES * patches[0], SAMPLES * patches[1]), odometry.patch_size)
    poses, depths = [], []
    measured, context = _measure(odometry, heads, features, state, grid)
    with in_fp32(heads.head_pose):
        for frame in range(heads.head_pose.shape[2]):
            motion = (x[:, frame].contiguous() for x in measured)
            of_frame = None if context is None else context[:, frame].contiguous()
            pose, log_depth, state = _fuse(odometry, heads, features, frame, tuple(motion), of_frame, state, grid)
            poses.append(pose)
            depths.append(log_depth)
    assert state is not None
    return replace(heads, pose=torch.stack(poses, dim=1), log_depth=torch.stack(depths, dim=1)), state


def _measure(
    odometry: "Odometry", heads: Prediction, features: NetworkFeatures, state: "OdometryState | None", grid: Grid
) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor | None]:
    """Motion of B clips of S frames, as `solve_motion` gives it but [B, S, ...], and the matcher's context."""
    assert features.descriptors is not None
    own, codes = features.descriptors.flow, heads.head_pose[-1]
    clips = len(own)
    if own.shape[1] == 1:
        before = state.descriptors if state is not None else own[:, 0]
    else:
        first = state.descriptors[:, None] if state is not None else own[:, :1]
        before = torch.cat([first, own[:, :-1]], dim=1).flatten(0, 1)
    own, codes, log_depth = own.flatten(0, 1), codes.flatten(0, 1), heads.head_maps[:, :, 0].flatten(0, 1)
    patches = (grid.cells[0] // SAMPLES, grid.cells[1] // SAMPLES)
    head, context = odometry.flow_head, None
    if odometry.keyframe_matcher is not None:
        matcher = odometry.keyframe_matcher
        normed = _joined_taps(features, keyframe_matcher.TAPS, matcher.norm, matcher.project)
        context = matcher.context_of(normed, patches).unflatten(0, (clips, -1))
    flow, hints = head.flow_of(_joined_taps(features, flow_head.TAPS, head.norm, head.project), patches)
    with in_fp32(codes):
        coarse, weight = F.avg_pool2d(before, 2), flow
        for number in range(len(flow_head.SPACINGS)):
            other = coarse if number == 0 else before
            flow, hints, weight = flow_round(head, number, (own, other), (flow, hints), grid)
        motion, support, evidence = solve_motion(flow, weight, log_depth, codes, grid)
    return (
        motion.unflatten(0, (clips, -1)),
        support.unflatten(0, (clips, -1)),
        evidence.unflatten(0, (clips, -1)),
    ), context


def _joined_taps(features: NetworkFeatures, numbers: Sequence[int], norm: nn.LayerNorm, reader: nn.Linear) -> Tensor:
    """Some outputs of the aggregator, normalised and joined, in the type of the layer that reads them."""
    return fused.norm_side_by_side([features.taps[number] for number in numbers], norm, reader.weight.dtype)


def _fuse(
    odometry: "Odometry",
    heads: Prediction,
    features: NetworkFeatures,
    frame: int,
    motion: tuple[Tensor, ...],
    context: Tensor | None,
    state: "OdometryState | None",
    grid: Grid,
) -> "tuple[Tensor, Tensor, OdometryState]":
    """Pose codes [B, 9] and log depth [B, H, W] of one frame of each clip, and the state after it."""
    from stream_recon.models.odometry.odometry import OdometryState

    descriptors = features.descriptors
    assert descriptors is not None
    codes, maps = heads.head_pose[-1, :, frame].contiguous(), heads.head_maps[:, frame]
    matching = descriptors.matching[:, frame] if descriptors.matching is not None else None
    matcher, history = odometry.keyframe_matcher, None
    if state is None:
        pose, depth, log_depth = codes, DepthState.from_maps(maps, grid.cells), maps[:, 0]
        if matcher is not None and matching is not None:
            history = MatchingHistory.empty(len(pose), grid.size, pose.device).followed_by(matching, pose)
    else:
        assert len(motion) == 3
        fusion = DepthFusion(maps, codes, (motion[0], motion[1], motion[2]), state.depth, state.last, grid)
        pose, evidence = fusion.pose, None
        if matcher is not None and matching is not None and context is not None and state.history is not None:
            query = Query(matching, context, codes, fusion.log_depth_at_centers)
            pose, evidence = refine(matcher, query, pose, state.history, grid)
            history = state.history.followed_by(matching, pose)
        log_depth, depth = fusion.finish(evidence, refinement.DEPTH_GAIN)
    return pose, log_depth, OdometryState(LastPose(pose, codes), descriptors.flow[:, frame], depth, history)
