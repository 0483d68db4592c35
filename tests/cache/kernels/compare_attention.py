"""Span attention by the interpreted kernel and by torch, at scores near to and far below their bound."""

import itertools
import math

import torch

from stream_recon.cache.attention import Span, TorchAttention
from stream_recon.cache.kernels.span_attention import SpanPool, attend_spans
from stream_recon.cache.step_metadata import StepMetadata

CPU = torch.device("cpu")
HEADS, CHANNELS, POOL = 3, 16, 1300
SPANS: list[list[Span]] = [[(0, 70)], [(20, 300), (310, 1300)], [(3, 1299)], [(500, 501), (6, 12)]]
"""With 3 heads, a tile is left over for 5 queries, and is split: in the last case one part has no keys."""
SCALES = [(1.0, 1.0), (2.5, 1.0), (6.0, 1.0), (1.0, 20.0), (5.0, 50.0)]
"""Gain of queries and keys, and factor of one key's norm."""


def metadata_of(spans: list[Span], max_score: float = math.inf) -> StepMetadata:
    metadata = StepMetadata(4, CPU, 1, max_score)
    metadata.full.set_spans(spans)
    metadata.upload()
    return metadata


def compare(spans: list[Span], gain: float, outlier: float, dtype: torch.dtype, tolerance: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    queries = 70 if seed % 3 == 2 else 5
    q, keys, values = (torch.randn(n, HEADS, CHANNELS, generator=generator) for n in (queries, POOL, POOL))
    gains = 1 + (gain - 1) * torch.rand(CHANNELS, generator=generator)
    q, keys = q * gains, keys * gains
    keys[100] *= outlier
    q, keys, values = (x.to(dtype) for x in (q, keys, values))
    plain = TorchAttention()
    plain.plan(queries, spans)
    expected = plain.attend(q.double(), keys.double(), values.double())
    norms = keys.float().norm(dim=-1).amax(0)
    hidden = torch.ones(POOL, dtype=torch.bool)
    for start, stop in spans:
        hidden[start:stop] = False
    keys[hidden], values[hidden] = 1e4, 1e4
    factor = 4.0 if seed % 2 else 1.0  # keys that have left the cache may have been longer
    # The largest score is known where nothing exceeds what the weights allow.
    allowed = float(q.float().norm(dim=-1).amax() * norms.amax()) * CHANNELS**-0.5 * math.log2(math.e)
    metadata = metadata_of(spans, allowed * factor)
    got = attend_spans(q[None], SpanPool(keys), SpanPool(values), metadata.full, factor * norms[None], POOL)
    error = float((got[0].double() - expected).norm() / expected.norm())
    assert error < tolerance, f"{spans} gain {gain} outlier {outlier} bound x {factor} {dtype}: {error}"


def compare_biased(gain: float, seed: int) -> None:
    """Three spans, with a bias of each token."""
    generator = torch.Generator().manual_seed(seed)
    q, keys, values = (torch.randn(n, HEADS, CHANNELS, generator=generator) for n in (5, POOL, POOL))
    q, keys = gain * q, gain * keys
    spans, bias = [(20, 300), (310, 700), (705, 1300)], torch.randint(1, 5, (POOL,), generator=generator).log()
    plain = TorchAttention(bias)
    plain.plan(len(q), spans)
    expected = plain.attend(q, keys, values)
    metadata, norms = StepMetadata(4, CPU), keys.norm(dim=-1).amax(0)
    metadata.compressed.set_spans(spans)
    metadata.upload()
    pools, scaled = (SpanPool(keys), SpanPool(values)), bias * math.log2(math.e)
    got = attend_spans(q[None], *pools, metadata.compressed, norms[None], POOL, scaled, 2.0)[0]
    assert float((got - expected).norm() / expected.norm()) < 1e-5, f"biased, gain {gain}"


for number, gain in enumerate((1.0, 6.0)):
    compare_biased(gain, number)
numbers = itertools.count()
for spans, (gain, outlier) in itertools.product(SPANS, SCALES):
    compare(spans, gain, outlier, torch.float32, 1e-5, next(numbers))
for gain, outlier in SCALES:
    compare(SPANS[1], gain, outlier, torch.float16, 3e-3, next(numbers))
