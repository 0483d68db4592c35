"""Losses on poses, depth and auxiliary maps. No term depends on the scale of the scene."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from stream_recon.models.odometry.keyframe_matcher import Matches
from stream_recon.models.odometry.pnp import RelativeMotion
from stream_recon.models.pose import quaternion_to_matrix
from training.auxiliary import SAMPLES
from training.model import TrainingOutput
from training.synthetic import ClipBatch
from training.targets import MatchTargets, Targets, neighbours


@dataclass(frozen=True)
class LossWeights:
    """Weight of each term."""

    translation: float = 2.0
    rotation: float = 1.0
    """For each radian."""
    quaternion_norm: float = 0.02
    fov: float = 1.0
    clip_fov: float = 2.0
    """On the mean field of view over a clip's frames, whose errors are common to all of them."""
    relative_rotation: float = 2.0
    relative_translation: float = 0.5
    direction: float = 0.3
    depth: float = 0.6
    confidence: float = 0.5
    """Reward for the logarithm of `Prediction.depth_conf`; it sets the error that a pixel of conf 1 stands for."""
    depth_gradient: float = 0.5
    sky: float = 0.1
    """For each nat of depth, and each nat of conf, of sky pixels."""
    flow: float = 0.3
    points: float = 0.5
    matching: float = 0.15
    """For each nat."""
    step_rotation: float = 4.0
    """On the flow head's motion, for each radian."""
    step_translation: float = 0.5
    step_direction: float = 0.3
    step_flow: float = 0.3
    """For each patch."""
    match_pixels: float = 0.1
    """On the keyframe matcher's matches, for each pixel."""
    match_precision: float = 0.1
    """For each nat of Student's distribution."""


@dataclass(frozen=True)
class Losses:
    """The total loss and its parts."""

    total: Tensor
    parts: dict[str, Tensor]
    """Weighted terms, detached, and ``depth_error``: the plain mean error of log depth."""


ITERATION_DECAY = 0.8
"""Ratio of an iteration's weight to that of the next one."""
SMALL_MOTION = 0.03
"""Share of the scene's scale: errors of much shorter translations count by their length, not relative to theirs."""
VISIBLE_MOTION = 0.01
"""Share of the scene's scale: the direction of shorter translations is hardly visible, and counts less."""
MAX_LOG_DEPTH = 5.0
"""Bound of the true log depth, in either direction."""
MAX_LOG_CONFIDENCE = 3.0
"""Bound of log confidence: above it, depth's gradient would dominate that of poses."""
GRADIENT_STRIDES = (1, 2, 4, 8)
"""Pixels between the neighbours of the depth gradient's differences."""
SKY_LOG_DEPTH = 4.0
"""Least log depth wanted of sky: about 50 times the scene's scale."""
STUDENT = 4.0
"""Degrees of freedom of matches' errors: most are small, some are outliers."""
MATCH_REACH = 24.0
"""Pixels from a match's predicted position within which it is trained."""
HIDDEN_LOG_PRECISION = 4.0
"""The log precision of matches of hidden points is pushed below minus this."""

DepthTerms = Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor, Tensor, Tensor]]


def draw_pairs(rng: np.random.Generator, frames: int) -> Tensor:
    """Indices of frames to compare, int64 [2, N] (other, frame): all neighbours, then as many random pairs."""
    near = neighbours(frames)
    if frames < 3:
        return near
    frame = np.arange(frames)
    other = (frame + rng.integers(1, frames, frames)) % frames
    return torch.cat([near, torch.from_numpy(np.stack([other, frame]))], dim=1)


