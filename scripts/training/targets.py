"""Training targets: poses, scale and auxiliary maps from a clip's exact geometry."""

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from stream_recon.models.pose import inverse_pose, matrix_to_quaternion, so3_exp
from training.synthetic import ClipBatch

MIN_SCALE, MAX_SCALE = 0.02, 2000.0
"""Bounds of a clip's scale, so that targets stay finite."""
MAX_FLOW = 10.0
"""Patches: longer flow is not trained."""
FRAME_MARGIN = 1.15
"""A point may leave the previous image by this factor of its half size and still have a flow target."""
OCCLUSION_RATIO = 0.06
"""A point is hidden in the previous frame if the depth seen there differs by more than this share."""
ROTATION_NOISE_DEG = (0.03, 3.0)
"""Range of standard deviations of the rotation noise about each axis, in degrees."""
TRANSLATION_NOISE = 0.08
"""Standard deviation of the translation noise, as a share of its length."""
SMALL_TRANSLATION = 0.003
"""Standard deviation of additional translation noise, as a share of the scene's scale."""


@dataclass(frozen=True)
class Targets:
    """Targets of B clips. Lengths are divided by ``scale``; the world is the first camera.

    There are gh2 x gw2 points, two by two in each patch.
    """

    scale: Tensor  # [B] geometric mean distance of the scale frames' visible points from the first camera
    R_first_camera: Tensor  # [B, S, 3, 3]
    translation: Tensor  # [B, S, 3]
    quaternion: Tensor  # [B, S, 4] xyzw
    fov: Tensor  # [B, 1, 2] vertical and horizontal, radians
    points: Tensor  # [B, S, gh2, gw2, 3] in the first camera's frame, compressed by `compress`
    points_valid: Tensor  # bool [B, S, gh2, gw2]
    flow: Tensor  # [B, S-1, gh2, gw2, 2] motion (x, y) to the previous frame, in patches
    flow_valid: Tensor  # bool [B, S-1, gh2, gw2]
    matches: Tensor  # int64 [B, N, gh2, gw2] for each pair: the patch of the other frame that shows the point, or -1


def compress(x: Tensor) -> Tensor:
    """Signed logarithm, so that far points do not dominate the loss."""
    return x.sign() * x.abs().log1p()


