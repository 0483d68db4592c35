"""The camera head by kernels and by torch; exits non-zero where they differ."""

import sys

import torch
from torch import Tensor

from stream_recon.configs.schema import load_preset
from stream_recon.models.embedded import EMBEDDED_PRESET, EMBEDDED_WEIGHTS
from stream_recon.models.layers import Block, attend_within
from stream_recon.models.weights import load_network


class OwnTokens:
    """A `KVCache` that holds a step's own camera tokens only."""

    def attend_camera(self, slot: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend_within(q, k, v)


@torch.no_grad()
def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    preset = load_preset(EMBEDDED_PRESET)
    head = load_network(EMBEDDED_WEIGHTS, preset.network).eval().camera_head
    # Rows of one token among others, as the aggregator gives them.
    tokens = torch.randn(3, 2, 5, 2 * preset.network.dim)[:, :, 0]
    poses = []
    for fused in (False, True):
        head.fused = fused
        for block in head.trunk:
            assert isinstance(block, Block)
            block.fused = fused
        poses.append(head(tokens, OwnTokens()))
    assert poses[0].shape == poses[1].shape
    error, spread = float((poses[0] - poses[1]).abs().max()), float(poses[0][:, ..., :7].std())
    moved = float((poses[0][-1] - poses[0][0]).abs().max())
    print(f"difference {error:.1e} of {spread:.1e}; iterations moved poses by {moved:.1e}")
    assert moved > 1e-3 and error < 1e-4 * spread


if __name__ == "__main__":
    main()
    sys.exit(0)
