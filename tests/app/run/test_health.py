"""Health of results: high where a room is seen as it is, low where pose, depth or sureness are wrong."""

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from stream_recon.app.core.types import FrameResult, PreparedFrame
from stream_recon.app.result.folder import read_result
from stream_recon.app.result.writer import ResultWriter
from stream_recon.app.run.health import DEFAULT_HEALTH, HealthMonitor, LowQualityInterval, clock, low_quality_intervals
from stream_recon.app.run.listeners import Progress, RunObserver
from stream_recon.app.run.pipeline import reconstruct
from stream_recon.app.sources.source import open_source
from tests.app.boxroom import room_result
from tests.app.fake_engine import FakeEngine, run_info
from tests.app.media import write_video

Spoil = Callable[[list[FrameResult]], list[FrameResult]]


def walk(frames: Iterable[int]) -> list[FrameResult]:
    return [replace(room_result(i, size=(112, 84)), index=i, timestamp=i / 10) for i in frames]


def judged(results: list[FrameResult]) -> tuple[HealthMonitor, list[float]]:
    watch = HealthMonitor()
    values = [watch.judge(result) for result in results]
    assert values[0] is None, "the first frame has no neighbour"
    return watch, [value for value in values if value is not None]


def turned(result: FrameResult, degrees: float) -> FrameResult:
    angle = np.radians(degrees)
    R = np.eye(4)
    R[:3, :3] = [[np.cos(angle), 0, np.sin(angle)], [0, 1, 0], [-np.sin(angle), 0, np.cos(angle)]]
    return replace(result, T_world_camera=result.T_world_camera @ R)


def test_a_room_seen_as_it_is_is_well() -> None:
    watch, values = judged(walk(range(60)))
    assert len(values) == 59 and min(values) > 0.85
    assert watch.notice is None and watch.summary()["weak"] == []


def wandering(results: list[FrameResult]) -> list[FrameResult]:
    return [turned(result, 40 * (n % 3 - 1)) for n, result in enumerate(results)]


def breathing(results: list[FrameResult]) -> list[FrameResult]:
    noise = np.random.default_rng(0)
    return [replace(r, depth=r.depth * np.exp(noise.normal(0, 2, r.depth.shape)).astype(np.float32)) for r in results]


def unsure(results: list[FrameResult]) -> list[FrameResult]:
    return [replace(result, confidence=0.001 * result.confidence) for result in results]


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (wandering, "consecutive frames are inconsistent"),
        (breathing, "consecutive frames are inconsistent"),
        (unsure, "almost all depth has low confidence"),
    ],
)
def test_what_is_wrong_is_told_within_ten_frames_and_taken_back(spoil: Spoil, why: str) -> None:
    results = walk(range(60))
    results[20:40] = spoil(results[20:40])
    watch, told = HealthMonitor(), []
    for result in results:
        watch.judge(result)
        told.append(watch.notice)
    assert told[:20] == [None] * 20
    assert all(told[29:40]) and told[29] == f"low tracking quality since 0:02: {why}"
    assert told[-1] is None
    (span,) = watch.summary()["weak"]
    assert span["first"] in (20, 21) and 40 <= span["last"] <= 48 and span["why"] == why
    assert watch.summary()["weak_frames"] == span["frames"]


def test_one_bad_frame_is_nothing_to_tell() -> None:
    results = walk(range(30))
    results[15] = turned(results[15], 90)
    watch, values = judged(results)
    assert min(values[14:16]) < 0.2 and min(values[17:]) > 0.85 and watch.summary()["weak"] == []


def test_a_new_stretch_is_not_held_against_the_one_before() -> None:
    results = walk([*range(10), *range(40, 50)])
    results[10:] = [replace(result, segment=1) for result in results[10:]]
    watch = HealthMonitor()
    values = [watch.judge(result) for result in results]
    assert [n for n, value in enumerate(values) if value is None] == [0, 10]
    assert min(value for value in values if value is not None) > 0.85


def test_values_that_no_network_should_give_are_zero_and_raise_nothing() -> None:
    good, nan = walk(range(2)), np.float32(np.nan)
    bad = [
        replace(good[1], depth=np.full_like(good[1].depth, nan)),
        replace(good[1], depth=np.zeros_like(good[1].depth)),
        replace(good[1], T_world_camera=np.full((4, 4), np.nan)),
        replace(good[1], confidence=np.full_like(good[1].confidence, nan)),
    ]
    for result in bad:
        watch = HealthMonitor()
        watch.judge(good[0])
        assert watch.judge(result) == 0.0


def test_a_run_that_is_gone_on_with_counts_on() -> None:
    results = walk(range(60))
    results[20:40] = wandering(results[20:40])
    whole, _ = judged(results)
    first, _ = judged(results[:45])
    told = json.loads(json.dumps(first.summary()))
    second = HealthMonitor(low_quality_intervals(told))
    for result in results[45:]:
        second.judge(result)
    assert second.summary()["weak"] == whole.summary()["weak"]
    for damaged in ({}, {"weak": 3}, {"weak": [{"first": 1}]}, {"weak": [5]}):
        assert low_quality_intervals(damaged) == []


def test_a_run_without_end_keeps_the_latest_spans() -> None:
    watch = HealthMonitor(
        [LowQualityInterval(n, n, float(n), float(n), 1, "x") for n in range(3 * DEFAULT_HEALTH.max_intervals)]
    )
    assert [span["first"] for span in watch.summary()["weak"]] == list(
        range(2 * DEFAULT_HEALTH.max_intervals, 3 * DEFAULT_HEALTH.max_intervals)
    )


def test_clock() -> None:
    assert [clock(s) for s in (0, 41.9, 60, 3723)] == ["0:00", "0:41", "1:00", "1:02:03"]


class Room(FakeEngine):
    """The room, and from frame 20 on nonsense."""

    def push(self, frame: PreparedFrame) -> list[FrameResult]:
        return [self._of(result) for result in super().push(frame)]

    def _of(self, result: FrameResult) -> FrameResult:
        pose: NDArray[np.float64] = room_result(result.index).T_world_camera
        room = room_result(result.index, pose, size=result.depth.shape[::-1])
        room = turned(room, 40 * (result.index % 3 - 1)) if result.index >= 20 else room
        return replace(result, T_world_camera=room.T_world_camera, depth=room.depth, rgb=room.rgb)


def test_it_is_in_the_files_and_told_while_it_lasts(tmp_path: Path) -> None:
    class Watching(RunObserver):
        def on_progress(self, progress: Progress) -> None:
            seen.append(progress)

    seen: list[Progress] = []
    with open_source(str(write_video(tmp_path / "a.mp4", 40))) as source:
        engine = Room(seconds=0.02)
        summary = reconstruct(source, engine, ResultWriter(tmp_path / "out", run_info()), observer=Watching())
    result = read_result(tmp_path / "out")
    values = [camera.health for camera in result.cameras]
    assert values[0] is None and all(value is not None and 0 <= value <= 1 for value in values[1:])
    assert result.run["health"] == summary.health
    (span,) = summary.health["weak"]
    assert span["first"] - 20 <= DEFAULT_HEALTH.window and span["last"] == 39
    assert seen[-1].notice is not None and seen[-1].notice.startswith("low tracking quality since 0:0")
    assert [r.health for r in result][5] == values[5]
