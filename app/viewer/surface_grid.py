"""Surface of one keyframe: a grid over its depth map, cut into triangles, with the image as texture."""

from dataclasses import dataclass, replace
from functools import cached_property

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.gltf import Primitive, glb
from stream_recon.app.core.types import FrameResult, Intrinsics
from stream_recon.app.viewer.points import confidence_ranks

GRID_SIDE = 120
"""Vertices along the longer side of a grid: as fine as the network's depth is."""
TEXTURE_SIDE = 640
"""Longer side of a texture in pixels."""
TEXTURE_QUALITY = 85
"""JPEG quality of textures: higher ones cost bytes and look the same."""
MAX_DEPTH_RATIO = 1.08
"""Ratio of the depths at the corners of a triangle from which on it spans two things."""
MIN_COSINE = 0.12
"""Least cosine between a triangle's normal and the ray to it: on a flatter one the texture is smeared."""
MIN_CONFIDENCE = 1.5
"""Least confidence of a network's depth: below it the depth is off by a fifth on average."""
UNSURE_SHARE = 0.1
"""Share of a frame's least confident pixels that are cut out, where the depth has no `Certainty`."""
MAX_MEDIAN_DEPTHS = 6.0
"""Depth in median depths beyond which nothing is drawn: there the network's depth is a guess."""
MIN_ISLAND = 40
"""Least number of connected cells: smaller pieces look like dirt."""


@dataclass(frozen=True)
class SurfaceGrid:
    """Depth at the vertices of a regular grid, and which of them may carry a surface."""

    depth: NDArray[np.float32]  # [h, w] along the optical axis; 0 where no surface may be
    camera: Intrinsics
    """Camera in cells; vertex (0, 0) is at (0.5, 0.5)."""
    uv: NDArray[np.float32]
    """Texture coordinates of vertex (0, 0), and the steps between vertices [2, 2]."""
    unsure: NDArray[np.uint8]  # [h, w]
    """Percentage of the frame's pixels that are surer than a vertex."""

    @cached_property
    def points(self) -> NDArray[np.float32]:
        """Points of the vertices in camera axes [h, w, 3]."""
        h, w = self.depth.shape
        k = self.camera
        x = (np.arange(w, dtype=np.float32) + np.float32(0.5 - k.cx)) / np.float32(k.fx)
        y = (np.arange(h, dtype=np.float32) + np.float32(0.5 - k.cy)) / np.float32(k.fy)
        return np.stack([x * self.depth, y[:, None] * self.depth, self.depth], axis=-1)

    def thinned(self) -> "SurfaceGrid":
        """Every second vertex."""
        k = self.camera
        camera = Intrinsics(k.fx / 2, k.fy / 2, (k.cx + 0.5) / 2, (k.cy + 0.5) / 2)
        return SurfaceGrid(
            self.depth[::2, ::2], camera, self.uv * np.array([[1], [2]], np.float32), self.unsure[::2, ::2]
        )

    def scaled(self, factors: NDArray[np.floating]) -> "SurfaceGrid":
        """The grid with its depth multiplied by ``factors`` [h, w]."""
        return replace(self, depth=np.asarray(self.depth * factors, np.float32))


@dataclass(frozen=True)
class Triangles:
    """Textured triangles in camera axes, counter-clockwise seen from the camera."""

    xyz: NDArray[np.float32]  # [N, 3]
    uv: NDArray[np.float32]  # [N, 2]
    faces: NDArray[np.int32]  # [M, 3]
    unsure: NDArray[np.float32]  # [N], see `SurfaceGrid.unsure`

    def glb(self, texture: bytes) -> bytes:
        """A GLB file with ``texture``, a JPEG file."""
        return glb([Primitive(self.xyz, self.faces, uv=self.uv, texture=texture, unsure=self.unsure)])


