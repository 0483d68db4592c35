"""Back end in a separate process: the same results, and errors where a process dies."""

import gc
import multiprocessing
import os
import signal
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np
import pytest

from stream_recon.app.core.types import FrameResult, PreparedFrame
from stream_recon.app.slam.online.back_end import Item, OnlineBackEnd
from stream_recon.app.slam.online.config import OnlineConfig
from stream_recon.app.slam.online.process import ProcessBackEnd
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


def started(**options: Any) -> tuple[ProcessBackEnd, list[BaseProcess]]:
    """A back end and its processes."""
    before = multiprocessing.active_children()
    back_end = ProcessBackEnd(**options)
    return back_end, [process for process in multiprocessing.active_children() if process not in before]


def heard(video: Video, back_end: OnlineBackEnd | ProcessBackEnd) -> Iterator[Item]:
    for number in range(FRAMES):
        yield from back_end.push(*pushed(video, number))
    yield from back_end.finish()


def figures(item: Item) -> list[Any]:
    if isinstance(item, FrameResult):
        return [item.index, item.T_world_camera, item.depth, item.rgb, item.confidence, item.network is not None]
    return [part for frame in item.frames for part in (frame.index, frame.T_world_camera, frame.depth_scale)]


@pytest.mark.slow
def test_it_gives_the_same_items_in_the_same_order(video: Video) -> None:
    here, (remote, processes) = OnlineBackEnd(prefill=4), started(prefill=4)
    for one, other in zip(heard(video, here), heard(video, remote), strict=True):
        assert type(one) is type(other)
        for a, b in zip(figures(one), figures(other), strict=True):
            np.testing.assert_array_equal(a, b)
    assert remote.status_line == here.status_line and remote.figures == here.figures
    np.testing.assert_array_equal(remote.sparse.points, here.sparse.points)
    assert not any(process.is_alive() for process in processes)


@pytest.mark.slow
def test_after_ctrl_c_it_still_finishes(video: Video) -> None:
    back_end, processes = started(prefill=4)
    items = list(back_end.push(*pushed(video, 0)))
    for process in processes:
        assert process.pid is not None
        os.kill(process.pid, signal.SIGINT)
    items += back_end.push(*pushed(video, 1))
    items += back_end.finish()
    assert [item.index for item in items if isinstance(item, FrameResult)] == [0, 1]


@pytest.mark.slow
@pytest.mark.parametrize("which", ["global-ba", "loops", "tracking"])
def test_a_killed_process_is_reported_to_the_user(video: Video, which: str) -> None:
    back_end, processes = started()
    [process] = [process for process in processes if process.name == which]
    back_end.push(*pushed(video, 0))
    process.kill()
    with pytest.raises(ResourceError, match="--resume"):
        for number in range(1, FRAMES):
            back_end.push(*pushed(video, number))
        back_end.finish()
    for process in processes:
        process.join(20)
        assert not process.is_alive(), "no process remains"


def test_its_errors_are_raised_in_the_main_process(video: Video) -> None:
    back_end = ProcessBackEnd()
    result, frame = pushed(video, 0)
    with pytest.raises(AssertionError, match="grey"):
        back_end.push(result, PreparedFrame(0, 0.0, frame.rgb, frame.transform))
        back_end.finish()


def test_the_processes_end_with_their_owner() -> None:
    back_end, processes = started()
    del back_end
    gc.collect()
    for process in processes:
        process.join(20)
        assert not process.is_alive()


@pytest.mark.slow
def test_a_file_is_not_waited_for_and_a_camera_is(video: Video) -> None:
    ahead = 2
    for live in (False, True):
        back_end = ProcessBackEnd(prefill=1, live=live, config=OnlineConfig(frames_ahead=ahead))
        given = [list(back_end.push(*pushed(video, number))) for number in range(6)]
        first = {item.index: number for number, items in enumerate(given) for item in items if hasattr(item, "index")}
        late = [first.get(number, 9) - number for number in range(6 - ahead)]
        assert max(late) <= (0 if live else ahead)
        back_end.finish()
