"""A viewer of a scan gets the points of keyframes alone."""

from dataclasses import replace

import numpy as np

from stream_recon.app.core.types import Revision
from stream_recon.app.run.keyframe_points import KeyframePoints
from tests.app.fake_engine import fake_result, frames, prepared
from tests.app.page import Page


def test_other_frames_have_their_pose_and_picture_and_no_points() -> None:
    page = Page()
    listener = KeyframePoints(page)
    given = [
        replace(fake_result(prepared(frame)), is_keyframe=frame.index != 3, timestamp=0.2 * frame.index)
        for frame in frames(6)
    ]
    for result in given:
        listener.add(result)
    assert [bool((result.depth > 0).any()) for result in page.added] == [True, False, True, False, True, False]
    assert [result.is_keyframe for result in page.added] == [True, False, True, False, True, False]
    for before, after in zip(given, page.added, strict=True):
        assert (before.depth > 0).any()  # what others get is not changed
        assert np.array_equal(before.T_world_camera, after.T_world_camera) and before.rgb is after.rgb
    listener.add_image(0, given[0].rgb)
    listener.revise(Revision(()))
    assert len(page.images) == len(page.revisions) == 1
