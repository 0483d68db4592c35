"""Numbers in one byte: e4m3. Patches' values with a scale for each page and head; a page is one frame's patches.

Keys need no scale: the network norms them, head by head, so that their channels are of order one, and from 2^-6 to 448
e4m3 rounds all alike. Values may be of any size. Rounding is relative, so a few channels that are large in queries and
keys alike would bring most of a product's error: both are spread over all channels before.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

FP8 = torch.float8_e4m3fn
SPECIAL_DTYPE = torch.bfloat16
"""What values of the special tokens are in: they are few, and all that is left once a frame's patches went."""
LARGEST = 448.0
"""The largest number of e4m3."""
LEAST = 1e-12
"""Taken for the largest number of a page that holds zeros alone, so that its scale stays one."""


def rounded(x: Tensor) -> Tensor:
    """To e4m3, the largest number for all beyond it."""
    return x.float().clamp(-LARGEST, LARGEST).to(FP8)


@lru_cache
def hadamard_matrix(channels: int, device: torch.device) -> Tensor:
    """[D, D] of 1 and -1 in bf16, symmetric, rows orthogonal (Sylvester's order). ``channels``: a power of two."""
    matrix = torch.ones(1, 1, dtype=torch.bfloat16, device=device)
    while len(matrix) < channels:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix


def hadamard_rotate(x: Tensor) -> Tensor:
    """[..., D] -> float32 [..., D]: each channel over all, by an orthogonal matrix. Products of two vectors that are
    spread are those of the vectors; rounded afterwards, their error is less (as QuaRot, arXiv 2404.00456, and
    FlashAttention-3, arXiv 2407.08608, do it)."""
    channels = x.shape[-1]
    matrix = hadamard_matrix(channels, x.device).float() / math.sqrt(channels)
    return x.float() @ matrix


@dataclass(frozen=True)
class ValuePages:
    """One layer's pages: S slots of P patches, H heads of D channels. What is kept is ``values * scale``."""

    values: Tensor
    """e4m3 [S, P, H, D]."""
    scales: Tensor
    """float32 [S, H]."""

    def restored(self) -> Tensor:
        """Values of all pages, float32 [S * P, H, D]."""
        return (self.values.float() * self.scales[:, None, :, None]).flatten(0, 1)

    def write(self, slot: int, v: Tensor) -> None:
        """Keep one frame's v [P, H, D]."""
        self.values[slot], self.scales[slot] = quantise(v)


def quantise(page: Tensor) -> tuple[Tensor, Tensor]:
    """[P, H, D] -> e4m3 [P, H, D], scales float32 [H]: the largest number of a head becomes the largest of e4m3."""
    largest = page.float().abs().amax(dim=(0, 2)).clamp(min=LEAST)
    # A number over a tensor would be its reciprocal times the number, which rounds twice and breaks ties differently.
    factor = torch.full_like(largest, LARGEST) / largest
    return (page.float() * factor[:, None]).to(FP8), largest / LARGEST
