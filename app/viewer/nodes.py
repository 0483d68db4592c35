"""Scene nodes of the viewer: points, surfaces, camera frusta, matched points and loops. Each sends only changes."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from viser._messages import SceneNodeUpdateMessage

from stream_recon.app.core.transforms import Similarity, quaternion_xyzw
from stream_recon.app.core.types import Intrinsics
from stream_recon.app.viewer.chunks import Chunk
from stream_recon.app.viewer.points import RankedPoints
from stream_recon.app.viewer.surfaces import Surface
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


class Node:
    """A node of the scene, which exists while ``handle`` is not None. A node of the same name replaces it."""

    def __init__(self, server: Any, name: str) -> None:
        self.server, self.name = server, name
        self.handle: Any = None

    def remove(self) -> None:
        if self.handle is not None:
            self.handle.remove()
            self.handle = None


class ChunkNode(Node):
    """Points of a chunk, sent again only if they or the filter changed."""

    shown = 0
    """Number of points that clients show."""
    sent = 0
    """Number of times that points were sent."""
    _version = -1
    _S_sent: Similarity | None = None
    _point_size = 0.0

    def sync(
        self,
        chunk: Chunk,
        points: Callable[[], RankedPoints],
        S_world_chunk: Similarity,
        quaternion: NDArray[np.float64],
    ) -> None:
        """Send changes.

        Args:
            points: gives the points to show; called if the chunk's have changed.
            quaternion: rotation of ``S_world_chunk`` (`wxyz`).
        """
        S, self._point_size = S_world_chunk, chunk.voxel
        if chunk.version != self._version:
            self._version = chunk.version
            self._send(points(), chunk, S)
        if self.handle is None:
            return
        if self._S_sent is not S:
            self._S_sent = S
            self.handle.wxyz, self.handle.position, self.handle.scale = quaternion, S.translation, S.scale
        self.handle.point_size = chunk.voxel

    def send_size(self, client: Any, size: float) -> None:
        """Change the size of the points, in voxels, on one page."""
        updates = {"point_size": size * self._point_size}
        client.scene._websock_interface.queue_message(SceneNodeUpdateMessage(self.name, updates))

    def _send(self, points: RankedPoints, chunk: Chunk, S: Similarity) -> None:
        self.shown = len(points)
        if not len(points):
            self.remove()
            return
        self._S_sent = S
        # Replacement: an update would stay in the server's memory with the old points.
        self.handle = add_chunk_points(self.server.scene, self.name, points, chunk, S)
        self.sent += 1


def add_chunk_points(
    scene: Any, name: str, points: RankedPoints, chunk: Chunk, S_world_chunk: Similarity, size: float = 1.0
) -> Any:
    """Add points of a chunk to a scene of viser, each of a ``size`` in voxels."""
    return scene.add_point_cloud(
        name,
        points.xyz,
        points.rgb,
        point_size=chunk.voxel * size,  # the client multiplies it by the scale
        point_shape="rounded",
        point_shading="flat",
        # Half precision where it keeps points within half a voxel.
        precision="float16" if float(np.abs(points.xyz).max()) <= HALF_STEPS * chunk.voxel else "float32",
        scale=S_world_chunk.scale,
        wxyz=wxyz(S_world_chunk.rotation[None])[0],
        position=S_world_chunk.translation,
    )


class SurfaceNode(Node):
    """A keyframe's surface; the texture is sent again only if the triangles changed."""

    sent = 0
    """Number of times that the surface was sent."""
    _version = -1
    _placement: tuple[float, ...] = ()

    def sync(
        self, surface: Surface, timeline: Timeline, T_world_camera: NDArray[np.float64], quaternion: NDArray[np.float64]
    ) -> None:
        """Send changes. ``quaternion``: the pose's rotation (`wxyz`)."""
        x, y, z = surface.scale(timeline).tolist()
        placement = (x, y, z, *T_world_camera[:3].ravel().tolist())
        position = T_world_camera[:3, 3].copy()
        if surface.version != self._version:
            self._version, self._placement = surface.version, placement
            self.sent += 1
            self.handle = self.server.scene.add_glb(
                self.name, surface.triangles.glb(surface.jpeg), scale=(x, y, z), wxyz=quaternion, position=position,
                cast_shadow=False, receive_shadow=False,
            )  # fmt: skip
        elif placement != self._placement:
            if placement[:3] != self._placement[:3]:
                self.handle.scale = (x, y, z)
            self.handle.wxyz, self.handle.position = quaternion, position
            self._placement = placement


