"""The viewer's 3D scene: chunks, trajectory and cameras as nodes of a viser server. Used from one thread."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.transforms import rotation_angle_deg
from stream_recon.app.viewer.chunks import ChunkStore
from stream_recon.app.viewer.comparison import ComparisonLayer
from stream_recon.app.viewer.nodes import ChunkNode, Frustum, MapLayer, MapLayerNodes, wxyz
from stream_recon.app.viewer.timeline import Timeline, TimelineView

CAMERA = (122, 132, 150)
CURRENT = (255, 176, 46)
SELECTED = (64, 200, 255)
PATH_COLORS = (np.array([52, 120, 246], np.float32), np.array([255, 176, 46], np.float32))
MAX_FRUSTA = 48
FRUSTUM_SIZE = 0.05
"""Depth of a frustum in units of the typical depth, as is the next."""
FRUSTUM_SPACING = 0.1
FRUSTUM_TURN_DEG = 30.0
MAX_PATH_VERTICES = 2000


@dataclass(frozen=True)
class SceneOptions:
    """What the panel asks for."""

    min_rank: int = 0
    """Points whose confidence rank (percent within their frame) is lower are hidden."""
    point_size: float = 1.0
    """Edge of a point in voxels of its chunk."""
    last_frame: int | None = None
    """Ordinal of the last frame whose points are shown; None: all."""
    selected: int | None = None
    """Ordinal of the frame picked with the scrubber."""
    cameras: bool = True
    path: bool = True
    landmarks: bool = False
    """A map's sparse points."""
    loops: bool = False
    before: bool = False
    """The cloud as first given out, beside what became of it."""


class ViewerScene:
    """Brings the page in line with the store and the timeline; sends only what changed."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self.nodes: dict[int, ChunkNode] = {}
        """Chunks on the page, by the ordinal of their first frame."""
        self.frusta: dict[int, Frustum] = {}
        self._current = Frustum(server, "/cameras/current", CURRENT, emphasis=True)
        self._selected = Frustum(server, "/cameras/selected", SELECTED, emphasis=True)
        self._path: Any = None
        self._path_sent = np.empty((0, 3), np.float32)
        self.landmarks = MapLayerNodes(server)
        self.before = ComparisonLayer(server)

    @property
    def shown(self) -> int:
        """Points on the page."""
        return sum(node.shown for node in self.nodes.values())

    def sync(
        self, store: ChunkStore, timeline: Timeline, landmarks: MapLayer, options: SceneOptions, unit: float
    ) -> None:
        """``unit``: the typical depth, which sizes of cameras follow."""
        # One atomic block a chunk: a node and its pose go together, yet no large batch holds up the rest.
        present = {chunk.first for chunk in store.chunks}
        for first in [f for f in self.nodes if f not in present]:
            self.nodes.pop(first).remove()
        turned = wxyz(np.array([chunk.S_world_chunk.rotation for chunk in store.chunks]).reshape(-1, 3, 3))
        for chunk, quaternion in zip(store.chunks, turned, strict=True):
            node = self.nodes.setdefault(chunk.first, ChunkNode(self._server, chunk))
            with self._server.atomic():
                node.sync(chunk, quaternion, options.min_rank, options.last_frame, options.point_size)
        with self._server.atomic():
            self._sync_path(timeline.path(MAX_PATH_VERTICES) if options.path else np.empty((0, 3), np.float32))
            self._sync_cameras(timeline, options, unit)
            self.landmarks.sync(landmarks, timeline, options.landmarks, options.loops, unit)
        if options.before:
            self.before.sync(store, timeline, options.min_rank, options.last_frame, options.point_size)
        else:
            self.before.hide()

    def _sync_path(self, path: NDArray[np.float32]) -> None:
        if np.array_equal(path, self._path_sent):
            return
        self._path_sent = path
        if len(path) < 2:
            if self._path is not None:
                self._path.remove()
                self._path = None
            return
        blend = np.linspace(0, 1, len(path), dtype=np.float32)[:, None]
        colors = ((1 - blend) * PATH_COLORS[0] + blend * PATH_COLORS[1]).astype(np.uint8)
        self._path = self._server.scene.add_line_segments(
            "/trajectory",
            np.stack([path[:-1], path[1:]], axis=1),
            np.stack([colors[:-1], colors[1:]], axis=1),
            thickness=3.0,
            thickness_units="screen",
        )

    def _sync_cameras(self, timeline: Timeline, options: SceneOptions, unit: float) -> None:
        wanted = _spaced_views(timeline, unit) if options.cameras else {}
        for ordinal in [o for o in self.frusta if o not in wanted]:
            self.frusta.pop(ordinal).hide()
        for ordinal in wanted:
            name = f"/cameras/{ordinal}"
            self.frusta.setdefault(ordinal, Frustum(self._server, name, CAMERA, emphasis=False))
        newest = len(timeline) - 1 if options.cameras and len(timeline) else None
        shown = [(self.frusta[ordinal], ordinal, view) for ordinal, view in wanted.items()]
        for frustum, picked in ((self._current, newest), (self._selected, options.selected)):
            view = None if picked is None else timeline.nearest_view(picked)
            if view is None or picked is None:
                frustum.hide()
            else:
                shown.append((frustum, picked, view))
        poses = timeline.poses[[ordinal for _, ordinal, _ in shown]]
        for (frustum, ordinal, view), pose, turned in zip(shown, poses, wxyz(poses[:, :3, :3]), strict=True):
            frustum.show(view, timeline.intrinsics(ordinal), pose, turned, FRUSTUM_SIZE * unit)


def _spaced_views(timeline: Timeline, unit: float) -> dict[int, TimelineView]:
    """Views whose cameras stand or look apart from the one before, so that a slow camera is no thicket."""
    chosen: dict[int, TimelineView] = {}
    last = None
    for view in timeline.thinned_views(MAX_FRUSTA):
        pose = timeline.poses[view.ordinal]
        if last is not None:
            away = float(np.linalg.norm(pose[:3, 3] - last[:3, 3]))
            turned = float(rotation_angle_deg(last[:3, :3].T @ pose[:3, :3]))
            if away < FRUSTUM_SPACING * unit and turned < FRUSTUM_TURN_DEG:
                continue
        chosen[view.ordinal] = view
        last = pose
    return chosen
