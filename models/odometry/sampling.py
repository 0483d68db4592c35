"""Cells of an image, two by two in each patch, their points in space, and features sampled around them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from stream_recon.models.pose import focal_lengths

SAMPLES = 2
"""Cells along each side of a patch."""
FARTHEST = 100.0
"""Units of the reconstruction. Farther points carry no information about translation."""


@dataclass(frozen=True)
class CellPoints:
    """Points of B frames, one in each of Y x X equal cells of the image."""

    xyz: Tensor  # [B, Y, X, 3], in the camera's frame
    focal: Tensor  # [B, 2]: focal lengths (x, y) in pixels
    size: tuple[int, int]
    """Image size (height, width) in pixels."""

    @property
    def pixels(self) -> Tensor:
        """[Y, X, 2]: pixels (x, y) of the cells' centres."""
        return cell_centers(self.size, (self.xyz.shape[1], self.xyz.shape[2]), self.xyz.device)


@cache
def cell_centers(size: tuple[int, int], cells: tuple[int, int], device: torch.device) -> Tensor:
    """Pixels (x, y), centres at .5, in the middle of equal cells of an image ``size`` (height, width), [*cells, 2]."""
    cell = size[1] // cells[1]
    ys = torch.arange(cell // 2, size[0], cell, device=device) + 0.5
    xs = torch.arange(cell // 2, size[1], cell, device=device) + 0.5
    y, x = torch.meshgrid(ys, xs, indexing="ij")
    return torch.stack([x, y], dim=-1)


@cache
def width_height(size: tuple[int, int], device: torch.device) -> Tensor:
    """An image ``size`` (height, width) as (width, height), [2]; cached, as a captured graph may not copy."""
    return torch.tensor([float(size[1]), float(size[0])], device=device)


@cache
def window_offsets(reach: int, spacing: int, device: torch.device | None = None) -> Tensor:
    """Offsets (x, y) in pixels of a square window, ``reach`` steps of ``spacing`` to each side, [samples, 2]."""
    steps = torch.arange(-reach, reach + 1, device=device, dtype=torch.float32) * spacing
    y, x = torch.meshgrid(steps, steps, indexing="ij")
    return torch.stack([x, y], dim=-1).flatten(0, 1)


def sample_features(features: Tensor, pixels: Tensor, cell: int) -> Tensor:
    """Features [N, C, h, w], one for every ``cell`` pixels, at ``pixels`` (x, y) [N, P, K, 2] -> [N, C, P, K].

    Beyond the border the border's value is taken.
    """
    height, width = features.shape[-2:]
    x, y = pixels.unbind(-1)
    inside = torch.stack([x * (2 / (width * cell)) - 1, y * (2 / (height * cell)) - 1], dim=-1)
    return F.grid_sample(features, inside, mode="bilinear", padding_mode="border", align_corners=False)


def tokens_to_cells(tokens: Tensor, grid: tuple[int, int]) -> Tensor:
    """Values of patches for their cells, [N, gh*gw, SAMPLES^2 * C] -> [N, 2*gh, 2*gw, C]."""
    cells: Tensor = tokens.unflatten(1, grid).unflatten(-1, (SAMPLES, SAMPLES, -1))
    return cells.transpose(2, 3).flatten(3, 4).flatten(1, 2)


def camera_rays(size: tuple[int, int], cells: tuple[int, int], pose: Tensor) -> tuple[Tensor, Tensor]:
    """Rays at depth 1 through the cells' centres, [N, *cells, 3], and focal lengths (x, y) in pixels [N, 2].

    ``pose``: pose codes [N, 9], of which only the field of view is used.
    """
    focal = torch.stack(focal_lengths(pose.float(), *size), dim=-1)
    flat = (cell_centers(size, cells, pose.device) - width_height(size, pose.device) / 2) / focal[:, None, None]
    return torch.cat([flat, torch.ones_like(flat[..., :1])], dim=-1), focal


def at_centers(x: Tensor, cells: Sequence[int]) -> Tensor:
    """The pixels [..., *cells] of a map [..., H, W] that `cell_centers` names."""
    cell = x.shape[-1] // cells[1]
    return x[..., cell // 2 :: cell, cell // 2 :: cell]


def unproject(rays: Tensor, log_depth: Tensor) -> Tensor:
    """Points [N, Y, X, 3] along rays [N, Y, X, 3], from log depth [N, Y, X]."""
    return rays * log_depth.float().exp().clamp_max(FARTHEST)[..., None]
