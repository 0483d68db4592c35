"""Pages of the viewer's clients: what each shows of the common scene, and its controls."""

from dataclasses import replace
from typing import Any

import numpy as np
from viser import SceneNodeHandle

from stream_recon.app.core.transforms import quaternion_xyzw
from stream_recon.app.viewer.cameras import ViewerCameras
from stream_recon.app.viewer.chunks import ChunkStore
from stream_recon.app.viewer.content import SceneContent
from stream_recon.app.viewer.nodes import HALF_STEPS, Frustum, wxyz
from stream_recon.app.viewer.panel import PageOptions, PagePanel, PanelEvents
from stream_recon.app.viewer.points import HIDE_STEP, PointOptions
from stream_recon.app.viewer.scene import FRUSTUM_SIZE, STEPS, ViewerScene
from stream_recon.app.viewer.timeline import Timeline
from stream_recon.app.viewer.tools import PageTools

SELECTED = (64, 200, 255)


STAND_IN_RANK = 40
"""Lowest rank of points that stand in for surfaces."""
PartKey = tuple[int, int, int, float]
"""Version of a chunk, last frame and lowest rank of its shown part, and scale of the chunk."""


class PageScene:
    """Differences of one page from the common scene.

    A node of a page hides the common one of the same name, and with it the nodes below: an empty frame hides points,
    surfaces or cameras, and a filtered cloud replaces that of a chunk.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._hidden: dict[str, SceneNodeHandle] = {}
        self._replaced: dict[str, tuple[PartKey, SceneNodeHandle]] = {}
        self._cut: dict[str, PartKey] = {}
        """Nodes of which the page shows a part, with what it depends on."""
        self._empty: set[str] = set()
        """Those of them of which nothing is left."""
        self._sizes: dict[str, tuple[int, float]] = {}
        self._selected = Frustum(client, "/selected", SELECTED, emphasis=True)

    def sync(
        self, scene: ViewerScene, store: ChunkStore, timeline: Timeline, options: PageOptions, typical_depth: float
    ) -> None:
        """Hide, replace and show what the options ask for."""
        lowest = options.points.min_rank if options.shows_points else max(options.points.min_rank, STAND_IN_RANK)
        layers = {
            "/points": options.shows_points or (options.shows_surfaces and bool(scene.bare)),
            "/surface": options.shows_surfaces,
            "/splats": options.shows_splats,
            "/cameras": options.cameras,
            "/path": options.path,
            "/map/points": options.matches,
            "/map/loops": options.loops,
            "/before": options.comparison,
            **{f"/points/{step}": step + HIDE_STEP > lowest for step in STEPS},
            **{f"/before/points/{step}": step + HIDE_STEP / 2 > lowest for step in STEPS},
        }
        last = options.points.last_frame
        if last is not None:
            layers |= {f"/surface/{ordinal}": ordinal <= last for ordinal in scene.surfaces}
            layers |= {f"/cameras/{ordinal}": ordinal <= last for ordinal in scene.frusta}
            layers["/cameras/current"] = False
        hidden = {name for name, shown in layers.items() if not shown} | self._late_chunks(store, last) | self._empty
        hidden |= scene.place.hidden(options.layers, scene.frame_nodes)
        if not options.shows_points and scene.bare:
            # Surfaces alone: points stand in where limits have removed them.
            covered = [chunk.first for chunk in store.chunks if chunk.first not in scene.bare]
            hidden |= {f"/points/{step}/{first}" for first in covered for step in STEPS}
        for name in sorted(self._hidden, key=len):
            if name in self._hidden and name not in hidden:
                self._hidden.pop(name).remove()
                # The page's nodes below go with it.
                for below in [other for other in self._hidden if other.startswith(f"{name}/")]:
                    del self._hidden[below]
                for below in [other for other in self._replaced if other.startswith(f"{name}/")]:
                    del self._replaced[below]
        self._sync_chunks(store, replace(options.points, min_rank=lowest), hidden)
        for name in sorted(hidden - set(self._hidden), key=len):
            self._hidden[name] = self._client.scene.add_frame(name, show_axes=False, visible=False)
        self._sync_size(scene, options.points.size)
        self._sync_selected(timeline, options.selected, typical_depth)

    def _late_chunks(self, store: ChunkStore, last: int | None) -> set[str]:
        """Names of the chunks after frame ``last``."""
        late = [chunk for chunk in store.chunks if last is not None and chunk.first > last]
        return {f"/points/{step}/{chunk.first}" for chunk in late for step in STEPS}

    def _sync_chunks(self, store: ChunkStore, options: PointOptions, hidden: set[str]) -> None:
        """Replace nodes of which the options show a part; where no point is left, they are ``hidden``."""
        wanted: dict[str, PartKey] = {}
        limit = options.last_frame
        for chunk in store.chunks if "/points" not in hidden else []:
            for step in STEPS:
                if step + HIDE_STEP <= options.min_rank or f"/points/{step}/{chunk.first}" in hidden - self._empty:
                    continue
                is_cut = limit is not None and chunk.first <= limit < chunk.last
                if is_cut or step < options.min_rank:
                    last = chunk.last if limit is None else min(limit, chunk.last)
                    key = (chunk.version, last, max(step, options.min_rank), float(chunk.S_world_chunk.scale))
                    wanted[f"/points/{step}/{chunk.first}"] = key
        for name in [name for name, (key, _) in self._replaced.items() if wanted.get(name) != key]:
            self._replaced.pop(name)[1].remove()
        if wanted != self._cut:
            self._cut, self._empty = wanted, set()
        for name, key in wanted.items():
            if name in self._replaced or name in self._empty:
                continue
            lowest, first = (int(part) for part in name.split("/")[2:])
            chunk = store.chunk_of(first)
            points = chunk.points.step(lowest)
            points = points.take(np.flatnonzero((points.frame <= key[1]) & (points.rank >= key[2])))
            if not len(points):
                self._empty.add(name)
                hidden.add(name)
                continue
            S = chunk.S_world_chunk
            x, y, z, w = quaternion_xyzw(S.rotation[None])[0]
            half = float(np.abs(points.xyz).max()) <= HALF_STEPS * chunk.voxel
            handle = self._client.scene.add_point_cloud(
                name,
                points.xyz,
                points.rgb,
                point_size=chunk.voxel * options.size,
                point_shape="rounded",
                point_shading="flat",
                precision="float16" if half else "float32",
                scale=S.scale,
                wxyz=(w, x, y, z),
                position=S.translation,
            )
            self._replaced[name] = key, handle
            hidden.discard(name)
            self._hidden.pop(name, None)  # the cloud has taken the place of its frame
        for name, (_, handle) in self._replaced.items():
            size = store.chunk_of(int(name.split("/")[3])).voxel * options.size
            if handle.point_size != size:
                handle.point_size = size

    def _sync_size(self, scene: ViewerScene, size: float) -> None:
        """Give points another size than the common one, again after each time that they were sent."""
        for node in list(scene.nodes.values()):
            wanted = node.sent, size
            if node.handle is not None and self._sizes.get(node.name, (node.sent, 1.0)) != wanted:
                node.send_size(self._client, size)
                self._sizes[node.name] = wanted

    def _sync_selected(self, timeline: Timeline, selected: int | None, typical_depth: float) -> None:
        view = None if selected is None else timeline.nearest_view(selected)
        if view is None or selected is None or selected >= len(timeline):
            self._selected.remove()
            return
        pose = timeline.poses[selected]
        quaternion = wxyz(pose[None, :3, :3])[0]
        self._selected.show(view, timeline.intrinsics(selected), pose, quaternion, FRUSTUM_SIZE * typical_depth)


class Page:
    """One client: its handle, its controls, its scene and its tools."""

    def __init__(self, client: Any, events: PanelEvents, content: SceneContent, cameras: ViewerCameras) -> None:
        self.client = client
        self.panel = PagePanel(client, events)
        self.scene = PageScene(client)
        self.tools = PageTools(client, content, cameras, events, self.panel.options)
