"""What waits for the viewer's thread, and what is given up when it is too slow."""

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.types import FrameResult, Intrinsics, Revision

WAITING_RESULTS = 16
"""Results whose points may wait for the viewer."""


@dataclass(eq=False)
class FrameUpdate:
    """A frame on its way to the page; ``result`` is dropped if the viewer is too slow, the camera never is."""

    index: int
    T_world_camera: NDArray[np.float64]
    intrinsics: Intrinsics
    is_keyframe: bool
    result: FrameResult | None


class UpdateQueue:
    """Frames and revisions in the order in which they came. The viewer's lock guards it."""

    def __init__(self) -> None:
        self.skipped = 0
        """Frames whose points were given up."""
        self._waiting: deque[FrameUpdate | Revision] = deque()
        self._heavy: deque[FrameUpdate] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def has_room(self) -> bool:
        """Whether a result put in now would cost no points."""
        return len(self._heavy) < WAITING_RESULTS

    def put_result(self, result: FrameResult) -> None:
        """Take a result; where too many wait, one of them gives up its points, and keyframes the last."""
        arrival = FrameUpdate(result.index, result.T_world_camera, result.intrinsics, result.is_keyframe, result)
        self._waiting.append(arrival)
        self._heavy.append(arrival)
        if len(self._heavy) > WAITING_RESULTS:
            given_up = next((a for a in self._heavy if not a.is_keyframe), self._heavy[0])
            self._heavy.remove(given_up)
            given_up.result = None
            self.skipped += 1

    def put_revision(self, revision: Revision) -> None:
        self._waiting.append(revision)

    def take(self) -> FrameUpdate | list[Revision] | None:
        """The next frame, or all revisions up to the next frame; None if nothing waits."""
        if not self._waiting:
            return None
        first = self._waiting.popleft()
        if isinstance(first, FrameUpdate):
            if first.result is not None:
                self._heavy.remove(first)
            return first
        revisions = [first]
        while self._waiting and isinstance(following := self._waiting[0], Revision):
            revisions.append(following)
            self._waiting.popleft()
        return revisions

    def clear(self) -> None:
        self._waiting.clear()
        self._heavy.clear()
