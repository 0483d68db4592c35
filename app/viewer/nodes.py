"""Nodes on the page: a chunk's points, a camera's frustum. Each remembers what was sent, and sends what changed."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.transforms import quaternion_xyzw
from stream_recon.app.core.types import Intrinsics
from stream_recon.app.viewer.chunks import Chunk
from stream_recon.app.viewer.points import RankedPoints
from stream_recon.app.viewer.timeline import TimelineView

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
