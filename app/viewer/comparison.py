"""The cloud and the trajectory as frames were first given out, beside what revisions have made of them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.transforms import transform_points
from stream_recon.app.viewer.chunks import Chunk, ChunkStore
from stream_recon.app.viewer.nodes import wxyz
from stream_recon.app.viewer.timeline import Timeline

PATH = (170, 170, 170)
GAP = 0.15
"""Between both clouds, as a share of the wider one's width."""
OUTSIDE = 0.02
"""Share of the points on either side that do not count for a cloud's width."""
SAMPLE = 20_000
MAX_PATH_VERTICES = 2000
LABELS = ("before", "after")


class ComparisonLayer:
    """Nodes on the page while the switch is on; each remembers what was sent."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self._nodes: dict[int, _BeforeChunk] = {}
        self._path: Any = None
        self._path_sent = np.zeros((0, 3), np.float32)
        self._labels: list[Any] = []
        self._shift = np.zeros(3)

    def sync(
        self, store: ChunkStore, timeline: Timeline, min_rank: int, last_frame: int | None, point_size: float
    ) -> None:
        """Bring the page in line; see `RankedPoints.shown` for the filter."""
        present = {chunk.first for chunk in store.chunks}
        for first in [f for f in self._nodes if f not in present]:
            self._nodes.pop(first).remove()
        self._place(store, timeline)
        for chunk in store.chunks:
            node = self._nodes.setdefault(chunk.first, _BeforeChunk(self._server, chunk.first))
            with self._server.atomic():
                node.sync(store, chunk, timeline, min_rank, last_frame, point_size, self._shift)
        self._sync_path(timeline.first_path(MAX_PATH_VERTICES) + self._shift.astype(np.float32))

    def hide(self) -> None:
        """Take all of it off the page."""
        for node in self._nodes.values():
            node.remove()
        for handle in (self._path, *self._labels):
            if handle is not None:
                handle.remove()
        self._nodes, self._path, self._labels = {}, None, []
        self._path_sent = np.zeros((0, 3), np.float32)

    def sample(self, store: ChunkStore, timeline: Timeline, count: int) -> NDArray[np.float32]:
        """About ``count`` of the points, and the trajectory, where they are shown [n, 3]; none while it is hidden."""
        if not self._nodes:
            return np.zeros((0, 3), np.float32)
        shown = np.concatenate([_sample(store, timeline, count), timeline.first_path(MAX_PATH_VERTICES)])
        return np.asarray(shown + self._shift, np.float32)

    def _place(self, store: ChunkStore, timeline: Timeline) -> None:
        """Find a place to the left of the cloud as it is now, seen from the first camera."""
        now, then = store.sample(SAMPLE), _sample(store, timeline, SAMPLE)
        if not len(now) or not len(then):
            return
        right = timeline.poses[0][:3, 0]
        (left, end), (begin, far) = (np.quantile(xyz @ right, [OUTSIDE, 1 - OUTSIDE]) for xyz in (now, then))
        room = GAP * max(end - left, far - begin)
        shift = (left - far - room) * right
        # Not at every small change: all chunks would move along.
        if self._labels and np.linalg.norm(shift - self._shift) < room / 2:
            return
        self._shift = shift
        up = -timeline.poses[0][:3, 1]
        for label in self._labels:
            label.remove()
        places = [np.median(then, axis=0) + shift, np.median(now, axis=0)]
        height = max(np.quantile(now @ up, 1 - OUTSIDE), np.quantile(then @ up, 1 - OUTSIDE)) + room / 3
        self._labels = [
            self._server.scene.add_label(f"/before/{text}", text, position=place + (height - place @ up) * up)
            for text, place in zip(LABELS, places, strict=True)
        ]

    def _sync_path(self, path: NDArray[np.float32]) -> None:
        if np.array_equal(path, self._path_sent) or len(path) < 2:
            return
        self._path_sent = path
        self._path = self._server.scene.add_line_segments(
            "/before/trajectory",
            np.stack([path[:-1], path[1:]], axis=1),
            PATH,
            thickness=3.0,
            thickness_units="screen",
        )


class _BeforeChunk:
    """A chunk's points where its frames were first placed."""

    def __init__(self, server: Any, first: int) -> None:
        self._server = server
        self._name = f"/before/points/{first}"
        self._handle: Any = None
        self._signature: tuple[int, int, int] | None = None

    def sync(
        self,
        store: ChunkStore,
        chunk: Chunk,
        timeline: Timeline,
        min_rank: int,
        last_frame: int | None,
        point_size: float,
        shift: NDArray[np.float64],
    ) -> None:
        last = chunk.last if last_frame is None else min(last_frame, chunk.last)
        signature = (chunk.version, min_rank, last)
        axes = timeline.first_poses[chunk.first]
        if signature != self._signature:
            self._signature = signature
            points = store.causal_points(chunk, timeline.first_poses, min_rank, last)
            self.remove()
            if not len(points):
                return
            self._signature = signature
            self._handle = self._server.scene.add_point_cloud(
                self._name,
                points.xyz,
                points.rgb,
                point_size=chunk.voxel * point_size,
                point_shape="rounded",
                point_shading="flat",
                precision="float16" if float(np.abs(points.xyz).max()) <= 1024 * chunk.voxel else "float32",
                wxyz=wxyz(axes[None, :3, :3])[0],
                position=axes[:3, 3] + shift,
            )
        if self._handle is not None:
            self._handle.position = axes[:3, 3] + shift
            self._handle.point_size = chunk.voxel * point_size

    def remove(self) -> None:
        if self._handle is not None:
            self._handle.remove()
        self._handle, self._signature = None, None


def _sample(store: ChunkStore, timeline: Timeline, count: int) -> NDArray[np.float32]:
    stride = max(1, store.total // count)
    parts = []
    for chunk in store.chunks:
        points = store.causal_points(chunk, timeline.first_poses, stride=stride)
        parts.append(transform_points(timeline.first_poses[chunk.first], points.xyz))
    return np.concatenate(parts) if parts else np.zeros((0, 3), np.float32)
