"""Encoder and aggregator by kernels and by torch; exits non-zero where they differ."""

import sys

import torch
from torch import Tensor

from stream_recon.configs.schema import load_preset
from stream_recon.models.embedded import EMBEDDED_PRESET, EMBEDDED_WEIGHTS
from stream_recon.models.layers import Block, attend_within
from stream_recon.models.network import StreamingNetwork
from stream_recon.models.weights import load_network

SIZE, GRID = (28, 42), (2, 3)


class OwnTokens:
    """A `KVCache` that holds a step's own tokens only; its frames are streamed ones of a long run."""

    times = torch.tensor([[70], [100_000]])
    is_later_frame = is_streamed_frame = torch.ones(1, dtype=torch.int64)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        clips = (len(q), -1, *q.shape[-2:])
        return attend_within(q.reshape(clips), k.reshape(clips), v.reshape(clips)).reshape(q.shape)


def outputs(network: StreamingNetwork, images: Tensor) -> list[Tensor]:
    patches, detail = network.encode(images)
    assert detail is not None
    return [patches, detail, *network.aggregator(patches[:, None], GRID, OwnTokens())]


@torch.no_grad()
def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    preset = load_preset(EMBEDDED_PRESET)
    network = load_network(EMBEDDED_WEIGHTS, preset.network).eval()
    images = torch.rand(2, 3, *SIZE)
    plain = outputs(network, images)
    for part in (network.encoder, network.aggregator):
        part.fused = True
        for block in part.modules():
            if isinstance(block, Block):
                block.fused = True
    for one, two in zip(plain, outputs(network, images), strict=True):
        assert one.shape == two.shape
        error = float((one - two).abs().max() / one.std())
        print(f"{tuple(one.shape)}: {error:.1e}")
        assert error < 1e-4


if __name__ == "__main__":
    main()
    sys.exit(0)
