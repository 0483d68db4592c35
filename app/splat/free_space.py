"""Space that dense depth maps show free: a Gaussian in it is a floater."""

from collections.abc import Iterable

import torch
from torch import Tensor

from stream_recon.app.splat.config import FloaterConfig
from stream_recon.app.splat.losses import MIN_DEPTH


def in_free_space(
    means: Tensor,
    sizes: Tensor,
    cameras: Tensor,
    K: Tensor,
    maps: Iterable[tuple[int, Tensor, Tensor]],
    config: FloaterConfig,
) -> Tensor:
    """Which Gaussians [N] lie where several maps show free space, and none a surface.

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
        pixels = local[:, :2] / z.clamp_min(MIN_DEPTH)[:, None]
        pixels = pixels * torch.stack([K[0, 0], K[1, 1]]) + K[:2, 2]
        column, row = pixels[:, 0].floor().long(), pixels[:, 1].floor().long()
        inside = (z > MIN_DEPTH) & (column >= 0) & (row >= 0)
        inside &= (column < depth.shape[1]) & (row < depth.shape[0])
        at = row.clamp(0, depth.shape[0] - 1), column.clamp(0, depth.shape[1] - 1)
        surface, level = depth[at].float(), certainty[at]
        known = inside & (level >= config.min_certainty) & (surface > MIN_DEPTH)
        free += (known & (z + config.sizes * sizes < (1 - config.margin) * surface)).int()
        supported |= known & ((z - surface).abs() <= config.margin * surface)
    return (free >= config.min_maps) & ~supported
