"""Whole streams on the GPU: against fp32 on the plain path, captured against not, and what a rejected frame leaves."""

import pytest
import torch

from stream_recon.app.engine import prepare_network
from stream_recon.app.stream import Stream
from stream_recon.cache.choose import AttentionChoice
from stream_recon.configs.schema import Preset, load_preset
from stream_recon.models.network import StreamingNetwork
from stream_recon.models.weights import EMBEDDED_WEIGHTS, load_network

pytestmark = pytest.mark.gpu

GRID = (12, 16)
FRAMES = 300


def preset_of(**stream: object) -> Preset:
    return load_preset("small", {f"stream.{key}": value for key, value in stream.items()})


def network_of(preset: Preset, *, fast: bool) -> StreamingNetwork:
    network = load_network(EMBEDDED_WEIGHTS, preset.network)
    if fast:
        prepare_network(network, torch.device("cuda"))
    return network.cuda()


def walk(frames: int) -> torch.Tensor:
    """A picture seen through a window that wanders over it, [frames, 3, h, w]."""
    generator = torch.Generator().manual_seed(1)
    coarse = torch.rand(1, 3, 24, 32, generator=generator)
    picture = torch.nn.functional.interpolate(coarse, size=(336, 448), mode="bicubic").clamp(0, 1)[0]
    turns = torch.linspace(0, 12, frames)
    offsets = [(int(80 + 70 * torch.sin(t)), int(110 + 100 * torch.cos(0.7 * t))) for t in turns]
    return torch.stack([picture[:, y : y + 168, x : x + 224] for y, x in offsets])


def outputs(stream: Stream, preset: Preset, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, list[bool]]:
    """Poses [N, 9], dense maps [N, 2, h, w] and which frames became keyframes."""
    scale = preset.stream.scale_frames
    poses, maps, keyframes = [], [], []
    for batch in (images[:scale], *images[scale:].split(1)):
        prediction, decision = stream.step(batch)
        poses.append(prediction.pose[-1, 0].cpu())
        maps.append(prediction.dense[0].cpu())
        keyframes.append(decision.is_keyframe)
    return torch.cat(poses), torch.cat(maps), keyframes


@pytest.mark.parametrize("attention", ["triton", "fa2", "fa3", "cudnn", "sdpa"])
def test_bf16_is_no_further_from_fp32_than_the_plain_path_in_bf16(attention: AttentionChoice) -> None:
    preset = preset_of(keyframes="interval", keyframe_interval=3)
    images = walk(FRAMES)
    plain = network_of(preset, fast=False)
    exact = outputs(Stream(plain, preset, GRID, "sdpa", "fp32"), preset, images)
    in_half = outputs(Stream(plain, preset, GRID, "sdpa", "bf16", capture=False), preset, images)
    fast = network_of(preset, fast=True)
    ours = outputs(Stream(fast, preset, GRID, attention, "bf16"), preset, images)
    for got, rough, truth in zip(ours[:2], in_half[:2], exact[:2], strict=True):
        error, noise = ((x - truth).norm() / truth.norm() for x in (got, rough))
        print(f"{attention}: error {error:.2e}, the plain path's {noise:.2e}")
        assert error < 1.2 * noise


@pytest.mark.parametrize("keyframes", ["flow", "every", "interval"])
@pytest.mark.parametrize("attention", ["triton", "fa2"])
def test_a_captured_step_gives_what_it_gives_uncaptured(attention: AttentionChoice, keyframes: str) -> None:
    preset = preset_of(keyframes=keyframes, keyframe_interval=2, flow_threshold=3.0, window=4, special_budget=24)
    images, network = walk(60), network_of(preset, fast=True)
    captured, bare = (
        outputs(Stream(network, preset, GRID, attention, capture=capture), preset, images) for capture in (True, False)
    )
    assert captured[2] == bare[2]
    if keyframes == "flow":
        assert 0 < sum(captured[2]) < len(captured[2])
    for got, expected in zip(captured[:2], bare[:2], strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-3)


def test_a_rejected_frame_leaves_no_trace() -> None:
    preset = preset_of(keyframes="every", window=3)
    images, network = walk(40), network_of(preset, fast=True)
    untouched, disturbed = (Stream(network, preset, GRID, "triton") for _ in range(2))
    scale = preset.stream.scale_frames
    for index, batch in enumerate((images[:scale], *images[scale:].split(1))):
        expected = untouched.step(batch)[0].dense.clone()
        if index > 2:
            memory = disturbed.memory
            memory.begin(1)
            disturbed._run(torch.rand(1, 3, 168, 224))
            memory.rollback()
        assert torch.equal(disturbed.step(batch)[0].dense, expected)
