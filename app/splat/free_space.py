"""Space that dense depth maps see free: a Gaussian in it is a floater."""

from collections.abc import Iterable

import torch
from torch import Tensor

from stream_recon.app.splat.losses import SMALLEST_DEPTH

NEAR_CERTAINTY = 2
"""Least `Certainty` of depth that says where space is free."""
MARGIN = 0.08
"""Depth that a Gaussian must lie in front of a surface to be in free space, as a share of the surface's depth."""
SEEN_FREE = 2
"""Fewest maps that see a place free."""
SIZES = 2.0
"""Standard deviations of a Gaussian that must be in free space, too."""


def in_free_space(
    means: Tensor, sizes: Tensor, cameras: Tensor, K: Tensor, maps: Iterable[tuple[int, Tensor, Tensor]]
) -> Tensor:
    """Which Gaussians [N] lie where at least `SEEN_FREE` maps see free space, and none sees a surface.

    Args:
        means: [N, 3].
        sizes: [N] standard deviations along the axis that counts.
        cameras: [n, 4, 4] from the world to each camera.
        K: [3, 3] in pixels of the maps.
        maps: number of the camera, depth [h, w] and certainty [h, w] of each map.
    """
    free = torch.zeros(len(means), dtype=torch.int32, device=means.device)
    supported = torch.zeros(len(means), dtype=torch.bool, device=means.device)
    for number, depth, certainty in maps:
        T = cameras[number]
        local = means @ T[:3, :3].T + T[:3, 3]
        z = local[:, 2]
        pixels = local[:, :2] / z.clamp_min(SMALLEST_DEPTH)[:, None]
        pixels = pixels * torch.stack([K[0, 0], K[1, 1]]) + K[:2, 2]
        column, row = pixels[:, 0].floor().long(), pixels[:, 1].floor().long()
        inside = (z > SMALLEST_DEPTH) & (column >= 0) & (row >= 0)
        inside &= (column < depth.shape[1]) & (row < depth.shape[0])
        at = row.clamp(0, depth.shape[0] - 1), column.clamp(0, depth.shape[1] - 1)
        surface, level = depth[at].float(), certainty[at]
        known = inside & (level >= NEAR_CERTAINTY) & (surface > SMALLEST_DEPTH)
        free += (known & (z + SIZES * sizes < (1 - MARGIN) * surface)).int()
        supported |= known & ((z - surface).abs() <= MARGIN * surface)
    return (free >= SEEN_FREE) & ~supported
