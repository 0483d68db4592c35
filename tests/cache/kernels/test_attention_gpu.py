"""FlashInfer against torch."""

import pytest
import torch

from stream_recon.cache.attention import AttentionSizes, Span, TorchAttention
from stream_recon.cache.kernels.flashinfer_attention import FlashInferAttention

pytestmark = pytest.mark.gpu

SPANS: list[list[Span]] = [[(0, 198)], [(96, 600), (606, 2400)], [(1998, 2400), (6, 12), (600, 1200)]]
"""Bounds are multiples of a page (6 tokens, which divide special tokens and patches), as those of a cache are."""


@pytest.mark.parametrize("spans", SPANS)
@pytest.mark.parametrize("queries", [198, 792])
def test_flashinfer_agrees_with_torch(spans: list[Span], queries: int) -> None:
    pytest.importorskip("flashinfer")
    cuda = torch.device("cuda")
    generator = torch.Generator(cuda).manual_seed(0)
    q, keys, values = (
        torch.randn(n, 6, 64, generator=generator, device=cuda, dtype=torch.bfloat16) for n in (queries, 2400, 2400)
    )
    sizes = AttentionSizes(heads=6, head_dim=64, special=6, patches=192, pool_tokens=2400, dtype=torch.bfloat16)
    paged = FlashInferAttention(sizes, cuda)
    plain = TorchAttention()
    for backend in (paged, plain):
        backend.plan(queries, spans)
    got = paged.attend(q, keys, values).float()
    expected = plain.attend(q.float(), keys.float(), values.float())
    assert (got - expected).norm() / expected.norm() < 1e-2
