"""Rasterizer of triangles with depth test, and the mesh as a pinhole camera sees it."""

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.transforms import invert_pose
from stream_recon.app.core.types import Intrinsics
from stream_recon.app.mesh.tsdf import TINY

FloatArray = NDArray[np.float32]
FRAGMENTS = 1 << 21
"""Pixels of bounding boxes that are tested at a time: bounds memory."""
CHUNK = 1 << 19
"""Pixels whose shares are computed at a time, for the same reason."""
MAP_WIDTH = 1024
"""Columns of the maps for `cv2.remap`, which takes at most 32,767 in each direction."""
NEAREST = 1e-3
"""Least depth that is drawn, as a share of the median depth."""


@dataclass(frozen=True)
class Projection:
    """Vertices of a mesh in a pinhole camera."""

    xy: FloatArray  # [N, 2] pixels
    z: FloatArray  # [N] depth along the optical axis

    def scaled(self, factor: float) -> "Projection":
        """The same in an image of another size."""
        return Projection(self.xy * np.float32(factor), self.z)


def project_vertices(xyz: FloatArray, T_world_camera: NDArray[np.float64], camera: Intrinsics) -> Projection:
    """Vertices [N, 3] of the world in a camera; pixels behind it have no meaning."""
    T = invert_pose(T_world_camera)
    local = xyz @ T[:3, :3].T.astype(np.float32) + T[:3, 3].astype(np.float32)
    z = np.ascontiguousarray(local[:, 2])
    inverse = np.reciprocal(np.where(np.abs(z) < TINY, TINY, z))
    x, y = (local[:, i] * inverse for i in range(2))  # numpy is slow along short axes
    xy = np.stack([x * np.float32(camera.fx), y * np.float32(camera.fy)], axis=1)
    xy += np.array([camera.cx, camera.cy], np.float32)
    return Projection(xy, z)


def signed_areas(projection: Projection, faces: NDArray[np.int32]) -> FloatArray:
    """Areas [M] of triangles in square pixels, positive where the front is seen (y down); 0 behind the camera."""
    a, b, c = (projection.xy[faces[:, k]] for k in range(3))
    u, v = b - a, c - a
    area = np.float32(-0.5) * (u[:, 0] * v[:, 1] - u[:, 1] * v[:, 0])
    return np.where(of_all(projection.z > 0, faces), area, np.float32(0))


