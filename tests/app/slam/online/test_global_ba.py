"""Scheduling of global adjustments: when results are applied, and which."""

import time
from collections.abc import Sequence
from threading import Event
from typing import Any, cast

import numpy as np
import pytest

from stream_recon.app.core.camera_model import CameraModel
from stream_recon.app.core.worker import StopTest, ThreadWorker
from stream_recon.app.slam.online.config import GlobalBAConfig, OnlineConfig
from stream_recon.app.slam.online.global_ba import GlobalBA, GlobalBAScheduler
from stream_recon.app.slam.online.keyframe import Keyframe

LENS = CameraModel(100.0, 50.0, 40.0)
FEW, DELAY = 59, 0.1
CONFIG = OnlineConfig(global_ba=GlobalBAConfig(delayed_from=FEW + 1, delay=DELAY))


def keyframes(count: int, marker: float = 1.0) -> list[Keyframe]:
    return [Keyframe(number, np.eye(4), 100.0, np.eye(4), np.log(marker)) for number in range(count)]


def scheduler(*, waits: bool) -> GlobalBAScheduler:
    return GlobalBAScheduler(ThreadWorker(GlobalBA(CONFIG), "global-ba"), waits=waits, config=CONFIG)


@pytest.fixture(autouse=True)
def adjusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The result is the marker of the keyframes."""

    def fake(_: GlobalBA, __: object, copies: Sequence[Keyframe], *___: object) -> Any:
        return float(np.exp(copies[0].log_scale))

    monkeypatch.setattr(GlobalBA, "adjust", fake)


def test_results_of_few_keyframes_are_applied_at_once() -> None:
    adjustments = scheduler(waits=True)
    adjustments.start(keyframes(FEW), LENS)
    assert adjustments.collect(FEW - 1) == (1.0, list(range(FEW)))
    assert adjustments.collect(FEW - 1) is None
    adjustments.close()


def test_results_of_many_are_applied_at_a_fixed_keyframe() -> None:
    count = 2 * FEW
    adjustments = scheduler(waits=True)
    adjustments.start(keyframes(count), LENS)
    due = count - 1 + int(DELAY * count)
    assert all(adjustments.collect(newest) is None for newest in range(count - 1, due))
    assert adjustments.collect(due) == (1.0, list(range(count)))
    adjustments.start(keyframes(count), LENS)
    assert adjustments.collect(count, wait=True) is not None, "at the end"
    adjustments.close()


def test_a_new_adjustment_replaces_a_running_one() -> None:
    adjustments = scheduler(waits=True)
    adjustments.start(keyframes(2 * FEW), LENS)
    adjustments.start(keyframes(2 * FEW, marker=2.0), LENS)
    found = adjustments.collect(10**6)
    assert cast(float, found and found[0]) == 2.0
    assert adjustments.collect(10**6) is None
    adjustments.close()


def test_a_replaced_adjustment_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped, begun = [], Event()

    def endless(_: GlobalBA, should_stop: StopTest, copies: Sequence[Keyframe], *__: object) -> Any:
        begun.set()
        while not should_stop() and copies[0].log_scale > 0:
            time.sleep(0.01)
        stopped.append(should_stop())

    monkeypatch.setattr(GlobalBA, "adjust", endless)
    adjustments = scheduler(waits=True)
    adjustments.start(keyframes(5, marker=2.0), LENS)
    begun.wait()
    adjustments.start(keyframes(5), LENS)
    assert adjustments.busy and adjustments.collect(4) is None
    assert stopped == [True, False]
    adjustments.start(keyframes(5), LENS)
    adjustments.cancel()
    assert not adjustments.busy and adjustments.collect(10**6, wait=True) is None
    adjustments.close()


def test_no_adjustment_of_a_file_is_skipped() -> None:
    adjustments = scheduler(waits=True)
    adjustments.start(keyframes(2 * FEW), LENS)
    adjustments.offer(keyframes(4 * FEW), LENS)
    assert adjustments.collect(10**6) == (1.0, list(range(2 * FEW)))
    adjustments.offer(keyframes(4 * FEW), LENS)
    assert adjustments.collect(10**6) == (1.0, list(range(4 * FEW)))
    assert adjustments.skipped == 0
    adjustments.close()


def test_it_can_be_switched_off() -> None:
    config = OnlineConfig(global_ba=GlobalBAConfig(is_enabled=False))
    adjustments = GlobalBAScheduler(ThreadWorker(GlobalBA(config), "global-ba"), waits=True, config=config)
    adjustments.offer(keyframes(10), LENS)
    assert not adjustments.busy
    adjustments.close()


def test_a_live_source_skips_adjustments_and_counts_them() -> None:
    adjustments = scheduler(waits=False)
    adjustments.offer(keyframes(10), LENS)
    assert adjustments.busy
    adjustments.offer(keyframes(100), LENS)
    assert adjustments.skipped == 1
    while (found := adjustments.collect(99)) is None:
        time.sleep(0.01)
    assert found == (1.0, list(range(10)))
    adjustments.close()
