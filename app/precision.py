"""In which numbers a network runs, by the device."""

from pathlib import Path
from typing import Literal

import torch

Precision = Literal["fp32", "bf16"]
CPU_INFO, CPU_FLAG = Path("/proc/cpuinfo"), "avx512_bf16"


def plain_precision(device: torch.device) -> Precision:
    """bf16 on a GPU, fp32 on any CPU."""
    return "bf16" if device.type == "cuda" else "fp32"


def fast_precision(device: torch.device) -> Precision:
    """bf16 also on a CPU that has instructions for it; without them it would be slower than fp32."""
    if device.type == "cpu" and CPU_INFO.is_file() and CPU_FLAG in CPU_INFO.read_text().split():
        return "bf16"
    return plain_precision(device)
