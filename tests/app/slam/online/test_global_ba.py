"""Adjustments beside the stream: when they are taken in, and which."""

import time
from collections.abc import Sequence
from threading import Event
from typing import Any, cast

import numpy as np
import pytest

from stream_recon.app.slam.ba.problem import CameraModel
from stream_recon.app.slam.online import global_ba
from stream_recon.app.slam.online.global_ba import LATER, WAITED_FOR, Background, GlobalBA
from stream_recon.app.slam.online.keyframe import Keyframe
from stream_recon.app.slam.online.worker import ThreadWorker

LENS = CameraModel(100.0, 50.0, 40.0)


def keyframes(count: int, gain: float = 1.0) -> list[Keyframe]:
    none = np.zeros(0)
    return [
        Keyframe(
            number,
            np.eye(4),
            100.0,
            np.eye(4),
            0.0,
            none.astype(np.int64),
            none.reshape(0, 2),
            none,
            none,
            none,
            gain=gain,
        )
        for number in range(count)
    ]


def beside(*, waits: bool) -> Background:
    return Background(ThreadWorker(GlobalBA(), "whole"), waits=waits)


@pytest.fixture(autouse=True)
def adjusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is found is the gain of the keyframes that it is found of."""

    def fake(copies: Sequence[Keyframe], *_: object) -> Any:
        return copies[0].gain

    monkeypatch.setattr(global_ba, "whole", fake)


def test_few_keyframes_are_waited_for() -> None:
    background = beside(waits=True)
    background.begin(keyframes(WAITED_FOR - 1), LENS)
    assert background.collect(WAITED_FOR - 2) == (1.0, list(range(WAITED_FOR - 1)))
    assert background.collect(WAITED_FOR - 2) is None
    background.close()


def test_many_are_taken_in_at_the_same_keyframe_however_long_they_take() -> None:
    count = 2 * WAITED_FOR
    background = beside(waits=True)
    background.begin(keyframes(count), LENS)
    due = count - 1 + int(LATER * count)
    assert background._job is not None
    background._job.asked.future.result()
    assert all(background.collect(newest) is None for newest in range(count - 1, due))
    assert background.collect(due) == (1.0, list(range(count)))
    background.begin(keyframes(count), LENS)
    assert background.collect(count, wait=True) is not None, "at the end"
    background.close()


def test_what_moved_meanwhile_is_adjusted_anew() -> None:
    background = beside(waits=True)
    background.again(keyframes(5), LENS)
    assert background.collect(4) is None, "nothing was under way"
    background.begin(keyframes(2 * WAITED_FOR), LENS)
    background.again(keyframes(2 * WAITED_FOR, gain=2.0), LENS)
    found = background.collect(10**6)
    assert cast(float, found and found[0]) == 2.0
    assert background.collect(10**6) is None
    background.close()


def test_what_nobody_wants_any_more_is_told_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped, begun = [], Event()

    def endless(copies: Sequence[Keyframe], *given: Any) -> Any:
        begun.set()
        while not given[-1]() and copies[0].gain > 1:
            time.sleep(0.01)
        stopped.append(given[-1]())

    monkeypatch.setattr(global_ba, "whole", endless)
    background = beside(waits=True)
    background.begin(keyframes(5, gain=2.0), LENS)
    begun.wait()
    background.begin(keyframes(5), LENS)
    assert background.busy and background.collect(4) is None
    assert stopped == [True, False]
    background.begin(keyframes(5), LENS)
    background.drop()
    assert not background.busy and background.collect(10**6, wait=True) is None
    background.close()


def test_what_is_due_meanwhile_is_not_left_out_of_a_file() -> None:
    background = beside(waits=True)
    background.begin(keyframes(2 * WAITED_FOR), LENS)
    background.offer(keyframes(4 * WAITED_FOR), LENS)
    assert background.collect(10**6) == (1.0, list(range(2 * WAITED_FOR)))
    background.offer(keyframes(4 * WAITED_FOR), LENS)
    assert background.collect(10**6) == (1.0, list(range(4 * WAITED_FOR)))
    assert background.skipped == 0
    background.close()


def test_a_live_source_waits_for_nothing_and_counts_what_it_leaves_out() -> None:
    background = beside(waits=False)
    background.offer(keyframes(10), LENS)
    assert background._job is not None
    background.offer(keyframes(100), LENS)
    assert background.skipped == 1
    background._job.asked.future.result()
    assert background.collect(99) == (1.0, list(range(10)))
    background.close()