def surface_grid(result: FrameResult) -> SurfaceGrid:
    """The grid of a frame, without pixels that are masked, unsure or much further away than most."""
    depth = np.nan_to_num(result.depth, nan=0.0, posinf=0.0, neginf=0.0)
    depth = np.where(depth > 0, depth, np.float32(0))
    sure = depth > 0
    if sure.any():
        sure &= depth < MAX_MEDIAN_DEPTHS * float(np.median(depth[sure]))
        if result.certainty is None:
            known = result.confidence[depth > 0]
            threshold = float(np.quantile(known[:: max(1, len(known) // 4096)], UNSURE_SHARE))
            sure &= result.confidence >= max(MIN_CONFIDENCE, threshold)
    # Depth is smoothed before it is sampled: single wrong pixels would become spikes.
    smooth = cv2.medianBlur(np.asarray(depth, np.float32), 5 if result.certainty is None else 3)
    smooth = np.where(sure & (smooth > 0), smooth, np.float32(0))
    h, w = depth.shape
    step = max(1, round(max(h, w) / GRID_SIDE))
    first = step // 2
    k = result.network_intrinsics
    offset = first + 0.5 - 0.5 * step  # of cell (0, 0) in pixels
    camera = Intrinsics(k.fx / step, k.fy / step, (k.cx - offset) / step, (k.cy - offset) / step)
    uv = np.array([[(first + 0.5) / w, (first + 0.5) / h], [step / w, step / h]], np.float32)
    vertices = slice(first, None, step), slice(first, None, step)
    rank = confidence_ranks(result.confidence[depth > 0], result.confidence[vertices].ravel())
    unsure = (100 - rank).astype(np.uint8).reshape(smooth[vertices].shape)
    return SurfaceGrid(np.ascontiguousarray(smooth[vertices]), camera, uv, unsure)


def triangulate(grid: SurfaceGrid, covered: NDArray[np.bool_]) -> Triangles:
    """The triangles of a grid, cut at depth jumps and grazing angles.

    Left out are triangles with three ``covered`` [h, w] vertices, and small pieces.
    """
    h, w = grid.depth.shape
    index = np.arange(h * w, dtype=np.int32).reshape(h, w)
    a, b, c, d = (part.ravel() for part in (index[:-1, :-1], index[:-1, 1:], index[1:, :-1], index[1:, 1:]))
    # The diagonal joins the corners of more similar depth, so that edges of things are cut along them.
    z = grid.depth.ravel()
    with np.errstate(invalid="ignore", divide="ignore"):
        falling = np.abs(np.log(z[a]) - np.log(z[d])) <= np.abs(np.log(z[b]) - np.log(z[c]))
    first = np.where(falling[:, None], np.stack([a, c, d], 1), np.stack([a, c, b], 1))
    second = np.where(falling[:, None], np.stack([a, d, b], 1), np.stack([b, c, d], 1))
    faces = np.concatenate([first, second])
    points = grid.points.reshape(-1, 3)
    corners = points[faces]
    depths = corners[..., 2]
    nearest = depths.min(axis=1)
    good = (nearest > 0) & (depths.max(axis=1) < MAX_DEPTH_RATIO * nearest)
    good &= ~covered.ravel()[faces].all(axis=1)
    normal = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    centre = corners.mean(axis=1)
    size = np.linalg.norm(normal, axis=1) * np.linalg.norm(centre, axis=1)
    # With y down and z forward, this order of corners has its normal toward the camera.
    good &= -(normal * centre).sum(axis=1) > MIN_COSINE * size
    good &= np.tile(_large_pieces(good.reshape(2, h - 1, w - 1).any(axis=0)).ravel(), 2)
    used, faces = np.unique(faces[good], return_inverse=True)
    row, column = np.divmod(used, w)
    uv = grid.uv[0] + grid.uv[1] * np.stack([column, row], axis=1)
    unsure = grid.unsure.ravel()[used].astype(np.float32)
    return Triangles(points[used], np.asarray(uv, np.float32), faces.reshape(-1, 3).astype(np.int32), unsure)


def texture(image: NDArray[np.uint8], side: int = TEXTURE_SIDE) -> bytes:
    """An image [H, W, 3] as a JPEG file with a longer side of at most ``side`` pixels."""
    shrink = side / max(image.shape[:2])
    if shrink < 1:
        size = (max(1, round(image.shape[1] * shrink)), max(1, round(image.shape[0] * shrink)))
        image = np.asarray(cv2.resize(image, size, interpolation=cv2.INTER_AREA), np.uint8)
    ok, jpeg = cv2.imencode(".jpg", cv2.cvtColor(image, cv2.COLOR_RGB2BGR), [cv2.IMWRITE_JPEG_QUALITY, TEXTURE_QUALITY])
    assert ok, "an 8-bit image can always be encoded"
    return bytes(jpeg)


def _large_pieces(cells: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The cells [h, w] that are in pieces of at least `MIN_ISLAND`."""
    _, labels, stats, _ = cv2.connectedComponentsWithStats(cells.astype(np.uint8), connectivity=4)
    large = stats[:, cv2.CC_STAT_AREA] >= MIN_ISLAND
    large[0] = False
    return np.asarray(large[labels], np.bool_)
