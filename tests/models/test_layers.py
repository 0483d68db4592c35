"""Blocks with packed matrices, compared with plain ones."""

import copy

import pytest
import torch
from torch import nn

from stream_recon.models import layers
from stream_recon.models.layers import Block, PackedLinear, attend_within, pack_blocks

WIDTH, HEADS = 96, 3


def half_block() -> nn.Sequential:
    torch.manual_seed(0)
    block = Block(WIDTH, HEADS, 4.0, qk_norm=True, eps=1e-6, layer_scale=1.0).requires_grad_(False)
    for module in block.modules():
        if isinstance(module, nn.Linear):
            module.to(torch.bfloat16)
    return nn.Sequential(block)


def output_of(blocks: nn.Sequential, tokens: int) -> torch.Tensor:
    x = torch.randn(2, tokens, WIDTH, generator=torch.Generator().manual_seed(tokens))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        y: torch.Tensor = blocks[0](x, attend_within)
    return y


@pytest.mark.parametrize("tokens", [1, 50, 198, 400])
def test_packed_blocks_give_the_same_for_any_number_of_tokens(tokens: int) -> None:
    plain = half_block()
    changed = copy.deepcopy(plain)
    pack_blocks(changed)
    linear = changed[0].get_submodule("attn.qkv")
    if not isinstance(linear, PackedLinear):
        pytest.skip("this torch or CPU packs nothing")
    expected = output_of(plain, tokens)
    torch.testing.assert_close(output_of(changed, tokens), expected, atol=0.02, rtol=0.02)
    assert (output_of(changed, tokens) - expected).abs().mean() < 0.002


def test_where_nothing_can_be_packed_blocks_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(layer: nn.Linear, *, gelu: bool = False) -> PackedLinear:
        raise NotImplementedError

    monkeypatch.setattr(layers, "PackedLinear", refuse)
    blocks = half_block()
    expected = output_of(blocks, 50)
    pack_blocks(blocks)
    assert isinstance(blocks[0].get_submodule("mlp.fc1"), nn.Linear)
    torch.testing.assert_close(output_of(blocks, 50), expected, atol=0, rtol=0)
