"""What instructions this machine's CPU has, as Linux names them; elsewhere none is known."""

from pathlib import Path

CPU_INFO = Path("/proc/cpuinfo")
BF16, TILES = "avx512_bf16", "amx_bf16"
"""Products of vectors, and of tiles, in bf16."""


def cpu_has(flag: str) -> bool:
    return CPU_INFO.is_file() and flag in CPU_INFO.read_text().split()
