"""Poses of a run for a path, in bounded memory."""

from collections.abc import Mapping

import numpy as np

from stream_recon.app.core.transforms import FloatArray
from stream_recon.app.core.types import FrameRevision

MAX_POSES = 4096
"""Most poses of a path; beyond it every second one is forgotten."""


class PoseHistory:
    """Poses of every n-th frame and of the last one; n doubles when there are too many."""

    def __init__(self, most: int = MAX_POSES) -> None:
        self._most = most
        self._every, self._count = 1, 0
        self._index: list[int] = []
        self._stamps: list[int] = []
        self._poses: list[FloatArray] = []

    def __len__(self) -> int:
        return len(self._index)

    def add(self, index: int, stamp_ns: int, T_world_camera: FloatArray) -> None:
        """Take the next frame's pose [4, 4]."""
        if self._count % self._every == 0 or not self._index:
            self._index.append(index)
            self._stamps.append(stamp_ns)
            self._poses.append(T_world_camera)
        self._count += 1
        if len(self._index) > self._most:
            self._index, self._stamps, self._poses = self._index[::2], self._stamps[::2], self._poses[::2]
            self._every *= 2

    def revise(self, frames: Mapping[int, FrameRevision]) -> None:
        """Replace the poses of frames, by index."""
        for row, index in enumerate(self._index):
            if index in frames:
                self._poses[row] = np.asarray(frames[index].T_world_camera, np.float64)

    @property
    def stamps_ns(self) -> tuple[int, ...]:
        return tuple(self._stamps)

    @property
    def poses(self) -> FloatArray:
        """The poses [N, 4, 4]."""
        return np.array(self._poses) if self._poses else np.zeros((0, 4, 4))
