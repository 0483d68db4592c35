"""The Triton kernels against torch."""

import math

import numpy as np
import pytest
import torch

from stream_recon.cache.attention import Span, TorchAttention
from stream_recon.cache.frame_cache import FrameCacheSchema
from stream_recon.cache.step_metadata import StepMetadata

pytestmark = pytest.mark.gpu

HEADS, CHANNELS, POOL = 6, 64, 2400
SPANS: list[list[Span]] = [[(0, 198)], [(96, 600), (606, 2400)], [(7, 2399)], [(2000, 2001), (6, 12)]]


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(*shape, generator=generator, device="cuda", dtype=torch.bfloat16)


def relative(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((got.float() - expected.float()).norm() / expected.float().norm())


def metadata_of(spans: list[Span], max_score: float = math.inf) -> StepMetadata:
    """Metadata of one stream, on the device."""
    metadata = StepMetadata(4, torch.device("cuda"), 1, max_score)
    metadata.wait_for_upload()
    metadata.full.set_spans(spans)
    metadata.upload()
    return metadata


@pytest.mark.parametrize("spans", SPANS)
@pytest.mark.parametrize("queries", [5, 198, 792, 2900])
def test_span_attention_reads_exactly_its_spans(spans: list[Span], queries: int) -> None:
    """In one part and in several; 2,900 queries of 6 heads are more than one wave on an H200."""
    from stream_recon.cache.kernels.span_attention import SpanPool, attend_spans

    q, keys, values = (random(n, HEADS, CHANNELS, seed=n) for n in (queries, POOL, POOL + 1))
    values = values[:POOL]
    plain = TorchAttention()
    plain.plan(queries, spans)
    expected = plain.attend(q.float(), keys.float(), values.float())
    hidden = torch.ones(POOL, dtype=torch.bool, device="cuda")
    for start, stop in spans:
        hidden[start:stop] = False
    norms = keys.float().norm(dim=-1).amax(0)
    keys[hidden], values[hidden] = 1e4, 1e4
    pools, metadata = (SpanPool(keys), SpanPool(values)), metadata_of(spans)
    assert relative(attend_spans(q[None], *pools, metadata.full, norms[None], POOL)[0], expected) < 5e-3
    # A bound that is too high by far costs nothing.
    assert relative(attend_spans(q[None], *pools, metadata.full, 4 * norms[None], POOL)[0], expected) < 5e-3


@pytest.mark.parametrize("queries", [5, 198, 500])
def test_each_row_reads_the_spans_of_its_batch_slot(queries: int) -> None:
    """500 queries of 9 streams and 6 heads are more than one wave on an H200."""
    from stream_recon.cache.kernels.span_attention import SpanPool, attend_spans

    batch_slots = [7, 0, 3, 2, 8, 1, 9, 5, 4]
    q = random(len(batch_slots), queries, HEADS, CHANNELS)
    keys, values = (random(10 * POOL, HEADS, CHANNELS, seed=i) for i in (1, 2))
    keys *= torch.linspace(0.5, 1.5, 10, device="cuda").repeat_interleave(POOL)[:, None, None]
    norms = keys.float().norm(dim=-1).unflatten(0, (10, POOL)).amax(1)
    metadata, plain = StepMetadata(4, torch.device("cuda"), len(batch_slots)), TorchAttention()
    metadata.wait_for_upload()
    expected, rows = [], []
    for row, batch_slot in enumerate(batch_slots):
        spans = SPANS[row % len(SPANS)]
        rows.append(metadata_of(spans).in_batch_slot(batch_slot, (POOL, 0)))
        plain.plan(queries, spans)
        own = slice(batch_slot * POOL, (batch_slot + 1) * POOL)
        expected.append(plain.attend(q[row].float(), keys[own].float(), values[own].float()))
    metadata.set_rows(np.stack(rows))
    metadata.upload()
    got = attend_spans(q, SpanPool(keys), SpanPool(values), metadata.full, norms, POOL)
    for row, wanted in zip(got, expected, strict=True):
        assert relative(row, wanted) < 5e-3


@pytest.mark.parametrize(("gain", "outlier"), [(6.0, 1.0), (1.0, 20.0), (3.0, 50.0)])
@pytest.mark.parametrize("queries", [198, 2900])
def test_scores_far_below_their_bound_are_attended(queries: int, gain: float, outlier: float) -> None:
    """Large gains of the norms, and one key much longer than the others, in one part and in several."""
    from stream_recon.cache.kernels.span_attention import SpanPool, attend_spans

    q, keys, values = (random(n, HEADS, CHANNELS, seed=i) for i, n in enumerate((queries, POOL, POOL)))
    q, keys = q * gain, keys * gain
    keys[1000] *= outlier
    spans = [(6, 2000)]
    plain = TorchAttention()
    plain.plan(queries, spans)
    expected = plain.attend(q.float(), keys.float(), values.float())
    norms = keys.float().norm(dim=-1).amax(0)
    got = attend_spans(q[None], SpanPool(keys), SpanPool(values), metadata_of(spans).full, norms[None], POOL)[0]
    assert relative(got, expected) < 2e-2  # the largest weights decide: values are rounded, scores not


@pytest.mark.parametrize(("gain", "max_score"), [(1.0, math.inf), (6.0, math.inf), (1.0, 40.0)])
def test_published_size_at_any_gain(gain: float, max_score: float) -> None:
    from stream_recon.cache.kernels.span_attention import SpanPool, attend_spans

    q, keys, values = (random(n, 16, CHANNELS, seed=i) for i, n in enumerate((978, 70_000, 70_000)))
    q, keys = q * gain, keys * gain
    plain = TorchAttention()
    plain.plan(len(q), [(0, len(keys))])
    expected = plain.attend(q, keys, values)
    norms = keys.float().norm(dim=-1).amax(0)
    metadata = metadata_of([(0, len(keys))], max_score)
    got = attend_spans(q[None], SpanPool(keys), SpanPool(values), metadata.full, norms[None], len(keys))[0]
    assert relative(got, expected) < 2e-2


def test_a_higher_bound_changes_next_to_nothing() -> None:
    from stream_recon.cache.kernels.span_attention import SpanPool, attend_spans

    q, keys, values = (random(n, HEADS, CHANNELS, seed=n) for n in (198, POOL, POOL))
    norms = keys.float().norm(dim=-1).amax(0)
    pools, metadata = (SpanPool(keys), SpanPool(values)), metadata_of([(6, 2000)])
    results = [attend_spans(q[None], *pools, metadata.full, norms[None] * factor, POOL) for factor in (1.0, 1.5)]
    assert relative(*results) < 1e-4


def test_a_frame_is_stored_at_the_positions_of_the_metadata() -> None:
    from stream_recon.cache.kernels.store import store_frame

    special, tokens = 6, 198
    schema = FrameCacheSchema(1, HEADS, CHANNELS, special, tokens - special, patch_slots=8, special_slots=100)
    metadata = StepMetadata(4, torch.device("cuda"))
    metadata.wait_for_upload()
    metadata.full.set_frame(30, 600)
    metadata.upload()
    qkv = random(1, tokens, 3, HEADS, CHANNELS)
    k, v = qkv[:, :, 1], qkv[:, :, 2]  # strided, as they come
    keys, values = torch.zeros(2, POOL, HEADS, CHANNELS, device="cuda", dtype=torch.bfloat16)
    norms = torch.zeros(1, HEADS, device="cuda")
    store_frame(k, v, keys, values, norms, schema, metadata.full)
    for pool, new in ((keys, k[0]), (values, v[0])):
        assert torch.equal(pool[30:36], new[:special]) and torch.equal(pool[600:792], new[special:])
        pool[30:36], pool[600:792] = 0, 0
        assert not pool.any()
    torch.testing.assert_close(norms, k.float().norm(dim=-1).amax(1))
    store_frame(k / 2, v, keys, values, norms, schema, metadata.full)
    torch.testing.assert_close(norms, k.float().norm(dim=-1).amax(1))


def test_the_camera_token_sees_the_visible_slots_and_itself() -> None:
    from stream_recon.cache.kernels.camera_step import attend_slots

    heads, channels, slots = 4, 128, 200
    q, k, v = (random(1, heads, channels, seed=i) for i in range(3))
    keys, values = (random(heads, slots, channels, seed=i) for i in (3, 4))
    visible = (0, 1, 2, 3, 70, 71, 150, 151, 9)
    expected_keys, expected_values = keys.clone(), values.clone()
    expected_keys[:, 9], expected_values[:, 9] = k[0], v[0]
    metadata = StepMetadata(slots, torch.device("cuda"))
    metadata.wait_for_upload()
    metadata.set_camera(9, visible)
    metadata.upload()
    got = attend_slots(q, k, v, keys[None], values[None], metadata)
    assert torch.equal(keys, expected_keys) and torch.equal(values, expected_values)
    seen = list(visible)
    expected = torch.nn.functional.scaled_dot_product_attention(
        q.float().transpose(0, 1), expected_keys[:, seen].float(), expected_values[:, seen].float()
    ).transpose(0, 1)
    assert relative(got, expected) < 5e-3
