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
        self._rows: list[tuple[int, int, FloatArray]] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, index: int, stamp_ns: int, T_world_camera: FloatArray) -> None:
        """Take the next frame's pose [4, 4]."""
        if self._count % self._every == 0 or not self._rows:
            self._rows.append((index, stamp_ns, T_world_camera))
        self._count += 1
        if len(self._rows) > self._most:
            self._rows, self._every = self._rows[::2], 2 * self._every

    def revise(self, frames: Mapping[int, FrameRevision]) -> None:
        """Replace the poses of frames, by index."""
        for row, (index, stamp_ns, _) in enumerate(self._rows):
            if index in frames:
                self._rows[row] = index, stamp_ns, np.asarray(frames[index].T_world_camera, np.float64)

    @property
    def stamps_ns(self) -> tuple[int, ...]:
        return tuple(stamp_ns for _, stamp_ns, _ in self._rows)

    @property
    def poses(self) -> FloatArray:
        """The poses [N, 4, 4]."""
        return np.array([T for _, _, T in self._rows]) if self._rows else np.zeros((0, 4, 4))
