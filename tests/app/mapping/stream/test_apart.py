"""The stage in a process of its own: it says what the stage itself says, and its end is told."""

import gc
import os
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from stream_recon.app.mapping.stream.apart import StageApart
from stream_recon.app.mapping.stream.stage import Item, StreamStage
from stream_recon.app.results import FrameResult, PreparedFrame
from stream_recon.app.video.preprocess import grey_image
from stream_recon.configs.errors import ResourceError
from tests.app.mapping.room import Video, drifting, walk

FRAMES = 20


@pytest.fixture(scope="module")
def video() -> Video:
    truth = walk(40)[:FRAMES]
    return Video(truth, drifting(truth, turn_deg=0.8, move=0.25))


def pushed(video: Video, number: int) -> tuple[FrameResult, PreparedFrame]:
    result = video.results[number]
    return result, PreparedFrame(number, number / 10, result.rgb, result.transform, grey_image(video.pictures[number]))


def heard(video: Video, stage: StreamStage | StageApart) -> Iterator[Item]:
    for number in range(FRAMES):
        yield from stage.push(*pushed(video, number))
    yield from stage.finish()


def figures(item: Item) -> list[Any]:
    if isinstance(item, FrameResult):
        return [item.index, item.T_world_camera, item.depth, item.rgb, item.confidence, item.network is not None]
    return [part for frame in item.frames for part in (frame.index, frame.T_world_camera, frame.depth_scale)]


def test_it_says_the_same_in_the_same_order(video: Video) -> None:
    here, apart = StreamStage(together=4), StageApart(together=4)
    for one, other in zip(heard(video, here), heard(video, apart), strict=True):
        assert type(one) is type(other)
        for a, b in zip(figures(one), figures(other), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-9)
    assert apart.told == here.told and apart.figures == here.figures
    np.testing.assert_allclose(apart.sparse.points, here.sparse.points, rtol=1e-5, atol=1e-6)
    assert not apart._process.is_alive()


def test_ctrl_c_leaves_it_its_last_word(video: Video) -> None:
    stage = StageApart(together=4)
    items = list(stage.push(*pushed(video, 0)))
    assert stage._process.pid is not None
    os.kill(stage._process.pid, signal.SIGINT)
    items += stage.push(*pushed(video, 1))
    items += stage.finish()
    assert [item.index for item in items if isinstance(item, FrameResult)] == [0, 1]


def test_where_it_is_killed_there_is_a_word_to_the_user(video: Video) -> None:
    stage = StageApart()
    stage.push(*pushed(video, 0))
    stage._process.kill()
    with pytest.raises(ResourceError, match="--resume"):
        stage.finish()


def test_its_errors_are_raised_in_front(video: Video) -> None:
    stage = StageApart()
    result, frame = pushed(video, 0)
    with pytest.raises(AssertionError, match="grey"):
        stage.push(result, PreparedFrame(0, 0.0, frame.rgb, frame.transform))


def test_it_ends_with_whoever_asked() -> None:
    stage = StageApart()
    process = stage._process
    del stage
    gc.collect()
    process.join(20)
    assert not process.is_alive()