class LineNode(Node):
    """Line segments [n, 2, 3], sent again only if they changed."""

    _sent = np.zeros((0, 2, 3), np.float32)

    def sync(self, segments: NDArray[np.float32], colors: Any, thickness: float = 3.0) -> None:
        """Send changes; ``colors``: one, or those of all ends [n, 2, 3]."""
        if np.array_equal(segments, self._sent):
            return
        self._sent = segments
        if len(segments):
            self.handle = self.server.scene.add_line_segments(
                self.name, segments, colors, thickness=thickness, thickness_units="screen"
            )
        else:
            self.remove()

    def remove(self) -> None:
        super().remove()
        self._sent = LineNode._sent


def path_segments(path: NDArray[np.generic]) -> NDArray[Any]:
    """Segments [n - 1, 2, ...] between consecutive rows of ``path`` [n, ...]."""
    return np.stack([path[:-1], path[1:]], axis=1)


class Frustum(Node):
    """One camera; its image is sent again only if it changed."""

    def __init__(self, server: Any, name: str, color: tuple[int, int, int], *, emphasis: bool) -> None:
        super().__init__(server, name)
        self._color = color
        self._emphasis = emphasis
        self._view: TimelineView | None = None
        self._pose: NDArray[np.float64] | None = None
        self._shape: tuple[float, float, float] | None = None
        self._faint = False

    def show(
        self,
        view: TimelineView,
        camera: Intrinsics,
        T_world_camera: NDArray[np.float64],
        quaternion: NDArray[np.float64],
        size: float,
        *,
        faint: bool = False,
    ) -> None:
        """Send changes. ``quaternion``: the pose's rotation (`wxyz`); ``faint``: without its picture."""
        fov, aspect = view.shape(camera)
        scale = size * (EMPHASIS if self._emphasis else 1.0)
        moved = self._pose is None or not np.array_equal(self._pose, T_world_camera)
        shape = (fov, aspect, scale)
        if self.handle is not None and self._view is view and self._faint == faint:
            if moved:
                self.handle.wxyz, self.handle.position = quaternion, T_world_camera[:3, 3]
            if shape != self._shape:
                self.handle.fov, self.handle.aspect, self.handle.scale = shape
            self._pose, self._shape = T_world_camera.copy(), shape
            return
        self._view, self._pose, self._shape, self._faint = view, T_world_camera.copy(), shape, faint
        self.handle = self.server.scene.add_camera_frustum(
            self.name, fov, aspect, scale=scale, thickness=2.0 if self._emphasis else 1.0, thickness_units="screen",
            color=self._color, image=None if faint else view.image, jpeg_quality=80, wxyz=quaternion,
            position=T_world_camera[:3, 3].copy(), cast_shadow=False, receive_shadow=False,
        )  # fmt: skip


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
        self._points = Node(server, "/map/points")
        self._sent: MapLayer | None = None
        self._loops = LineNode(server, "/map/loops")

    def sync(self, shown: MapLayer, timeline: Timeline, points: bool, loops: bool, typical_depth: float) -> None:
        """Send changes. ``points``, ``loops``: whether they are switched on."""
        self._sync_points(shown if points and len(shown.points) else None, POINT_SIZE * typical_depth)
        segments = timeline.segments(shown.edges) if loops else np.zeros((0, 2, 3), np.float32)
        self._loops.sync(segments, LOOP, thickness=2.0)

    def _sync_points(self, shown: MapLayer | None, size: float) -> None:
        node = self._points
        if shown is not self._sent:
            self._sent = shown
            node.remove()
            if shown is not None:
                xyz = shown.points[:: -(-len(shown.points) // MAX_POINTS)]
                node.handle = node.server.scene.add_point_cloud(
                    node.name, xyz, POINT, point_size=size, point_shape="circle", precision="float32"
                )
        elif node.handle is not None and node.handle.point_size != size:
            node.handle.point_size = size
