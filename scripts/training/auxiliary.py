"""Auxiliary head, for training only: tasks that teach the aggregator motion and shape."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SAMPLES = 2
"""Points along each side of a patch."""
CHANNELS = 5
"""Flow to the previous frame (x, y), point in the first camera's frame (x, y, z)."""
DESCRIPTOR = 64
"""Channels of a patch's descriptor."""
MAX_SHARPNESS = 50.0
"""Bound of the learned factor on cosines."""


class AuxiliaryHead(nn.Module):
    """Flow to the previous frame and points in the first camera's frame, from the last tokens; and descriptors of the
    encoder's patches.

    Poses mostly need matches between pixels. Training them at every patch made poses learn much faster. Matching
    descriptors help attention between frames to find the same point early.
    """

    def __init__(self, dim: int, special_tokens: int) -> None:
        super().__init__()
        self.special_tokens = special_tokens
        self.describe_norm = nn.LayerNorm(dim)
        self.describe_out = nn.Linear(dim, DESCRIPTOR)
        self.log_sharpness = nn.Parameter(torch.tensor(math.log(10.0)))
        self.norm = nn.LayerNorm(2 * dim)
        self.out = nn.Linear(2 * dim, SAMPLES * SAMPLES * CHANNELS)

    def forward(self, tokens: Tensor, grid: tuple[int, int]) -> Tensor:
        """tokens [B, S, P, 2*dim] -> [B, S, 2*gh, 2*gw, 5], float32."""
        clips, frames = tokens.shape[:2]
        x = self.out(self.norm(tokens[:, :, self.special_tokens :])).float()
        x = x.view(clips, frames, *grid, SAMPLES, SAMPLES, CHANNELS).transpose(3, 4)
        return torch.flatten(x, 2, 3).flatten(3, 4)

    def describe(self, features: Tensor) -> Tensor:
        """The encoder's patch tokens [B, S, N, dim] -> descriptors [B, S, N, 64], float32; products are logits."""
        unit = F.normalize(self.describe_out(self.describe_norm(features)).float(), dim=-1)
        return unit * self.log_sharpness.exp().clamp_max(MAX_SHARPNESS).sqrt()
