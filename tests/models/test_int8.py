"""Matrices in int8 compared with those in fp32."""

import pytest
import torch
from torch import Tensor, nn

from stream_recon.models.int8 import (
    ALL_LEVELS,
    HALF_LEVELS,
    LEVELS,
    Int8Linear,
    exact_levels,
    is_fastest,
    quantise,
    quantise_blocks,
    separate_frames,
)
from stream_recon.models.layers import Block, attend_within

needs_products = pytest.mark.skipif(not exact_levels(), reason="this CPU or torch has no products in int8")


def error(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize("low, high", [(-3.0, 5.0), (0.0, 1.0), (2.0, 9.0), (-4.0, -1.0), (0.0, 0.0), (-1e-3, 1e4)])
def test_activations_are_within_half_a_level_and_zero_is_exact(low: float, high: float) -> None:
    x = torch.linspace(low, high, 1001)
    levels, step, zero = quantise(x)
    assert levels.dtype == torch.uint8 and 0 <= zero <= LEVELS + 1
    restored = (levels.float() - zero) * step
    assert (restored - x).abs().max() <= 0.5001 * step
    assert quantise(torch.cat([x, torch.zeros(1)]))[0][-1] == quantise(torch.cat([x, torch.zeros(1)]))[2]


@needs_products
@pytest.mark.parametrize("levels", [ALL_LEVELS, HALF_LEVELS])
@torch.no_grad()
def test_a_layer_is_near_the_exact_one(levels: int) -> None:
    torch.manual_seed(0)
    layer, x, gain = nn.Linear(64, 96), torch.randn(2, 50, 64), torch.randn(96)
    assert error(Int8Linear(layer, min(levels, exact_levels()))(x), layer(x)) < 0.02
    assert error(Int8Linear(layer, exact_levels(), gain=gain)(x), layer(x) * gain) < 0.02
    assert error(Int8Linear(layer, exact_levels(), gelu=True)(x), nn.functional.gelu(layer(x))) < 0.02


@needs_products
@torch.no_grad()
def test_a_block_is_near_the_exact_one_with_its_gains() -> None:
    torch.manual_seed(0)
    block = Block(64, 2, 4.0, qk_norm=True, eps=1e-5, layer_scale=0.5)
    x = torch.randn(1, 30, 64)
    expected = block(x, attend_within) - x
    quantise_blocks(block)
    assert error(block(x, attend_within) - x, expected) < 0.03


def test_the_choice_is_the_same_each_time() -> None:
    assert is_fastest(torch.float32) == is_fastest(torch.float32)


@needs_products
@torch.no_grad()
def test_a_frame_is_independent_of_others_in_its_batch() -> None:
    torch.manual_seed(0)
    block = Block(64, 2, 4.0, qk_norm=True, eps=1e-5, layer_scale=0.5)
    quantise_blocks(block)
    separate_frames(block)
    frames = torch.randn(3, 50, 64) * torch.tensor([1.0, 30.0, 0.01])[:, None, None]
    together = block(frames, attend_within)
    for number, frame in enumerate(frames):
        torch.testing.assert_close(together[number], block(frame[None], attend_within)[0], rtol=1e-5, atol=1e-6)
