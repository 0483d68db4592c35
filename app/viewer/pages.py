"""Pages of the viewer's clients: what each shows of the common scene, and its controls."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from viser import SceneNodeHandle

from stream_recon.app.viewer.cameras import ViewerCameras
from stream_recon.app.viewer.chunks import ChunkStore
from stream_recon.app.viewer.content import SceneContent
from stream_recon.app.viewer.nodes import Frustum, add_chunk_points, wxyz
from stream_recon.app.viewer.panel import PageOptions, PagePanel, PanelEvents
from stream_recon.app.viewer.points import HIDE_STEP, PointOptions, RankedPoints
from stream_recon.app.viewer.scene import FRUSTUM_SIZE, STEPS, ViewerScene
from stream_recon.app.viewer.timeline import Timeline
from stream_recon.app.viewer.tools import PageTools

SELECTED = (64, 200, 255)
STAND_IN_RANK = 40
"""Lowest rank of points that stand in for surfaces."""


@dataclass(frozen=True)
class ChunkPart:
    """Part of a step of confidence of a chunk that a page shows, with all that its points depend on."""

    first: int
    """Ordinal of the chunk's first frame."""
    step: int
    version: int
    """Version of the chunk."""
    last: int
    """Ordinal of the last frame whose points are shown."""
    min_rank: int
    scale: float
    """Scale of the chunk."""

    @property
    def name(self) -> str:
        """Name of the node that it replaces."""
        return f"/points/{self.step}/{self.first}"

    def points(self, store: ChunkStore) -> RankedPoints:
        points = store.chunk_of(self.first).points.step(self.step)
        return points.take(np.flatnonzero((points.frame <= self.last) & (points.rank >= self.min_rank)))


