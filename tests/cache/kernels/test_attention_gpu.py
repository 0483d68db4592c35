"""FlashInfer against torch."""

import pytest
import torch

from stream_recon.cache.attention import AttentionSizes, Span, TorchAttention
from stream_recon.cache.kernels.choose import HOPPER
from stream_recon.cache.kernels.flashinfer_attention import FlashInferAttention

pytestmark = pytest.mark.gpu

SPANS: list[list[Span]] = [[(0, 198)], [(96, 600), (606, 2400)], [(1998, 2400), (6, 12), (600, 1200)]]
"""Bounds are multiples of a page (6 tokens, which divide special tokens and patches), as those of a cache are."""


@pytest.mark.parametrize("name", ["flashinfer", "flashinfer-fa2", "flashinfer-fa3"])
@pytest.mark.parametrize("patches", [192, 999])
@pytest.mark.parametrize("frames", [1, 4])
@pytest.mark.parametrize("spans", SPANS)
def test_flashinfer_agrees_with_torch(spans: list[Span], frames: int, patches: int, name: str) -> None:
    """With 999 patches, those of 518x378, pages have 3 tokens: padded ones gave nan there with FlashAttention 3."""
    pytest.importorskip("flashinfer")
    cuda = torch.device("cuda")
    if name == "flashinfer-fa3" and torch.cuda.get_device_capability(cuda)[0] != HOPPER:
        pytest.skip("FlashAttention 3 needs a Hopper GPU")
    generator = torch.Generator(cuda).manual_seed(0)
    queries = frames * (6 + patches)
    q, keys, values = (
        torch.randn(n, 6, 64, generator=generator, device=cuda, dtype=torch.bfloat16) for n in (queries, 2400, 2400)
    )
    # What no query may see; as in a cache it is finite.
    hidden = torch.ones(len(keys), dtype=torch.bool, device=cuda)
    for start, stop in spans:
        hidden[start:stop] = False
    keys[hidden], values[hidden] = 1e4, 1e4
    sizes = AttentionSizes(heads=6, head_dim=64, special=6, patches=patches, pool_tokens=2400, dtype=torch.bfloat16)
    paged, plain = FlashInferAttention(sizes, cuda, name), TorchAttention()
    for backend in (paged, plain):
        backend.plan(queries, spans)
    got = paged.attend(q, keys, values).float()
    expected = plain.attend(q.float(), keys.float(), values.float())
    assert got.isfinite().all()
    assert (got - expected).norm() / expected.norm() < 1e-2
