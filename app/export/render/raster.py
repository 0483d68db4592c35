"""Points drawn as a camera sees them, the nearer before the farther."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.types import Intrinsics

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
