"""State of the viewer: timeline, points, scene and panel, updated by one thread without locks."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.types import FrameResult, Intrinsics, Revision
from stream_recon.app.viewer.cameras import OVERVIEW_POINTS, ViewerCameras
from stream_recon.app.viewer.chunks import ChunkStore
from stream_recon.app.viewer.nodes import MapLayer
from stream_recon.app.viewer.panel import PanelEvents, ViewerPanel
from stream_recon.app.viewer.points import RankedPoints, ranked_points
from stream_recon.app.viewer.scene import ViewerScene
from stream_recon.app.viewer.timeline import Timeline, make_view
from stream_recon.configs.schema import PointsConfig

POINTS_PER_UPDATE = 50_000
"""Points that an update recomputes after a revision, about: half a megabyte to each client."""


class ViewerState:
    """Timeline and points, and the scene and panel that follow them. Used from one thread."""

    def __init__(self, server: Any, points: PointsConfig, point_budget: int, events: PanelEvents) -> None:
        self._server = server
        self._points = points
        self._configure_server()
        self.store = ChunkStore(point_budget, points.voxel)
        self.timeline = Timeline()
        self.scene = ViewerScene(server)
        self.cameras = ViewerCameras(server, self.timeline)
        self.map_layer = MapLayer()
        self.panel = ViewerPanel(server, round(100 * points.confidence), events)
        self.ended = False
        """Whether the last frame was added: new clients then start with the overview."""

    def add_frame_result(
        self, index: int, T_world_camera: NDArray[np.float64], intrinsics: Intrinsics, result: FrameResult | None
    ) -> None:
        """Add the next frame; without a ``result`` it has no points and no thumbnail."""
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

    def revise(self, revisions: list[Revision]) -> None:
        """Apply consecutive revisions as one change."""
        named = np.unique(np.concatenate([self.timeline.revise(revision) for revision in revisions]))
        self.store.revise(named, self.timeline.point_transforms(named), self.timeline.depth_fields[named])

    def update(self, status: str, skipped: int) -> bool:
        """Send changes to the clients. True if revised points are left for the next update."""
        self.store.merge_pending()
        unfinished = self.store.update_points(POINTS_PER_UPDATE)
        self.panel.show_frames(self.timeline, self.store.total)
        self.panel.offer_map(not self.map_layer.empty, self.timeline.revised)
        self.scene.sync(self.store, self.timeline, self.map_layer, self.panel.options(), self.cameras.typical_depth)
        if self.ended:
            self.cameras.start_with_overview(self.store, self._compared_points())
        else:
            self.cameras.update_start(self.store)
        self.panel.show_status(self._describe(status, skipped))
        self._move_views()
        return unfinished

    def points(self) -> RankedPoints:
        """The points that clients show, in world axes."""
        return self.store.world_points(self.panel.options().points)

    def show_all(self, client: Any) -> None:
        """Move a client's view until everything is in it."""
        self.panel.release_view()
        self.cameras.show_all(client, self.store, self._compared_points())

    def _compared_points(self) -> NDArray[np.float32]:
        return self.scene.comparison.sample(self.store, self.timeline, OVERVIEW_POINTS)

    def _configure_server(self) -> None:
        server = self._server
        server.gui.set_panel_label("stream-recon")
        server.gui.configure_theme(dark_mode=True, show_logo=False, show_share_button=False, brand_color=(82, 140, 255))
        server.scene.world_axes.visible = False
        server.scene.set_up_direction("-y")
        server.initial_camera.position, server.initial_camera.look_at = (0.0, -0.3, -0.6), (0.0, 0.0, 1.0)

    def _describe(self, status: str, skipped: int) -> str:
        counts = f"**{self.scene.shown:,}** points · **{len(self.timeline):,}** frames"
        if skipped:
            counts += f" · {skipped:,} without points, to keep up"
        if self.panel.paused:
            counts += " · paused"
        return f"{status}\n\n{counts}" if status else counts

    def _move_views(self) -> None:
        if not len(self.timeline):
            return
        from_here = self.panel.from_here
        if from_here is not None:
            pose, back, lift = self.timeline.poses[min(from_here, len(self.timeline) - 1)], 0.0, 0.0
        elif self.panel.follow:
            pose, back, lift = self.timeline.poses[-1], 0.7, 0.3
        else:
            return
        for client in self._server.get_clients().values():
            self.cameras.look_from(client, pose, back, lift)
