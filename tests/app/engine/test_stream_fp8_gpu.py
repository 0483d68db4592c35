"""Streams with a cache in e4m3 on the GPU: errors, captured against uncaptured, and with rejected frames."""

import pytest
import torch

from stream_recon.app.engine.keyframes import Decision
from stream_recon.app.engine.stream import StepOptions, StreamRunner, stream_schema
from stream_recon.cache.cache_dtypes import CACHE_CHOICES
from stream_recon.cache.fp8_frame_cache import Fp8FrameCache
from stream_recon.cache.frame_cache import FrameCache
from stream_recon.cache.kernels.choose import supports_fp8
from tests.app.engine.test_stream_gpu import (
    FRAMES,
    GRID,
    long_preset,
    network_of,
    outputs,
    plain_outputs,
    preset_of,
    walk,
)

pytestmark = pytest.mark.gpu

FP8_CACHE = StepOptions(cache="fp8")


@pytest.fixture(autouse=True)
def able() -> None:
    if not supports_fp8(torch.device("cuda")):
        pytest.skip("this GPU has no e4m3")


def test_the_error_is_small() -> None:
    preset, images = long_preset(None), walk(FRAMES)
    fast, exact = network_of(preset, fast=True), plain_outputs("fp32", None)
    in_half = outputs(StreamRunner(fast, preset, GRID, StepOptions("triton")), preset, images)
    ours = outputs(StreamRunner(fast, preset, GRID, FP8_CACHE), preset, images)
    for name, got, rough, truth in zip(("poses", "maps"), ours[:2], in_half[:2], exact[:2], strict=True):
        error, noise = (float((x - truth).norm() / truth.norm()) for x in (got, rough))
        print(f"{name}: error {error:.2e} with the cache in fp8, {noise:.2e} in bf16")
        assert error < 2e-2


@pytest.mark.parametrize("keyframes", ["flow", "every", "interval"])
def test_a_captured_step_gives_what_it_gives_uncaptured(keyframes: str) -> None:
    preset = preset_of(keyframes=keyframes, keyframe_interval=2, flow_threshold=20.0, window=4, special_budget=24)
    images, network = walk(60), network_of(preset, fast=True)
    captured, bare = (
        outputs(StreamRunner(network, preset, GRID, StepOptions(cache="fp8", capture=capture)), preset, images)
        for capture in (True, False)
    )
    assert captured[2] == bare[2]
    if keyframes == "flow":
        assert 0 < sum(captured[2]) < len(captured[2])
    for got, expected in zip(captured[:2], bare[:2], strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-3)


class Commanded:
    """A keyframe policy that does what the test says."""

    evicts_first = needs_flow = False

    def __init__(self) -> None:
        self.keep = True

    def decide(self, flow: float | None) -> Decision:
        return Decision(self.keep, flow)


def test_a_rejected_frame_changes_no_cache() -> None:
    preset, policy = preset_of(window=3), Commanded()
    images, network = walk(40), network_of(preset, fast=True)
    untouched, disturbed = (
        StreamRunner(network, preset, GRID, StepOptions(cache="fp8", keyframes=each)) for each in (Commanded(), policy)
    )
    scale = preset.stream.scale_frames
    for index, batch in enumerate((images[:scale], *images[scale:].split(1))):
        expected = untouched.step(batch)[0].head_maps.clone()
        if index > 2:
            policy.keep = False
            disturbed.step(10 * torch.rand(1, 3, 168, 224))
            policy.keep = True
        assert torch.equal(disturbed.step(batch)[0].head_maps, expected)


def requested() -> int:
    """Bytes in use, without the up to 1 MiB by which the allocator rounds each tensor up."""
    return int(torch.cuda.memory_stats()["requested_bytes.all.current"])


def test_the_cache_takes_the_memory_of_its_schema() -> None:
    preset = preset_of()
    network = network_of(preset, fast=True)
    taken = []
    StreamRunner(network, preset, GRID)  # allocates the kernels' constants, once
    for cache in CACHE_CHOICES:
        torch.cuda.synchronize()
        before = requested()
        stream = StreamRunner(network, preset, GRID, StepOptions(cache=cache))
        taken.append(requested() - before)
        del stream
    schema = stream_schema(preset, GRID, torch.device("cuda"), half=True).frames
    saved = FrameCache.bytes(schema, torch.bfloat16) - Fp8FrameCache.bytes(schema, torch.bfloat16)
    assert taken[0] - taken[1] == pytest.approx(saved, rel=0.02)
