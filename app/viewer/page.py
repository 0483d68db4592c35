"""All that a page shows, brought up to date by whoever has the thread: no waiting, no locks."""

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

MENDED_POINTS = 50_000
"""Points, or little more, that an update may express anew after a revision: half a megabyte to each browser."""


class Page:
    """Timeline and store, and the scene and panel that follow them. Used from one thread."""

    def __init__(self, server: Any, points: PointsConfig, point_budget: int, events: PanelEvents) -> None:
        self._server = server
        self._points = points
        self._dress()
        self.store = ChunkStore(point_budget, points.voxel)
        self.timeline = Timeline()
        self.scene = ViewerScene(server)
        self.standpoints = ViewerCameras(server, self.timeline)
        self.landmarks = MapLayer()
        self.panel = ViewerPanel(server, round(100 * points.confidence_quantile), events)
        self.ended = False
        """Nothing more will come: whoever opens the page now sees all of it first."""

    def take_in(
        self, index: int, T_world_camera: NDArray[np.float64], intrinsics: Intrinsics, result: FrameResult | None
    ) -> None:
        """The next frame; without a ``result`` it has no points and no picture."""
        ordinal = self.timeline.add_frame(index, T_world_camera, intrinsics)
        self.store.add_frame(ordinal, self.timeline.poses[ordinal])
        if result is None:
            return
        if not self.timeline.views:
            seen = result.depth[np.isfinite(result.depth) & (result.depth > 0)]
            self.standpoints.start(ordinal, unit=float(np.median(seen)) if len(seen) else 1.0)
        if self.timeline.wants_view(ordinal):
            self.timeline.add_view(make_view(ordinal, result))
        self.store.add_points(ordinal, *ranked_points(result, self._points))

    def revise(self, revisions: list[Revision]) -> None:
        """Apply revisions that came one after another as one change."""
        named = np.unique(np.concatenate([self.timeline.revise(revision) for revision in revisions]))
        self.store.revise(named, self.timeline.placements(named), self.timeline.depth_fields[named])

    def update(self, status: str, skipped: int) -> bool:
        """Send what changed. True if points are left that a revision moved: for the next update."""
        self.store.settle()
        unfinished = self.store.mend(MENDED_POINTS)
        self.panel.show_frames(self.timeline, self.store.total)
        self.panel.offer_map(not self.landmarks.empty, self.timeline.revised)
        self.scene.sync(self.store, self.timeline, self.landmarks, self.panel.options(), self.standpoints.unit)
        if self.ended:
            self.standpoints.begin_with_all(self.store, self._beside())
        else:
            self.standpoints.clear_start(self.store)
        self.panel.show_status(self._describe(status, skipped))
        self._move_views()
        return unfinished

    def points(self) -> RankedPoints:
        """The points on the page, in world axes."""
        options = self.panel.options()
        return self.store.world_points(options.min_rank, options.last_frame)

    def show_all(self, client: Any) -> None:
        """Move a browser's view back until everything is in it."""
        self.panel.let_go()
        self.standpoints.show_all(client, self.store, self._beside())

    def _beside(self) -> NDArray[np.float32]:
        return self.scene.before.sample(self.store, self.timeline, OVERVIEW_POINTS)

    def _dress(self) -> None:
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
            self.standpoints.look(client, pose, back, lift)
