"""Batched steps against steps of each stream alone."""

from collections.abc import Iterator

import pytest
import torch

from stream_recon.app.engine.batched import StreamBatch, step_sizes
from stream_recon.app.engine.keyframes import Decision
from stream_recon.app.engine.stream import StreamRunner
from stream_recon.configs.schema import Preset
from stream_recon.models.int8 import exact_levels
from stream_recon.models.prediction import Prediction
from tests.networks import GRID, random_images, tiny_network, tiny_preset

Outputs = tuple[torch.Tensor, torch.Tensor, list[bool]]
"""Poses [N, 9], log depth and confidence [N, 2, h, w], which frames became keyframes."""
LENGTHS = (14, 3, 9, 23, 5, 2)
"""Frames of each stream; the last one ends before its scale frames are complete."""


def clips(preset: Preset) -> list[torch.Tensor]:
    return [random_images(length, seed=length) for length in LENGTHS]


def batches(images: torch.Tensor, preset: Preset) -> Iterator[torch.Tensor]:
    scale = preset.stream.scale_frames
    yield images[:scale]
    yield from (image[None] for image in images[scale:])


def joined(steps: list[tuple[torch.Tensor, torch.Tensor, bool]]) -> Outputs:
    return torch.cat([s[0] for s in steps]), torch.cat([s[1] for s in steps]), [s[2] for s in steps]


def row_of(prediction: Prediction, decision: Decision, row: int) -> tuple[torch.Tensor, torch.Tensor, bool]:
    maps = torch.stack([prediction.log_depth[row], prediction.head_maps[row, :, 1]], dim=1)
    return prediction.pose[row].clone(), maps, decision.is_keyframe


def alone(preset: Preset, images: torch.Tensor) -> Outputs:
    stream = StreamRunner(tiny_network(preset), preset, GRID)
    return joined([row_of(*stream.step(batch), 0) for batch in batches(images, preset)])


def together(batch: StreamBatch, preset: Preset, streams: list[torch.Tensor]) -> list[Outputs]:
    """Outputs of all streams; each gets the next free slot, and a frame in three of four rounds."""
    waiting = list(enumerate(streams))
    under_way: dict[int, tuple[int, Iterator[torch.Tensor]]] = {}
    results: list[list[tuple[torch.Tensor, torch.Tensor, bool]]] = [[] for _ in streams]
    round_number = 0
    while waiting or under_way:
        while waiting and (slot := batch.allocate_slot()) is not None:
            number, images = waiting.pop(0)
            parts = batches(images, preset)
            prediction, decision = batch.begin(slot, next(parts))
            results[number].append(row_of(prediction, decision, 0))
            under_way[slot] = (number, parts)
        round_number += 1
        frames = {}
        for slot in [slot for slot in under_way if (slot + round_number) % 4]:
            frame = next(under_way[slot][1], None)
            if frame is None:
                batch.release_slot(slot)
                del under_way[slot]
            else:
                frames[slot] = frame
        if frames:
            prediction, decisions = batch.step(list(frames), torch.cat(list(frames.values())))
            for row, (slot, decision) in enumerate(zip(frames, decisions, strict=True)):
                results[under_way[slot][0]].append(row_of(prediction, decision, row))
    return [joined(steps) for steps in results]


@pytest.mark.slow
@pytest.mark.parametrize("keyframes", ["flow", "every", "interval"])
@pytest.mark.parametrize("slots", [1, 3, 8])
def test_each_stream_gives_what_it_gives_alone(slots: int, keyframes: str) -> None:
    """Streams of different lengths, out of step with one another, in slots that other streams used."""
    preset = tiny_preset(
        keyframes=keyframes, keyframe_interval=2, flow_threshold=5.0, max_gap=3, special_budget=8, camera_window=3
    )
    batch = StreamBatch(tiny_network(preset), preset, GRID, slots)
    streams = clips(preset)
    for got, images in zip(together(batch, preset, streams), streams, strict=True):
        poses, maps, chosen = alone(preset, images)
        assert got[2] == chosen
        torch.testing.assert_close(got[0], poses, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(got[1], maps, rtol=1e-5, atol=1e-4)
    assert batch.used == 0


@pytest.mark.skipif(not exact_levels(), reason="this CPU or torch has no products in int8")
def test_a_stream_in_int8_is_independent_of_others_in_its_batch() -> None:
    preset = tiny_preset(keyframes="every", special_budget=8, camera_window=3)
    network = tiny_network(preset)
    network.quantise_for_cpu(half=False)
    streams = [random_images(7, seed=1), 0.1 * random_images(7, seed=2)]
    some, both = (
        together(StreamBatch(network, preset, GRID, 2, "int8"), preset, clips) for clips in (streams[:1], streams)
    )
    torch.testing.assert_close(both[0][0], some[0][0], rtol=1e-5, atol=1e-5)
    # Other rounding in fp32 moves a few activations to the next level.
    assert (both[0][1] - some[0][1]).square().mean().sqrt() < 0.0015


@pytest.mark.slow
@pytest.mark.parametrize("slots", [1, 3])
def test_each_stream_matches_its_own_keyframes(slots: int) -> None:
    # Noise has no overlap: a rotation search in vain would only amplify rounding errors.
    preset = tiny_preset(keyframe_matcher=True, rotation_search=False, keyframes="interval", keyframe_interval=2)
    streams = clips(preset)
    batch = StreamBatch(tiny_network(preset), preset, GRID, slots)
    for got, images in zip(together(batch, preset, streams), streams, strict=True):
        poses, maps, _ = alone(preset, images)
        torch.testing.assert_close(got[0], poses, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(got[1], maps, rtol=1e-4, atol=1e-3)


def test_there_are_as_many_slots_as_fit_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    from stream_recon.app.engine import batched
    from stream_recon.app.engine.stream import stream_schema

    preset = tiny_preset()
    one = stream_schema(preset, GRID, torch.device("cpu"), half=False).bytes
    monkeypatch.setattr(batched, "available_memory", lambda device: int(3.5 * one / batched.MEMORY_SHARE))
    batch = StreamBatch(tiny_network(preset), preset, GRID, 8)
    assert batch.slots == 3
    assert [batch.allocate_slot() for _ in range(4)] == [0, 1, 2, None]
    batch.release_slot(1)
    assert batch.allocate_slot() == 1


def test_there_is_a_batch_size_for_every_number_of_frames() -> None:
    for slots in range(1, 70):
        sizes = step_sizes(slots)
        assert sizes == sorted(set(sizes)) and sizes[0] == 1 and sizes[-1] == slots
        assert all(next(size for size in sizes if size >= count) <= max(2 * count - 1, 1) for count in range(1, slots))