class PageScene:
    """Differences of one page from the common scene.

    A node of a page hides the common one of the same name, and with it the nodes below: an empty frame hides points,
    surfaces or cameras, and a filtered cloud replaces that of a chunk.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._hidden: dict[str, SceneNodeHandle] = {}
        self._replaced: dict[str, tuple[ChunkPart, SceneNodeHandle]] = {}
        self._parts: dict[str, ChunkPart] = {}
        """Nodes of which the page shows a part."""
        self._empty: set[str] = set()
        """Those of them of which nothing is left."""
        self._sizes: dict[str, tuple[int, float]] = {}
        self._selected = Frustum(client, "/selected", SELECTED, emphasis=True)

    def sync(
        self, scene: ViewerScene, store: ChunkStore, timeline: Timeline, options: PageOptions, typical_depth: float
    ) -> None:
        """Hide, replace and show what the options ask for."""
        min_rank = options.points.min_rank if options.shows_points else max(options.points.min_rank, STAND_IN_RANK)
        options = replace(options, points=replace(options.points, min_rank=min_rank))
        hidden = hidden_nodes(scene, store, options) | self._empty
        self._show_again(hidden)
        self._sync_parts(store, options.points, hidden)
        for name in sorted(hidden - set(self._hidden), key=len):
            self._hidden[name] = self._client.scene.add_frame(name, show_axes=False, visible=False)
        self._sync_size(scene, options.points.size)
        self._sync_selected(timeline, options.selected, typical_depth)

    def _show_again(self, hidden: set[str]) -> None:
        """Remove the frames that hide what is no longer hidden."""
        for name in sorted(self._hidden, key=len):
            if name in self._hidden and name not in hidden:
                self._hidden.pop(name).remove()
                # The page's nodes below go with it.
                for nodes in (self._hidden, self._replaced):
                    for below in [other for other in nodes if other.startswith(f"{name}/")]:
                        del nodes[below]

    def _sync_parts(self, store: ChunkStore, options: PointOptions, hidden: set[str]) -> None:
        """Replace nodes of which the options show a part; where no point is left, they are ``hidden``."""
        parts = {part.name: part for part in chunk_parts(store, options, hidden - self._empty)}
        for name in [name for name, (part, _) in self._replaced.items() if parts.get(name) != part]:
            self._replaced.pop(name)[1].remove()
        if parts != self._parts:
            self._parts, self._empty = parts, set()
        for name, part in parts.items():
            if name not in self._replaced and name not in self._empty:
                self._replace(name, part, store, options.size, hidden)
        for part, handle in self._replaced.values():
            size = store.chunk_of(part.first).voxel * options.size
            if handle.point_size != size:
                handle.point_size = size

    def _replace(self, name: str, part: ChunkPart, store: ChunkStore, size: float, hidden: set[str]) -> None:
        points, chunk = part.points(store), store.chunk_of(part.first)
        if not len(points):
            self._empty.add(name)
            hidden.add(name)
            return
        handle = add_chunk_points(self._client.scene, name, points, chunk, chunk.S_world_chunk, size)
        self._replaced[name] = part, handle
        hidden.discard(name)
        self._hidden.pop(name, None)  # the cloud has taken the place of its frame

    def _sync_size(self, scene: ViewerScene, size: float) -> None:
        """Give points another size than the common one, again after each time that they were sent."""
        for node in list(scene.nodes.values()):
            state = node.sent, size
            if node.handle is not None and self._sizes.get(node.name, (node.sent, 1.0)) != state:
                node.send_size(self._client, size)
                self._sizes[node.name] = state

    def _sync_selected(self, timeline: Timeline, selected: int | None, typical_depth: float) -> None:
        view = None if selected is None else timeline.nearest_view(selected)
        if view is None or selected is None or selected >= len(timeline):
            self._selected.remove()
            return
        pose = timeline.poses[selected]
        quaternion = wxyz(pose[None, :3, :3])[0]
        self._selected.show(view, timeline.intrinsics(selected), pose, quaternion, FRUSTUM_SIZE * typical_depth)


def hidden_nodes(scene: ViewerScene, store: ChunkStore, options: PageOptions) -> set[str]:
    """Names of the nodes of the common scene that a page hides."""
    min_rank, last = options.points.min_rank, options.points.last_frame
    shown = {
        "/points": options.shows_points or (options.shows_surfaces and bool(scene.bare)),
        "/surface": options.shows_surfaces,
        "/splats": options.shows_splats,
        "/cameras": options.cameras,
        "/path": options.path,
        "/map/points": options.matches,
        "/map/loops": options.loops,
        "/before": options.comparison,
    }
    for step in STEPS:
        shown[f"/points/{step}"] = step + HIDE_STEP > min_rank
        shown[f"/before/points/{step}"] = step + HIDE_STEP / 2 > min_rank
    hidden = {name for name, is_shown in shown.items() if not is_shown}
    if last is not None:
        hidden |= {f"/surface/{ordinal}" for ordinal in scene.surfaces if ordinal > last}
        hidden |= {f"/cameras/{ordinal}" for ordinal in scene.frusta if ordinal > last} | {"/cameras/current"}
        hidden |= _nodes_of(first for first in store.firsts if first > last)
    if not options.shows_points and scene.bare:
        # Surfaces alone: points stand in where limits have removed them.
        hidden |= _nodes_of(store.firsts - scene.bare)
    return hidden | scene.place.hidden(options.layers, scene.frame_nodes)


def _nodes_of(chunks: Iterable[int]) -> set[str]:
    """Names of the nodes of chunks, by their first frames."""
    return {f"/points/{step}/{first}" for first in chunks for step in STEPS}


def chunk_parts(store: ChunkStore, options: PointOptions, hidden: set[str]) -> Iterator[ChunkPart]:
    """The nodes of points of which the options show a part; none of the ``hidden`` ones."""
    limit = options.last_frame
    for chunk in store.chunks if "/points" not in hidden else []:
        last = chunk.last if limit is None else min(limit, chunk.last)
        is_cut = chunk.first <= last < chunk.last
        for step in STEPS:
            if step + HIDE_STEP > options.min_rank and (is_cut or step < options.min_rank):
                rank, scale = max(step, options.min_rank), float(chunk.S_world_chunk.scale)
                part = ChunkPart(chunk.first, step, chunk.version, last, rank, scale)
                if part.name not in hidden:
                    yield part


class Page:
    """One client: its handle, its controls, its scene and its tools."""

    def __init__(self, client: Any, events: PanelEvents, content: SceneContent, cameras: ViewerCameras) -> None:
        self.client = client
        self.panel = PagePanel(client, events)
        self.scene = PageScene(client)
        self.tools = PageTools(client, content, cameras, events, self.panel.options)
