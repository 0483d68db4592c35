"""A frame whose step fails does not count."""

from collections.abc import Sequence

import pytest

from stream_recon.app.core.types import FrameResult, PreparedFrame
from stream_recon.app.engine.session import StreamingSession
from tests.app.fake_engine import fake_preset, fake_result, frames


class FailingSession(StreamingSession):
    fails = False

    def _begin_stream(self, frames: Sequence[PreparedFrame]) -> list[FrameResult]:
        return [self._advance(frame) for frame in frames]

    def _advance(self, frame: PreparedFrame) -> FrameResult:
        if self.fails:
            self.fails = False
            raise MemoryError
        return fake_result(frame)


def test_after_an_error_the_same_frame_gives_what_it_would_have_given() -> None:
    session, indices = FailingSession(fake_preset()), []
    for frame in frames(12):
        for fails in (True, False):
            session.fails = fails
            try:
                indices += [result.index for result in session.push(frame)]
            except MemoryError:
                continue
            break
    assert indices == list(range(12)) and session.submaps == 1


def test_the_end_may_be_tried_again() -> None:
    session = FailingSession(fake_preset())
    assert [session.push(frame) for frame in frames(3)] == [[]] * 3
    session.fails = True
    with pytest.raises(MemoryError):
        session.finish()
    assert len(session.finish()) == 3
