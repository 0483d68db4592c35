"""Points drawn as a camera sees them, the nearer before the farther.

What is flown through: points that are seen from where the cameras were, and the path.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.types import Intrinsics
from stream_recon.app.export.job import ExportJob
from stream_recon.app.export.points import ordered_points
from stream_recon.app.result.cameras import Camera

LARGEST = 12
"""Half the side of the largest square that a point is drawn as, in pixels."""
BACKGROUND = (18, 20, 24)


@dataclass(frozen=True)
class Points:
    """Coloured points [N], each about ``size`` wide, which are seen from one side alone: one looks into rooms."""

    xyz: NDArray[np.float32]  # [N, 3]
    rgb: NDArray[np.uint8]  # [N, 3]
    size: NDArray[np.float32]  # [N]
    side: NDArray[np.float32]
    """[N, 3] towards where a point was seen from; 0: it is seen from everywhere."""

    def joined(self, other: "Points") -> "Points":
        """The points of both."""
        return Points(
            np.concatenate([self.xyz, other.xyz]),
            np.concatenate([self.rgb, other.rgb]),
            np.concatenate([self.size, other.size]),
            np.concatenate([self.side, other.side]),
        )

    def first(self, count: int) -> "Points":
        """The first of them."""
        return Points(self.xyz[:count], self.rgb[:count], self.size[:count], self.side[:count])


def draw(
    points: Points, T_camera_world: NDArray[np.float64], camera: Intrinsics, size: tuple[int, int], nearest: float
) -> NDArray[np.uint8]:
    """The image [h, w, 3] of a pinhole camera; nothing nearer than ``nearest`` is drawn."""
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
    shown = (column > -margin) & (column < width + margin) & (row > -margin) & (row < height + margin)
    # From far to near: of several written to one pixel the last one stays.
    order = np.flatnonzero(shown)
    order = order[np.argsort(-z[order])]
    ahead, z = ahead[order], z[order]
    # With a margin about the image, so that no square has to be cut.
    stride = width + 2 * margin
    at = (np.floor(row[order]).astype(np.intp) + margin) * stride + np.floor(column[order]).astype(np.intp) + margin
    reach = np.rint(half[order]).clip(0, LARGEST).astype(np.intp)
    depth = np.full((height + 2 * margin) * stride, np.inf, np.float32)
    owner = np.full(len(depth), -1, np.intp)
    for ring in range(int(reach.max(initial=0)) + 1):
        wide = reach >= ring
        at, ahead, z, reach = at[wide], ahead[wide], z[wide], reach[wide]
        for dy, dx in _ring(ring):
            here = at + (dy * stride + dx)
            # Squares near the margin reach beyond it.
            nearer = np.flatnonzero((here >= 0) & (here < len(depth)))
            nearer = nearer[z[nearer] < depth[here[nearer]]]
            here = here[nearer]
            depth[here], owner[here] = z[nearer], ahead[nearer]
    image = np.empty((len(depth), 3), np.uint8)
    image[:] = BACKGROUND
    drawn = owner >= 0
    image[drawn] = points.rgb[owner[drawn]]
    return image.reshape(height + 2 * margin, stride, 3)[margin : margin + height, margin : margin + width]


def _ring(reach: int) -> list[tuple[int, int]]:
    """Places on the rim of a square, from its middle."""
    span = range(-reach, reach + 1)
    return [(dy, dx) for dy in span for dx in span if max(abs(dy), abs(dx)) == reach]


POINT_SPACINGS = 2.2
"""How wide a point is drawn: neighbours overlap."""
PATH_COLOUR = (255, 150, 40)
PATH_SHARE = 0.004
"""How thick the path is drawn, as a share of the scene's extent."""


@dataclass(frozen=True)
class RenderScene:
    """Points in the order of ``cameras``, which brought them."""

    points: Points
    upto: NDArray[np.int64]
    """[n] how many points are there once each camera has brought its own."""
    cameras: Sequence[Camera]
    extent: float
    """Diagonal of what lies within the middle nine tenths of the points."""
    centre: NDArray[np.float64]  # [3] the middle of that

    @property
    def line(self) -> NDArray[np.float64]:
        """Where the cameras were [n, 3]."""
        return np.array([camera.T_world_camera[:3, 3] for camera in self.cameras])


def gather(job: ExportJob, most: int, on_frame: Callable[[int, int], None]) -> RenderScene:
    """The scene of a result; see `ordered_points`, which says what is raised."""
    found = ordered_points(job, most, on_frame)
    eyes = np.array([camera.T_world_camera[:3, 3] for camera in found.cameras], np.float32)
    side = np.repeat(eyes, np.diff(found.upto, prepend=0), axis=0) - found.xyz
    size = np.full(len(found.xyz), POINT_SPACINGS * found.spacing, np.float32)
    points = Points(found.xyz, found.rgb, size, side)
    return RenderScene(points, found.upto, found.cameras, found.extent, found.centre)
