"""What mapping keeps of a frame: the network's camera, its depth on a coarse grid, and a grey image while it is needed.

Pixels here are those of the working image: the source's, reduced to at most `MAX_SIDE` along its longer side. As
everywhere in the program, pixel (0, 0) covers [0, 1) x [0, 1).
"""

from collections.abc import Callable
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.depth_points import depth_edges
from stream_recon.app.core.types import FrameResult, ImageTransform
from stream_recon.app.slam.ba.problem import CameraModel

MAX_SIDE = 800
GRID_STEP = 12
"""One network pixel in so many along each axis is kept of a frame's depth."""
EDGE_RATIO = 0.2
"""Neighbours whose depths differ by more than this share lie on either side of an edge: no depth is read there."""
UNSURE = 0.1
"""Of the median confidence: less is next to none."""


@dataclass(frozen=True)
class Scale:
    """From source pixels to working pixels."""

    factor: float
    size: tuple[int, int]
    """Width and height of the working image."""

    @classmethod
    def of(cls, source_size: tuple[int, int]) -> "Scale":
        """At most `MAX_SIDE` along the longer side; never enlarged."""
        factor = min(1.0, MAX_SIDE / max(source_size))
        return cls(factor, (max(round(source_size[0] * factor), 1), max(round(source_size[1] * factor), 1)))

    def grey(self, rgb: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """The working image [h, w] of a source image, or of a smaller one of the same view."""
        grey = cv2.cvtColor(rgb, cv2.COLOR_RGB2GRAY)
        if (grey.shape[1], grey.shape[0]) == self.size:
            return np.asarray(grey)
        shrinks = grey.shape[1] > self.size[0]
        return np.asarray(cv2.resize(grey, self.size, interpolation=cv2.INTER_AREA if shrinks else cv2.INTER_CUBIC))


@dataclass(frozen=True)
class DepthReader:
    """A frame's depth map, read at points of the working image. Only alive while the frame is looked at."""

    depth: NDArray[np.float32]  # [h, w]
    usable: NDArray[np.uint8]  # [h, w], 1 where the depth is positive, not at an edge and not of next to no confidence
    transform: ImageTransform
    scale: Scale
    masked: NDArray[np.bool_] | None = None
    """[h, w], what no track shall be of; None: nothing."""

    @classmethod
    def of(cls, result: FrameResult, scale: Scale) -> "DepthReader":
        """Of a frame's result."""
        depth = np.nan_to_num(result.depth, nan=0.0, posinf=0.0, neginf=0.0)
        with np.errstate(invalid="ignore"):
            usable = (depth > 0) & ~depth_edges(np.where(depth > 0, depth, np.float32(np.nan)), EDGE_RATIO)
        masked = result.masked
        if masked.all():
            return cls(depth, usable.astype(np.uint8), result.transform, scale, masked)
        usable &= result.confidence >= UNSURE * np.median(result.confidence[~masked])
        return cls(depth, usable.astype(np.uint8), result.transform, scale, masked if masked.any() else None)

    def free(self) -> NDArray[np.uint8] | None:
        """Mask [H, W] of the working image for OpenCV's detectors, 0 where no track shall be; None: anywhere."""
        if self.masked is None:
            return None
        width, height = self.scale.size
        left, top, wide, high = (value * self.scale.factor for value in self.transform.crop)
        x = ((np.arange(width) + 0.5 - left) / wide * self.masked.shape[1]).astype(np.intp)
        y = ((np.arange(height) + 0.5 - top) / high * self.masked.shape[0]).astype(np.intp)
        # A corner's own neighbourhood shall be free, too.
        wider = cv2.dilate(self.masked.astype(np.uint8), np.ones((3, 3), np.uint8))
        found = wider[y.clip(0, self.masked.shape[0] - 1)[:, None], x.clip(0, self.masked.shape[1] - 1)]
        return np.where(found > 0, np.uint8(0), np.uint8(255))

    def at(self, uv: NDArray[np.floating]) -> NDArray[np.float32]:
        """Depths [N] at working pixels [N, 2], bilinear; 0 where there is none to be trusted."""
        if not len(uv):
            return np.zeros(0, np.float32)
        left, top = self.transform.crop[:2]
        sx, sy = self.transform.scale
        x = ((uv[:, 0] / self.scale.factor - left) * sx - 0.5).astype(np.float32)
        y = ((uv[:, 1] / self.scale.factor - top) * sy - 0.5).astype(np.float32)
        height, width = self.depth.shape
        inside = (x > -0.5) & (y > -0.5) & (x < width - 0.5) & (y < height - 0.5)
        z = _sample(self.depth, x, y, cv2.INTER_LINEAR)
        usable = _sample(self.usable, x, y, cv2.INTER_NEAREST) > 0
        return np.where(inside & usable & (z > 0), z, np.float32(0))

    def grid(self) -> "DepthGrid":
        """Every `GRID_STEP`-th pixel."""
        height, width = self.depth.shape
        rows, columns = np.mgrid[GRID_STEP // 2 : height : GRID_STEP, GRID_STEP // 2 : width : GRID_STEP]
        left, top = self.transform.crop[:2]
        sx, sy = self.transform.scale
        u = (left + (columns[0] + 0.5) / sx) * self.scale.factor
        v = (top + (rows[:, 0] + 0.5) / sy) * self.scale.factor
        z = np.where(self.usable[rows, columns] > 0, self.depth[rows, columns], np.float32(0))
        return DepthGrid(u.astype(np.float32), v.astype(np.float32), z.astype(np.float32))


DepthOf = Callable[[], DepthReader]
"""Reads a frame's depth when it is asked: not for who wants the image alone, and in the asker's thread."""


def _sample(
    image: NDArray[np.generic], x: NDArray[np.float32], y: NDArray[np.float32], how: int
) -> NDArray[np.float32]:
    # cv2.remap takes maps of fewer than 32768 rows.
    parts = [
        cv2.remap(image, x[i : i + 30000, None], y[i : i + 30000, None], how, borderMode=cv2.BORDER_REPLICATE)[:, 0]
        for i in range(0, len(x), 30000)
    ]
    return np.concatenate(parts)


@dataclass(frozen=True)
class DepthGrid:
    """A frame's depth on a coarse grid over the working image; 0 where there is none to be trusted."""

    u: NDArray[np.float32]  # [columns]
    v: NDArray[np.float32]  # [rows]
    z: NDArray[np.float32]  # [rows, columns]

    def at(self, uv: NDArray[np.floating]) -> NDArray[np.float32]:
        """Depth of the nearest cell at working pixels [N, 2]; 0 outside."""
        row, column, inside = self.cells(uv)
        return np.where(inside, self.z[row, column], np.float32(0))

    def cells(self, uv: NDArray[np.floating]) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.bool_]]:
        """Rows and columns [N] of the nearest cells at working pixels [N, 2]; and which are inside, the others at 0."""
        at = (np.nan_to_num(uv, nan=-1e6) - (self.u[0], self.v[0])) / (_step(self.u), _step(self.v))
        column, row = np.rint(np.clip(at, -1, 1e6)).astype(np.intp).T
        inside = (column >= 0) & (row >= 0) & (column < len(self.u)) & (row < len(self.v))
        return np.where(inside, row, 0), np.where(inside, column, 0), inside

    def scaled(self, scale: float) -> "DepthGrid":
        """With all depths multiplied."""
        return DepthGrid(self.u, self.v, self.z * np.float32(scale))

    def pixels(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Working pixels [K, 2] and depths [K] of the cells that have one."""
        rows, columns = np.nonzero(self.z)
        return np.stack([self.u[columns], self.v[rows]], axis=1), self.z[rows, columns]


def _step(axis: NDArray[np.float32]) -> float:
    return float(axis[1] - axis[0]) if len(axis) > 1 else 1.0


def unproject(lens: CameraModel, uv: NDArray[np.floating]) -> NDArray[np.float64]:
    """Directions [N, 3] with z = 1 of pixels [N, 2]."""
    distorted = (np.asarray(uv, np.float64) - (lens.cx, lens.cy)) / lens.focal
    plain = distorted
    # A fixed point: the term is small, since k1 is kept near 0.
    for _ in range(5 if lens.k1 else 0):
        plain = distorted / (1 + lens.k1 * np.square(plain).sum(axis=1, keepdims=True))
    return np.concatenate([plain, np.ones((len(plain), 1))], axis=1)


def project_points(lens: CameraModel, xyz: NDArray[np.floating]) -> NDArray[np.float64]:
    """Pixels [N, 2] of points [N, 3] in the camera's axes; NaN behind the camera."""
    points = np.asarray(xyz, np.float64)
    plain = points[:, :2] / np.where(points[:, 2:] > 1e-6, points[:, 2:], np.nan)
    segment = lens.focal * (1 + lens.k1 * np.square(plain).sum(axis=1, keepdims=True))
    return np.asarray(plain * segment + (lens.cx, lens.cy))


@dataclass(frozen=True)
class FrameData:
    """One frame as the network gave it."""

    index: int
    """The frame's number in its source."""
    T_world_camera: NDArray[np.float64]  # [4, 4]
    focal: float
    """In working pixels; the mean of both axes."""
    grid: DepthGrid
    sharpness: float
    """Variance of the Laplacian of the network's image at half size."""
    segment: int = 0
    """As in `FrameResult`: where one begins, the network only guesses where it is beside those before."""
    extent: tuple[float, float, float, float] | None = None
    """Left, top, width and height of its depth map in the working image; None: all of it."""

    @classmethod
    def of(cls, result: FrameResult, scale: Scale) -> "FrameData":
        """Of a frame's result."""
        k = result.intrinsics
        focal = float(np.sqrt(k.fx * k.fy)) * scale.factor
        pose = np.asarray(result.T_world_camera, np.float64)
        grid = DepthReader.of(result, scale).grid()
        left, top, width, height = (value * scale.factor for value in result.transform.crop)
        extent = (left, top, width, height)
        return cls(result.index, pose, focal, grid, sharpness(result.rgb), result.segment, extent)


def sharpness(rgb: NDArray[np.uint8]) -> float:
    """Variance of the Laplacian of an image at half size, where noise counts for less."""
    half = cv2.resize(cv2.cvtColor(rgb, cv2.COLOR_RGB2GRAY), None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA)
    return float(cv2.Laplacian(half, cv2.CV_32F).var())


def reproject(
    lens: CameraModel, uv: NDArray[np.floating], z: NDArray[np.floating], T_target_source: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Pixels [N, 2] at depths [N] of one camera as another sees them; its pixels [N, 2], NaN behind it, and depths."""
    T = T_target_source
    xyz = (unproject(lens, uv) * np.asarray(z, np.float64)[:, None]) @ T[:3, :3].T + T[:3, 3]
    return project_points(lens, xyz), xyz[:, 2]
