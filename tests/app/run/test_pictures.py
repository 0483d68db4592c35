"""What is wrong with the pictures of a run."""

import numpy as np
import pytest
from numpy.typing import NDArray

from stream_recon.app.run.pictures import PictureCheck
from tests.app.slam.room import ROOM, picture, pose, walk

Picture = NDArray[np.uint8]


def counted(pictures: list[Picture], is_whole: bool = True) -> dict[str, int]:
    check = PictureCheck()
    for each in pictures:
        check.count(each, is_whole)
    return check.summary()


@pytest.fixture(scope="module")
def walked() -> list[Picture]:
    return [picture(T)[0] for T in walk(12)]


def with_object(back: Picture, front: Picture) -> Picture:
    """Another picture in the middle, of half the width and height, down to the floor."""
    height, width = back.shape[:2]
    seen = back.copy()
    seen[height // 3 :, width // 4 : 3 * width // 4] = front[height // 3 :, width // 4 : 3 * width // 4]
    return seen


def test_a_camera_that_walks_is_not_still(walked: list[Picture]) -> None:
    counts = counted(walked)
    assert counts["judged"] == 12 and counts["still"] == counts["dark"] == counts["bare"] == 0


def test_something_that_turns_before_a_camera_leaves_it_still(walked: list[Picture]) -> None:
    stays = [picture(pose((0.0, 0.0, -1.0), 0.0), draw)[0] for draw in range(12)]
    turning = [with_object(back, front) for back, front in zip(stays, walked, strict=True)]
    assert counted(turning)["still"] == 11
    assert counted(turning, is_whole=False)["still"] == 0


def test_what_is_mounted_on_a_moving_camera_leaves_it_moving(walked: list[Picture]) -> None:
    bonnet = [each.copy() for each in walked]
    for each in bonnet:
        each[2 * each.shape[0] // 3 :] = walked[0][2 * each.shape[0] // 3 :]
    assert counted(bonnet)["still"] == 0


def test_a_camera_that_turns_on_the_spot_moves() -> None:
    turning = [picture(pose((0.0, 0.0, 0.0), 0.05 * k), room=ROOM)[0] for k in range(8)]
    assert counted(turning)["still"] == 0


def test_bad_pictures_are_counted(walked: list[Picture]) -> None:
    dark = [each // 8 for each in walked[:3]]
    bare = [np.full_like(walked[0], 170)] * 2
    counts = counted([*walked, *dark, *bare])
    assert (counts["judged"], counts["dark"], counts["bare"]) == (17, 3, 2)
