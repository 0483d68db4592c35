"""Runs that are longer than what a network was trained on: views in the caches, submaps, and distance of keyframes."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from stream_recon.app.core.types import Frame, FrameResult
from stream_recon.app.engine.device_transfer import Precision
from stream_recon.app.engine.engine import Engine
from stream_recon.app.engine.session import MAX_MIN_GAP
from stream_recon.app.engine.stream import StepOptions
from stream_recon.cache.block_manager import FrameTable
from stream_recon.configs.errors import ConfigError
from stream_recon.configs.schema import ImageConfig, StreamConfig, load_preset
from tests.app.engine.test_engine import frames
from tests.networks import tiny_network, tiny_preset

VIEWS = 12


def engine_of(**stream: object) -> Engine:
    preset = tiny_preset(**{"max_views": VIEWS, "special_budget": VIEWS, "camera_window": VIEWS - 3, **stream})
    return Engine(tiny_network(preset), preset, "0" * 64)


def played(engine: Engine, images: Iterator[Frame]) -> Iterator[tuple[FrameResult, dict[str, int]]]:
    """Results, each with the use of the cache after it."""
    for image in images:
        for result in engine.push(image):
            yield result, engine.cache_use


@pytest.mark.parametrize("interval", [1, 2])
def test_views_in_the_cache_are_never_more_than_the_network_was_trained_on(interval: int) -> None:
    engine = engine_of(keyframes="interval", keyframe_interval=interval)
    results, keyframes, most = 0, 0, 0
    for result, use in played(engine, frames(90)):
        results, keyframes = results + 1, keyframes + result.is_keyframe
        most = max(most, use["views"])
        assert use["views"] <= VIEWS and use["views_with_patches"] <= 3 + 4 and use["max_views"] == VIEWS
        assert np.isfinite(result.T_world_camera).all() and np.isfinite(result.depth).all()
    # Each submap after the first takes 6 of its views from the one before.
    submaps = 1 + -(-(keyframes - VIEWS) // (VIEWS - 6))
    assert (results, most, engine.submaps) == (90, VIEWS, submaps)
    use, given = engine.cache_use, keyframes + 6 * (submaps - 1)
    assert use["views"] + use["evicted"] == use["views_with_patches"] + use["evicted_patches"] == given


def test_rejected_frames_leave_no_trace_over_submaps() -> None:
    images = list(frames(75))
    sparse = engine_of(keyframes="interval", keyframe_interval=3)
    whole = [result for result, _ in played(sparse, iter(images)) if result.is_keyframe]
    indices = {result.index for result in whole}
    alone = engine_of(keyframes="every")
    kept = [result for result, _ in played(alone, (image for image in images if image.index in indices))]
    assert alone.submaps >= 3 and [r.index for r in kept] == [r.index for r in whole]
    for result, other in zip(kept, whole, strict=True):
        np.testing.assert_allclose(result.T_world_camera, other.T_world_camera, atol=1e-4)
        np.testing.assert_allclose(result.depth, other.depth, rtol=1e-3)


@pytest.mark.parametrize(
    ("count", "gap", "submaps"), [(12, 1, 1), (28, 3, 1), (29, 4, 1), (44, 5, 1), (120, MAX_MIN_GAP, 2)]
)
def test_a_known_length_keeps_keyframes_apart(count: int, gap: int, submaps: int) -> None:
    engine = engine_of(keyframes="flow", flow_threshold=1e9, max_gap=1)
    line = engine.expect(count)
    assert engine.min_gap == gap and line is not None and f"after {VIEWS} keyframes" in line
    assert (f"{gap} frames apart" in line) is (gap > 1)
    chosen = [result.is_keyframe for result, _ in played(engine, frames(count))]
    assert engine.submaps == submaps and engine.cache_use["min_keyframe_gap"] == gap
    apart = np.diff(np.flatnonzero(chosen)[3:])
    # The first streamed frame of a submap is a keyframe.
    assert apart.max() == gap and (apart < gap).sum() == submaps - 1
    engine.reset()
    assert engine.min_gap == 1


def test_a_length_changes_nothing_where_the_user_chose_keyframes_or_views_have_no_bound() -> None:
    every = engine_of(keyframes="every")
    assert every.expect(1000) is not None and every.min_gap == 1
    unknown = engine_of(keyframes="flow")
    assert unknown.expect(None) is not None and unknown.min_gap == 1
    unbounded = engine_of(keyframes="flow", max_views=None)
    assert unbounded.expect(1000) is None and unbounded.min_gap == 1


def test_the_published_preset_never_holds_more_than_320_views() -> None:
    stream = load_preset("lingbot-map").stream
    assert stream.max_views == stream.special_budget == stream.scale_frames + stream.camera_window == 320
    table = FrameTable(stream.scale_frames, stream.window, stream.special_budget)
    table.begin(stream.scale_frames)
    assert table.commit() is None
    for given in range(stream.scale_frames + 1, 321):
        for keep in (False, True):
            seen = table.begin(1)
            assert len(seen.special.block_table) == given <= 320
            assert table.commit() is None if keep else table.rollback() is None
        assert table.held == (min(given, stream.scale_frames + stream.window), given)


def test_the_bound_must_leave_room_for_streamed_frames() -> None:
    with pytest.raises(ConfigError, match="max_views must be at least 17, not 16"):
        StreamConfig(8, 12, 64, 64, max_views=16)


def test_a_resumed_run_begins_its_next_submap_where_the_whole_one_does() -> None:
    whole, again = engine_of(keyframes="every"), engine_of(keyframes="every")
    prepared = [whole.prepare(image) for image in frames(36)]
    results = [result for frame in prepared[:20] for result in whole.push(frame)]
    pairs = list(zip(prepared, results, strict=False))
    first = [pair for pair in pairs if pair[0].index in whole.reference_frames]
    assert whole.submaps == 3 and len(first) == 3
    again.resume(first, [pair for pair in pairs if pair[0].index > whole.reference_frames[-1]])
    assert again.cache_use["views"] == whole.cache_use["views"]
    for frame in prepared[20:]:
        (ours,), (theirs,) = whole.push(frame), again.push(frame)
        assert again.reference_frames == whole.reference_frames
        np.testing.assert_allclose(theirs.T_world_camera, ours.T_world_camera, atol=1e-3)
    assert whole.submaps == 5


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_outputs_are_finite_at_518x378(precision: Precision) -> None:
    """27 x 37 patches: 999 and 6 special tokens share no larger page than 3 tokens."""
    preset = tiny_preset(scale_frames=2, window=2)
    preset = replace(preset, image=ImageConfig(max_patches=1369, max_side=518))
    engine = Engine(tiny_network(preset), preset, "0" * 64, StepOptions(precision=precision))
    results = list(engine.stream(frames(7, (518, 378))))
    assert [result.depth.shape for result in results] == [(378, 518)] * 7
    for result in results:
        assert np.isfinite(result.depth).all() and np.isfinite(result.T_world_camera).all()
