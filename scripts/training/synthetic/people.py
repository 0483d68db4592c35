"""People who walk through a clip: visible in the images and excluded from ground truth, so that motion is learnt from
static surfaces.

Each is an upright flat figure that faces the camera: a head, a trunk and swinging limbs.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from training.synthetic.draws import Draws
from training.synthetic.textures import value_noise

MOVING = -1.0
"""Value of depth where something moves: a surface at unknown depth."""
TALL = (1.5, 1.95)
"""Metres."""
NEAREST, FURTHEST = 0.2, 0.9
"""Range of their distance, as a share of the scene's median depth: in front of most of the scene."""
LARGEST = 1.25
"""Largest height of a figure, in heights of the image."""
FASTEST = 0.06
"""Largest movement per frame, as a share of that distance."""
MARGIN_PX = 2
"""Pixels around a figure that are excluded too, since lens and shutter warp images afterwards."""
_HEAD = (0.0, -0.42, 0.0, -0.40, 0.075)
_TRUNK = (0.0, -0.27, 0.0, -0.05, 0.11)
_NEAR_PLANE = 0.1


def add_people(
    draws: Draws, images: Tensor, depth: Tensor, T_world_camera: Tensor, intrinsics: Tensor
) -> tuple[Tensor, Tensor]:
    """Add one or two people to each clip.

    Args:
        images: [B, S, 3, H, W], as rendered. depth: [B, S, H, W] in metres. intrinsics: [B, 4] in pixels.

    Returns:
        The images, and depth with `MOVING` where they are seen.
    """
    hidden, front = torch.zeros_like(depth, dtype=torch.bool), depth
    around = 2 * MARGIN_PX + 1
    for probability in (1.0, 0.5):
        images, cover, z = _with_one(draws, images, front, T_world_camera, intrinsics, probability)
        front = torch.where(cover > 0.5, z, front)
        hidden |= F.max_pool2d(cover.flatten(0, 1)[:, None], around, 1, MARGIN_PX).view_as(depth) > 0
    return images, torch.where(hidden, torch.full_like(depth, MOVING), depth)


