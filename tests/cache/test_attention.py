from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from stream_recon.cache.attention import ReadRun, TorchAttention, attend_by_products, cpu_has, merge_spans


def test_spans_that_touch_are_joined() -> None:
    assert merge_spans([(6, 9), (0, 3), (3, 6), (12, 15)]) == [(0, 9), (12, 15)]


@pytest.mark.parametrize("spans", [[(4, 10)], [(0, 3), (7, 10)], [(3, 7), (0, 3)]])
def test_attention_reads_exactly_its_spans(spans: list[tuple[int, int]]) -> None:
    q, keys, values = (torch.randn(n, 2, 8) for n in (5, 10, 10))
    backend = TorchAttention()
    backend.plan(5, spans)
    index = torch.cat([torch.arange(*span) for span in spans])
    weights = torch.einsum("qhd,khd->hqk", q, keys[index]).div(8**0.5).softmax(-1)
    expected = torch.einsum("hqk,khd->qhd", weights, values[index])
    torch.testing.assert_close(backend.attend(q, keys, values), expected)
    untouched = torch.ones(10, dtype=torch.bool)
    untouched[index] = False
    keys[untouched], values[untouched] = 1e4, 1e4
    torch.testing.assert_close(backend.attend(q, keys, values), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("has_tiles", [True, False])
def test_a_bias_is_added_to_the_scores(dtype: torch.dtype, has_tiles: bool) -> None:
    q, keys, values = (torch.randn(n, 2, 8) for n in (5, 10, 10))
    sizes = torch.tensor([1, 1, 4, 4, 2, 4, 1, 4, 4, 2])
    visible = torch.tensor([0, 1, 2, 5, 6, 7, 8, 9])
    weights = torch.einsum("qhd,khd->hqk", q, keys[visible]).div(8**0.5).exp() * sizes[visible]
    expected = torch.einsum("hqk,khd->qhd", weights / weights.sum(-1, keepdim=True), values[visible])
    backend = TorchAttention(sizes.log(), has_tiles=has_tiles)
    backend.plan(5, [(5, 10), (0, 3)])
    found = backend.attend(*(x.to(dtype) for x in (q, keys, values)))
    tolerance = 1e-5 if dtype == torch.float32 else 3e-2
    torch.testing.assert_close(found.float(), expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("scores", [1, 2 * 5 * 10, 2**25])
def test_attention_by_products_is_attention_however_many_queries_go_at_once(scores: int) -> None:
    q, k, v = (torch.randn(n, 3, 8) for n in (5, 10, 10))
    expected = F.scaled_dot_product_attention(*(x.transpose(0, 1)[None] for x in (q, k, v)))[0].transpose(0, 1)
    torch.testing.assert_close(attend_by_products(q, k, v, scores_at_once=scores), expected)
    other = torch.full((4, 3, 8), 1e4)
    more = [torch.cat([other, x[:6], other, x[6:]]) for x in (k, v)]
    torch.testing.assert_close(attend_by_products(q, *more, [(0, 4), (10, 14)], scores_at_once=scores), expected)


def test_instruction_sets_are_read_as_whole_words(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    assert not cpu_has("avx512_bf16", info)
    info.write_text("flags\t\t: fpu avx512f avx512_bf16 amx_tile\n")
    assert cpu_has("avx512_bf16", info)
    info.write_text("flags\t\t: fpu avx2 avx512_bf160\n")
    assert not cpu_has("avx512_bf16", info)


@pytest.mark.parametrize("has_tiles", [False, True])
@pytest.mark.parametrize("spans", [[(300, 900)], [(0, 500)], [(10, 1000)], [(488, 1000)], [(300, 500), (560, 900)]])
def test_bf16_on_a_cpu_reads_exactly_its_spans(spans: list[tuple[int, int]], has_tiles: bool) -> None:
    q, keys, values = (torch.randn(n, 2, 8).bfloat16() for n in (5, 1000, 1000))
    backend = TorchAttention(has_tiles=has_tiles)
    backend.plan(5, spans)
    index = torch.cat([torch.arange(*span) for span in spans])
    expected = F.scaled_dot_product_attention(*(x.float().transpose(0, 1) for x in (q, keys[index], values[index])))
    result = backend.attend(q, keys, values)
    torch.testing.assert_close(result.float(), expected.transpose(0, 1), atol=0.02, rtol=0.02)
    before = result.clone()
    blank_frames = torch.ones(1000, dtype=torch.bool)
    blank_frames[index] = False
    keys[blank_frames], values[blank_frames] = 1e3, 1e3
    assert torch.equal(backend.attend(q, keys, values), before)


def test_a_compressed_pool_is_read_in_shorter_steps() -> None:
    plain, compressed = runs = ReadRun(), ReadRun(torch.zeros(1000))
    for run in runs:
        run.plan([(700, 900), (300, 500)])
        assert run.tokens.stop == 900
    assert plain.tokens.start < compressed.tokens.start <= 300
