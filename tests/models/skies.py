"""What cameras see that turn on the spot under a sky that looks different everywhere, for tests of turns."""

import torch
import torch.nn.functional as F
from torch import Tensor

from stream_recon.models.odometry.keyframe_matcher import FEATURES, LEVELS
from stream_recon.models.odometry.sampling import width_height

SIZE = (168, 224)
"""Of images: height, width."""
FOCAL = 190.0
FAR = 50.0
"""How far everything is."""


def described(R_world_camera: Tensor) -> Tensor:
    """Features [1, M, 24] of what a camera sees of a sky that looks different everywhere."""
    generator = torch.Generator().manual_seed(3)
    waves = torch.randn(3, FEATURES, generator=generator) * 20
    levels = []
    for cell in LEVELS:
        y, x = torch.meshgrid(*(torch.arange(-(-side // cell)) * cell + cell / 2 for side in SIZE), indexing="ij")
        flat = (torch.stack([x, y], dim=-1) - width_height(SIZE, torch.device("cpu")) / 2) / FOCAL
        directions = F.normalize(torch.cat([flat, torch.ones_like(x)[..., None]], dim=-1), dim=-1)
        levels.append(F.normalize(torch.sin(directions @ R_world_camera.T @ waves), dim=-1).flatten(0, 1))
    return torch.cat(levels)[None]
