"""A camera that rotates in a room: exact results, in a world and scale of each stream."""

from dataclasses import replace

import numpy as np
import pytest

from stream_recon.app.core.depth_points import transform_result
from stream_recon.app.core.rig import VIEW_STRIDE
from stream_recon.app.core.types import FrameResult, PreparedFrame
from stream_recon.app.engine import session
from stream_recon.app.engine.engine import Engine
from stream_recon.app.engine.submap import SubmapConfig, SubmapManager
from tests.app.batch.fakes import world_of
from tests.app.boxroom import room_result, walk_pose
from tests.app.engine.test_engine import frames as noise_frames
from tests.networks import tiny_network, tiny_preset

SCALE = 4


def prepared(result: FrameResult) -> PreparedFrame:
    return PreparedFrame(result.index, result.timestamp, result.rgb, result.transform)


def play(results: list[FrameResult], overlap: float) -> tuple[list[FrameResult], list[int]]:
    """Aligned results of a run, and the frames before which new submaps started."""
    manager, world, starts, aligned = SubmapManager(overlap, SCALE), world_of(0), [], []
    first, rest = results[:SCALE], results[SCALE:]
    aligned += manager.align([prepared(r) for r in first], first)
    known = {result.index: result for result in results}
    for result in rest:
        if manager.needs_submap:
            starts.append(result.index)
            world = world_of(result.index)
            manager.start_submap([transform_result(known[frame.index], world) for frame in manager.recent_frames])
        aligned += manager.align([prepared(result)], [transform_result(result, world)])
    return aligned, starts


def test_submaps_are_aligned_with_the_first_one() -> None:
    truth = [room_result(index) for index in range(110)]
    aligned, starts = play(truth, 0.3)
    assert len(starts) >= 2 and min(np.diff([0, *starts])) >= SubmapConfig().min_frames - SCALE
    assert [result.index for result in aligned] == list(range(110))
    for result, true in zip(aligned, truth, strict=True):
        np.testing.assert_allclose(result.T_world_camera, true.T_world_camera, atol=1e-5)
        np.testing.assert_allclose(result.depth, true.depth, rtol=1e-4)


def test_a_view_of_the_scale_frames_is_kept() -> None:
    swaying = [room_result(index, walk_pose(0.4 * np.sin(0.3 * index))) for index in range(110)]
    assert play(swaying, 0.3)[1] == []


def test_only_keyframes_count() -> None:
    assert play([room_result(index, keyframe=index < SCALE) for index in range(110)], 0.3)[1] == []


@pytest.mark.parametrize("overlap", [0.0, 0.3])
def test_a_segment_after_a_gap_starts_at_the_last_pose(overlap: float) -> None:
    truth = [room_result(index) for index in range(40)]
    manager, aligned = SubmapManager(overlap, SCALE), []
    for begin, end, world in ((0, 20, world_of(0)), (20, 40, world_of(20))):
        part = [transform_result(result, world) for result in truth[begin:end]]
        aligned += manager.align([prepared(r) for r in part[:SCALE]], part[:SCALE])
        for result in part[SCALE:]:
            assert not manager.needs_submap
            aligned += manager.align([prepared(result)], [result])
        manager.end_segment()
    np.testing.assert_allclose(aligned[20].T_world_camera, aligned[19].T_world_camera, atol=1e-9)
    # Each segment keeps its shape.
    for a, b in ((0, 7), (20, 27)):
        relative = np.linalg.inv(aligned[a].T_world_camera) @ aligned[b].T_world_camera
        true = np.linalg.inv(truth[a].T_world_camera) @ truth[b].T_world_camera
        np.testing.assert_allclose(relative[:3, :3], true[:3, :3], atol=1e-6)