def of_all(chosen: NDArray[np.bool_], faces: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Which triangles [M] have all vertices among the ``chosen`` [N]; numpy's reductions of short axes are slow."""
    return chosen[faces[:, 0]] & chosen[faces[:, 1]] & chosen[faces[:, 2]]


def of_two(chosen: NDArray[np.bool_], faces: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Which triangles [M] have two or more vertices among the ``chosen`` [N]."""
    a, b, c = (chosen[faces[:, k]] for k in range(3))
    return (a & b) | (b & c) | (c & a)


def rasterize(
    projection: Projection, faces: NDArray[np.int32], size: tuple[int, int], drawn: NDArray[np.bool_] | None = None
) -> tuple[NDArray[np.int32], FloatArray]:
    """Nearest triangle at each pixel's centre.

    Args:
        size: width and height.
        drawn: [M] triangles to draw; None: all. Those with a vertex behind the camera are never drawn.

    Returns the number of the triangle [h, w], -1 where there is none, and the inverse depth [h, w], 0 there.
    """
    width, height = size
    nearest = NEAREST * float(np.median(projection.z[projection.z > 0])) if (projection.z > 0).any() else 0.0
    inside = of_all(projection.z > nearest, faces)
    if drawn is not None:
        inside &= drawn
    number = np.flatnonzero(inside)
    a, b, c = (projection.xy[faces[number, k]] for k in range(3))
    low, high = np.minimum(np.minimum(a, b), c), np.maximum(np.maximum(a, b), c)
    # Pixels whose centres lie within the bounding box;
    limit = np.array([width, height], np.float32)
    first = np.ceil(low - np.float32(0.5)).clip(0, limit).astype(np.intp)
    count = (np.floor(high - np.float32(0.5)) + 1).clip(0, limit).astype(np.intp) - first
    some = np.flatnonzero((count[:, 0] > 0) & (count[:, 1] > 0))
    number, first, count = number[some], first[some], count[some]
    inverse = np.zeros(width * height, np.float32)
    owner = np.full(width * height, -1, np.int32)
    fragments = []
    classes = np.ceil(np.log2(count)).astype(np.intp) if len(count) else count
    key = classes[:, 0] * 64 + classes[:, 1] if len(count) else np.empty(0, np.intp)
    for kind in np.unique(key):
        w, h = 1 << int(kind // 64), 1 << int(kind % 64)
        members = np.flatnonzero(key == kind)
        for start in range(0, len(members), max(FRAGMENTS // (w * h), 1)):
            chunk = members[start : start + max(FRAGMENTS // (w * h), 1)]
            pixels, local, depth = _fragments(projection, faces[number[chunk]], first[chunk], count[chunk], (w, h))
            fragments.append((pixels @ np.array([1, width]), number[chunk][local].astype(np.int32), depth))
    for pixel, _, depth in fragments:
        np.maximum.at(inverse, pixel, depth)
    for pixel, triangle, depth in fragments:
        visible = depth == inverse[pixel]
        owner[pixel[visible]] = triangle[visible]
    return owner.reshape(height, width), inverse.reshape(height, width)


def _fragments(
    projection: Projection,
    faces: NDArray[np.int32],
    first: NDArray[np.intp],
    count: NDArray[np.intp],
    box: tuple[int, int],
) -> tuple[NDArray[np.intp], NDArray[np.intp], FloatArray]:
    """Pixels [K, 2] covered by triangles, the number [K] of each one's triangle, and inverse depths [K]."""
    (ax, ay), (bx, by), (cx, cy) = (projection.xy[faces[:, k]].T[:, :, None, None] for k in range(3))
    dx, dy = np.arange(box[0]), np.arange(box[1])
    x = (first[:, 0, None, None] + dx + np.float32(0.5)).astype(np.float32)
    y = (first[:, 1, None, None] + dy[:, None] + np.float32(0.5)).astype(np.float32)
    area = (bx - ax) * (cy - ay) - (by - ay) * (cx - ax)
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = np.float32(1) / area
        wb = ((x - ax) * (cy - ay) - (y - ay) * (cx - ax)) * scale
        wc = ((bx - ax) * (y - ay) - (by - ay) * (x - ax)) * scale
        covered = (wb >= 0) & (wc >= 0) & (wb + wc <= 1)
    covered &= (dx < count[:, 0, None, None]) & (dy[:, None] < count[:, 1, None, None])
    n, row, column = np.nonzero(covered)
    wb, wc = wb[n, row, column], wc[n, row, column]
    za, zb, zc = (np.float32(1) / projection.z[faces[:, k]] for k in range(3))
    depth = za[n] + wb * (zb - za)[n] + wc * (zc - za)[n]
    return np.stack([first[n, 0] + column, first[n, 1] + row], axis=1), n, depth


def barycentric(
    projection: Projection, faces: NDArray[np.int32], owner: NDArray[np.int32], *, perspective: bool = True
) -> tuple[NDArray[np.intp], NDArray[np.intp], FloatArray]:
    """Rows and columns [K] of the covered pixels, and the shares [K, 3] of their triangle's vertices.

    ``perspective``: shares on the triangle in space, not in the image.
    """
    rows, columns = np.nonzero(owner >= 0)
    shares = np.empty((len(rows), 3), np.float32)
    for begin in range(0, len(rows), CHUNK):
        some = slice(begin, begin + CHUNK)
        corners = faces[owner[rows[some], columns[some]]]
        pixels = np.stack([columns[some] + 0.5, rows[some] + 0.5], axis=1)
        shares[some] = _shares(projection, corners, pixels, perspective=perspective)
    return rows, columns, shares


def _shares(
    projection: Projection, corners: NDArray[np.int32], pixels: NDArray[np.float64], *, perspective: bool
) -> NDArray[np.float64]:
    a, b, c = (projection.xy[corners[:, k]].astype(np.float64) for k in range(3))
    p = pixels - a
    u, v = b - a, c - a
    area = u[:, 0] * v[:, 1] - u[:, 1] * v[:, 0]
    area = np.where(area == 0, 1, area)
    wb = (p[:, 0] * v[:, 1] - p[:, 1] * v[:, 0]) / area
    wc = (u[:, 0] * p[:, 1] - u[:, 1] * p[:, 0]) / area
    shares = np.stack([1 - wb - wc, wb, wc], axis=1)
    if perspective:
        shares /= projection.z[corners]
        shares /= shares.sum(axis=1, keepdims=True)
    return shares


def sampled(image: NDArray[np.uint8], pixels: FloatArray) -> NDArray[np.uint8]:
    """Colours [N, 3] of an image at pixels [N, 2], interpolated linearly."""
    rows = 1 + len(pixels) // MAP_WIDTH
    xy = np.zeros((rows * MAP_WIDTH, 2), np.float32)
    xy[: len(pixels)] = pixels - np.float32(0.5)
    colours = cv2.remap(image, xy.reshape(rows, MAP_WIDTH, 2), None, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    return np.asarray(colours.reshape(-1, 3)[: len(pixels)], np.uint8)