class Criterion:
    """The weighted sum of all terms.

    Args:
        compile_depth: compile the full-resolution depth terms, which are bound by memory traffic.
    """

    def __init__(self, weights: LossWeights, *, compile_depth: bool = False) -> None:
        self.weights = weights
        self._depth_terms: DepthTerms = torch.compile(depth_terms, dynamic=False) if compile_depth else depth_terms

    def __call__(
        self,
        output: TrainingOutput,
        batch: ClipBatch,
        targets: Targets,
        pairs: Tensor,
        dense_frames: Tensor | None = None,
        match_targets: MatchTargets | None = None,
    ) -> Losses:
        """``output`` in fp32; ``pairs`` [2, N] from `draw_pairs`, those that the targets were built for."""
        weights, prediction = self.weights, output.prediction
        log_depth, log_confidence = prediction.head_maps.flatten(0, 1).unbind(1)
        true_depth = batch.depth if dense_frames is None else batch.depth[:, dense_frames]
        frames = true_depth.shape[1]
        depth, gradient, sky, depth_error = self._depth_terms(
            log_depth,
            log_confidence,
            true_depth.flatten(0, 1) / targets.scale.repeat_interleave(frames)[:, None, None],
            weights.confidence,
        )
        terms = pose_terms(prediction.head_pose, targets, weights)
        terms |= relative_terms(prediction.head_pose, targets, pairs, weights)
        terms |= auxiliary_terms(output.auxiliary, targets, weights)
        if output.motion is not None:
            terms |= step_terms(output.motion, targets, dense_frames, weights)
        if output.matches is not None and match_targets is not None:
            terms |= match_terms(output.matches, match_targets, weights)
        terms["matching"] = weights.matching * matching_term(output.descriptors, pairs, targets.matches)
        terms["depth"] = weights.depth * depth
        terms["depth_gradient"] = weights.depth_gradient * gradient
        terms["sky"] = weights.sky * sky
        total = torch.stack(list(terms.values())).sum()
        parts = {name: value.detach() for name, value in terms.items()}
        return Losses(total, parts | {"depth_error": depth_error.detach()})


def iteration_weights(iterations: int, device: torch.device) -> Tensor:
    """[I, 1, 1], adding up to 1, later iterations weighing more."""
    weights = ITERATION_DECAY ** torch.arange(iterations - 1, -1, -1, device=device, dtype=torch.float32)
    return (weights / weights.sum()).view(-1, 1, 1)


def _weighted(errors: Tensor) -> Tensor:
    """Mean over clips and frames of errors [I, B, N], iterations weighted."""
    return (errors * iteration_weights(errors.shape[0], errors.device)).sum(0).mean()


def rotation_distance(a: Tensor, b: Tensor) -> Tensor:
    """Chordal distance of rotation matrices [..., 3, 3]: the angle in radians where that is small."""
    return ((a - b).square().sum((-2, -1)) / 2 + 1e-10).sqrt()


def pose_terms(pose: Tensor, targets: Targets, weights: LossWeights) -> dict[str, Tensor]:
    """Errors of poses [I, B, S, 9] in the first camera's frame."""
    translation, quaternion, fov = pose[..., :3], pose[..., 3:7], pose[..., 7:]
    distance = targets.translation.norm(dim=-1, keepdim=True).clamp_min(1)
    off = ((translation - targets.translation) / distance).abs().clamp_max(10).mean(-1)
    rotated = rotation_distance(quaternion_to_matrix(quaternion), targets.R_first_camera)
    return {
        "translation": weights.translation * _weighted(off),
        "rotation": weights.rotation * _weighted(rotated),
        "quaternion_norm": weights.quaternion_norm * _weighted((quaternion.norm(dim=-1) - 1).abs()),
        "fov": weights.fov * _weighted((fov - targets.fov).abs().mean(-1)),
        "clip_fov": weights.clip_fov * _weighted((fov.mean(2, keepdim=True) - targets.fov).abs().mean(-1)),
    }


def relative_terms(pose: Tensor, targets: Targets, pairs: Tensor, weights: LossWeights) -> dict[str, Tensor]:
    """Errors of the motion between the two frames of each pair, in the first one's frame; of its direction, too."""
    other, frame = pairs
    R, t = quaternion_to_matrix(pose[..., 3:7]), pose[..., :3]
    R_true, t_true = targets.R_first_camera, targets.translation
    R_step, move = _motion(R[:, :, other], t[:, :, other], R[:, :, frame], t[:, :, frame])
    R_step_true, true_move = _motion(R_true[:, other], t_true[:, other], R_true[:, frame], t_true[:, frame])
    off, chord = _move_errors(move, true_move)
    return {
        "relative_rotation": weights.relative_rotation * 2 * _weighted(rotation_distance(R_step, R_step_true)),
        "relative_translation": weights.relative_translation * 2 * _weighted(off),
        "direction": weights.direction * 2 * _weighted(chord),
    }


