"""Nodes on the page: a chunk's points, a camera's frustum. Each remembers what was sent, and sends what changed.

What a map stands on, as nodes on the page: its sparse points, and the pairs of frames that close a loop.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.transforms import quaternion_xyzw
from stream_recon.app.core.types import Intrinsics
from stream_recon.app.viewer.chunks import Chunk
from stream_recon.app.viewer.points import RankedPoints
from stream_recon.app.viewer.timeline import Timeline, TimelineView

EMPHASIS = 1.6
"""Size of a frustum that stands out, over that of the others."""


def wxyz(R: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rotations [n, 3, 3] as viser wants them [n, 4]; many at once cost little more than one."""
    return np.roll(quaternion_xyzw(R), 1, axis=-1)


class ChunkNode:
    """One point cloud; its points are sent again only if they or the filter changed."""

    def __init__(self, server: Any, chunk: Chunk) -> None:
        self._server = server
        self._name = f"/points/{chunk.first}"
        self.handle: Any = None
        self.sent = 0
        """Times that points were sent."""
        self.shown = 0
        self._signature: tuple[int, int, int] | None = None
        self._placed = chunk.S_world_chunk

    def sync(
        self, chunk: Chunk, turned: NDArray[np.float64], min_rank: int, last_frame: int | None, point_size: float
    ) -> None:
        """``turned``: the chunk's rotation (`wxyz`). ``point_size``: in voxels of the chunk. For the filter see
        `RankedPoints.shown`."""
        last = chunk.last if last_frame is None else min(last_frame, chunk.last)
        signature = (chunk.version, min_rank, last)
        if signature != self._signature:
            self._signature = signature
            self._send(chunk, turned, chunk.points.shown(min_rank, last), point_size)
        if self.handle is None:
            return
        if self._placed is not chunk.S_world_chunk:
            self._placed = S = chunk.S_world_chunk
            self.handle.wxyz, self.handle.position, self.handle.scale = turned, S.translation, S.scale
        self.handle.point_size = chunk.voxel * point_size

    def _send(self, chunk: Chunk, turned: NDArray[np.float64], points: RankedPoints, point_size: float) -> None:
        self.shown = len(points)
        if not len(points):
            self.remove()
            return
        # Half precision has 11 bits: beyond 1024 voxels from the origin its steps would exceed a voxel's half.
        near = float(np.abs(points.xyz).max()) <= 1024 * chunk.voxel
        self._placed = S = chunk.S_world_chunk
        # The same name replaces the node: an update would stay in the server's memory beside the first message.
        self.handle = self._server.scene.add_point_cloud(
            self._name,
            points.xyz,
            points.rgb,
            point_size=chunk.voxel * point_size,  # the page multiplies it by the scale
            point_shape="rounded",
            point_shading="flat",
            precision="float16" if near else "float32",
            scale=S.scale,
            wxyz=turned,
            position=S.translation,
        )
        self.sent += 1

    def remove(self) -> None:
        if self.handle is not None:
            self.handle.remove()
            self.handle = None


class Frustum:
    """One camera; its picture is sent again only if it is another one."""

    def __init__(self, server: Any, name: str, color: tuple[int, int, int], *, emphasis: bool) -> None:
        self._server = server
        self._name = name
        self._color = color
        self._emphasis = emphasis
        self._view: TimelineView | None = None
        self._pose: NDArray[np.float64] | None = None
        self._shape: tuple[float, float, float] | None = None
        self.handle: Any = None

    def show(
        self,
        view: TimelineView,
        camera: Intrinsics,
        T_world_camera: NDArray[np.float64],
        turned: NDArray[np.float64],
        size: float,
    ) -> None:
        """``turned``: the pose's rotation (`wxyz`)."""
        fov, aspect = view.shape(camera)
        scale = size * (EMPHASIS if self._emphasis else 1.0)
        moved = self._pose is None or not np.array_equal(self._pose, T_world_camera)
        shape = (fov, aspect, scale)
        if self.handle is not None and self._view is view:
            if moved:
                self.handle.wxyz, self.handle.position = turned, T_world_camera[:3, 3]
            if shape != self._shape:
                self.handle.fov, self.handle.aspect, self.handle.scale = shape
            self._pose, self._shape = T_world_camera.copy(), shape
            return
        self._view, self._pose, self._shape = view, T_world_camera.copy(), shape
        self.handle = self._server.scene.add_camera_frustum(
            self._name,
            fov,
            aspect,
            scale=scale,
            thickness=2.0 if self._emphasis else 1.0,
            thickness_units="screen",
            color=self._color,
            image=view.image,
            jpeg_quality=80,
            wxyz=turned,
            position=T_world_camera[:3, 3].copy(),
            cast_shadow=False,
            receive_shadow=False,
        )

    def hide(self) -> None:
        if self.handle is not None:
            self.handle.remove()
            self.handle = None


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
