"""Point rasterizer with depth test, and the scene that it draws."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.types import Intrinsics
from stream_recon.app.export.job import ExportJob
from stream_recon.app.export.points import ordered_points
from stream_recon.app.result.cameras import FrameCamera

LARGEST = 12
"""Half the side in pixels of the largest square of a point: near points would cover the image."""
BACKGROUND = (18, 20, 24)
"""Colour of pixels without points, nearly black."""


@dataclass(frozen=True)
class Points:
    """Coloured points [N] of a size, visible from one side only, so that rooms can be seen from outside."""

    xyz: NDArray[np.float32]  # [N, 3]
    rgb: NDArray[np.uint8]  # [N, 3]
    size: NDArray[np.float32]  # [N]
    side: NDArray[np.float32]  # [N, 3] direction to the observing camera, the visible side; 0: visible from all sides

    def joined(self, other: "Points") -> "Points":
        """The points of both."""
        return Points(*map(np.concatenate, zip(vars(self).values(), vars(other).values(), strict=True)))

    def first(self, count: int) -> "Points":
        return Points(self.xyz[:count], self.rgb[:count], self.size[:count], self.side[:count])


def draw(
    points: Points, T_camera_world: NDArray[np.float64], camera: Intrinsics, size: tuple[int, int], nearest: float
) -> NDArray[np.uint8]:
    """The image [h, w, 3] of a pinhole camera; points nearer than ``nearest`` are not drawn."""
    width, height = size
    T = T_camera_world.astype(np.float32)
    eye = -T[:3, :3].T @ T[:3, 3]
    facing = points.side @ eye - np.einsum("ni,ni->n", points.side, points.xyz) >= 0
    z = points.xyz @ T[2, :3] + T[2, 3]
    ahead = np.flatnonzero((z > nearest) & facing)
    local, z = points.xyz[ahead], z[ahead]
    column = np.float32(camera.fx) * (local @ T[0, :3] + T[0, 3]) / z + np.float32(camera.cx)
    row = np.float32(camera.fy) * (local @ T[1, :3] + T[1, 3]) / z + np.float32(camera.cy)
    half = np.float32(camera.fx / 2) * points.size[ahead] / z
    margin = LARGEST
    visible = (column > -margin) & (column < width + margin) & (row > -margin) & (row < height + margin)
    # From far to near, because of several points written to one pixel the last one stays.
    order = np.flatnonzero(visible)
    order = order[np.argsort(-z[order])]
    ahead, z = ahead[order], z[order]
    # A margin around the image makes clipping of squares unnecessary.
    stride = width + 2 * margin
    pixel = (np.floor(row[order]).astype(np.intp) + margin) * stride + np.floor(column[order]).astype(np.intp) + margin
    radius = np.rint(half[order]).clip(0, LARGEST).astype(np.intp)
    depth = np.full((height + 2 * margin) * stride, np.inf, np.float32)
    owner = np.full(len(depth), -1, np.intp)
    for ring in range(int(radius.max(initial=0)) + 1):
        large = radius >= ring
        pixel, ahead, z, radius = pixel[large], ahead[large], z[large], radius[large]
        for dy, dx in _ring(ring):
            target = pixel + (dy * stride + dx)
            # Squares at the border of the margin extend beyond it.
            nearer = np.flatnonzero((target >= 0) & (target < len(depth)))
            nearer = nearer[z[nearer] < depth[target[nearer]]]
            target = target[nearer]
            depth[target], owner[target] = z[nearer], ahead[nearer]
    image = np.empty((len(depth), 3), np.uint8)
    image[:] = BACKGROUND
    drawn = owner >= 0
    image[drawn] = points.rgb[owner[drawn]]
    return image.reshape(height + 2 * margin, stride, 3)[margin : margin + height, margin : margin + width]


def _ring(radius: int) -> list[tuple[int, int]]:
    """Offsets of the pixels on the border of a square from its centre."""
    span = range(-radius, radius + 1)
    return [(dy, dx) for dy in span for dx in span if max(abs(dy), abs(dx)) == radius]


POINT_SIZE = 2.2
"""Size of a drawn point in point spacings, so that neighbours overlap."""
PATH_COLOUR = (255, 150, 40)
"""Colour of the trajectory, orange."""
PATH_SHARE = 0.004
"""Thickness of the trajectory as a share of the scene's extent."""


@dataclass(frozen=True)
class RenderScene:
    """Points in the order of the cameras that observed them first."""

    points: Points
    point_ends: NDArray[np.int64]  # [n] number of points of the first 1 to n cameras
    cameras: Sequence[FrameCamera]
    extent: float
    """See `OrderedPoints.extent`."""
    centre: NDArray[np.float64]  # [3]
    up: NDArray[np.float64]  # [3]

    @property
    def line(self) -> NDArray[np.float64]:
        """Positions of the cameras [n, 3]."""
        return np.array([camera.T_world_camera[:3, 3] for camera in self.cameras])


def render_scene(job: ExportJob, most: int, on_frame: Callable[[int, int], None]) -> RenderScene:
    """The scene of a result with at most ``most`` points. Raises as `ordered_points`."""
    cloud = ordered_points(job, most, on_frame)
    eyes = np.array([camera.T_world_camera[:3, 3] for camera in cloud.cameras], np.float32)
    side = np.repeat(eyes, np.diff(cloud.point_ends, prepend=0), axis=0) - cloud.xyz
    size = np.full(len(cloud.xyz), POINT_SIZE * cloud.spacing, np.float32)
    points = Points(cloud.xyz, cloud.rgb, size, side)
    return RenderScene(points, cloud.point_ends, cloud.cameras, cloud.extent, cloud.centre, job.result.up)
