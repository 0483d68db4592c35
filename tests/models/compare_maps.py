"""The depth head by kernels and by torch; exits non-zero where they differ."""

import sys

import torch

from stream_recon.configs.schema import load_preset
from stream_recon.models.embedded import EMBEDDED_PRESET, EMBEDDED_WEIGHTS
from stream_recon.models.encoder import STEM_CHANNELS
from stream_recon.models.weights import load_network

GRID, FRAMES = (3, 4), 2


@torch.no_grad()
def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    preset = load_preset(EMBEDDED_PRESET)
    head = load_network(EMBEDDED_WEIGHTS, preset.network).eval().depth_head.to(memory_format=torch.channels_last)
    side = preset.network.patch_size // 2
    taps = [torch.randn(FRAMES, GRID[0] * GRID[1], 2 * preset.network.dim) for _ in range(4)]
    detail = torch.randn(FRAMES, STEM_CHANNELS, side * GRID[0], side * GRID[1])
    detail = detail.contiguous(memory_format=torch.channels_last)
    maps = []
    for fused in (False, True):
        head.fused = fused
        maps.append(head(taps, GRID, detail))
    assert maps[0].shape == maps[1].shape
    error, spread = float((maps[0] - maps[1]).abs().max()), float(maps[0].std())
    print(f"difference {error:.1e} of {spread:.1e}")
    assert spread > 1e-2 and error < 1e-4 * spread


if __name__ == "__main__":
    main()
    sys.exit(0)
