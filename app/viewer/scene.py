"""The viewer's 3D scene as nodes of a viser server, the same for all pages. Used from one thread.

What a page may hide has a parent of its own, see `PageScene`: points of a step of confidence ``/points/RANK``, surfaces
``/surface``, and so on. Matched points, loops and the comparison are there while a page shows them.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from stream_recon.app.core.transforms import quaternion_xyzw, rotation_angle_deg
from stream_recon.app.viewer.chunks import ChunkStore
from stream_recon.app.viewer.comparison import ComparisonLayer
from stream_recon.app.viewer.nodes import (
    ChunkNode,
    Frustum,
    LineNode,
    MapLayer,
    MapLayerNodes,
    SurfaceNode,
    path_segments,
    wxyz,
)
from stream_recon.app.viewer.panel import PageOptions
from stream_recon.app.viewer.place_layers import PlaceLayers
from stream_recon.app.viewer.points import HIDE_STEP
from stream_recon.app.viewer.scene_mesh import SceneMesh
from stream_recon.app.viewer.surfaces import SurfaceStore
from stream_recon.app.viewer.timeline import Timeline, TimelineView

CAMERA = (122, 132, 150)
CURRENT = (255, 176, 46)
PATH_COLORS = (np.array([52, 120, 246], np.float32), np.array([255, 176, 46], np.float32))
MAX_FRUSTA = 24
"""Frusta shown at once: each has a thumbnail to send, and more would hide the scene."""
FRUSTUM_SIZE = 0.035
"""Depth of a frustum, as a share of the typical depth."""
FRUSTUM_SPACING = 0.1
"""Distance between neighbouring frusta as a share of the typical depth, unless they differ in rotation."""
FRUSTUM_ROTATION_DEG = 30.0
"""Rotation from which on a frustum is shown however near the last one is."""
MAX_PATH_VERTICES = 2000
"""Vertices of the trajectory, which is sent again at every update."""
STEPS = tuple(range(0, 100, HIDE_STEP))
"""Lowest ranks of the steps of confidence."""


class ViewerScene:
    """Updates the scene from the stores and the timeline; sends only changes."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self.nodes: dict[tuple[int, int], ChunkNode] = {}
        """Nodes of points, by lowest rank and ordinal of the chunk's first frame."""
        self.surfaces: dict[int, SurfaceNode] = {}
        """Nodes of surfaces, by ordinal."""
        self.mesh: SceneMesh | None = None
        self.frusta: dict[int, Frustum] = {}
        self.bare: set[int] = set()
        """First frames of the chunks whose points stand for surfaces that there are not."""
        self._mesh_node: Any = None
        self._surface_states: dict[int, tuple[int, int]] = {}
        self._current = Frustum(server, "/cameras/current", CURRENT, emphasis=True)
        self._path = LineNode(server, "/path")
        self.map_nodes = MapLayerNodes(server)
        self.comparison = ComparisonLayer(server)
        self.place = PlaceLayers(server)

    @property
    def shown(self) -> int:
        """Number of points of all steps."""
        return sum(node.shown for node in self.nodes.values())

    @property
    def frame_nodes(self) -> list[str]:
        """Names of the nodes that belong to frames; each ends with the ordinal of one."""
        points = [node.name for node in self.nodes.values()]
        surfaces, cameras = (
            [f"/{kind}/{k}" for k in nodes] for kind, nodes in (("surface", self.surfaces), ("cameras", self.frusta))
        )
        return [*points, *surfaces, *cameras]

    def sync(
        self,
        store: ChunkStore,
        surfaces: SurfaceStore,
        timeline: Timeline,
        map_layer: MapLayer,
        pages: Sequence[PageOptions],
        typical_depth: float,
    ) -> None:
        """Send changes. ``pages``: the choices of all pages; ``typical_depth`` sets the size of cameras."""
        if self.mesh is None or any(page.shows_points for page in pages):
            self._sync_points(store)
        self._sync_surfaces(surfaces, timeline)
        bare = (chunk.first for chunk in store.chunks if surfaces.is_bare(chunk.first, chunk.last))
        self.bare = set(bare) if self.mesh is None and surfaces.dropped else set()
        with self._server.atomic():
            path = timeline.path(MAX_PATH_VERTICES)
            blend = np.linspace(0, 1, len(path), dtype=np.float32)[:, None]
            colors = ((1 - blend) * PATH_COLORS[0] + blend * PATH_COLORS[1]).astype(np.uint8)
            self._path.sync(path_segments(path), path_segments(colors))
            self._sync_cameras(timeline, typical_depth)
            matches, loops = any(page.matches for page in pages), any(page.loops for page in pages)
            self.map_nodes.sync(map_layer, timeline, matches, loops, typical_depth)
        if any(page.comparison for page in pages):
            self.comparison.sync(store, timeline)
        else:
            self.comparison.hide()

    def _sync_points(self, store: ChunkStore) -> None:
        # One atomic block per chunk: a node and its pose arrive together, and no large batch delays the rest.
        for key in [key for key in self.nodes if key[1] not in store.firsts]:
            self.nodes.pop(key).remove()
        quaternions = wxyz(np.array([chunk.S_world_chunk.rotation for chunk in store.chunks]).reshape(-1, 3, 3))
        for chunk, quaternion in zip(store.chunks, quaternions, strict=True):
            with self._server.atomic():
                for step in STEPS:
                    name = f"/points/{step}/{chunk.first}"
                    node = self.nodes.setdefault((step, chunk.first), ChunkNode(self._server, name))
                    node.sync(chunk, partial(chunk.points.step, step), chunk.S_world_chunk, quaternion)

    def _sync_surfaces(self, surfaces: SurfaceStore, timeline: Timeline) -> None:
        shown = {} if self.mesh is not None else surfaces.surfaces
        for ordinal in [o for o in self.surfaces if o not in shown]:
            self.surfaces.pop(ordinal).remove()
        # What was sent at this state of the timeline is as it should be.
        state = {ordinal: (timeline.revisions, surface.version) for ordinal, surface in shown.items()}
        ordinals = [o for o in shown if self._surface_states.get(o) != state[o] or o not in self.surfaces]
        self._surface_states = state
        if ordinals:
            poses = timeline.poses[np.array(ordinals, np.intp)]
            for ordinal, pose, quaternion in zip(ordinals, poses, wxyz(poses[:, :3, :3]), strict=True):
                node = self.surfaces.setdefault(ordinal, SurfaceNode(self._server, f"/surface/{ordinal}"))
                with self._server.atomic():
                    node.sync(shown[ordinal], timeline, pose, quaternion)
        if self.mesh is not None and self._mesh_node is not self.mesh:
            self._mesh_node = self.mesh
            x, y, z, w = quaternion_xyzw(self.mesh.R_world_mesh[None])[0]
            for name, content in (("/surface/rough", self.mesh.rough), ("/surface/mesh", self.mesh.glb)):
                if content is not None:
                    self._server.scene.add_glb(
                        name, content, wxyz=(w, x, y, z), cast_shadow=False, receive_shadow=False
                    )

    def _sync_cameras(self, timeline: Timeline, typical_depth: float) -> None:
        views = _spaced_views(timeline, typical_depth)
        for ordinal in [o for o in self.frusta if o not in views]:
            self.frusta.pop(ordinal).remove()
        for ordinal in views:
            name = f"/cameras/{ordinal}"
            self.frusta.setdefault(ordinal, Frustum(self._server, name, CAMERA, emphasis=False))
        shown = [(self.frusta[ordinal], ordinal, view) for ordinal, view in views.items()]
        newest, is_whole = len(timeline) - 1, self.mesh is not None  # then pictures would hide the subject
        view = timeline.nearest_view(newest) if newest >= 0 and not is_whole else None
        if view is None:
            self._current.remove()
        else:
            shown.append((self._current, newest, view))
        poses = timeline.poses[[ordinal for _, ordinal, _ in shown]]
        for (frustum, ordinal, view), pose, quaternion in zip(shown, poses, wxyz(poses[:, :3, :3]), strict=True):
            size = FRUSTUM_SIZE * typical_depth
            frustum.show(view, timeline.intrinsics(ordinal), pose, quaternion, size, faint=is_whole)


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
