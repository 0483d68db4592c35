"""FlashInfer against its plain torch twin, and a whole stream on the GPU against the CPU's."""

import pytest
import torch

from stream_recon.app.engine import Stream
from stream_recon.cache.attention import AttentionChoice, FlashInferAttention, Span, TorchAttention
from stream_recon.configs.schema import load_preset
from stream_recon.models.network import StreamingNetwork

pytestmark = pytest.mark.gpu

SPANS: list[list[Span]] = [
    [(0, 198)],
    [(96, 600), (606, 2400)],
    [(2000, 2400), (6, 12), (600, 1200)],
]


@pytest.mark.parametrize("spans", SPANS)
@pytest.mark.parametrize("queries", [198, 792])
def test_flashinfer_agrees_with_torch(spans: list[Span], queries: int) -> None:
    cuda = torch.device("cuda")
    generator = torch.Generator(cuda).manual_seed(0)
    q, keys, values = (
        torch.randn(n, 6, 64, generator=generator, device=cuda, dtype=torch.bfloat16) for n in (queries, 2400, 2400)
    )
    paged, plain = FlashInferAttention(6, 64, 2, cuda, torch.bfloat16), TorchAttention()
    for backend in (paged, plain):
        backend.plan(queries, spans)
    got = paged.attend(q, keys, values).float()
    expected = plain.attend(q.float(), keys.float(), values.float())
    assert (got - expected).norm() / expected.norm() < 1e-2


def stream_outputs(device: str, attention: AttentionChoice) -> tuple[torch.Tensor, torch.Tensor]:
    preset = load_preset("small", {"stream.keyframes": "interval", "stream.keyframe_interval": 2, "stream.window": 3})
    torch.manual_seed(3)
    network = StreamingNetwork(preset.network).eval().requires_grad_(False)
    for parameter in network.parameters():
        if parameter.ndim > 1:
            parameter.copy_(torch.randn(parameter.shape) * 0.04)
    images = torch.rand(16, 3, 168, 224)
    stream = Stream(network.to(device), preset, (12, 16), attention)
    predictions = [stream.step(images[:4])[0], *(stream.step(image[None])[0] for image in images[4:])]
    pose = torch.cat([p.pose[-1, 0] for p in predictions]).cpu()
    return pose, torch.cat([p.dense[0] for p in predictions]).cpu()


@pytest.mark.parametrize("attention", ["flashinfer", "sdpa"])
def test_a_stream_on_the_gpu_gives_what_the_cpu_gives(attention: AttentionChoice) -> None:
    for got, expected in zip(stream_outputs("cuda", attention), stream_outputs("cpu", "sdpa"), strict=True):
        assert (got - expected).norm() / expected.norm() < 2e-2
