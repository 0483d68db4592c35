"""Streams on the GPU: against fp32 on the plain path, captured against uncaptured, and with rejected frames."""

import gc
from functools import lru_cache

import pytest
import torch

from stream_recon.app.engine.device_transfer import Precision
from stream_recon.app.engine.engine import prepare_network
from stream_recon.app.engine.stream import StepOptions, StreamRunner
from stream_recon.cache.kernels.choose import runs_triton
from stream_recon.configs.schema import AttentionChoice, Preset, load_preset
from stream_recon.models.embedded import EMBEDDED_WEIGHTS
from stream_recon.models.network import StreamingNetwork
from stream_recon.models.weights import load_network

pytestmark = pytest.mark.gpu

GRID = (12, 16)
FRAMES = 300
ATTENTION: AttentionChoice = "triton"


def preset_of(**stream: object) -> Preset:
    return load_preset("small", {f"stream.{key}": value for key, value in stream.items()})


def network_of(preset: Preset, *, fast: bool) -> StreamingNetwork:
    network = load_network(EMBEDDED_WEIGHTS, preset.network)
    if fast:
        prepare_network(network, torch.device("cuda"))
    return network.cuda()


def walk(frames: int) -> torch.Tensor:
    """A window that moves over a picture, [frames, 3, h, w]."""
    generator = torch.Generator().manual_seed(1)
    coarse = torch.rand(1, 3, 24, 32, generator=generator)
    picture = torch.nn.functional.interpolate(coarse, size=(336, 448), mode="bicubic").clamp(0, 1)[0]
    angles = torch.linspace(0, 12, frames)
    offsets = [(int(80 + 70 * torch.sin(t)), int(110 + 100 * torch.cos(0.7 * t))) for t in angles]
    return torch.stack([picture[:, y : y + 168, x : x + 224] for y, x in offsets])


def outputs(
    stream: StreamRunner, preset: Preset, images: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, list[bool]]:
    """Poses [N, 9], dense maps [N, 2, h, w] and which frames became keyframes."""
    scale = preset.stream.scale_frames
    poses, maps, keyframes = [], [], []
    for batch in (images[:scale], *images[scale:].split(1)):
        prediction, decision = stream.step(batch)
        poses.append(prediction.head_pose[-1, 0].cpu())
        maps.append(prediction.head_maps[0].cpu())
        keyframes.append(decision.is_keyframe)
    return torch.cat(poses), torch.cat(maps), keyframes


def long_preset(compressed_from: int | None) -> Preset:
    """Preset with which every second frame is rejected, the log is thinned, and slots are reused."""
    budgets = {"special_budget": 48, "camera_window": 32, "compressed_from": compressed_from}
    return preset_of(keyframes="interval", keyframe_interval=2, **budgets)


@lru_cache(maxsize=4)
def plain_outputs(precision: Precision, compressed_from: int | None) -> tuple[torch.Tensor, torch.Tensor, list[bool]]:
    """Outputs of `FRAMES` frames on the plain path."""
    preset = long_preset(compressed_from)
    stream = StreamRunner(network_of(preset, fast=False), preset, GRID, StepOptions("sdpa", precision, capture=False))
    # Else convolutions of the reference would be computed with 10 bits.
    with torch.backends.cudnn.flags(allow_tf32=False):
        return outputs(stream, preset, walk(FRAMES))


def need(attention: AttentionChoice) -> None:
    """Skip where a kernel is not installed."""
    if attention == "flashinfer":
        pytest.importorskip("flashinfer")
    if attention == "triton" and not runs_triton():
        pytest.skip("Triton does not run here")


