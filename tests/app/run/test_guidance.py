"""Guidance of a person who scans: a line appears soon, one at a time, and goes again."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from stream_recon.app.result import causes
from stream_recon.app.run import guidance
from stream_recon.app.run.guidance import LOST, Guidance, GuidanceConfig
from stream_recon.app.run.pictures import FAST as TOO_FAST
from tests.app.boxroom import room_result

SAMPLE = Path(guidance.__file__).resolve().parents[1] / "sample" / "walkthrough.mp4"

DARK, BLURRED, BARE, FAST = (each.line for each in (causes.DARK, causes.BLURRED, causes.BARE, TOO_FAST))


class Phone:
    def __init__(self) -> None:
        self.said: list[str] = []
        self.said_at: list[int] = []
        self.frame = -1
        self.results: list[dict[str, Any]] = []

    def tell(self, message: dict[str, Any]) -> None:
        if message["type"] == "result":
            self.results.append(message)
            return
        self.said.append(message["text"])
        self.said_at.append(self.frame)


@pytest.fixture(scope="module")
def walk() -> list[NDArray[np.uint8]]:
    capture = cv2.VideoCapture(str(SAMPLE))
    frames = []
    while (step := capture.read())[0]:
        frames.append(np.asarray(cv2.cvtColor(step[1], cv2.COLOR_BGR2RGB), np.uint8))
    return frames


UNHURRIED = GuidanceConfig(min_seconds=0.0)


def watched(frames: list[NDArray[np.uint8]], config: GuidanceConfig = UNHURRIED) -> Phone:
    phone = Phone()
    watch = Guidance(phone.tell, config)
    for phone.frame, frame in enumerate(frames):
        watch.observe(phone.frame / 10, frame)
    return phone


def guided(frames: list[NDArray[np.uint8]]) -> list[str]:
    return watched(frames).said


def blurred(frame: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.asarray(cv2.blur(frame, (frame.shape[1] // 30, frame.shape[1] // 30)), np.uint8)


def test_an_ordinary_walk_needs_no_guidance(walk: list[NDArray[np.uint8]]) -> None:
    assert guided(walk) == []
    assert guided(walk[::2]) == []


@pytest.mark.parametrize("number", [10, 60, 100])
def test_each_fault_is_named_and_forgotten(walk: list[NDArray[np.uint8]], number: int) -> None:
    before, after = walk[number - 10 : number], walk[number + 6 : number + 16]
    middle = walk[number : number + 6]
    assert guided([*before, *map(blurred, middle), *after]) == [BLURRED, ""]
    assert guided([*before, *(frame // 8 for frame in middle), *after]) == [DARK, ""]
    grain = np.random.default_rng(0)
    wall = [grain.normal(170, 2, before[0].shape).clip(0, 255).astype(np.uint8) for _ in middle]
    assert guided([*before, *wall, *after]) == [BARE, ""]


@pytest.mark.parametrize("damage", [blurred, lambda frame: frame // 8], ids=["blurred", "dark"])
@pytest.mark.parametrize("number", [10, 60, 100])
def test_a_line_comes_with_the_second_bad_frame_and_goes_with_the_second_good_one(
    walk: list[NDArray[np.uint8]], damage: Callable[[NDArray[np.uint8]], NDArray[np.uint8]], number: int
) -> None:
    middle = [np.asarray(damage(frame), np.uint8) for frame in walk[number : number + 6]]
    phone = watched([*walk[number - 10 : number], *middle, *walk[number + 6 : number + 16]])
    assert phone.said_at == [11, 17]


def test_fast_turns_are_named(walk: list[NDArray[np.uint8]]) -> None:
    wide = np.concatenate([walk[30], walk[30][:, ::-1]], axis=1)
    width = walk[30].shape[1]
    fast = [wide[:, at : at + width] for at in range(0, width, width // 4)]
    slow = [wide[:, at : at + width] for at in range(0, width // 4, width // 40)]
    assert FAST in guided(fast)
    assert guided(slow) == []


def test_a_blur_from_the_first_frame_on(walk: list[NDArray[np.uint8]]) -> None:
    assert guided([blurred(blurred(frame)) for frame in walk[:6]]) == [BLURRED]


def test_a_lost_place_is_told_until_it_is_found() -> None:
    phone = Phone()
    watch = Guidance(phone.tell, UNHURRIED)
    healths = [None, *[0.8] * 6, *[0.05] * 8, *[0.9] * 8]
    for index, health in enumerate(healths):
        watch.add(replace(room_result(index, size=(28, 21)), health=health))
    assert phone.said == [LOST, ""]
    assert [(each["frame"], each["health"]) for each in phone.results] == list(enumerate(healths))
    assert [phone.results[at]["state"] for at in (0, 6, 10, -1)] == ["initialising", "tracking", "weak", "tracking"]


def test_a_new_segment_is_a_lost_place() -> None:
    phone = Phone()
    watch = Guidance(phone.tell, UNHURRIED)
    for index in range(12):
        watch.add(
            replace(room_result(index, size=(28, 21)), segment=int(index > 3), health=None if index == 4 else 0.8)
        )
    assert phone.said == [LOST, ""]


def test_a_line_stays_long_enough_to_be_read(walk: list[NDArray[np.uint8]]) -> None:
    frames = [*walk[:10], *(frame // 8 for frame in walk[10:14]), *walk[14:30]]
    assert watched(frames, GuidanceConfig(min_seconds=60.0)).said == [DARK]
