"""Patch tokens in one byte a channel: e4m3, with a scale for each page and head. A page is one frame's patches."""

from dataclasses import dataclass

import torch
from torch import Tensor

FP8 = torch.float8_e4m3fn
SPECIAL_DTYPE = torch.bfloat16
"""What the special tokens beside the pages are in: they are few, and all that is left once a frame's patches went."""
LARGEST = 448.0
"""The largest number of e4m3."""
ROUNDED = 1.07
"""By which a norm may grow when a vector is rounded to e4m3: a little over 1 + 2^-4."""
LEAST = 1e-12
"""Taken for the largest number of a page that holds zeros alone, so that its scale stays one."""


@dataclass(frozen=True)
class Fp8Pages:
    """One layer's pages: S slots of P patches, H heads of D channels. What is kept is ``page * scale``."""

    keys: Tensor
    """e4m3 [S, P, H, D]."""
    values: Tensor
    """e4m3 [S, P, H, D]."""
    key_scales: Tensor
    """float32 [S, H]."""
    value_scales: Tensor
    """float32 [S, H]."""

    def restored(self) -> tuple[Tensor, Tensor]:
        """Keys and values of all pages, float32 [S * P, H, D] each."""
        keys = self.keys.float() * self.key_scales[:, None, :, None]
        values = self.values.float() * self.value_scales[:, None, :, None]
        return keys.flatten(0, 1), values.flatten(0, 1)

    def write(self, slot: int, k: Tensor, v: Tensor) -> None:
        """Keep one frame's k, v [P, H, D]."""
        for pages, scales, new in ((self.keys, self.key_scales, k), (self.values, self.value_scales, v)):
            pages[slot], scales[slot] = quantise(new)


def quantise(page: Tensor) -> tuple[Tensor, Tensor]:
    """[P, H, D] -> e4m3 [P, H, D], scales float32 [H]: the largest number of a head becomes the largest of e4m3."""
    largest = page.float().abs().amax(dim=(0, 2)).clamp(min=LEAST)
    # A number over a tensor would be its reciprocal times the number, which rounds twice and breaks ties differently.
    factor = torch.full_like(largest, LARGEST) / largest
    return (page.float() * factor[:, None]).to(FP8), largest / LARGEST
