"""The kernels of the cache in e4m3 against plain torch."""

import pytest
import torch

from stream_recon.cache.attention import Span, TorchAttention
from stream_recon.cache.fp8_pages import FP8, ValuePages, hadamard_rotate, to_e4m3
from stream_recon.cache.kernels.choose import supports_fp8
from stream_recon.cache.step_metadata import StepMetadata

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def able() -> None:
    if not supports_fp8(torch.device("cuda")):
        pytest.skip("this GPU has no e4m3")


HEADS, CHANNELS, SPECIAL, BASE, SLOTS = 6, 64, 6, 198, 7
PAGE_SIZES = [192, 128, 90, 300]


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(*shape, generator=generator, device="cuda", dtype=torch.bfloat16)


def relative(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((got.float() - expected.float()).norm() / expected.float().norm())


def empty_pages(patches: int) -> ValuePages:
    values = torch.zeros(SLOTS, patches, HEADS, CHANNELS, device="cuda", dtype=FP8)
    return ValuePages(values, torch.ones(SLOTS, HEADS, device="cuda"))


def random_pages(patches: int) -> ValuePages:
    """Pages of very different sizes."""
    pages = empty_pages(patches)
    for slot in range(SLOTS):
        pages.write(slot, random(patches, HEADS, CHANNELS, seed=10 * slot) * 4.0 ** (slot - 3))
    return pages


def spans_of(slots: list[tuple[int, int]], patches: int, special_from: int) -> list[Span]:
    """Special tokens from there on, joined with the first run of slots, as a plan has them."""
    spans = [(BASE + first * patches, BASE + stop * patches) for first, stop in slots]
    return [(special_from, spans[0][1]), *spans[1:]]


@pytest.mark.parametrize("slots", [[(0, 1)], [(0, 7)], [(0, 2), (3, 7)], [(0, 5), (6, 7)]])
@pytest.mark.parametrize("patches", PAGE_SIZES)
def test_exactly_the_visible_tokens_are_dequantised(slots: list[tuple[int, int]], patches: int) -> None:
    """With or without the step's own frame."""
    from stream_recon.cache.kernels.dequantise import ALL_VISIBLE, PAST_ONLY, dequantise

    pages, log = random_pages(patches), random(BASE, HEADS, CHANNELS)
    spans = spans_of(slots, patches, special_from=BASE - 5 * SPECIAL)
    metadata = StepMetadata(4, torch.device("cuda"))
    metadata.wait_for_upload()
    own = slots[-1][1] - 1
    metadata.full.set_frame(BASE - 5 * SPECIAL, BASE + own * patches)
    metadata.full.set_spans(spans)
    metadata.upload()
    seen = torch.zeros(BASE + SLOTS * patches, dtype=torch.bool, device="cuda")
    for start, stop in spans:
        seen[start:stop] = True
    is_own = torch.zeros_like(seen)
    is_own[BASE - 5 * SPECIAL : BASE - 4 * SPECIAL] = is_own[BASE + own * patches : BASE + (own + 1) * patches] = True
    expected = torch.cat([log, pages.dequantised().to(torch.bfloat16)])
    for what, wanted in ((ALL_VISIBLE, seen), (PAST_ONLY, seen & ~is_own)):
        pool = random(len(seen), HEADS, CHANNELS, seed=2)
        before = pool.clone()
        dequantise(log, pages, pool, SPECIAL, metadata.full, what)
        assert torch.equal(pool, torch.where(wanted[:, None, None], expected, before))


def same_but_for_ties(got: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Nearest numbers in e4m3, but for ties that the order of factors may break."""
    got, wanted = got.view(torch.int8), wanted.view(torch.int8)
    return bool((got != wanted).float().mean() < 1e-4 and (got.int() - wanted.int()).abs().max() <= 1)


@pytest.mark.parametrize("patches", PAGE_SIZES)
def test_a_frame_is_stored_at_its_positions_in_e4m3(patches: int) -> None:
    from stream_recon.cache.kernels.fp8_store import store_frame

    slot, tokens = 3, SPECIAL + patches
    metadata = StepMetadata(4, torch.device("cuda"))
    metadata.wait_for_upload()
    metadata.full.set_frame(30, BASE + slot * patches)
    metadata.upload()
    qkv = random(1, tokens, 3, HEADS, CHANNELS)
    qkv[:, :SPECIAL] *= 100  # no part of the page, and of its scale
    q, k, v = qkv[0].unbind(1)  # strided, as they come
    keys = torch.zeros(BASE + SLOTS * patches, HEADS, CHANNELS, device="cuda", dtype=FP8)
    values = torch.zeros(BASE, HEADS, CHANNELS, device="cuda", dtype=torch.bfloat16)
    norms = torch.zeros(HEADS, device="cuda")
    pages, expected = empty_pages(patches), empty_pages(patches)
    dequantised = torch.zeros_like(keys, dtype=torch.bfloat16)
    own = BASE + slot * patches
    for _ in range(2):  # a slot that was used before
        expected.write(slot, v[SPECIAL:])
        queries = store_frame(q, k, v, keys, values, pages, dequantised, norms, metadata.full)
        assert same_but_for_ties(pages.values, expected.values)
        torch.testing.assert_close(pages.scales, expected.scales, rtol=1e-6, atol=0)
        assert same_but_for_ties(queries, to_e4m3(hadamard_rotate(q)))
        kept = torch.zeros_like(keys)
        as_kept = to_e4m3(hadamard_rotate(k))
        kept[30 : 30 + SPECIAL], kept[own : own + patches] = as_kept[:SPECIAL], as_kept[SPECIAL:]
        assert same_but_for_ties(keys, kept)
        torch.testing.assert_close(norms, as_kept.float().norm(dim=-1).amax(0), rtol=1e-3, atol=0)
        assert torch.equal(values[30 : 30 + SPECIAL], v[:SPECIAL])
        values[30 : 30 + SPECIAL] = 0
        assert not values.any()
        assert torch.equal(dequantised[30 : 30 + SPECIAL], v[:SPECIAL])
        assert torch.equal(
            dequantised[own : own + patches], pages.dequantised()[own - BASE :][:patches].to(torch.bfloat16)
        )
        dequantised[30 : 30 + SPECIAL] = dequantised[own : own + patches] = 0
        assert not dequantised.any()
        qkv[:, SPECIAL:] /= 8
        norms.zero_()


@pytest.mark.parametrize("slots", [[(0, 7)], [(0, 2), (3, 7)]])
@pytest.mark.parametrize("patches", [90, 972])
def test_attention_by_queries_and_keys_in_e4m3_is_that_of_the_same_numbers(
    slots: list[tuple[int, int]], patches: int
) -> None:
    from stream_recon.cache.kernels.span_attention import SpanAttention

    spans = spans_of(slots, patches, special_from=BASE - 5 * SPECIAL)
    tokens = BASE + SLOTS * patches
    q, keys = to_e4m3(2 * random(SPECIAL + patches, HEADS, CHANNELS)), to_e4m3(random(tokens, HEADS, CHANNELS, seed=1))
    values = random(tokens, HEADS, CHANNELS, seed=2)
    metadata = StepMetadata(4, torch.device("cuda"))
    metadata.wait_for_upload()
    attention = SpanAttention(metadata.full)
    attention.plan(len(q), spans)
    metadata.upload()
    got = attention.attend(q, keys, values, keys.float().norm(dim=-1).amax(0))
    exact = TorchAttention()
    exact.plan(len(q), spans)
    assert got.dtype == values.dtype
    assert relative(got, exact.attend(q.float(), keys.float(), values.float())) < 1e-2
