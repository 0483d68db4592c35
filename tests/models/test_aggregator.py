"""What the aggregator's weights allow."""

import math

import torch

from tests.networks import tiny_network, tiny_preset


def test_no_score_exceeds_what_the_weights_allow() -> None:
    preset = tiny_preset()
    aggregator = tiny_network(preset).aggregator
    generator = torch.Generator().manual_seed(0)
    for block in aggregator.global_blocks:
        for norm in (block.attn.q_norm, block.attn.k_norm):
            norm.weight.data.uniform_(-3, 3, generator=generator)
            norm.bias.data.normal_(generator=generator)
    channels = preset.network.head_dim
    vectors = torch.randn(2000, channels, generator=generator) * torch.rand(2000, 1, generator=generator) * 30
    vectors[:channels] = torch.eye(channels) * 100
    scores = [
        (block.attn.q_norm(vectors) @ block.attn.k_norm(vectors).T).abs().max() for block in aggregator.global_blocks
    ]
    highest = float(max(scores)) * channels**-0.5 * math.log2(math.e)
    assert 0.3 * aggregator.max_score < highest <= aggregator.max_score
