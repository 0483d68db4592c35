"""The cache in e4m3 on a CPU, by torch."""

import pytest
import torch
from torch import Tensor

from stream_recon.cache.attention import TorchAttention
from stream_recon.cache.fp8_pages import E4M3_MAX, hadamard_rotate, quantise, to_e4m3
from stream_recon.cache.stream_cache import StreamCache, StreamSchema
from stream_recon.configs.schema import CacheChoice, Preset
from tests.cache.allocation import allocated_bytes
from tests.networks import GRID, random_images, tiny_network, tiny_preset

CPU = torch.device("cpu")


def schema_of(preset: Preset, *, in_fp8: bool) -> StreamSchema:
    cache: CacheChoice = "fp8" if in_fp8 else "full"
    return StreamSchema.from_config(preset.network, preset.stream, GRID, torch.float32, cache=cache)


def cache_of(preset: Preset, *, in_fp8: bool) -> StreamCache:
    return StreamCache(schema_of(preset, in_fp8=in_fp8), preset.stream, TorchAttention(), CPU)


def walk(kv_cache: StreamCache, preset: Preset, frames: int, *, rejects: bool = False) -> Tensor:
    """Tokens of all frames' steps; ``rejects``: whether a rejected frame precedes each."""
    network, images, others = tiny_network(preset), random_images(frames), random_images(frames, seed=5)
    scale = preset.stream.scale_frames
    tokens = []
    for index, batch in enumerate((images[:scale], *images[scale:].split(1))):
        if rejects and index:
            kv_cache.begin(1, evict_first=bool(index % 2))
            network.predict(1000 * others[None, index : index + 1], kv_cache)
            kv_cache.rollback()
        kv_cache.begin(len(batch))
        tokens.append(network.predict(batch[None], kv_cache)[1].tokens)
        kv_cache.commit()
    return torch.cat(tokens, dim=1)


def test_a_stream_is_near_the_exact_one_and_thinned_like_it() -> None:
    preset = tiny_preset(special_budget=8, window=2)
    exact, ours = (walk(cache_of(preset, in_fp8=in_fp8), preset, 40) for in_fp8 in (False, True))
    error = float((ours - exact).norm() / exact.norm())
    assert 1e-5 < error < 2e-2


def test_a_rejected_frame_changes_no_cache() -> None:
    preset = tiny_preset()
    plain, disturbed = (walk(cache_of(preset, in_fp8=True), preset, 14, rejects=rejects) for rejects in (False, True))
    assert torch.equal(plain, disturbed)


def test_the_schema_counts_the_bytes_that_are_allocated() -> None:
    preset = tiny_preset()
    expected = schema_of(preset, in_fp8=True).bytes
    assert allocated_bytes(lambda: cache_of(preset, in_fp8=True)) == pytest.approx(expected, rel=0.01)


def test_a_page_is_within_half_a_rounding_step() -> None:
    page = torch.randn(50, 3, 32, generator=torch.Generator().manual_seed(0)) * torch.tensor([1e-3, 1, 1e3])[:, None]
    kept, scales = quantise(page)
    dequantised = kept.float() * scales[:, None]
    assert torch.allclose(kept.float().abs().amax(dim=(0, 2)), torch.tensor(448.0))
    # Three binary digits behind the first one; and the smallest step where numbers are small.
    assert ((dequantised - page).abs() <= torch.maximum(page.abs() / 16, scales[:, None] * 2**-10) * 1.001).all()


@pytest.mark.parametrize("scale", [0.0, 1e-30])
def test_a_page_of_zeros_stays_zero(scale: float) -> None:
    kept, scales = quantise(torch.full((4, 2, 32), scale))
    assert not kept.float().any() and (scales > 0).all()


def test_numbers_are_rounded_by_half_a_step_and_saturated() -> None:
    numbers = torch.tensor([0.0, 1e-9, 2.0**-9, 0.3, -7.7, 440.0, 1e4, -1e4])
    kept = to_e4m3(numbers).float()
    assert ((kept - numbers).abs() <= torch.maximum(numbers.abs() / 16, torch.tensor(2.0**-10)))[:6].all()
    assert kept[-2:].tolist() == [E4M3_MAX, -E4M3_MAX]


@pytest.mark.parametrize("channels", [4, 32, 64])
def test_rotation_keeps_products(channels: int) -> None:
    generator = torch.Generator().manual_seed(0)
    queries, keys = (torch.randn(50, 3, channels, generator=generator) for _ in range(2))
    torch.testing.assert_close(
        (hadamard_rotate(queries) * hadamard_rotate(keys)).sum(-1), (queries * keys).sum(-1), rtol=1e-4, atol=1e-4
    )


def test_rotation_reduces_rounding_errors_where_some_channels_are_large() -> None:
    generator = torch.Generator().manual_seed(0)
    queries, keys = (torch.randn(1000, 64, generator=generator) for _ in range(2))
    for vectors in (queries, keys):
        vectors[:, 5] *= 8
    exact = (queries * keys).sum(-1)
    plain, better = (
        (to_e4m3(q).float() * to_e4m3(k).float()).sum(-1) - exact
        for q, k in ((queries, keys), (hadamard_rotate(queries), hadamard_rotate(keys)))
    )
    assert better.norm() < 0.5 * plain.norm()
