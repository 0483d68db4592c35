"""A stage between engine and listeners: order, revisions, its own thread, errors, ends."""

import os
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from stream_recon.app.core.types import FrameResult, FrameRevision, PreparedFrame, Revision
from stream_recon.app.result.folder import read_result
from stream_recon.app.result.run_record import RunSummary
from stream_recon.app.result.writer import ResultWriter
from stream_recon.app.run.listeners import BackEnd, RunObserver
from stream_recon.app.run.pipeline import RunSetup, reconstruct
from stream_recon.app.sources.preprocess import GREY_SIDE
from stream_recon.app.sources.source import open_source
from stream_recon.configs.errors import InputError
from tests.app.fake_engine import FakeEngine, pose_at, run_info, trajectory_of
from tests.app.media import write_video

FRAMES = 30


class Listener:
    def __init__(self) -> None:
        self.heard: list[int | tuple[int, ...]] = []

    def add(self, result: FrameResult) -> None:
        self.heard.append(result.index)

    def revise(self, revision: Revision) -> None:
        self.heard.append(tuple(frame.index for frame in revision.frames))


def lifted(index: int, height: float) -> FrameRevision:
    T = pose_at(index)
    T[1, 3] = height
    return FrameRevision(index, T)


class LiftingStage:
    """Holds each result back until the next one is in, lifts the one before by 1, and all of them by 2 at the end."""

    status_line = "lifted"
    figures: ClassVar = {"lifted": True}

    def __init__(self, seconds: float = 0.0, *, wants_grey: bool = False) -> None:
        self.wants_grey = wants_grey
        self.seen: list[tuple[FrameResult, PreparedFrame]] = []
        self.threads: set[str] = set()
        self.finished = False
        self._seconds = seconds

    def push(self, result: FrameResult, frame: PreparedFrame) -> Sequence[FrameResult | Revision]:
        time.sleep(self._seconds)
        self.threads.add(threading.current_thread().name)
        self.seen.append((result, frame))
        if len(self.seen) == 1:
            return []
        before = self.seen[-2][0]
        return [before, Revision((lifted(before.index, 1.0),))]

    def finish(self) -> Sequence[FrameResult | Revision]:
        self.finished = True
        last = [self.seen[-1][0]] if self.seen else []
        return [*last, Revision(tuple(lifted(result.index, 2.0) for result, _ in self.seen))]


def run(
    tmp_path: Path, back_end: BackEnd, engine: FakeEngine | None = None, frames: int = FRAMES
) -> tuple[RunSummary, Listener]:
    listener = Listener()
    with open_source(str(write_video(tmp_path / "a.mp4", frames, size=(64, 48)))) as source:
        writer = ResultWriter(tmp_path / "out", run_info())
        summary = reconstruct(source, engine or FakeEngine(), writer, [listener], RunSetup(back_end))
    return summary, listener


def test_results_and_revisions_come_in_the_stages_order(tmp_path: Path) -> None:
    back_end = LiftingStage()
    summary, listener = run(tmp_path, back_end)
    expected: list[int | tuple[int, ...]] = []
    for index in range(FRAMES - 1):
        expected += [index, (index,)]
    assert listener.heard == [*expected, FRAMES - 1, tuple(range(FRAMES))]
    assert summary.frames_reconstructed == FRAMES and not summary.interrupted
    assert trajectory_of(tmp_path / "out")[:, 2] == pytest.approx(2.0)
    assert all(result.index == frame.index and frame.grey is None for result, frame in back_end.seen)
    assert len(back_end.threads) == 1 and threading.current_thread().name not in back_end.threads


