"""The stage in a process of its own: it says what the stage itself says, and its end is told."""

import gc
import os
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from stream_recon.app.core.types import FrameResult, PreparedFrame
from stream_recon.app.slam.online.process import ProcessStage
from stream_recon.app.slam.online.stage import Item, StreamStage
from stream_recon.app.sources.preprocess import grey_image
from stream_recon.configs.errors import ResourceError
from tests.app.slam.room import Video, drifting, walk

FRAMES = 20


@pytest.fixture(scope="module")
def video() -> Video:
    truth = walk(40)[:FRAMES]
    return Video(truth, drifting(truth, turn_deg=0.8, move=0.25))


def pushed(video: Video, number: int) -> tuple[FrameResult, PreparedFrame]:
    result = video.results[number]
    return result, PreparedFrame(number, number / 10, result.rgb, result.transform, grey_image(video.pictures[number]))


def heard(video: Video, stage: StreamStage | ProcessStage) -> Iterator[Item]:
    for number in range(FRAMES):
        yield from stage.push(*pushed(video, number))
    yield from stage.finish()


def figures(item: Item) -> list[Any]:
    if isinstance(item, FrameResult):
        return [item.index, item.T_world_camera, item.depth, item.rgb, item.confidence, item.network is not None]
    return [part for frame in item.frames for part in (frame.index, frame.T_world_camera, frame.depth_scale)]


def test_it_says_the_same_in_the_same_order(video: Video) -> None:
    here, remote = StreamStage(together=4), ProcessStage(together=4)
    for one, other in zip(heard(video, here), heard(video, remote), strict=True):
        assert type(one) is type(other)
        for a, b in zip(figures(one), figures(other), strict=True):
            np.testing.assert_array_equal(a, b)
    assert remote.told == here.told and remote.figures == here.figures
    np.testing.assert_array_equal(remote.sparse.points, here.sparse.points)
    assert not any(process.is_alive() for process in remote._processes)


def test_ctrl_c_leaves_it_its_last_word(video: Video) -> None:
    stage = ProcessStage(together=4)
    items = list(stage.push(*pushed(video, 0)))
    for process in stage._processes:
        assert process.pid is not None
        os.kill(process.pid, signal.SIGINT)
    items += stage.push(*pushed(video, 1))
    items += stage.finish()
    assert [item.index for item in items if isinstance(item, FrameResult)] == [0, 1]


@pytest.mark.parametrize("which", ["whole", "loops", "mapping"])
def test_where_one_is_killed_there_is_a_word_to_the_user(video: Video, which: str) -> None:
    stage = ProcessStage()
    [process] = [process for process in stage._processes if process.name == which]
    stage.push(*pushed(video, 0))
    process.kill()
    with pytest.raises(ResourceError, match="--resume"):
        for number in range(1, FRAMES):
            stage.push(*pushed(video, number))
        stage.finish()
    for process in stage._processes:
        process.join(20)
        assert not process.is_alive(), "nobody stays behind"


def test_its_errors_are_raised_in_front(video: Video) -> None:
    stage = ProcessStage()
    result, frame = pushed(video, 0)
    with pytest.raises(AssertionError, match="grey"):
        stage.push(result, PreparedFrame(0, 0.0, frame.rgb, frame.transform))
        stage.finish()


def test_it_ends_with_whoever_asked() -> None:
    stage = ProcessStage()
    processes = stage._processes
    del stage
    gc.collect()
    for process in processes:
        process.join(20)
        assert not process.is_alive()


def test_a_file_is_not_waited_for_and_a_camera_is(video: Video, monkeypatch: pytest.MonkeyPatch) -> None:
    ahead = 2
    monkeypatch.setattr("stream_recon.app.slam.online.process.AHEAD", ahead)
    for live in (False, True):
        stage = ProcessStage(together=1, live=live)
        given = [list(stage.push(*pushed(video, number))) for number in range(6)]
        first = {item.index: number for number, items in enumerate(given) for item in items if hasattr(item, "index")}
        late = [first.get(number, 9) - number for number in range(6 - ahead)]
        assert max(late) <= (0 if live else ahead)
        stage.finish()