@pytest.mark.parametrize("compressed_from", [None, 2])
@pytest.mark.parametrize("attention", ["triton", "flashinfer", "sdpa"])
def test_bf16_is_no_further_from_fp32_than_the_plain_path_in_bf16(
    attention: AttentionChoice, compressed_from: int | None
) -> None:
    """Over rejected frames, a thinned log and reused slots. The plain path in bf16 is one sample of rounding
    errors that accumulate, not their bound: another sample has up to 1.25 times the error."""
    need(attention)
    preset, images = long_preset(compressed_from), walk(FRAMES)
    exact, in_half = plain_outputs("fp32", compressed_from), plain_outputs("bf16", compressed_from)
    options = StepOptions(attention, "bf16")
    ours = outputs(StreamRunner(network_of(preset, fast=True), preset, GRID, options), preset, images)
    assert ours[2] == exact[2] and 0 < sum(ours[2]) < len(ours[2])
    for what, got, rough, truth in zip(("poses", "maps"), ours[:2], in_half[:2], exact[:2], strict=True):
        error, noise = (float((x - truth).norm() / truth.norm()) for x in (got, rough))
        print(f"{attention}, {what}: error {error:.2e}, the plain path's {noise:.2e}")
        assert error < 1.5 * noise


@pytest.mark.parametrize("keyframes", ["flow", "every", "interval"])
@pytest.mark.parametrize("attention", ["triton", "flashinfer"])
def test_a_captured_step_gives_what_it_gives_uncaptured(attention: AttentionChoice, keyframes: str) -> None:
    need(attention)
    preset = preset_of(keyframes=keyframes, keyframe_interval=2, flow_threshold=20.0, window=4, special_budget=24)
    images, network = walk(60), network_of(preset, fast=True)
    captured, bare = (
        outputs(StreamRunner(network, preset, GRID, StepOptions(attention, capture=capture)), preset, images)
        for capture in (True, False)
    )
    assert captured[2] == bare[2]
    if keyframes == "flow":
        assert 0 < sum(captured[2]) < len(captured[2])
    for got, expected in zip(captured[:2], bare[:2], strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-3)


def test_rejected_frames_do_not_change_keyframes() -> None:
    stream_options = {"window": 3, "special_budget": 12, "camera_window": 8}
    mixed = preset_of(keyframes="interval", keyframe_interval=3, **stream_options)
    alone = preset_of(keyframes="every", **stream_options)
    images, network = walk(60), network_of(mixed, fast=True)
    disturbed, untouched = (StreamRunner(network, preset, GRID, StepOptions(ATTENTION)) for preset in (mixed, alone))
    scale = mixed.stream.scale_frames
    for batch in (images[:scale], *images[scale:].split(1)):
        prediction, decision = disturbed.step(batch)
        if decision.is_keyframe:
            # Two graphs with separate outputs.
            expected = untouched.step(batch)[0]
            assert torch.equal(prediction.head_maps, expected.head_maps) and torch.equal(
                prediction.head_pose, expected.head_pose
            )


@pytest.mark.parametrize("attention", ["triton", "flashinfer"])
def test_a_captured_step_serves_the_next_stream(attention: AttentionChoice) -> None:
    need(attention)
    preset = preset_of(keyframes="flow", flow_threshold=20.0, window=4, special_budget=24)
    images, network = walk(60), network_of(preset, fast=True)
    options = StepOptions(attention)
    stream = StreamRunner(network, preset, GRID, options)
    outputs(stream, preset, images.flip(0)[:40])
    stream.reset()
    again, anew = outputs(stream, preset, images), outputs(StreamRunner(network, preset, GRID, options), preset, images)
    assert again[2] == anew[2]
    for got, expected in zip(again[:2], anew[:2], strict=True):
        assert torch.equal(got, expected)


def test_a_deleted_stream_frees_its_memory_at_once() -> None:
    preset = preset_of(keyframes="every")
    network, images = network_of(preset, fast=True), walk(10)
    gc.collect()
    gc.disable()
    try:
        taken = []
        for _ in range(3):
            stream = StreamRunner(network, preset, GRID, StepOptions(ATTENTION))
            outputs(stream, preset, images)
            del stream
            torch.cuda.synchronize()
            taken.append(torch.cuda.memory_allocated())
    finally:
        gc.enable()
    assert taken[2] <= taken[1] + 2**20
