"""A camera that turns around in a room: exact results, in a world and unit of each stream's own."""

import numpy as np
import pytest

from stream_recon.app.engine import engine as engine_module
from stream_recon.app.engine.anchor import MIN_FRAMES, Anchor
from stream_recon.app.engine.engine import Engine
from stream_recon.app.geometry import moved
from stream_recon.app.results import FrameResult, PreparedFrame
from tests.app.batch.fakes import world_of
from tests.app.boxroom import room_result, walk_pose
from tests.app.engine.test_engine import frames as noise_frames
from tests.networks import tiny_network, tiny_preset

SCALE = 4


def prepared(result: FrameResult) -> PreparedFrame:
    return PreparedFrame(result.index, result.timestamp, result.rgb, result.transform)


def play(results: list[FrameResult], overlap: float) -> tuple[list[FrameResult], list[int]]:
    """What `Anchor` makes of a run, and before which frames a new stream began."""
    anchor, world, begun, placed = Anchor(overlap, SCALE), world_of(0), [], []
    first, rest = results[:SCALE], results[SCALE:]
    placed += anchor.place([prepared(r) for r in first], first)
    known = {result.index: result for result in results}
    for result in rest:
        if anchor.is_lost:
            begun.append(result.index)
            world = world_of(result.index)
            anchor.renew([moved(known[frame.index], world) for frame in anchor.frames])
        placed += anchor.place([prepared(result)], [moved(result, world)])
    return placed, begun


def test_new_streams_lie_in_the_first_ones_world() -> None:
    truth = [room_result(index) for index in range(110)]
    placed, begun = play(truth, 0.3)
    assert len(begun) >= 2 and min(np.diff([0, *begun])) >= MIN_FRAMES - SCALE
    assert [result.index for result in placed] == list(range(110))
    for result, true in zip(placed, truth, strict=True):
        np.testing.assert_allclose(result.T_world_camera, true.T_world_camera, atol=1e-5)
        np.testing.assert_allclose(result.depth, true.depth, rtol=1e-4)


def test_a_view_of_the_scale_frames_is_kept() -> None:
    swaying = [room_result(index, walk_pose(0.4 * np.sin(0.3 * index))) for index in range(110)]
    assert play(swaying, 0.3)[1] == []


def test_only_keyframes_count() -> None:
    assert play([room_result(index, keyframe=index < SCALE) for index in range(110)], 0.3)[1] == []


def test_without_an_overlap_nothing_is_touched() -> None:
    truth = [room_result(index) for index in range(110)]
    placed, begun = play(truth, 0.0)
    assert begun == [] and all(a is b for a, b in zip(placed[:SCALE], truth, strict=False))


def test_the_engine_answers_every_frame_once_whatever_streams_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    class Restless(Anchor):
        @property
        def is_lost(self) -> bool:
            return self._count >= 12 and len(self._recent) == self._recent.maxlen

    monkeypatch.setattr(engine_module, "Anchor", Restless)
    preset = tiny_preset(keyframes="every", anchor_overlap=0.2)
    engine = Engine(tiny_network(preset), preset, "0" * 64)
    results = list(engine.stream(noise_frames(40)))
    assert [result.index for result in results] == [3 * number for number in range(40)]
    assert all(np.isfinite(result.T_world_camera).all() and np.isfinite(result.depth).all() for result in results)
    assert engine.streams >= 3
