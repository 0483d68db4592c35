"""State of the viewer: timeline, points, surfaces, scene and pages, updated by one thread without locks."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.types import FrameResult, Intrinsics, Revision
from stream_recon.app.viewer.cameras import FOV, ViewerCameras
from stream_recon.app.viewer.chunks import ChunkStore
from stream_recon.app.viewer.content import SceneContent
from stream_recon.app.viewer.downloads import cut_cloud, cut_mesh
from stream_recon.app.viewer.measure import Unit
from stream_recon.app.viewer.nodes import MapLayer
from stream_recon.app.viewer.pages import Page
from stream_recon.app.viewer.panel import PageOptions, PanelEvents, SharedPanel, set_theme
from stream_recon.app.viewer.points import FILE_NAME, RankedPoints, ply_bytes, ranked_points, send_bytes
from stream_recon.app.viewer.scene import ViewerScene
from stream_recon.app.viewer.scene_mesh import SceneMesh
from stream_recon.app.viewer.splats import SplatLayer
from stream_recon.app.viewer.surfaces import SurfaceStore
from stream_recon.app.viewer.timeline import Timeline, make_view
from stream_recon.configs.schema import PointsConfig

POINTS_PER_UPDATE = 50_000
"""Points that an update recomputes after a revision, about: half a megabyte to each client."""
SURFACE_BYTES_PER_UPDATE = 1_000_000
"""Bytes of surfaces that an update sends again after a revision, about."""
MAX_CHUNKS = 32
"""Most chunks of points, each of which has a node for each step of confidence."""
IN_BOX = {"points": "Points in the box (PLY)", "mesh": "Mesh in the box (GLB)"}
"""Labels of downloads that a page's box cuts."""
COMPARED_POINTS = 20_000
"""Points of the comparison that 'Show all' takes in."""


