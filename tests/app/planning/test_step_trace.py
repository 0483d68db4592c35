"""The traced step against the CPU allocator's figures of the same step with numbers."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from stream_recon.app.planning.step_trace import network_size, trace_step
from stream_recon.configs.schema import NetworkConfig, load_preset
from stream_recon.models.network import StreamingNetwork
from stream_recon.models.odometry import refinement, rotation_search

SMALL = load_preset("small").network
ALONE = dataclasses.replace(SMALL, keyframe_matcher=False)
"""Network without keyframe matching, which runs for all frames but the first, in fp32."""
MIDDLE = dataclasses.replace(
    load_preset("lingbot-map").network,
    dim=256,
    heads=4,
    encoder_depth=2,
    depth=5,
    output_layers=(0, 1, 3, 4),
    camera_dim=128,
    camera_heads=2,
    dpt_features=64,
    dpt_channels=(64, 128, 256, 256),
)


class OwnFrames:
    """A `KVCache` of only the step's own frames."""

    def __init__(self, frames: int) -> None:
        self.times = torch.arange(frames)[None]
        self.is_later_frame = self.is_streamed_frame = (self.times[0] > 0).long()

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2)

    attend_camera = attend


def measured_peak(config: NetworkConfig, grid: tuple[int, int], frames: int) -> int:
    network = StreamingNetwork(config).eval().requires_grad_(False)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler, torch.no_grad():
        images = torch.rand(1, frames, 3, grid[0] * config.patch_size, grid[1] * config.patch_size)
        network(images, OwnFrames(frames))
    held = peak = 0
    assert profiler.profiler is not None and profiler.profiler.kineto_results is not None
    for event in profiler.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak


# Grids of no other test: cached position tables would not be measured.
@pytest.mark.parametrize(
    ("config", "grid", "frames"),
    [(SMALL, (7, 11), 4), (SMALL, (11, 7), 1), (MIDDLE, (11, 13), 3), (MIDDLE, (13, 11), 1)],
)
def test_the_estimate_covers_the_peak_and_not_much_more(
    config: NetworkConfig, grid: tuple[int, int], frames: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As on a GPU: a rotation is searched in any case.
    for module in (refinement, rotation_search):
        monkeypatch.setattr(module, "is_surely_none", lambda _: False)
    estimate = trace_step(config, grid, frames, half=False).peak_bytes
    # Scratch space of kernels is not traced: a CPU's kernel may copy a map to resize it.
    assert 0.94 < estimate / measured_peak(config, grid, frames) < 1.25


@pytest.mark.slow
def test_half_precision_and_fewer_frames_hold_less() -> None:
    full, half = (trace_step(ALONE, (6, 8), 4, half=half).peak_bytes for half in (False, True))
    assert 0.45 < half / full < 0.8
    assert trace_step(ALONE, (6, 8), 1).peak_bytes < half
    assert trace_step(SMALL, (6, 8), 1).peak_bytes < trace_step(SMALL, (6, 8), 4).peak_bytes


def test_convolutions_are_counted_for_each_frame_and_pixel() -> None:
    one, four = (trace_step(ALONE, (6, 8), frames).convolution_flops for frames in (1, 4))
    assert four == 4 * one
    # The level of a half and of an eighth of the image has 14 rows for each two patches, rounded up.
    assert trace_step(ALONE, (12, 16), 1).convolution_flops == pytest.approx(4 * one, rel=0.02)
    # Features that are compared for each frame, and the rounds' mixing for all but the first.
    first, all_four = (trace_step(SMALL, (6, 8), frames).convolution_flops for frames in (1, 4))
    assert first > one and 4 * first < all_four < 4.1 * first


def test_sizes_are_those_of_a_network_laid_out_for_a_gpu() -> None:
    network = StreamingNetwork(SMALL)
    network.fuse_for_gpu()
    tensors = [*network.parameters(), *network.buffers()]
    size = network_size(SMALL)
    assert size.bytes == sum(t.numel() * t.element_size() for t in tensors)
    assert size.camera_bytes == sum(p.nbytes for p in network.camera_head.parameters())
    assert size.camera_bytes < 2.5 * sum(p.numel() for p in network.camera_head.parameters())
    blocks = 2 * SMALL.depth + SMALL.encoder_depth
    assert size.token_products == blocks * 12 * SMALL.dim**2