def test_a_view_of_a_rig_starts_where_the_run_began_turned_and_after_a_cut_at_its_last_pose() -> None:
    turn = np.array([[0, 0, 1], [0, 1, 0], [-1, 0, 0]], np.float64)
    results = [room_result(index) for index in range(3 * SCALE)]
    manager = SubmapManager(0.0, SCALE)
    first = manager.align([prepared(result) for result in results[:SCALE]], results[:SCALE])
    manager.end_segment()
    turned = [replace(prepared(r), index=VIEW_STRIDE + r.index, turn=turn) for r in results[SCALE:]]
    second = manager.align(turned[:SCALE], results[SCALE : 2 * SCALE])
    start = second[0].T_world_camera
    np.testing.assert_allclose(start[:3, :3], first[0].T_world_camera[:3, :3] @ turn, atol=1e-9)
    np.testing.assert_allclose(start[:3, 3], first[0].T_world_camera[:3, 3], atol=1e-9)
    manager.end_segment()
    third = manager.align(turned[SCALE:], results[2 * SCALE :])
    np.testing.assert_allclose(third[0].T_world_camera, second[-1].T_world_camera, atol=1e-9)


def test_a_segment_is_a_new_submap_without_memory_of_the_previous_one() -> None:
    engine = Engine(tiny_network(tiny_preset()), tiny_preset(), "")
    images = list(noise_frames(12))
    results = [r for n, f in enumerate(images) for r in engine.push(replace(f, segment=int(n >= 5)))]
    results += engine.finish()
    assert [r.index for r in results] == [f.index for f in images]
    assert [r.segment for r in results] == [0] * 5 + [1] * 7
    assert engine.submaps == 2
    alone = Engine(tiny_network(tiny_preset()), tiny_preset(), "")
    fresh = [r for f in images[5:] for r in alone.push(f)]
    for result, other in zip(results[5:], fresh, strict=True):
        np.testing.assert_allclose(result.depth, other.depth, rtol=1e-5)
    engine.reset()
    assert len([r for f in images for r in engine.push(f)]) == 12 and engine.submaps == 1


def test_without_an_overlap_results_are_unchanged() -> None:
    truth = [room_result(index) for index in range(110)]
    aligned, starts = play(truth, 0.0)
    assert starts == [] and all(a is b for a, b in zip(aligned[:SCALE], truth, strict=False))


class Restless(SubmapManager):
    @property
    def needs_submap(self) -> bool:
        return self._count >= 12 and len(self._recent) == self._recent.maxlen


def test_the_engine_gives_one_result_per_frame_over_many_submaps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "SubmapManager", Restless)
    preset = tiny_preset(keyframes="every", submap_overlap=0.2)
    engine = Engine(tiny_network(preset), preset, "0" * 64)
    results = list(engine.stream(noise_frames(40)))
    assert [result.index for result in results] == [3 * number for number in range(40)]
    assert all(np.isfinite(result.T_world_camera).all() and np.isfinite(result.depth).all() for result in results)
    assert engine.submaps >= 3


@pytest.mark.parametrize("kind", [SubmapManager, Restless])
def test_a_resumed_run_has_the_caches_of_the_interrupted_one(
    monkeypatch: pytest.MonkeyPatch, kind: type[SubmapManager]
) -> None:
    monkeypatch.setattr(session, "SubmapManager", kind)
    preset = tiny_preset(keyframes="every", submap_overlap=0.2)
    network, images = tiny_network(preset), list(noise_frames(29))
    engine, again = Engine(network, preset, "0" * 64), Engine(network, preset, "0" * 64)
    frames = [engine.prepare(image) for image in images]
    results = [result for frame in frames[:21] for result in engine.push(frame)]
    pairs = {frame.index: (frame, result) for frame, result in zip(frames, results, strict=False)}
    reference_frames = engine.reference_frames
    assert (reference_frames[0] > 0) is (kind is Restless)
    overlap = again.resume(
        [pairs[index] for index in reference_frames],
        [pair for index, pair in pairs.items() if index > reference_frames[-1]],
    )
    assert again.reference_frames == reference_frames and overlap.index == frames[20].index and overlap.position < 1e-4
    for frame in frames[21:]:
        (ours,), (theirs,) = engine.push(frame), again.push(frame)
        np.testing.assert_allclose(theirs.T_world_camera, ours.T_world_camera, atol=1e-4)
        np.testing.assert_allclose(theirs.depth, ours.depth, rtol=1e-4)