class ViewerState:
    """Timeline, points and surfaces, and the scene and pages that follow them. Used from one thread."""

    def __init__(self, server: Any, points: PointsConfig, point_budget: int, events: PanelEvents) -> None:
        self._server = server
        self._points = points
        self._events = events
        self._configure_server()
        self.store = ChunkStore(point_budget, points.voxel, max_chunks=MAX_CHUNKS)
        self.timeline = Timeline()
        self.surfaces = SurfaceStore(self.timeline)
        self.scene = ViewerScene(server)
        self.splats = SplatLayer(server)
        self.cameras = ViewerCameras(server, self.timeline)
        self.cameras.on_misplaced = events.changed
        self.map_layer = MapLayer()
        self.content = SceneContent(self.timeline, self.store, self.surfaces, self.scene)
        self.unit = Unit()
        """Unit of the world."""
        self._saves = events.saves
        self.panel = SharedPanel(server, events.changed)
        self.pages: dict[int, Page] = {}
        """Pages by client id."""
        self.cloud_points: int | None = None
        """Number of points of the result's cloud."""
        self.labels: dict[str, str] = {}
        """Labels of download buttons that are not the usual ones."""
        self.ended = False
        """Whether the last frame was added."""
        self._framed_end = False
        self.follows = False
        """Whether new pages follow the camera."""
        server.on_client_connect(self._connect)
        server.on_client_disconnect(lambda client: self.pages.pop(client.client_id, None))

    def add_frame_result(
        self,
        index: int,
        T_world_camera: NDArray[np.float64],
        intrinsics: Intrinsics,
        result: FrameResult | None,
        image: NDArray[np.uint8] | None = None,
    ) -> None:
        """Add the next frame; without a ``result`` it has no points and no thumbnail.

        ``image``: the source's; None: the result's is the texture.
        """
        ordinal = self.timeline.add_frame(index, T_world_camera, intrinsics)
        self.store.add_frame(ordinal, self.timeline.poses[ordinal])
        if result is None:
            return
        if not self.timeline.views:
            depths = result.depth[np.isfinite(result.depth) & (result.depth > 0)]
            self.cameras.start(ordinal, typical_depth=float(np.median(depths)) if len(depths) else 1.0)
        if self.timeline.wants_view(ordinal):
            self.timeline.add_view(make_view(ordinal, result))
        self.store.add_points(ordinal, *ranked_points(result, self._points))
        if result.is_keyframe or not len(self.cameras.subject):
            self.cameras.subject.add(ordinal, result)
            if self.scene.mesh is None:
                self.surfaces.add(ordinal, result, result.rgb if image is None else image, causal=True)

    def show_dense(self, result: FrameResult, image: NDArray[np.uint8]) -> None:
        """Replace the surface of a frame that was added."""
        ordinal = self.timeline.ordinal(result.index)
        if ordinal is not None:
            self.surfaces.add(ordinal, result, image, causal=False)

    def revise(self, revisions: list[Revision]) -> None:
        """Apply consecutive revisions as one change."""
        named = np.unique(np.concatenate([self.timeline.revise(revision) for revision in revisions]))
        self.store.revise(named, self.timeline.point_transforms(named), self.timeline.depth_fields[named])
        self.surfaces.revise(named)

    def show_mesh(self, mesh: SceneMesh) -> None:
        """Show a mesh in place of the keyframes' surfaces."""
        self.scene.mesh = mesh
        self.surfaces.clear()
        self.cameras.surface_up = mesh.R_world_mesh[:, 1]

    def update(self, status: str, skipped: int, *, settled: bool = True) -> bool:
        """Send changes to the clients. True if revised points or surfaces are left for the next update.

        ``settled``: nothing else waits to be added.
        """
        self.store.merge_pending()
        unfinished = self.store.update_points(POINTS_PER_UPDATE)
        unfinished |= self.surfaces.update(SURFACE_BYTES_PER_UPDATE)
        present = self._server.get_clients()
        for client_id in [client_id for client_id in list(self.pages) if client_id not in present]:
            self.pages.pop(client_id, None)  # it left before it was taken in
        pages = list(self.pages.values())
        options = [page.panel.options() for page in pages]
        depth, mesh = self.cameras.typical_depth, self.scene.mesh
        self.scene.sync(self.store, self.surfaces, self.timeline, self.map_layer, options, depth)
        for page, chosen in zip(pages, options, strict=True):
            page.scene.sync(self.scene, self.store, self.timeline, chosen, depth)
            page.panel.show_frames(self.timeline)
            if page.panel.offer_splats(self.splats.count > 0):
                self.cameras.go_inside(page.client)
            page.panel.layers.offer(self.scene.place)
            page.panel.offer_map(not self.map_layer.empty, self.timeline.revised)
            late = mesh.title if mesh and mesh.rough and chosen.shows_surfaces else ""
            page.panel.show_counts(self._counts(chosen, skipped), late)
            page.panel.allow_hiding(chosen.shows_points or mesh is None)
            page.tools.sync(self.unit)
            page.panel.label_saves({**self._saves, **self.labels, **(IN_BOX if page.tools.box is not None else {})})
        self.panel.show_status(f"{status} · paused" if self.panel.paused else status)
        ended = self.ended and settled
        self.cameras.update(reframe=ended and not self._framed_end)
        self._framed_end |= ended
        self._move_views()
        return unfinished

    def send_made(self, kind: str, client: Any, cloud: Path | None) -> None:
        """Send a page its points, or what its box leaves of the result's cloud or mesh, or its floor plan.

        ``cloud``: the result's PLY file.
        """
        page = self.pages.get(client.client_id)
        if page is None:
            return
        box, name = page.tools.box, FILE_NAME
        try:
            if kind == "plan":
                content, name = page.tools.plan_picture(self.unit), "plan.png"
            elif kind == "mesh" and box is not None:
                if self.scene.mesh is None:
                    raise ValueError("there is no mesh yet; it is made at the end of the run")
                content, name = cut_mesh(self.scene.mesh, box, self.content.axes()), "mesh.glb"
            elif cloud is not None and box is not None:
                content = cut_cloud(cloud, box, self.content.axes())
            else:
                content = ply_bytes(self.points(page))
        except (OSError, ValueError) as error:
            client.add_notification("Not made", str(error), color="red")
            return
        send_bytes(client, content, name)

    def points(self, page: Page) -> RankedPoints:
        """The points that a page shows, in world axes."""
        points = self.store.world_points(page.panel.options().points)
        if page.tools.box is None:
            return points
        return points.take(np.flatnonzero(page.tools.box.contains(points.xyz, self.content.axes())))

    def show_all(self, client: Any) -> None:
        """Move a client's view back to the opening view."""
        page = self.pages.get(client.client_id)
        if page is not None:
            page.panel.release_view()
            page.tools.release_view()
            compared = np.zeros((0, 3), np.float32)
            if page.panel.options().comparison:
                compared = self.scene.comparison.sample(self.store, self.timeline, COMPARED_POINTS)
            self.cameras.show_all(client, compared)

    def _connect(self, client: Any) -> None:
        self.cameras.connect(client)
        page = self.pages[client.client_id] = Page(client, self._events, self.content, self.cameras)
        if self.follows:
            page.panel.start_following()
        self._events.changed()

    def _configure_server(self) -> None:
        server = self._server
        server.gui.set_panel_label("stream-recon")
        set_theme(server.gui, dark=True)
        server.scene.world_axes.visible = False
        server.scene.set_up_direction("-y")
        server.initial_camera.position, server.initial_camera.look_at = (0.0, -0.3, -0.6), (0.0, 0.0, 1.0)
        server.initial_camera.fov = FOV

    def _counts(self, options: PageOptions, skipped: int) -> str:
        """What a page shows, in one line."""
        parts: list[str] = []
        if self.content.is_empty:
            return "no frames yet"
        if options.shows_surfaces:
            count = len(self.surfaces.surfaces)
            parts.append(self.scene.mesh.title if self.scene.mesh else f"surfaces of {count:,} keyframes")
        if options.shows_points:
            shown = self.store.count(options.points)
            parts.append(count_text(shown, max(self.cloud_points or 0, shown)))
        if options.shows_splats:
            parts.append(f"{self.splats.count:,} of {self.splats.total:,} splats")
        line = f"showing {' and '.join(parts)} · {len(self.timeline):,} frames"
        return line + (f" · {skipped:,} without points, to keep up" if skipped else "")

    def _move_views(self) -> None:
        if not len(self.timeline):
            return
        for page in list(self.pages.values()):
            from_here = page.panel.from_here
            if from_here is not None:
                pose, back, lift = self.timeline.poses[min(from_here, len(self.timeline) - 1)], 0.0, 0.0
            elif page.panel.follow:
                pose, back, lift = self.timeline.poses[-1], 0.7, 0.3
            else:
                continue
            page.tools.release_view()
            self.cameras.look_from(page.client, pose, back, lift)


def count_text(shown: int, total: int) -> str:
    """A number of points, and of how many, such as "0.6 of 1.9 million points"."""
    if total >= 1_000_000:
        return f"{shown / 1e6:.1f} of {total / 1e6:.1f} million points"
    return f"{shown:,} of {total:,} points" if shown < total else f"{shown:,} points"
