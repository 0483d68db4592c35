"""A viewer of a scan gets the points of keyframes alone."""

from dataclasses import replace
from typing import Any

import numpy as np

from stream_recon.app.core.types import FrameResult, Revision
from stream_recon.app.run.keyframe_points import KeyframePoints
from stream_recon.app.run.listeners import ImageListener
from tests.app.fake_engine import fake_result, frames, prepared


class Page:
    def __init__(self) -> None:
        self.results: list[FrameResult] = []
        self.others: list[Any] = []

    def add_image(self, index: int, image: Any) -> None:
        self.others.append((index, image))

    def add(self, result: FrameResult) -> None:
        self.results.append(result)

    def revise(self, revision: Revision) -> None:
        self.others.append(revision)


def test_other_frames_have_their_pose_and_picture_and_no_points() -> None:
    page = Page()
    listener = KeyframePoints(page)
    assert isinstance(listener, ImageListener)
    given = [
        replace(fake_result(prepared(frame)), is_keyframe=frame.index != 3, timestamp=0.2 * frame.index)
        for frame in frames(6)
    ]
    for result in given:
        listener.add(result)
    assert [bool((result.depth > 0).any()) for result in page.results] == [True, False, True, False, True, False]
    assert [result.is_keyframe for result in page.results] == [True, False, True, False, True, False]
    for before, after in zip(given, page.results, strict=True):
        assert (before.depth > 0).any()  # what others get is not changed
        assert np.array_equal(before.T_world_camera, after.T_world_camera) and before.rgb is after.rgb
    listener.add_image(0, given[0].rgb)
    listener.revise(Revision(()))
    assert len(page.others) == 2
