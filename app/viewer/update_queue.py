"""Queue between a run and the viewer's thread, with a bound on its memory."""

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.types import FrameResult, Intrinsics, Revision

MAX_WAITING_RESULTS = 16
"""Results with points that may wait; bounds their memory to some tens of megabytes."""


@dataclass(eq=False)
class FrameUpdate:
    """A frame for the viewer. ``result`` is dropped if the viewer is too slow; the camera is kept."""

    index: int
    T_world_camera: NDArray[np.float64]
    intrinsics: Intrinsics
    is_keyframe: bool
    result: FrameResult | None
    image: NDArray[np.uint8] | None = None
    """The source's image [H, W, 3], reduced; None: it is not known."""


@dataclass(frozen=True, eq=False)
class DenseUpdate:
    """A better depth map of a frame, and its image."""

    result: FrameResult
    image: NDArray[np.uint8]


class UpdateQueue:
    """Bounded queue of frames, dense depth maps and revisions. Not thread-safe: the viewer's lock guards it."""

    def __init__(self) -> None:
        self.skipped = 0
        """Number of frames whose points were dropped."""
        self._waiting: deque[FrameUpdate | DenseUpdate | Revision] = deque()
        self._with_points: deque[FrameUpdate] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def has_room(self) -> bool:
        """Whether adding a result would drop no points."""
        return len(self._with_points) < MAX_WAITING_RESULTS

    @property
    def dense_is_full(self) -> bool:
        """Whether adding a dense depth map would drop one."""
        return sum(isinstance(item, DenseUpdate) for item in self._waiting) >= MAX_WAITING_RESULTS

    def add_result(self, result: FrameResult, image: NDArray[np.uint8] | None = None) -> None:
        """Add a result. If too many wait, the oldest non-keyframe, or else the oldest, loses its points."""
        pose, camera = result.T_world_camera, result.intrinsics
        update = FrameUpdate(result.index, pose, camera, result.is_keyframe, result, image)
        self._waiting.append(update)
        self._with_points.append(update)
        if len(self._with_points) > MAX_WAITING_RESULTS:
            dropped = next((u for u in self._with_points if not u.is_keyframe), self._with_points[0])
            self._with_points.remove(dropped)
            dropped.result = dropped.image = None
            self.skipped += 1

    def add_dense(self, update: DenseUpdate) -> None:
        """Add a dense depth map. If too many wait, the oldest of them is dropped."""
        if self.dense_is_full:
            self._waiting.remove(next(item for item in self._waiting if isinstance(item, DenseUpdate)))
        self._waiting.append(update)

    def add_revision(self, revision: Revision) -> None:
        self._waiting.append(revision)

    def take(self) -> FrameUpdate | DenseUpdate | list[Revision] | None:
        """Remove the next frame or dense map, or all revisions before the next of these; None if the queue is empty."""
        if not self._waiting:
            return None
        first = self._waiting.popleft()
        if isinstance(first, DenseUpdate):
            return first
        if isinstance(first, FrameUpdate):
            if first.result is not None:
                self._with_points.remove(first)
            return first
        revisions = [first]
        while self._waiting and isinstance(following := self._waiting[0], Revision):
            revisions.append(following)
            self._waiting.popleft()
        return revisions

    def clear(self) -> None:
        self._waiting.clear()
        self._with_points.clear()