def _motion(R_from: Tensor, t_from: Tensor, R_to: Tensor, t_to: Tensor) -> tuple[Tensor, Tensor]:
    """Rotations [..., 3, 3] and translations [..., 3] from one frame to another, seen from the first."""
    R_back = R_from.transpose(-1, -2)
    return R_back @ R_to, (R_back @ (t_to - t_from)[..., None])[..., 0]


def _move_errors(move: Tensor, true_move: Tensor) -> tuple[Tensor, Tensor]:
    """Errors of translations [..., 3], as a share of the true length, at most 5; and of their directions, which count
    less for short ones."""
    length = true_move.norm(dim=-1)
    off = (move - true_move).square().sum(-1).add(1e-12).sqrt() / (length + SMALL_MOTION)
    # The softening keeps the gradient finite where the predicted move is still near zero.
    soft = VISIBLE_MOTION + 0.1 * length
    predicted = move / (move.square().sum(-1) + soft.square()).sqrt()[..., None]
    true = true_move / (length.square() + soft.square()).sqrt()[..., None]
    chord = (predicted - true).square().sum(-1).add(1e-10).sqrt()
    return off.clamp_max(5), chord * (length / (length + VISIBLE_MOTION))


def auxiliary_terms(auxiliary: Tensor, targets: Targets, weights: LossWeights) -> dict[str, Tensor]:
    """Errors of flow and points where these are known."""
    flow_valid, points_valid = targets.flow_valid.float(), targets.points_valid.float()
    flow_off = (auxiliary[:, 1:, ..., :2] - targets.flow).abs().sum(-1).clamp_max(8)
    points_off = (auxiliary[..., 2:] - targets.points).abs().sum(-1).clamp_max(20)
    return {
        "flow": weights.flow * (flow_off * flow_valid).sum() / flow_valid.sum().clamp_min(1),
        "points": weights.points * (points_off * points_valid).sum() / points_valid.sum().clamp_min(1),
    }


def step_terms(
    steps: RelativeMotion, targets: Targets, frames: Tensor | None, weights: LossWeights
) -> dict[str, Tensor]:
    """Errors of each frame's motion since the one before it, and of the flow that it was solved from.

    ``frames`` int64 [D]: the frames of ``steps``; None: all. The first frame has none before it, and does not count.
    """
    R, t = targets.R_first_camera, targets.translation
    R_true, t_true = _motion(R[:, :-1], t[:, :-1], R[:, 1:], t[:, 1:])
    flow, valid = targets.flow, targets.flow_valid.float()
    # No motion for the first frame, so that frames keep their indices.
    R_true = torch.cat([torch.eye(3, device=R.device).expand_as(R[:, :1]), R_true], dim=1)
    t_true = torch.cat([torch.zeros_like(t[:, :1]), t_true], dim=1)
    flow = torch.cat([torch.zeros_like(flow[:, :1]), flow], dim=1)
    valid = torch.cat([torch.zeros_like(valid[:, :1]), valid], dim=1)
    moves = torch.ones(t_true.shape[:2], device=t.device)
    moves[:, 0] = 0
    if frames is not None:
        R_true, t_true, flow, valid, moves = (x[:, frames] for x in (R_true, t_true, flow, valid, moves))
    count = moves.sum().clamp_min(1)
    rotated = rotation_distance(steps.motion[..., :3], R_true).clamp_max(1)
    off, chord = _move_errors(steps.motion[..., 3], t_true)
    # The sum over x and y, as for the auxiliary head; rounds weigh alike.
    flow_off = ((steps.flows - flow).abs().sum(-1).clamp_max(8) * valid).sum((1, 2, 3, 4)) / valid.sum().clamp_min(1)
    return {
        "step_rotation": weights.step_rotation * (rotated * moves).sum() / count,
        "step_translation": weights.step_translation * (off * moves).sum() / count,
        "step_direction": weights.step_direction * (chord * moves).sum() / count,
        "step_flow": weights.step_flow * flow_off.sum(),
    }


