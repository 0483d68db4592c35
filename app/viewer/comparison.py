"""Comparison layer: the causal cloud and trajectory to the left of the revised ones."""

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.per_frame_arrays import PerFrameArray
from stream_recon.app.core.transforms import Similarity, transform_points
from stream_recon.app.viewer.chunks import Chunk, ChunkStore
from stream_recon.app.viewer.nodes import ChunkNode, LineNode, path_segments, wxyz
from stream_recon.app.viewer.points import HIDE_STEP, RankedPoints
from stream_recon.app.viewer.timeline import Timeline

PATH = (170, 170, 170)
GAP = 0.15
"""Gap between both clouds, as a share of the wider one's width."""
OUTLIERS = 0.02
"""Share of the points on either side that does not count for a cloud's width."""
SAMPLE = 20_000
"""Points from which the clouds' widths are measured: enough for quantiles."""
MAX_PATH_VERTICES = 2000
"""Vertices of the trajectory, as in the scene."""
LABELS = ("before", "after")


class ComparisonLayer:
    """Nodes of the causal cloud while the switch is on; only changes are sent."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self._nodes: dict[tuple[int, int], ChunkNode] = {}
        self._path = LineNode(server, "/before/trajectory")
        self._labels: list[Any] = []
        self._offset = np.zeros(3)

    def sync(self, store: ChunkStore, timeline: Timeline) -> None:
        """Show the layer, or send its changes."""
        for key in [key for key in self._nodes if key[1] not in store.firsts]:
            self._nodes.pop(key).remove()
        self._update_offset(store, timeline)
        causal = timeline.causal_poses
        for chunk in store.chunks:
            axes = causal[chunk.first]
            S_world_chunk = Similarity(1.0, axes[:3, :3], axes[:3, 3] + self._offset)
            quaternion = wxyz(axes[None, :3, :3])[0]
            for step in range(0, 100, HIDE_STEP):
                name = f"/before/points/{step}/{chunk.first}"
                node = self._nodes.setdefault((step, chunk.first), ChunkNode(self._server, name))
                with self._server.atomic():
                    node.sync(chunk, partial(_causal_step, store, chunk, causal, step), S_world_chunk, quaternion)
        path = timeline.causal_path(MAX_PATH_VERTICES) + self._offset.astype(np.float32)
        self._path.sync(path_segments(path), PATH)

    def hide(self) -> None:
        """Remove the layer."""
        for node in (*self._nodes.values(), self._path, *self._labels):
            node.remove()
        self._nodes, self._labels = {}, []

    def sample(self, store: ChunkStore, timeline: Timeline, count: int) -> NDArray[np.float32]:
        """About ``count`` points and the trajectory, as shown [n, 3]; empty while the layer is hidden."""
        if not self._nodes:
            return np.zeros((0, 3), np.float32)
        shown = np.concatenate([_sample(store, timeline, count), timeline.causal_path(MAX_PATH_VERTICES)])
        return np.asarray(shown + self._offset, np.float32)

    def _update_offset(self, store: ChunkStore, timeline: Timeline) -> None:
        """Place the layer to the left of the revised cloud, seen from the first camera."""
        revised, causal = store.sample(SAMPLE), _sample(store, timeline, SAMPLE)
        if not len(revised) or not len(causal):
            return
        right = timeline.poses[0][:3, 0]
        quantiles = [OUTLIERS, 1 - OUTLIERS]
        (left, end), (begin, far) = (np.quantile(xyz @ right, quantiles) for xyz in (revised, causal))
        gap = GAP * max(end - left, far - begin)
        offset = (left - far - gap) * right
        # Small changes are ignored: they would move all chunks.
        if self._labels and np.linalg.norm(offset - self._offset) < gap / 2:
            return
        self._offset = offset
        up = -timeline.poses[0][:3, 1]
        for label in self._labels:
            label.remove()
        centres = [np.median(causal, axis=0) + offset, np.median(revised, axis=0)]
        height = max(np.quantile(xyz @ up, 1 - OUTLIERS) for xyz in (revised, causal)) + gap / 3
        self._labels = [
            self._server.scene.add_label(f"/before/{text}", text, position=centre + (height - centre @ up) * up)
            for text, centre in zip(LABELS, centres, strict=True)
        ]


def _causal_step(store: ChunkStore, chunk: Chunk, causal_poses: PerFrameArray, step: int) -> RankedPoints:
    return store.causal_points(chunk, causal_poses).step(step)


def _sample(store: ChunkStore, timeline: Timeline, count: int) -> NDArray[np.float32]:
    stride = max(1, store.total // count)
    parts = []
    for chunk in store.chunks:
        points = store.causal_points(chunk, timeline.causal_poses, stride=stride)
        parts.append(transform_points(timeline.causal_poses[chunk.first], points.xyz))
    return np.concatenate(parts) if parts else np.zeros((0, 3), np.float32)
