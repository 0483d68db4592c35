"""Clips of one textured plane, with exact geometry in closed form."""

from pathlib import Path

import torch

from stream_recon.models.pose import quaternion_to_matrix
from training.synthetic import ClipBatch, SceneShares


def plane_clips(seed: int, clips: int, frames: int, height: int, width: int, motion: float = 0.05) -> ClipBatch:
    """Cameras that wander in front of the plane z = 3..5 (world), which is textured by smooth waves."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=generator) * 2 - 1

    position = torch.cumsum(draw(clips, frames, 3) * motion + draw(clips, 1, 3) * motion, dim=1)
    turn = torch.cumsum(draw(clips, frames, 3) * motion / 5, dim=1)
    R = quaternion_to_matrix(torch.cat([turn, torch.ones(clips, frames, 1)], dim=-1))
    T = torch.eye(4).repeat(clips, frames, 1, 1)
    T[..., :3, :3], T[..., :3, 3] = R, position
    focal = max(height, width) * (1 + 0.2 * draw(clips))
    centre = torch.tensor([width / 2, height / 2]).expand(clips, 2)
    intrinsics = torch.cat([torch.stack([focal, focal * (1 + 0.05 * draw(clips))], dim=-1), centre], dim=-1)
    plane = 4 + draw(clips)
    y, x = torch.meshgrid(torch.arange(height) + 0.5 - height / 2, torch.arange(width) + 0.5 - width / 2, indexing="ij")
    rays = torch.stack(
        [x / intrinsics[:, 0, None, None], y / intrinsics[:, 1, None, None], torch.ones(clips, height, width)], dim=-1
    )
    rays = torch.einsum("bsij,bhwj->bshwi", R, rays)
    depth = (plane[:, None] - position[..., 2])[..., None, None] / rays[..., 2]
    points = position[:, :, None, None] + rays * depth[..., None]
    return ClipBatch(
        images=texture(points, draw(clips, 3, 2) * 4),
        depth=depth,
        T_world_camera=T,
        intrinsics=intrinsics,
        kind=torch.arange(clips) % 3,
    )


def texture(points: torch.Tensor, frequency: torch.Tensor) -> torch.Tensor:
    """Colours [B, S, 3, H, W] of points [B, S, H, W, 3]; frequency [B, 3, 2]."""
    f = frequency[:, None, None, None]
    waves = torch.sin((points[..., None, :2] * f).sum(-1) * 2)
    return (0.5 + 0.5 * waves).movedim(-1, 2)


class PlaneScenes:
    """Stands where `SceneGenerator` does, and is quick on a CPU."""

    def __init__(
        self,
        device: torch.device,
        seed: int,
        tiles: Path | None = None,
        compile: bool = False,
        shares: SceneShares | None = None,
    ) -> None:
        self.seed = seed
        self.calls = 0

    def render(self, clips: int, frames: int, height: int, width: int) -> ClipBatch:
        self.calls += 1
        return plane_clips((self.seed * 100_003 + self.calls) % 2**62, clips, frames, height, width)
