"""Rotary position embeddings (RoPE, Su et al. 2021): two-dimensional inside a frame, three-dimensional across frames.

Both are those of the LingBot-Map family. Angles are computed in float64 for any index, so a stream may have any length.
"""

from functools import cache

import torch
from torch import Tensor

FRAME_BASE = 100.0
"""Base of frequencies in frame blocks, as in published networks."""
GLOBAL_BASE = 10000.0
"""Base of frequencies in global blocks, as in published networks."""

Rotation = tuple[Tensor, Tensor]
"""Cosines and sines, broadcastable to [..., D/2]."""


def exact_device(device: torch.device) -> torch.device:
    """Where float64 is computed for a device: there, or on the CPU for Apple's GPU, which has none."""
    return torch.device("cpu") if device.type == "mps" else device


def _angles(positions: Tensor, channels: int, base: float) -> Tensor:
    """positions [...] -> angles [..., channels / 2] in float64."""
    exponents = torch.arange(0, channels, 2, dtype=torch.float64, device=positions.device) / channels
    return positions.to(torch.float64)[..., None] * base**-exponents


@cache
def frame_rotation(grid: tuple[int, int], special: int, head_dim: int, device: torch.device) -> Rotation:
    """Rotation of frame blocks, [P, D/2]: half of the channels rotate with the row, half with the column.

    Special tokens have position (0, 0), patches begin at (1, 1).
    """
    special_tokens = torch.zeros(special, dtype=torch.long, device=exact_device(device))
    angles = _grid_angles(special_tokens, 1, grid, head_dim, FRAME_BASE)
    return angles.cos().float().to(device), angles.sin().float().to(device)


def _grid_angles(special: Tensor, first: int, grid: tuple[int, int], channels: int, base: float) -> Tensor:
    """Row and column angles [P, channels / 2]: special tokens' row and column are equal, patches begin at ``first``."""
    axes = (torch.arange(first, first + side, device=special.device) for side in grid)
    patches = torch.meshgrid(*axes, indexing="ij")
    return torch.cat([_angles(torch.cat([special, p.flatten()]), channels // 2, base) for p in patches], dim=-1)


@cache
def _global_angles(grid: tuple[int, int], special: int, channels: int, device: torch.device) -> Tensor:
    """Row and column angles of global blocks, [P, channels / 2]; special token i has position (i, i)."""
    return _grid_angles(torch.arange(special, device=device), special, grid, channels, GLOBAL_BASE)


@cache
def global_table(grid: tuple[int, int], special: int, channels: int, device: torch.device) -> Rotation:
    """The part of `global_rotation` that no time changes, [P, channels / 2]."""
    angles = _global_angles(grid, special, channels, device)
    return angles.cos().float(), angles.sin().float()


@cache
def time_frequencies(channels: int, device: torch.device) -> Tensor:
    """Angles of time 1 in global blocks, float64 [channels / 2]."""
    return _angles(torch.ones((), device=device), channels, GLOBAL_BASE)


def global_rotation(times: Tensor, grid: tuple[int, int], special: int, head_dim: int, time_channels: int) -> Rotation:
    """Rotation of global blocks, [F, P, D/2], for frames at ``times`` [F]."""
    device = exact_device(times.device)
    space = _global_angles(grid, special, head_dim - time_channels, device)  # [P, *]
    time = _angles(times.to(device), time_channels, GLOBAL_BASE)  # [F, *]
    shape = (len(time), len(space))
    angles = torch.cat([time[:, None].expand(*shape, -1), space.expand(*shape, -1)], dim=-1)
    return angles.cos().float().to(times.device), angles.sin().float().to(times.device)


def rotate_frame(x: Tensor, rotation: Rotation) -> Tensor:
    """Apply RoPE of frame blocks to x [F, P, H, D]; in each half (row, column) channel i pairs with i + D/4."""
    cos, sin = (r[:, None].unflatten(-1, (2, -1)) for r in rotation)  # [P, 1, 2, D/4]
    a, b = x.unflatten(-1, (2, 2, -1)).unbind(-2)  # each [F, P, H, 2, D/4]
    if x.device.type == "cpu":
        exact = _exact(x)
        rotated = torch.complex(a.to(exact), b.to(exact)) * torch.complex(cos, sin)
        return torch.stack([rotated.real, rotated.imag], dim=-2).to(x.dtype).flatten(-3)
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    return torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-2).flatten(-3)


def rotate_global(x: Tensor, rotation: Rotation) -> Tensor:
    """Apply RoPE of global blocks to x [F, P, H, D]; channels 2i and 2i + 1 form a pair."""
    cos, sin = (r[..., None, :] for r in rotation)  # [F, P, 1, D/2]
    pairs = x.unflatten(-1, (-1, 2))
    if x.device.type == "cpu":
        rotated = torch.view_as_complex(pairs.to(_exact(x))) * torch.complex(cos, sin)
        return torch.view_as_real(rotated).to(x.dtype).flatten(-2)
    a, b = pairs.unbind(-1)
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    return torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(-2)


def _exact(x: Tensor) -> torch.dtype:
    """The type in which a CPU rotates pairs, as complex numbers: one pass over memory instead of seven.

    On a GPU complex numbers cannot be compiled; bf16 has none.
    """
    return torch.promote_types(x.dtype, torch.float32)
