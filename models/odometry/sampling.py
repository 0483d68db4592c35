"""Places in an image, four to a patch, and features looked up around them."""

from collections.abc import Sequence
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from stream_recon.models.pose import focal_lengths

SAMPLES = 2
"""Points along each side of a patch."""
FARTHEST = 100.0
"""Units of the reconstruction; farther points say nothing more of translation."""


@cache
def sample_places(size: tuple[int, int], points: tuple[int, int], device: torch.device) -> Tensor:
    """Pixels (x, y) in the middles of equal cells of an image of ``size`` (height, width), [*points, 2]; a pixel's
    centre is at .5."""
    cell = size[1] // points[1]
    ys = torch.arange(cell // 2, size[0], cell, device=device) + 0.5
    xs = torch.arange(cell // 2, size[1], cell, device=device) + 0.5
    y, x = torch.meshgrid(ys, xs, indexing="ij")
    return torch.stack([x, y], dim=-1)


@cache
def far_corner(size: tuple[int, int], device: torch.device) -> Tensor:
    """Pixels (x, y) of the corner of an image of ``size`` (height, width) that is not at 0, [2]. Made once: a captured
    graph may copy nothing from the host."""
    return torch.tensor([float(size[1]), float(size[0])], device=device)


@cache
def window(reach: int, spacing: int, device: torch.device | None = None) -> Tensor:
    """Offsets (x, y) in pixels of ``reach`` places to each side, [places, 2]."""
    steps = torch.arange(-reach, reach + 1, device=device, dtype=torch.float32) * spacing
    y, x = torch.meshgrid(steps, steps, indexing="ij")
    return torch.stack([x, y], dim=-1).flatten(0, 1)


def look_up(features: Tensor, places: Tensor, cell: int) -> Tensor:
    """features [N, C, h, w], one for every ``cell`` pixels, at ``places`` [N, P, K, 2], (x, y) in pixels ->
    [N, C, P, K]; beyond the border what is on it."""
    height, width = features.shape[-2:]
    x, y = places.unbind(-1)
    inside = torch.stack([x * (2 / (width * cell)) - 1, y * (2 / (height * cell)) - 1], dim=-1)
    return F.grid_sample(features, inside, mode="bilinear", padding_mode="border", align_corners=False)


def per_point(said: Tensor, grid: tuple[int, int]) -> Tensor:
    """What tokens say of the points of their patches, [N, gh*gw, SAMPLES^2 * C] -> [N, 2*gh, 2*gw, C]."""
    said = said.unflatten(1, grid).unflatten(-1, (SAMPLES, SAMPLES, -1))
    return said.transpose(2, 3).flatten(3, 4).flatten(1, 2)


def rays_of(size: tuple[int, int], points: tuple[int, int], pose: Tensor) -> tuple[Tensor, Tensor]:
    """Rays at depth 1 through the places of `sample_places`, [N, *points, 3], and focal lengths (x, y) in pixels
    [N, 2], from pose codes [N, 9], of which the field of view counts."""
    lengths = torch.stack(focal_lengths(pose.float(), *size), dim=-1)
    flat = (sample_places(size, points, pose.device) - far_corner(size, pose.device) / 2) / lengths[:, None, None]
    return torch.cat([flat, torch.ones_like(flat[..., :1])], dim=-1), lengths


def at_places(x: Tensor, points: Sequence[int]) -> Tensor:
    """The pixels [..., *points] of [..., H, W] that `sample_places` names."""
    cell = x.shape[-1] // points[1]
    return x[..., cell // 2 :: cell, cell // 2 :: cell]


def in_space(rays: Tensor, log_depth: Tensor) -> Tensor:
    """Points [N, Y, X, 3] along rays, from log depth [N, Y, X]."""
    return rays * log_depth.float().exp().clamp_max(FARTHEST)[..., None]