def match_terms(matches: Matches, match_targets: MatchTargets, weights: LossWeights) -> dict[str, Tensor]:
    """Errors of matches after each round, and the likelihood of their precision; hidden points should have none."""
    truth, shown, known = (x.flatten(0, 1) for x in (match_targets.pixels, match_targets.shown, match_targets.known))
    in_view, log_precision = matches.in_view[:, 0], matches.log_precision[:, 0]
    off = matches.pixels[:, :, 0] - truth
    trained = shown & in_view & (off[0].detach().abs().amax(-1) < MATCH_REACH)
    valid = trained.float()
    count = valid.sum().clamp_min(1)
    apart = (off[1:].abs().sum(-1).clamp_max(MATCH_REACH) * valid).sum((1, 2, 3)) / count
    # The density of Student's distribution in two dimensions, whose centre is another term's.
    squared = log_precision.exp() * off[-1].detach().square().sum(-1)
    nats = (1 + STUDENT / 2) * torch.log1p(squared / STUDENT) - log_precision
    hidden = (known & in_view & ~shown).float()
    doubted = F.softplus(log_precision + HIDDEN_LOG_PRECISION) * hidden
    return {
        "match_pixels": weights.match_pixels * apart.sum(),
        "match_precision": weights.match_precision * (nats * valid + doubted).sum() / count,
    }


def matching_term(descriptors: Tensor, pairs: Tensor, matches: Tensor) -> Tensor:
    """Cross entropy in nats of finding each sample's patch in the other frame among all of its patches.

    descriptors [B, S, gh*gw, D] in float32; matches as in `Targets`.
    """
    other, frame = pairs
    logits = descriptors[:, frame] @ descriptors[:, other].transpose(-1, -2)
    # The samples of a patch share its logits: [B, N, gh, 2, gw, 2] -> [B, N, gh*gw, 4]
    halves = matches.unflatten(-1, (-1, SAMPLES)).unflatten(-3, (-1, SAMPLES))
    targets = halves.transpose(-3, -2).flatten(-2).flatten(-3, -2)
    nats = -logits.log_softmax(dim=-1).gather(-1, targets.clamp_min(0))
    is_visible = (targets >= 0).float()
    mean: Tensor = (nats * is_visible).sum() / is_visible.sum().clamp_min(1)
    return mean


def depth_terms(
    log_depth: Tensor, log_confidence: Tensor, depth: Tensor, alpha: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Depth error weighted by conf (Kendall & Gal 2017), gradient error at several strides, sky term, plain error.

    Args:
        log_depth, log_confidence: predictions [F, H, W]; conf, as `Prediction.depth_conf`, is 1 + confidence.
        depth: truth [F, H, W] in units of the clip's scale; 0: sky, negative: unknown.
        alpha: reward for log conf.
    """
    valid = (depth > 0).float()
    truth = depth.clamp_min(1e-6).log().clamp(-MAX_LOG_DEPTH, MAX_LOG_DEPTH)
    error = (log_depth - truth) * valid
    conf = 1 + log_confidence.clamp(-8, MAX_LOG_CONFIDENCE).exp()
    log_conf = conf.log()
    count = valid.sum().clamp_min(1)
    weighted = ((error.abs() * conf - alpha * log_conf) * valid).sum() / count
    gradient = torch.zeros_like(weighted)
    for stride in GRADIENT_STRIDES:
        across = (error[..., stride:] - error[..., :-stride]).abs().clamp_max(1)
        down = (error[..., stride:, :] - error[..., :-stride, :]).abs().clamp_max(1)
        gradient = gradient + (across * valid[..., stride:] * valid[..., :-stride]).sum() / count
        gradient = gradient + (down * valid[..., stride:, :] * valid[..., :-stride, :]).sum() / count
    sky = (((SKY_LOG_DEPTH - log_depth).clamp_min(0) + log_conf) * (depth == 0)).mean()
    return weighted, gradient * (2 / len(GRADIENT_STRIDES)), sky, error.abs().sum() / count
