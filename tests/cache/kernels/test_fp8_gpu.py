"""The kernels of the cache in e4m3 against plain torch."""

from typing import cast

import pytest
import torch

from stream_recon.cache.attention import Span
from stream_recon.cache.fp8_pages import FP8, Fp8Pages
from stream_recon.cache.kernels.choose import supports_fp8
from stream_recon.cache.step_inputs import StepInputs

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def able() -> None:
    if not supports_fp8(torch.device("cuda")):
        pytest.skip("e4m3 is not here")


HEADS, CHANNELS, SPECIAL, BASE, SLOTS = 6, 64, 6, 198, 7
PAGE_SIZES = [192, 128, 90, 300]


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(*shape, generator=generator, device="cuda", dtype=torch.bfloat16)


def relative(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((got.float() - expected.float()).norm() / expected.float().norm())


def empty_pages(patches: int) -> Fp8Pages:
    keys, values = (torch.zeros(SLOTS, patches, HEADS, CHANNELS, device="cuda", dtype=FP8) for _ in range(2))
    scales = torch.ones(2, SLOTS, HEADS, device="cuda")
    return Fp8Pages(keys, values, scales[0], scales[1])


def random_pages(patches: int) -> tuple[Fp8Pages, torch.Tensor]:
    """Pages of very different sizes, and the largest norm of a key."""
    pages, norms = empty_pages(patches), torch.zeros(HEADS, device="cuda")
    for slot in range(SLOTS):
        k, v = (random(patches, HEADS, CHANNELS, seed=10 * slot + i) for i in range(2))
        k, v = k * (0.2 + 0.2 * slot), v * 4.0 ** (slot - 3)
        pages.write(slot, k, v)
        norms = torch.maximum(norms, k.float().norm(dim=-1).amax(0))
    return pages, norms


def spans_of(slots: list[tuple[int, int]], patches: int, special_from: int) -> list[Span]:
    """Special tokens from there on, joined with the first run of slots, as a plan has them."""
    spans = [(BASE + first * patches, BASE + stop * patches) for first, stop in slots]
    return [(special_from, spans[0][1]), *spans[1:]]


@pytest.mark.parametrize("slots", [[(0, 1)], [(0, 7)], [(0, 2), (3, 7)], [(0, 5), (6, 7)]])
@pytest.mark.parametrize("patches", PAGE_SIZES)
def test_exactly_what_is_visible_is_widened(slots: list[tuple[int, int]], patches: int) -> None:
    """In one go, or the step's own frame after all else."""
    from stream_recon.cache.kernels.widen import ALL_BUT_OWN, EVERYTHING, OWN, widen

    pages, _ = random_pages(patches)
    log = random(BASE, HEADS, CHANNELS), random(BASE, HEADS, CHANNELS, seed=1)
    spans = spans_of(slots, patches, special_from=BASE - 5 * SPECIAL)
    inputs = StepInputs(4, torch.device("cuda"))
    inputs.open()
    own = slots[-1][1] - 1
    inputs.set_frame(0, BASE - 5 * SPECIAL, BASE + own * patches)
    inputs.set_spans(spans)
    inputs.upload()
    seen = torch.zeros(BASE + SLOTS * patches, dtype=torch.bool, device="cuda")
    for start, stop in spans:
        seen[start:stop] = True
    is_own = torch.zeros_like(seen)
    is_own[BASE - 5 * SPECIAL : BASE - 4 * SPECIAL] = is_own[BASE + own * patches : BASE + (own + 1) * patches] = True
    for steps in ([EVERYTHING], [ALL_BUT_OWN, OWN]):
        pools = random(len(seen), HEADS, CHANNELS, seed=2), random(len(seen), HEADS, CHANNELS, seed=3)
        before = pools[0].clone(), pools[1].clone()
        for step in steps:
            widen(log, pages, pools, SPECIAL, inputs, step)
            if step == ALL_BUT_OWN:
                assert all(torch.equal(pool[is_own], old[is_own]) for pool, old in zip(pools, before, strict=True))
        for pool, old, kept, restored in zip(pools, before, log, pages.restored(), strict=True):
            expected = torch.cat([kept, restored.to(torch.bfloat16)])
            assert torch.equal(pool, torch.where(seen[:, None, None], expected, old))


@pytest.mark.parametrize("patches", PAGE_SIZES)
def test_a_frame_is_quantised_into_its_page_and_its_special_tokens_are_kept(patches: int) -> None:
    from stream_recon.cache.kernels.fp8_store import store_frame

    slot, tokens = 3, SPECIAL + patches
    inputs = StepInputs(4, torch.device("cuda"))
    inputs.open()
    inputs.set_frame(7, 30, BASE + slot * patches)
    inputs.upload()
    qkv = random(1, tokens, 3, HEADS, CHANNELS)
    qkv[:, :SPECIAL] *= 100  # no part of the page, and of its scale
    k, v = qkv[0, :, 1], qkv[0, :, 2]  # strided, as they come
    pools = [torch.zeros(BASE, HEADS, CHANNELS, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
    norms = torch.zeros(HEADS, device="cuda")
    pages, expected = empty_pages(patches), empty_pages(patches)
    for _ in range(2):  # a place that was used before
        expected.write(slot, k[SPECIAL:], v[SPECIAL:])
        store_frame(k, v, *pools, pages, norms, inputs)
        for name in ("keys", "values"):
            got, wanted = (cast(torch.Tensor, getattr(x, name)).view(torch.int8) for x in (pages, expected))
            # Nearest numbers but for ties that the order of factors may break.
            assert (got != wanted).float().mean() < 1e-4 and (got.int() - wanted.int()).abs().max() <= 1
        torch.testing.assert_close(pages.key_scales, expected.key_scales, rtol=1e-6, atol=0)
        torch.testing.assert_close(pages.value_scales, expected.value_scales, rtol=1e-6, atol=0)
        torch.testing.assert_close(norms, k.float().norm(dim=-1).amax(0))
        for pool, new in zip(pools, (k, v), strict=True):
            assert torch.equal(pool[30:36], new[:SPECIAL])
            pool[30:36] = 0
            assert not pool.any()
        qkv[:, SPECIAL:] /= 8
        norms.zero_()
