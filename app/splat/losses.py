"""Differences of a drawn image from the photograph, and of its depth and surface from dense depth maps."""

from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F

from stream_recon.app.core.types import Certainty
from stream_recon.app.splat.config import LossConfig

MIN_DEPTH = 1e-3
"""Depth below which nothing is measured, in the trainer's unit."""


def image_loss(drawn: Tensor, photograph: Tensor, kept: Tensor | None, ssim_share: float) -> Tensor:
    """L1 and 1 - SSIM, by their share, of images [h, w, 3] from 0 to 1, at the pixels ``kept`` [h, w]; None: at all."""
    if kept is not None:
        # Black in both, so that windows across its border say nothing of what is left out either.
        drawn, photograph = drawn * kept[..., None], photograph * kept[..., None]
        share = kept.float().mean().clamp_min(1e-3)
    else:
        share = torch.ones((), device=drawn.device)
    different = (1 - ssim_share) * F.l1_loss(drawn, photograph) + ssim_share * (1 - ssim(drawn, photograph))
    return different / share


def ssim(one: Tensor, other: Tensor, padding: int = 5) -> Tensor:
    """Structural similarity of images [h, w, 3] from 0 to 1, in Gaussian windows of 11 pixels (Wang et al. 2004)."""
    at = torch.arange(-5, 6, device=one.device, dtype=torch.float32)
    line = torch.exp(-at.square() / (2 * 1.5**2))
    line = line / line.sum()
    x, y = one.permute(2, 0, 1)[None], other.permute(2, 0, 1)[None]
    stack = torch.cat([x, y, x * x, y * y, x * y])  # [5, 3, h, w]
    blurred = F.conv2d(stack, line.view(1, 1, 1, 11).expand(3, 1, 1, 11), padding=(0, padding), groups=3)
    blurred = F.conv2d(blurred, line.view(1, 1, 11, 1).expand(3, 1, 11, 1), padding=(padding, 0), groups=3)
    mx, my, xx, yy, xy = blurred
    c1, c2 = 0.01**2, 0.03**2
    top = (2 * mx * my + c1) * (2 * (xy - mx * my) + c2)
    similarity: Tensor = top / ((mx * mx + my * my + c1) * (xx - mx * mx + yy - my * my + c2))
    return similarity.mean()


def depth_loss(drawn: Tensor, depth: Tensor, certainty: Tensor, config: LossConfig) -> Tensor:
    """Mean relative difference of inverse depth [h, w] from a map, weighted by its certainty [h, w].

    Inverse depth: an error far away moves the image less than one nearby.
    """
    weight = _certainty_weights(config.certainty_weights, drawn.device)[certainty.long()] * (depth > MIN_DEPTH)
    target = depth.clamp_min(MIN_DEPTH)
    different = (target / drawn.clamp_min(MIN_DEPTH) - 1).abs().clamp_max(1.0)
    return (weight * different).sum() / weight.sum().clamp_min(1.0)


@cache
def _certainty_weights(weights: tuple[float, ...], device: torch.device) -> Tensor:
    # Kept, because each copy to a GPU waits for it.
    return torch.tensor(weights, device=device)


def normal_loss(
    drawn: Tensor, depth: Tensor, certainty: Tensor, focal: Tensor, centre: Tensor, config: LossConfig
) -> Tensor:
    """Mean of 1 - cosine between the surface normals of a drawn depth map [h, w] and of a map, where it is confirmed.

    ``focal``, ``centre``: of the camera [2] in pixels of the maps.
    """
    ours, _ = _normals(drawn, focal, centre, config.edge)
    theirs, is_surface = _normals(depth, focal, centre, config.edge)
    confirmed = (certainty >= Certainty.CONFIRMED).float()
    kept = confirmed[1:-1, 1:-1] * confirmed[1:-1, 2:] * confirmed[2:, 1:-1] * is_surface
    different = 1 - (ours * theirs).sum(-1)
    return (kept * different).sum() / kept.sum().clamp_min(1.0)


def _normals(depth: Tensor, focal: Tensor, centre: Tensor, edge: float) -> tuple[Tensor, Tensor]:
    """Unit normals [h - 2, w - 2, 3] of a depth map [h, w] in camera axes, and where it is smooth."""
    height, width = depth.shape
    y, x = torch.meshgrid(
        torch.arange(height, device=depth.device) + 0.5, torch.arange(width, device=depth.device) + 0.5, indexing="ij"
    )
    points = torch.stack([(x - centre[0]) / focal[0] * depth, (y - centre[1]) / focal[1] * depth, depth], -1)
    along_x = points[1:-1, 2:] - points[1:-1, :-2]
    along_y = points[2:, 1:-1] - points[:-2, 1:-1]
    normals = F.normalize(torch.linalg.cross(along_y, along_x), dim=-1)
    limit = edge * depth[1:-1, 1:-1]
    smooth = (along_x[..., 2].abs() < limit) & (along_y[..., 2].abs() < limit)
    return normals, smooth.float()
