"""The numbers that a network runs in, by the device."""

from typing import Literal

import torch

from stream_recon.cache.cpu_flags import BF16, cpu_has

Precision = Literal["fp32", "bf16"]


def plain_precision(device: torch.device) -> Precision:
    """bf16 on a GPU, fp32 on any CPU."""
    return "bf16" if device.type == "cuda" else "fp32"


def fast_precision(device: torch.device) -> Precision:
    """bf16 also on a CPU that has instructions for it; without them it would be slower than fp32."""
    if device.type == "cpu" and cpu_has(BF16):
        return "bf16"
    return plain_precision(device)