def _with_one(
    draws: Draws, images: Tensor, depth: Tensor, T: Tensor, intrinsics: Tensor, probability: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The images, the coverage of each pixel [B, S, H, W], and the depth [B, S, 1, 1] of one figure."""
    clips, frames, _, height, width = images.shape
    centre, tall = _walks(draws, depth, T, intrinsics[:, 1] / height)
    inverse = T[..., :3, :3].transpose(-1, -2)
    at = (inverse @ (centre - T[..., :3, 3])[..., None])[..., 0]
    up = inverse[..., :, 2]
    z = at[..., 2].clamp_min(_NEAR_PLANE)
    fx, fy, cx, cy = (intrinsics[:, i, None] for i in range(4))
    size = fy * tall / z  # pixels, [B, S]
    upright = F.normalize(up[..., :2] + up.new_tensor([0.0, -1e-3]), dim=-1)
    x = torch.arange(width, device=z.device) + 0.5
    y = torch.arange(height, device=z.device)[:, None] + 0.5
    dx = (x - (at[..., 0] / z * fx + cx)[..., None, None]) / size[..., None, None]
    dy = (y - (at[..., 1] / z * fy + cy)[..., None, None]) / size[..., None, None]
    ux, uy = (upright[..., k, None, None] for k in (0, 1))
    # In heights of the figure from its middle: b downwards along it, a across.
    a, b = uy * -dx + ux * dy, -(ux * dx + uy * dy)
    distance, part = _figure(draws, a, b, clips, frames)
    z = z[..., None, None]
    behind = ((depth > z) | (depth == 0)) & (z > _NEAR_PLANE)
    exists = draws.chance(probability, clips, 1, 1, 1)
    cover = (0.5 - distance * size[..., None, None]).clamp(0, 1) * (behind & exists)
    colour = _colours(draws, images, a, b, part)
    return images + cover[:, :, None] * (colour - images), cover, z


def _walks(draws: Draws, depth: Tensor, T: Tensor, focal: Tensor) -> tuple[Tensor, Tensor]:
    """Centres [B, S, 3] and heights [B, 1] of figures on a straight path, in front of the camera in some frame.

    ``focal``: [B], in heights of the image.
    """
    clips, frames = depth.shape[:2]
    met = draws.integer(frames, clips)
    rows = torch.arange(clips, device=depth.device)
    seen = depth[rows, met].flatten(1)
    usual = torch.where(seen > 0, seen, torch.full_like(seen, math.nan)).nanmedian(dim=1).values.nan_to_num(10.0)
    tall = draws.uniform(*TALL, clips, 1)
    away = torch.maximum(usual * draws.uniform(NEAREST, FURTHEST, clips), tall[:, 0] * focal / LARGEST)
    T_met = T[rows, met]
    # A little to the side; eyes are about as high as the camera.
    ray = (
        torch.stack([draws.uniform(-0.4, 0.4, clips), torch.zeros_like(away), torch.ones_like(away)], dim=-1)
        * away[:, None]
    )
    position = (T_met[:, :3, :3] @ ray[..., None])[..., 0] + T_met[:, :3, 3]
    below = tall[:, 0] * draws.uniform(0.25, 0.45, clips)
    position = torch.stack([position[:, 0], position[:, 1], T_met[:, 2, 3] - below], dim=-1)
    heading = draws.uniform(0.0, 2 * math.pi, clips)
    pace = away * draws.uniform(0.0, FASTEST, clips)
    step = torch.stack([heading.cos() * pace, heading.sin() * pace, torch.zeros_like(pace)], dim=-1)
    since = torch.arange(frames, device=depth.device) - met[:, None]
    return position[:, None] + since[..., None] * step[:, None], tall


def _figure(draws: Draws, a: Tensor, b: Tensor, clips: int, frames: int) -> tuple[Tensor, Tensor]:
    """Distance from the outline, negative inside, and the part: 0 head, 1 trunk and arms, 2 legs."""
    time = torch.arange(frames, device=a.device)
    phase = draws.uniform(0.0, 2 * math.pi, clips, 1) + draws.uniform(0.2, 1.0, clips, 1) * time
    swing = (0.12 * phase.sin())[..., None, None]
    stout = draws.uniform(0.9, 1.3, clips, 1, 1, 1)
    head = _limb(a, b, *_HEAD)
    trunk = _limb(a / stout, b, *_TRUNK)
    for side in (-1.0, 1.0):
        trunk = torch.minimum(trunk, _limb(a, b, 0.13 * side, -0.28, 0.15 * side + swing * side, 0.02, 0.04))
    legs = torch.minimum(
        _limb(a, b, -0.06, 0.0, -0.06 + swing, 0.46, 0.05), _limb(a, b, 0.06, 0.0, 0.06 - swing, 0.46, 0.05)
    )
    distance, part = torch.stack([head, trunk, legs]).min(dim=0)
    return distance, part


def _limb(a: Tensor, b: Tensor, a0: float, b0: float, a1: float | Tensor, b1: float, radius: float) -> Tensor:
    """Distance from a capsule between two points."""
    da, db = a1 - a0, b1 - b0
    share = (((a - a0) * da + (b - b0) * db) / (da * da + db * db)).clamp(0, 1)
    return ((a - a0 - share * da).square() + (b - b0 - share * db).square()).sqrt() - radius


def _colours(draws: Draws, images: Tensor, a: Tensor, b: Tensor, part: Tensor) -> Tensor:
    """Colours [B, S, 3, H, W]: plain or patterned clothes, in the light of the clip."""
    clips = images.shape[0]
    light = images.mean(dim=(1, 2, 3, 4)).clamp(0.05, 1.0).view(-1, 1, 1, 1)
    skin = draws.constant([0.85, 0.6, 0.48]) * draws.uniform(0.35, 1.3, clips, 1)
    worn = draws.uniform(0.05, 1.0, clips, 2, 3)
    tone = torch.stack([skin, worn[:, 0], worn[:, 1]], dim=1) * 1.6  # [B, 3 parts, RGB]
    number = draws.integer(1 << 20, clips).to(torch.int32).view(-1, 1, 1, 1)
    cells = draws.log_uniform(10.0, 60.0, clips).view(-1, 1, 1, 1)
    pattern = (value_noise(a * cells, b * cells, number.expand_as(part).to(torch.int32)) - 0.5) * (part > 0)
    contrast = draws.uniform(0.0, 1.0, clips).view(-1, 1, 1, 1)
    # Rounder towards the sides.
    shade = light * (1.1 - 8 * a.square()).clamp(0.5, 1.1) * (1 + contrast * pattern)
    rows = torch.arange(clips, device=a.device).view(-1, 1, 1, 1)
    return (tone[rows, part] * shade[..., None]).permute(0, 1, 4, 2, 3)
