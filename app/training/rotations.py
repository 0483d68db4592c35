"""Rigid transforms on tensors, batched."""

import torch
from torch import Tensor


def inverse_pose(T: Tensor) -> Tensor:
    """Rigid transforms [..., 4, 4] -> their inverses, without a solver."""
    R_t = T[..., :3, :3].transpose(-1, -2)
    moved = -(R_t @ T[..., :3, 3:])
    return torch.cat([torch.cat([R_t, moved], dim=-1), T[..., 3:, :]], dim=-2)