@lru_cache(maxsize=32)
def sample_centres(height: int, width: int, cell: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Offsets from the image centre, in pixels, of the middle pixel of each cell: x and y, each [H/cell, W/cell]."""
    ys = torch.arange(cell // 2, height, cell, device=device) + 0.5 - height / 2
    xs = torch.arange(cell // 2, width, cell, device=device) + 0.5 - width / 2
    y, x = torch.meshgrid(ys, xs, indexing="ij")
    return x, y


def neighbours(frames: int) -> Tensor:
    """int64 [2, S-1] (other, frame): each frame with the one before it."""
    later = torch.arange(1, frames)
    return torch.stack([later - 1, later])


@torch.no_grad()
def build_targets(batch: ClipBatch, scale_frames: int, patch_size: int, pairs: Tensor | None = None) -> Targets:
    """Targets of a clip under a stream whose first ``scale_frames`` frames fix the unit of length.

    ``pairs`` int64 [2, N] (other, frame), neighbours first: the frames between which matches are wanted.
    """
    cell = patch_size // 2
    T_first_camera = inverse_pose(batch.T_world_camera[:, :1]) @ batch.T_world_camera
    in_camera, valid = _sampled_points(batch, cell)
    in_first = _transform(T_first_camera, in_camera)
    scale = _clip_scale(in_first[:, :scale_frames], valid[:, :scale_frames])
    height, width = batch.depth.shape[-2:]
    fx, fy = batch.intrinsics[:, 0], batch.intrinsics[:, 1]
    fov = torch.stack([2 * torch.atan(height / 2 / fy), 2 * torch.atan(width / 2 / fx)], dim=-1)
    frames = batch.depth.shape[1]
    pairs = neighbours(frames).to(batch.depth.device) if pairs is None else pairs
    motion, shown = _flow_between(batch, in_camera, valid, pairs, cell)
    matches = _matches(motion, shown, batch.depth.shape[-2:], patch_size)
    flow, flow_valid = motion[:, : frames - 1] / patch_size, shown[:, : frames - 1]
    return Targets(
        scale=scale,
        R_first_camera=T_first_camera[..., :3, :3],
        translation=T_first_camera[..., :3, 3] / scale[:, None, None],
        quaternion=matrix_to_quaternion(T_first_camera[..., :3, :3]),
        fov=fov[:, None],
        points=compress(in_first / scale[:, None, None, None, None]),
        points_valid=valid,
        flow=flow,
        flow_valid=flow_valid & (flow.abs().amax(dim=-1) < MAX_FLOW),
        matches=matches,
    )


@dataclass(frozen=True)
class MatchTargets:
    """Targets of the keyframe matcher for D frames, each with one other frame."""

    motion: Tensor  # [B, D, 3, 4] from a frame to the other, lengths divided by the clip's scale
    pixels: Tensor  # [B, D, gh2, gw2, 2] pixels (x, y) of the other frame
    shown: Tensor  # bool [B, D, gh2, gw2]: the point is visible to the other frame, in its image or close to it
    known: Tensor  # bool [B, D, gh2, gw2]: there is a point


@torch.no_grad()
def match_targets(batch: ClipBatch, scale: Tensor, frames: Tensor, others: Tensor, patch_size: int) -> MatchTargets:
    """Targets of ``frames`` matched with ``others``, int64 [D]; ``scale`` [B] as of `Targets`."""
    cell = patch_size // 2
    in_camera, valid = _sampled_points(batch, cell)
    motion, shown = _flow_between(batch, in_camera, valid, torch.stack([others, frames]), cell)
    height, width = batch.depth.shape[-2:]
    x, y = sample_centres(height, width, cell, batch.depth.device)
    T = inverse_pose(batch.T_world_camera[:, others]) @ batch.T_world_camera[:, frames]
    shift = T[..., :3, 3:] / scale[:, None, None, None]
    pixels = motion + torch.stack([x + width / 2, y + height / 2], dim=-1)
    return MatchTargets(torch.cat([T[..., :3, :3], shift], dim=-1), pixels, shown, valid[:, frames])


def perturb_motion(motion: Tensor) -> Tensor:
    """Motions [B, D, 3, 4] with noise as in a stream: hundredths of a degree to degrees, and per cent of the length."""
    noise = torch.randn(*motion.shape[:2], 7, device=motion.device)
    low, high = ROTATION_NOISE_DEG
    rotation = noise[..., :3] * (low * (high / low) ** torch.rand_like(noise[..., :1])) * (math.pi / 180)
    R = so3_exp(rotation.flatten(0, 1)).unflatten(0, motion.shape[:2])
    t = motion[..., 3]
    sigma = TRANSLATION_NOISE * t.norm(dim=-1, keepdim=True) + SMALL_TRANSLATION
    t = t * (TRANSLATION_NOISE * noise[..., 6:]).exp() + noise[..., 3:6] * sigma
    return torch.cat([R @ motion[..., :3], t[..., None]], dim=-1)


def _transform(T: Tensor, points: Tensor) -> Tensor:
    """T [B, S, 4, 4], points [B, S, h, w, 3] -> [B, S, h, w, 3]"""
    flat = points.flatten(2, 3)
    moved = flat @ T[..., :3, :3].transpose(-1, -2) + T[..., None, :3, 3]
    return moved.view_as(points)


def _sampled_points(batch: ClipBatch, cell: int) -> tuple[Tensor, Tensor]:
    """Points in each camera's own frame at the sample centres, [B, S, gh2, gw2, 3], and which of them exist."""
    height, width = batch.depth.shape[-2:]
    z = batch.depth[:, :, cell // 2 :: cell, cell // 2 :: cell]
    x, y = sample_centres(height, width, cell, z.device)
    fx, fy = (batch.intrinsics[:, i].view(-1, 1, 1, 1) for i in (0, 1))
    return torch.stack([x / fx * z, y / fy * z, z], dim=-1), z > 0


def _clip_scale(points: Tensor, valid: Tensor) -> Tensor:
    """Geometric mean distance, [B]: a far horizon moves it little. 1 where nothing is seen."""
    weight = valid.float()
    log_distance = points.norm(dim=-1).clamp(1e-3, 1e5).log() * weight
    total = weight.sum((1, 2, 3))
    scale: Tensor = (log_distance.sum((1, 2, 3)) / total.clamp_min(1)).exp()
    return scale.clamp(MIN_SCALE, MAX_SCALE)


def _flow_between(
    batch: ClipBatch, in_camera: Tensor, valid: Tensor, pairs: Tensor, cell: int
) -> tuple[Tensor, Tensor]:
    """Flow in pixels from each sample of a pair's second frame to the first one, [B, N, gh2, gw2, 2], and whether the
    point is visible there."""
    other, frame = pairs
    depth, T = batch.depth, batch.T_world_camera
    height, width = depth.shape[-2:]
    T_other_camera = inverse_pose(T[:, other]) @ T[:, frame]
    in_camera, valid = in_camera[:, frame], valid[:, frame]
    moved = _transform(T_other_camera, in_camera)
    z = moved[..., 2].clamp_min(1e-3)
    fx, fy = (batch.intrinsics[:, i].view(-1, 1, 1, 1) for i in (0, 1))
    u, v = moved[..., 0] / z * fx, moved[..., 1] / z * fy
    position = torch.stack([u / (width / 2), v / (height / 2)], dim=-1)  # in [-1, 1] inside the image
    seen = F.grid_sample(
        depth[:, other].flatten(0, 1)[:, None], position.flatten(0, 1), mode="nearest", align_corners=False
    ).view_as(z)
    x, y = sample_centres(height, width, cell, z.device)
    inside = position.abs().amax(dim=-1) <= 1
    near = position.abs().amax(dim=-1) < FRAME_MARGIN
    unhidden = (seen - z).abs() < OCCLUSION_RATIO * z
    in_front = moved[..., 2] > 0.01 * in_camera[..., 2]
    return torch.stack([u - x, v - y], dim=-1), valid & in_front & near & (~inside | unhidden)


def _matches(motion: Tensor, shown: Tensor, size: torch.Size, patch: int) -> Tensor:
    """Index of the other frame's patch that shows each sample's point, int64 [B, N, gh2, gw2]; -1 outside or hidden."""
    height, width = size
    x, y = sample_centres(height, width, patch // 2, motion.device)
    column = ((motion[..., 0] + x + width / 2) / patch).floor()
    row = ((motion[..., 1] + y + height / 2) / patch).floor()
    rows, columns = height // patch, width // patch
    inside = (row >= 0) & (row < rows) & (column >= 0) & (column < columns)
    return torch.where(shown & inside, row * columns + column, -1).long()
