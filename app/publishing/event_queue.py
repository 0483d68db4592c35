"""Bounded queue between a run and the publishing thread."""

from collections import deque
from dataclasses import dataclass

from stream_recon.app.core.types import FrameResult, FrameRevision, Revision
from stream_recon.app.publishing.frame_tree import Tracked

MAX_RESULTS = 4
"""Results with depth and image that may wait: of these, only the newest matter."""
MAX_FRAMES = 10_000
"""Frames that may wait with their poses: minutes of video."""


@dataclass(eq=False)
class FrameEvent:
    """A frame; ``result`` is dropped if publishing is too slow, its pose is kept."""

    tracked: Tracked
    result: FrameResult | None


@dataclass(eq=False)
class RevisionEvent:
    """Consecutive revisions as one, by frame index."""

    frames: dict[int, FrameRevision]


class EventQueue:
    """Queue of frames and revisions. Not thread-safe: the publisher's lock guards it."""

    def __init__(self) -> None:
        self.dropped_results = 0
        """Frames whose depth and image were dropped."""
        self._events: deque[FrameEvent | RevisionEvent] = deque()
        self._with_result: deque[FrameEvent] = deque()
        self._frames = 0

    def __len__(self) -> int:
        return len(self._events)

    @property
    def has_room(self) -> bool:
        """Whether adding a result would drop none."""
        return len(self._with_result) < MAX_RESULTS

    def add(self, tracked: Tracked, result: FrameResult | None) -> None:
        """Add a frame. If too many results wait, the oldest loses its depth and image."""
        event = FrameEvent(tracked, result)
        self._events.append(event)
        self._frames += 1
        if result is not None:
            self._with_result.append(event)
        if len(self._with_result) > MAX_RESULTS:
            self._with_result.popleft().result = None
            self.dropped_results += 1
        while self._frames > MAX_FRAMES:
            self._forget(self._events.popleft())

    def revise(self, revision: Revision) -> None:
        """Add a revision; consecutive ones become one."""
        frames = {frame.index: frame for frame in revision.frames}
        last = self._events[-1] if self._events else None
        if isinstance(last, RevisionEvent):
            last.frames |= frames
        else:
            self._events.append(RevisionEvent(frames))

    def take(self) -> FrameEvent | RevisionEvent | None:
        """Remove the next event; None if there is none."""
        if not self._events:
            return None
        event = self._events.popleft()
        self._forget(event)
        return event

    def clear(self) -> None:
        """Forget all events."""
        while self.take() is not None:
            pass

    def _forget(self, event: FrameEvent | RevisionEvent) -> None:
        if isinstance(event, FrameEvent):
            self._frames -= 1
            if event.result is not None:
                self._with_result.remove(event)
