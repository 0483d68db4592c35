"""Scene nodes of the viewer: points of a chunk, camera frusta, sparse map points and loops. Each sends only changes."""

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.transforms import quaternion_xyzw
from stream_recon.app.core.types import Intrinsics
from stream_recon.app.viewer.chunks import Chunk
from stream_recon.app.viewer.points import PointOptions, RankedPoints
from stream_recon.app.viewer.timeline import Timeline, TimelineView

EMPHASIS = 1.6
"""Size of the current and the selected frustum, relative to others."""
POINT = (255, 224, 92)
LOOP = (255, 72, 176)
MAX_POINTS = 100_000
"""Sparse points sent to a client, subsampled evenly: more than that is slow to draw and adds no structure."""
POINT_SIZE = 0.006
"""Size of a sparse point, as a share of the typical depth."""
HALF_STEPS = 1024
"""Voxels from the origin up to which half precision, with its 11 bits, resolves half a voxel."""


def wxyz(R: NDArray[np.float64]) -> NDArray[np.float64]:
    """Quaternions [n, 4] of rotations [n, 3, 3] in viser's order; a batch costs little more than one."""
    return np.roll(quaternion_xyzw(R), 1, axis=-1)


def precision_of(points: RankedPoints, voxel: float) -> Literal["float16", "float32"]:
    """Precision that keeps points [N, 3] within half a voxel."""
    return "float16" if float(np.abs(points.xyz).max()) <= HALF_STEPS * voxel else "float32"


class ChunkNode:
    """The points of a chunk, sent again only if they or the filter changed."""

    def __init__(self, server: Any, chunk: Chunk) -> None:
        self._server = server
        self._name = f"/points/{chunk.first}"
        self.handle: Any = None
        self.sent = 0
        """Number of times that points were sent."""
        self.shown = 0
        """Number of points that clients show."""
        self._signature: tuple[int, int, int] | None = None
        self._S_sent = chunk.S_world_chunk

    def sync(self, chunk: Chunk, quaternion: NDArray[np.float64], options: PointOptions) -> None:
        """Send changes. ``quaternion``: the chunk's rotation (`wxyz`)."""
        signature = chunk.signature(options)
        if signature != self._signature:
            self._signature = signature
            self._send(chunk, quaternion, chunk.points.filtered(options), options.size)
        if self.handle is None:
            return
        if self._S_sent is not chunk.S_world_chunk:
            self._S_sent = S = chunk.S_world_chunk
            self.handle.wxyz, self.handle.position, self.handle.scale = quaternion, S.translation, S.scale
        self.handle.point_size = chunk.voxel * options.size

    def _send(self, chunk: Chunk, quaternion: NDArray[np.float64], points: RankedPoints, point_size: float) -> None:
        self.shown = len(points)
        if not len(points):
            self.remove()
            return
        self._S_sent = S = chunk.S_world_chunk
        # A node of the same name replaces the old one; an update would stay in the server's memory with the old points.
        self.handle = self._server.scene.add_point_cloud(
            self._name,
            points.xyz,
            points.rgb,
            point_size=chunk.voxel * point_size,  # the client multiplies it by the scale
            point_shape="rounded",
            point_shading="flat",
            precision=precision_of(points, chunk.voxel),
            scale=S.scale,
            wxyz=quaternion,
            position=S.translation,
        )
        self.sent += 1

    def remove(self) -> None:
        if self.handle is not None:
            self.handle.remove()
            self.handle = None


class Frustum:
    """One camera; its image is sent again only if it changed."""

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
        quaternion: NDArray[np.float64],
        size: float,
    ) -> None:
        """Send changes. ``quaternion``: the pose's rotation (`wxyz`)."""
        fov, aspect = view.shape(camera)
        scale = size * (EMPHASIS if self._emphasis else 1.0)
        moved = self._pose is None or not np.array_equal(self._pose, T_world_camera)
        shape = (fov, aspect, scale)
        if self.handle is not None and self._view is view:
            if moved:
                self.handle.wxyz, self.handle.position = quaternion, T_world_camera[:3, 3]
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
            wxyz=quaternion,
            position=T_world_camera[:3, 3].copy(),
            cast_shadow=False,
            receive_shadow=False,
        )

    def hide(self) -> None:
        if self.handle is not None:
            self.handle.remove()
            self.handle = None


@dataclass(frozen=True)
class MapLayer:
    """Sparse points and loops of the map."""

    points: NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, 3), np.float32))
    """Points [N, 3] in the world."""
    edges: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 2), np.int64))
    """Loops [E, 2]: pairs of frame indices in the source."""

    @property
    def empty(self) -> bool:
        return not len(self.points) and not len(self.edges)


class MapLayerNodes:
    """Nodes of a `MapLayer`; only what is switched on is sent."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self._points: Any = None
        self._sent: MapLayer | None = None
        self._loops: Any = None
        self._segments = np.zeros((0, 2, 3), np.float32)

    def sync(self, shown: MapLayer, timeline: Timeline, points: bool, loops: bool, typical_depth: float) -> None:
        """Send changes. ``points``, ``loops``: whether they are switched on."""
        self._sync_points(shown if points and len(shown.points) else None, typical_depth)
        segments = timeline.segments(shown.edges) if loops else np.zeros((0, 2, 3), np.float32)
        self._sync_loops(segments)

    def _sync_points(self, shown: MapLayer | None, typical_depth: float) -> None:
        if shown is not self._sent:
            self._sent = shown
            if self._points is not None:
                self._points.remove()
                self._points = None
            if shown is not None:
                xyz = shown.points[:: -(-len(shown.points) // MAX_POINTS)]
                self._points = self._server.scene.add_point_cloud(
                    "/map/points",
                    xyz,
                    POINT,
                    point_size=POINT_SIZE * typical_depth,
                    point_shape="circle",
                    precision="float32",
                )
        elif self._points is not None and self._points.point_size != POINT_SIZE * typical_depth:
            self._points.point_size = POINT_SIZE * typical_depth

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
