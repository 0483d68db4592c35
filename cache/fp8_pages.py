"""One-byte numbers (e4m3), and pages of patch values with a scale per page and head. A page is one frame's patches.

Keys need no scale: the network normalises them per head, so their channels are of order one, and e4m3 has the same
relative error from 2^-6 to 448. Values may have any size. As rounding is relative, a few channels that are large in
both queries and keys would dominate a product's error. A Hadamard rotation of both distributes them over all channels.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

FP8 = torch.float8_e4m3fn
SPECIAL_DTYPE = torch.bfloat16
"""Type of the special tokens' values: they are few, and remain when a frame's patches are evicted."""
E4M3_MAX = 448.0
"""Largest number of e4m3."""
MIN_LARGEST = 1e-12
"""Lower bound of a page's largest number, which keeps the scale of a page of zeros above zero."""


def to_e4m3(x: Tensor) -> Tensor:
    """Nearest e4m3 numbers, saturated at `E4M3_MAX`."""
    return x.float().clamp(-E4M3_MAX, E4M3_MAX).to(FP8)


@lru_cache
def hadamard_matrix(channels: int, device: torch.device) -> Tensor:
    """[D, D] of 1 and -1 in bf16, symmetric, rows orthogonal (Sylvester's order). ``channels``: a power of two."""
    matrix = torch.ones(1, 1, dtype=torch.bfloat16, device=device)
    while len(matrix) < channels:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix


def hadamard_rotate(x: Tensor) -> Tensor:
    """Rotation of the channels by an orthogonal Hadamard matrix, [..., D] -> float32 [..., D].

    Products of rotated vectors are those of the vectors, and rounding them afterwards costs less accuracy (QuaRot,
    arXiv 2404.00456; FlashAttention-3, arXiv 2407.08608).
    """
    channels = x.shape[-1]
    matrix = hadamard_matrix(channels, x.device).float() / math.sqrt(channels)
    return x.float() @ matrix


@dataclass(frozen=True)
class ValuePages:
    """Pages of one layer: S slots of P patches, H heads of D channels. A page holds ``values * scale``."""

    values: Tensor  # e4m3 [S, P, H, D]
    scales: Tensor  # float32 [S, H]

    def dequantised(self) -> Tensor:
        """Values of all pages, float32 [S * P, H, D]."""
        return (self.values.float() * self.scales[:, None, :, None]).flatten(0, 1)

    def write(self, slot: int, v: Tensor) -> None:
        """Store one frame's v [P, H, D]."""
        self.values[slot], self.scales[slot] = quantise(v)


def quantise(page: Tensor) -> tuple[Tensor, Tensor]:
    """[P, H, D] -> e4m3 [P, H, D], scales float32 [H]; each head's largest number becomes `E4M3_MAX`."""
    largest = page.float().abs().amax(dim=(0, 2)).clamp(min=MIN_LARGEST)
    # Number / tensor would be computed as reciprocal times number, which rounds twice and breaks ties differently.
    factor = torch.full_like(largest, E4M3_MAX) / largest
    return (page.float() * factor[:, None]).to(FP8), largest / E4M3_MAX