def test_a_grey_image_is_made_only_where_it_is_wanted(tmp_path: Path) -> None:
    back_end = LiftingStage(wants_grey=True)
    with open_source(str(write_video(tmp_path / "b.mp4", 5, size=(1280, 720)))) as source:
        reconstruct(source, FakeEngine(), setup=RunSetup(back_end))
    for _, frame in back_end.seen:
        assert frame.grey is not None and frame.grey.dtype == np.uint8
        assert frame.grey.shape == (360, GREY_SIDE)
        # The same picture, darker and brighter in the same places.
        small = frame.grey[:: 360 // frame.rgb.shape[0], :: GREY_SIDE // frame.rgb.shape[1]]
        assert abs(float(small.mean()) - float(frame.rgb.mean())) < 12


def test_a_slow_stage_does_not_hold_up_the_latency_that_is_counted(tmp_path: Path) -> None:
    summary, _ = run(tmp_path, LiftingStage(seconds=0.02), frames=12)
    assert summary.latency_p50_ms is not None and summary.latency_p50_ms < 15


def test_a_stage_that_fails_keeps_what_came_out(tmp_path: Path) -> None:
    class Failing(LiftingStage):
        def push(self, result: FrameResult, frame: PreparedFrame) -> Sequence[FrameResult | Revision]:
            if result.index == 10:
                raise InputError("no map")
            return super().push(result, frame)

    others = threading.active_count()
    with pytest.raises(InputError, match="no map"):
        run(tmp_path, Failing(), FakeEngine(seconds=0.002), frames=200)
    result = read_result(tmp_path / "out")
    assert [camera.index for camera in result.cameras] == list(range(9))
    assert result.run["interrupted"] is True
    assert result.run["revisions"] == {"cameras": 9, "trajectory": 9, "points": 9}
    assert threading.active_count() <= others


def test_an_engine_that_fails_still_lets_the_stage_finish(tmp_path: Path) -> None:
    def fail(frame: PreparedFrame) -> None:
        if frame.index == 10:
            raise InputError("no frame")

    back_end = LiftingStage(seconds=0.005)
    with pytest.raises(InputError, match="no frame"):
        run(tmp_path, back_end, FakeEngine(before_push=fail))
    assert back_end.finished and trajectory_of(tmp_path / "out")[:, 2] == pytest.approx([2.0] * 10)


def test_a_second_ctrl_c_does_not_wait_for_the_stage(tmp_path: Path) -> None:
    def insist(frame: PreparedFrame) -> None:
        if frame.index == 9:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)

    back_end, begun = LiftingStage(seconds=0.2), time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, back_end, FakeEngine(before_push=insist))
    assert time.monotonic() - begun < 4 and not back_end.finished


def test_ctrl_c_while_the_cloud_is_built_anew_keeps_the_old_one(tmp_path: Path) -> None:
    class Interrupting(RunObserver):
        def on_step(self, step: str, done: int, total: int, note: str = "") -> None:
            assert total == 40
            if done == 5:
                os.kill(os.getpid(), signal.SIGINT)

    with open_source(str(write_video(tmp_path / "a.mp4", 40, size=(64, 48)))) as source:
        writer = ResultWriter(tmp_path / "out", run_info())
        summary = reconstruct(source, FakeEngine(), writer, setup=RunSetup(LiftingStage()), observer=Interrupting())
    assert summary.interrupted and summary.frames_reconstructed == 40 and "points.ply" in summary.warnings[-1]
    run = read_result(tmp_path / "out").run
    assert run["interrupted"] is True and run["revisions"] == {"cameras": 40, "trajectory": 40, "points": 0}
    assert trajectory_of(tmp_path / "out")[:, 2] == pytest.approx(2.0), "the cameras are the last ones"
    assert (tmp_path / "out" / "points.ply").stat().st_size > 10_000 and not list(tmp_path.rglob("*.part"))


def test_listeners_share_what_they_work_out_and_the_engine_does_not_keep_it(tmp_path: Path) -> None:
    given: list[FrameResult] = []
    heard: list[list[FrameResult]] = [[], []]

    class Keeping(FakeEngine):
        def push(self, frame: PreparedFrame) -> Sequence[FrameResult]:
            given.extend(results := super().push(frame))
            return results

    class Collecting(Listener):
        def __init__(self, place: list[FrameResult]) -> None:
            super().__init__()
            self.place = place

        def add(self, result: FrameResult) -> None:
            self.place.append(result)
            assert result.camera_points.shape == (*result.depth.shape, 3)

    with open_source(str(write_video(tmp_path / "a.mp4", 6, size=(64, 48)))) as source:
        reconstruct(source, Keeping(), None, [Collecting(place) for place in heard])
    assert len(given) == len(heard[0]) == 6
    for engines, first, second in zip(given, *heard, strict=True):
        assert first.camera_points is second.camera_points
        assert "camera_points" not in vars(engines) and first.index == engines.index


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Revision((lifted(99, 1.0),)),
        lambda: Revision((lifted(0, 1.0), lifted(0, 2.0))),
        lambda: Revision((FrameRevision(0, 2 * np.eye(4)),)),
        lambda: Revision((replace(lifted(0, 1.0), depth_scale=0.0),)),
    ],
)
def test_a_wrong_revision_is_caught_before_any_listener_hears_of_it(tmp_path: Path, wrong: object) -> None:
    class Wrong(LiftingStage):
        def finish(self) -> Sequence[FrameResult | Revision]:
            return [*super().finish()[:-1], wrong()]  # type: ignore[operator]

    with pytest.raises(AssertionError):
        run(tmp_path, Wrong(), frames=5)
    assert read_result(tmp_path / "out").run["interrupted"] is True
