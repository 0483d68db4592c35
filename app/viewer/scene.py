"""The viewer's 3D scene: chunks, trajectory and cameras as nodes of a viser server. Used from one thread."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.transforms import rotation_angle_deg
from stream_recon.app.viewer.chunks import ChunkStore
from stream_recon.app.viewer.comparison import ComparisonLayer
from stream_recon.app.viewer.nodes import ChunkNode, Frustum, LineNode, MapLayer, MapLayerNodes, path_segments, wxyz
from stream_recon.app.viewer.points import ALL_POINTS, PointOptions
from stream_recon.app.viewer.timeline import Timeline, TimelineView

CAMERA = (122, 132, 150)
CURRENT = (255, 176, 46)
SELECTED = (64, 200, 255)
PATH_COLORS = (np.array([52, 120, 246], np.float32), np.array([255, 176, 46], np.float32))
MAX_FRUSTA = 48
"""Frusta shown at once: each has a thumbnail to send, and more would hide the cloud."""
FRUSTUM_SIZE = 0.05
"""Depth of a frustum, as a share of the typical depth."""
FRUSTUM_SPACING = 0.1
"""Distance between neighbouring frusta as a share of the typical depth, unless they differ in rotation."""
FRUSTUM_ROTATION_DEG = 30.0
"""Rotation from which on a frustum is shown however near the last one is."""
MAX_PATH_VERTICES = 2000
"""Vertices of the trajectory, which is sent again at every update."""


@dataclass(frozen=True)
class SceneOptions:
    """Choices of the panel."""

    points: PointOptions = ALL_POINTS
    selected: int | None = None
    """Ordinal of the frame chosen with the slider."""
    cameras: bool = True
    path: bool = True
    sparse_points: bool = False
    """Triangulated points of the map."""
    loops: bool = False
    comparison: bool = False
    """The causal cloud next to the revised one."""


class ViewerScene:
    """Updates the clients' scene from the store and the timeline; sends only changes."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self.nodes: dict[int, ChunkNode] = {}
        """Nodes of chunks, by the ordinal of the chunk's first frame."""
        self.frusta: dict[int, Frustum] = {}
        self._current = Frustum(server, "/cameras/current", CURRENT, emphasis=True)
        self._selected = Frustum(server, "/cameras/selected", SELECTED, emphasis=True)
        self._path = LineNode(server, "/trajectory")
        self.map_nodes = MapLayerNodes(server)
        self.comparison = ComparisonLayer(server)

    @property
    def shown(self) -> int:
        """Number of points that clients show."""
        return sum(node.shown for node in self.nodes.values())

    def sync(
        self, store: ChunkStore, timeline: Timeline, map_layer: MapLayer, options: SceneOptions, typical_depth: float
    ) -> None:
        """Send changes. ``typical_depth`` sets the size of cameras."""
        # One atomic block per chunk: a node and its pose arrive together, and no large batch delays the rest.
        present = {chunk.first for chunk in store.chunks}
        for first in [f for f in self.nodes if f not in present]:
            self.nodes.pop(first).remove()
        quaternions = wxyz(np.array([chunk.S_world_chunk.rotation for chunk in store.chunks]).reshape(-1, 3, 3))
        for chunk, quaternion in zip(store.chunks, quaternions, strict=True):
            node = self.nodes.setdefault(chunk.first, ChunkNode(self._server, f"/points/{chunk.first}"))
            shown = partial(chunk.points.filtered, options.points)
            with self._server.atomic():
                node.sync(chunk, options.points, shown, chunk.S_world_chunk, quaternion)
        with self._server.atomic():
            self._sync_path(timeline.path(MAX_PATH_VERTICES) if options.path else np.empty((0, 3), np.float32))
            self._sync_cameras(timeline, options, typical_depth)
            self.map_nodes.sync(map_layer, timeline, options.sparse_points, options.loops, typical_depth)
        if options.comparison:
            self.comparison.sync(store, timeline, options.points)
        else:
            self.comparison.hide()

    def _sync_path(self, path: NDArray[np.float32]) -> None:
        blend = np.linspace(0, 1, len(path), dtype=np.float32)[:, None]
        colors = ((1 - blend) * PATH_COLORS[0] + blend * PATH_COLORS[1]).astype(np.uint8)
        self._path.sync(path_segments(path), path_segments(colors))

    def _sync_cameras(self, timeline: Timeline, options: SceneOptions, typical_depth: float) -> None:
        wanted = _spaced_views(timeline, typical_depth) if options.cameras else {}
        for ordinal in [o for o in self.frusta if o not in wanted]:
            self.frusta.pop(ordinal).remove()
        for ordinal in wanted:
            name = f"/cameras/{ordinal}"
            self.frusta.setdefault(ordinal, Frustum(self._server, name, CAMERA, emphasis=False))
        newest = len(timeline) - 1 if options.cameras and len(timeline) else None
        shown = [(self.frusta[ordinal], ordinal, view) for ordinal, view in wanted.items()]
        for frustum, picked in ((self._current, newest), (self._selected, options.selected)):
            view = None if picked is None else timeline.nearest_view(picked)
            if view is None or picked is None:
                frustum.remove()
            else:
                shown.append((frustum, picked, view))
        poses = timeline.poses[[ordinal for _, ordinal, _ in shown]]
        for (frustum, ordinal, view), pose, quaternion in zip(shown, poses, wxyz(poses[:, :3, :3]), strict=True):
            frustum.show(view, timeline.intrinsics(ordinal), pose, quaternion, FRUSTUM_SIZE * typical_depth)


def _spaced_views(timeline: Timeline, typical_depth: float) -> dict[int, TimelineView]:
    """Views whose cameras differ in position or rotation from the one before, so that frusta do not crowd."""
    chosen: dict[int, TimelineView] = {}
    last = None
    for view in timeline.thinned_views(MAX_FRUSTA):
        pose = timeline.poses[view.ordinal]
        if last is not None:
            distance = float(np.linalg.norm(pose[:3, 3] - last[:3, 3]))
            rotation_deg = float(rotation_angle_deg(last[:3, :3].T @ pose[:3, :3]))
            if distance < FRUSTUM_SPACING * typical_depth and rotation_deg < FRUSTUM_ROTATION_DEG:
                continue
        chosen[view.ordinal] = view
        last = pose
    return chosen
