"""The cache in int8 on a CPU, and attention over it."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from stream_recon.cache.cache_dtypes import INT8_POLICY
from stream_recon.cache.int8_frame_cache import MOST, Int8Attention, attend_int8
from stream_recon.cache.stream_cache import StreamCache, StreamSchema
from stream_recon.configs.schema import Preset
from tests.cache.allocation import allocated_bytes
from tests.cache.test_fp8_frame_cache import cache_of as cache_in
from tests.cache.test_fp8_frame_cache import walk
from tests.networks import GRID, tiny_preset

CPU = torch.device("cpu")


def schema_of(preset: Preset) -> StreamSchema:
    return StreamSchema.from_config(preset.network, preset.stream, GRID, torch.float32, cache=INT8_POLICY)


def cache_of(preset: Preset) -> StreamCache:
    return StreamCache(schema_of(preset), preset.stream, Int8Attention(), CPU)


def in_int8(x: Tensor) -> tuple[Tensor, Tensor]:
    """x [C, H, D] in int8, and the step size of each head."""
    step = x.abs().amax((0, 2)) / MOST
    return (x / step[:, None]).round().to(torch.int8), step


@pytest.mark.parametrize("sharpness", [0.3, 1.0, 2.5])
def test_attention_is_near_the_exact_one_whether_sharp_or_flat(sharpness: float) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(n, 2, 32, generator=generator) for n in (150, 2000, 2000))
    v = v + 0.5
    keys, values = in_int8(k), in_int8(v)
    found = attend_int8(sharpness * q, keys[0], values[0], torch.stack([keys[1], values[1]]), [])
    heads_first = (x.transpose(0, 1)[None] for x in (sharpness * q, k, v))
    expected = F.scaled_dot_product_attention(*heads_first)[0].transpose(0, 1)
    assert float((found - expected).norm() / expected.norm()) < 0.03


def test_attention_reads_exactly_its_spans() -> None:
    q, k, v = (torch.randn(n, 2, 32) for n in (5, 100, 100))
    (keys, key_step), (values, value_step) = in_int8(k), in_int8(v)
    steps, backend = torch.stack([key_step, value_step]), Int8Attention()
    backend.plan(5, [(10, 40), (60, 90)])
    before = backend.attend(q, keys, values, steps)
    for hidden in (slice(0, 10), slice(40, 60), slice(90, 100)):
        keys[hidden], values[hidden] = MOST, MOST
    assert torch.equal(backend.attend(q, keys, values, steps), before)


@pytest.mark.parametrize("compressed_from", [None, 2])
def test_a_stream_is_near_the_exact_one_and_thinned_like_it(compressed_from: int | None) -> None:
    preset = tiny_preset(special_budget=8, window=2, compressed_from=compressed_from)
    exact, ours = walk(cache_in(preset, in_fp8=False), preset, 40), walk(cache_of(preset), preset, 40)
    assert 1e-5 < float((ours - exact).norm() / exact.norm()) < 2e-2


def test_a_rejected_frame_changes_no_cache() -> None:
    preset = tiny_preset(compressed_from=3)
    plain, disturbed = (walk(cache_of(preset), preset, 14, rejects=rejects) for rejects in (False, True))
    assert torch.equal(plain, disturbed)


def test_a_reset_starts_anew() -> None:
    preset = tiny_preset()
    kv_cache = cache_of(preset)
    first = walk(kv_cache, preset, 12)
    kv_cache.reset()
    assert torch.equal(walk(kv_cache, preset, 12), first)


def test_the_schema_counts_the_bytes_that_are_allocated() -> None:
    preset = tiny_preset(compressed_from=2)
    assert allocated_bytes(lambda: cache_of(preset)) == pytest.approx(schema_of(preset).bytes, rel=0.01)
