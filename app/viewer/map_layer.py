"""What a map stands on, as nodes on the page: its sparse points, and the pairs of frames that close a loop."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.viewer.timeline import Timeline

POINT = (255, 224, 92)
LOOP = (255, 72, 176)
MOST_POINTS = 100_000
"""Sent to a browser; of more, every second one, every third and so on."""
POINT_SIZE = 0.006
"""In units of the typical depth."""


@dataclass(frozen=True)
class MapLayer:
    """Of a whole map; none at first."""

    points: NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, 3), np.float32))
    """[N, 3], in the world."""
    edges: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 2), np.int64))
    """[E, 2], frames' numbers in their source."""

    @property
    def empty(self) -> bool:
        return not len(self.points) and not len(self.edges)


class MapLayerNodes:
    """Sends what changed, and only what is switched on."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self._points: Any = None
        self._sent: MapLayer | None = None
        self._loops: Any = None
        self._segments = np.zeros((0, 2, 3), np.float32)

    def sync(self, shown: MapLayer, timeline: Timeline, points: bool, loops: bool, unit: float) -> None:
        """``points``, ``loops``: which are switched on. ``unit``: the typical depth."""
        self._sync_points(shown if points and len(shown.points) else None, unit)
        segments = timeline.segments(shown.edges) if loops else np.zeros((0, 2, 3), np.float32)
        self._sync_loops(segments)

    def _sync_points(self, shown: MapLayer | None, unit: float) -> None:
        if shown is not self._sent:
            self._sent = shown
            if self._points is not None:
                self._points.remove()
                self._points = None
            if shown is not None:
                xyz = shown.points[:: -(-len(shown.points) // MOST_POINTS)]
                self._points = self._server.scene.add_point_cloud(
                    "/map/points", xyz, POINT, point_size=POINT_SIZE * unit, point_shape="circle", precision="float32"
                )
        elif self._points is not None and self._points.point_size != POINT_SIZE * unit:
            self._points.point_size = POINT_SIZE * unit

    def _sync_loops(self, segments: NDArray[np.float32]) -> None:
        if np.array_equal(segments, self._segments):
            return
        self._segments = segments
        if self._loops is not None:
            self._loops.remove()
            self._loops = None
        if len(segments):
            self._loops = self._server.scene.add_line_segments(
                "/map/loops", segments, LOOP, thickness=2.0, thickness_units="screen"
            )
