"""Batched steps on the GPU, captured in several sizes, against steps of each stream alone."""

from collections.abc import Sequence
from functools import lru_cache

import pytest
import torch

from stream_recon.app.engine.batched import StreamBatch
from stream_recon.app.engine.stream import StepOptions, StreamRunner
from stream_recon.configs.schema import Preset
from tests.app.engine.test_stream_gpu import GRID, network_of, outputs, preset_of, walk

pytestmark = pytest.mark.gpu

Outputs = tuple[torch.Tensor, torch.Tensor]
"""Poses [N, 9] and dense maps [N, 2, h, w]."""
STARTS = (0, 40, 10, 25, 60)
"""First frame of each stream in one video; their lengths differ."""


def narrow_preset(keyframes: str) -> Preset:
    """Preset with full and compressed layers, with which slots are reused and the log is thinned."""
    budgets = {"window": 4, "special_budget": 24, "camera_window": 16, "compressed_from": 2}
    return preset_of(keyframes=keyframes, keyframe_interval=2, **budgets)


@lru_cache(maxsize=2)
def alone(keyframes: str) -> list[Outputs]:
    """Outputs of each stream alone, on the fast path."""
    preset = narrow_preset(keyframes)
    stream, results = StreamRunner(network_of(preset, fast=True), preset, GRID, StepOptions("triton")), []
    for images in streams():
        stream.reset()
        results.append(outputs(stream, preset, images)[:2])
    return results


@lru_cache(maxsize=2)
def exact(keyframes: str) -> list[Outputs]:
    """Outputs of each stream alone, on the plain path in fp32."""
    preset = narrow_preset(keyframes)
    options = StepOptions("sdpa", "fp32", capture=False)
    stream, results = StreamRunner(network_of(preset, fast=False), preset, GRID, options), []
    with torch.backends.cudnn.flags(allow_tf32=False):
        for images in streams():
            stream.reset()
            results.append(outputs(stream, preset, images)[:2])
    return results


def streams() -> list[torch.Tensor]:
    images = walk(140)
    return [images[start : start + 30 + 5 * number] for number, start in enumerate(STARTS)]


def together(batch: StreamBatch, clips: Sequence[torch.Tensor], scale: int) -> list[Outputs]:
    """Outputs of each stream; a stream that ends frees its slot."""
    waiting = list(range(len(clips)))
    under_way: dict[int, int] = {}
    poses: list[list[torch.Tensor]] = [[] for _ in clips]
    maps: list[list[torch.Tensor]] = [[] for _ in clips]
    at = [scale] * len(clips)
    while waiting or under_way:
        while waiting and (slot := batch.allocate_slot()) is not None:
            number = under_way[slot] = waiting.pop(0)
            prediction, _ = batch.begin(slot, clips[number][:scale])
            poses[number].append(prediction.head_pose[-1, 0].cpu())
            maps[number].append(prediction.head_maps[0].cpu())
        for slot, number in list(under_way.items()):
            if at[number] == len(clips[number]):
                batch.release_slot(slot)
                del under_way[slot]
        if not under_way:
            continue
        prediction, _ = batch.step(
            list(under_way), torch.stack([clips[number][at[number]] for number in under_way.values()])
        )
        for row, number in enumerate(under_way.values()):
            poses[number].append(prediction.head_pose[-1, row].cpu())
            maps[number].append(prediction.head_maps[row].cpu())
            at[number] += 1
    return [(torch.cat(p), torch.cat(m)) for p, m in zip(poses, maps, strict=True)]


def distance(got: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((got - wanted).norm() / wanted.norm())


@pytest.mark.parametrize("keyframes", ["interval", "every"])
@pytest.mark.parametrize("slots", [1, 3, 8])
def test_each_stream_is_as_near_to_fp32_as_it_is_alone(slots: int, keyframes: str) -> None:
    preset = narrow_preset(keyframes)
    batch = StreamBatch(network_of(preset, fast=True), preset, GRID, slots)
    got = together(batch, streams(), preset.stream.scale_frames)
    for ours, single_outputs, truth in zip(got, alone(keyframes), exact(keyframes), strict=True):
        for what, rows, single, true in zip(("poses", "maps"), ours, single_outputs, truth, strict=True):
            error, noise = distance(rows, true), distance(single, true)
            print(f"{slots} slots, {what}: error {error:.2e}, alone {noise:.2e}")
            assert error < 1.3 * noise


def test_a_rejected_frame_changes_no_other_stream() -> None:
    """Only one of two streams has other keyframes: the other one's results stay bit for bit."""
    preset = preset_of(keyframes="flow", flow_threshold=20.0, window=4, special_budget=24)
    images, network = walk(60), network_of(preset, fast=True)
    scale, results = preset.stream.scale_frames, []
    for others in (images.flip(0), images[:1].expand(60, -1, -1, -1)):
        batch = StreamBatch(network, preset, GRID, 2)
        slots = [batch.allocate_slot(), batch.allocate_slot()]
        assert slots == [0, 1]
        for slot, clip in enumerate((images, others)):
            batch.begin(slot, clip[:scale])
        steps = [batch.step([0, 1], torch.stack([images[i], others[i]]))[0] for i in range(scale, 60)]
        results.append(steps[-1].head_maps[0].cpu())
    assert torch.equal(*results)


def test_batches_of_two_shapes_that_share_a_network_are_independent() -> None:
    """Bit for bit, while both graphs are replayed."""
    preset = narrow_preset("every")
    images, network, scale = walk(40), network_of(preset, fast=True), preset.stream.scale_frames
    upright, results = images.transpose(-1, -2).contiguous(), []
    for with_other in (False, True):
        batch, other = (StreamBatch(network, preset, grid, 1) for grid in (GRID, GRID[::-1]))
        assert batch.allocate_slot() == other.allocate_slot() == 0
        batch.begin(0, images[:scale])
        if with_other:
            other.begin(0, upright[:scale])
        for index in range(scale, 40):
            prediction, _ = batch.step([0], images[index, None])
            if with_other:
                other.step([0], upright[index, None])
        results.append(prediction.head_maps[0].cpu())
    assert torch.equal(*results)
