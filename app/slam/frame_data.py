"""Frame data that mapping keeps: the network's camera, a coarse grid of its depth, and a temporary grey image.

Pixels are those of the working image: the source image, reduced to at most `max_side` on its longer side. Pixel (0, 0)
covers [0, 1) x [0, 1).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.camera_model import CameraModel
from stream_recon.app.core.depth_points import depth_edges, look_up
from stream_recon.app.core.transforms import FloatArray, invert_pose
from stream_recon.app.core.types import FrameResult, ImageTransform, reduced_size


@dataclass(frozen=True)
class FrameDataConfig:
    """Size of the working image, and what depth is read."""

    max_side: int = 800
    """Longer side of the working image in pixels: a compromise of feature count and time."""
    grid_step: int = 12
    """Spacing of the depth grid in network pixels; neighbouring depths are nearly the same."""
    edge_ratio: float = 0.2
    """Relative difference of neighbouring depths that counts as an edge, where no depth is read."""
    min_confidence: float = 0.1
    """Least confidence of usable depth, as a share of the median confidence."""


FRAME_DATA = FrameDataConfig()


@dataclass(frozen=True)
class Scale:
    """Conversion from source pixels to working pixels."""

    factor: float
    size: tuple[int, int]
    """Width and height of the working image in pixels."""

    @classmethod
    def from_source_size(cls, source_size: tuple[int, int], config: FrameDataConfig = FRAME_DATA) -> "Scale":
        """Reduction to at most `max_side` on the longer side; images are never enlarged."""
        return cls(min(1.0, config.max_side / max(source_size)), reduced_size(source_size, config.max_side))

    def grey(self, rgb: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """The working image [h, w] of a source image, or of a smaller one of the same view."""
        grey = cv2.cvtColor(rgb, cv2.COLOR_RGB2GRAY)
        if (grey.shape[1], grey.shape[0]) == self.size:
            return np.asarray(grey)
        shrinks = grey.shape[1] > self.size[0]
        return np.asarray(cv2.resize(grey, self.size, interpolation=cv2.INTER_AREA if shrinks else cv2.INTER_CUBIC))


@dataclass(frozen=True)
class DepthReader:
    """Depth map of a frame, sampled at points of the working image; exists only while the frame is processed."""

    depth: NDArray[np.float32]  # [h, w]
    usable: NDArray[np.uint8]  # [h, w], 1 where depth is positive, confident and not at an edge
    transform: ImageTransform
    scale: Scale
    masked: NDArray[np.bool_] | None = None
    """[h, w], pixels to exclude from tracking; None: none."""

    @classmethod
    def from_result(cls, result: FrameResult, scale: Scale, config: FrameDataConfig = FRAME_DATA) -> "DepthReader":
        """Reader of a result's depth map."""
        depth = np.nan_to_num(result.depth, nan=0.0, posinf=0.0, neginf=0.0)
        with np.errstate(invalid="ignore"):
            usable = (depth > 0) & ~depth_edges(np.where(depth > 0, depth, np.float32(np.nan)), config.edge_ratio)
        masked = result.masked
        if not masked.all():
            usable &= result.confidence >= config.min_confidence * np.median(result.confidence[~masked])
        return cls(depth, usable.astype(np.uint8), result.transform, scale, masked if masked.any() else None)

    def detection_mask(self) -> NDArray[np.uint8] | None:
        """Mask [H, W] of the working image for OpenCV's detectors, 0 where features are excluded; None: nowhere."""
        if self.masked is None:
            return None
        width, height = self.scale.size
        left, top, wide, high = (value * self.scale.factor for value in self.transform.crop)
        x = ((np.arange(width) + 0.5 - left) / wide * self.masked.shape[1]).astype(np.intp)
        y = ((np.arange(height) + 0.5 - top) / high * self.masked.shape[0]).astype(np.intp)
        # Dilated, since a feature's neighbourhood must be outside the mask, too.
        wider = cv2.dilate(self.masked.astype(np.uint8), np.ones((3, 3), np.uint8))
        is_masked = wider[y.clip(0, self.masked.shape[0] - 1)[:, None], x.clip(0, self.masked.shape[1] - 1)]
        return np.where(is_masked > 0, np.uint8(0), np.uint8(255))

    def sample(self, uv: NDArray[np.floating]) -> NDArray[np.float32]:
        """Bilinear depths [N] at working pixels [N, 2]; 0 where there is no usable depth."""
        if not len(uv):
            return np.zeros(0, np.float32)
        left, top = self.transform.crop[:2]
        sx, sy = self.transform.scale
        x = ((uv[:, 0] / self.scale.factor - left) * sx - 0.5).astype(np.float32)
        y = ((uv[:, 1] / self.scale.factor - top) * sy - 0.5).astype(np.float32)
        height, width = self.depth.shape
        inside = (x > -0.5) & (y > -0.5) & (x < width - 0.5) & (y < height - 0.5)
        z = look_up(self.depth, x, y, "bilinear", beyond="edge")
        usable = look_up(self.usable, x, y, "nearest", beyond="edge") > 0
        return np.where(inside & usable & (z > 0), z, np.float32(0))

    def grid(self, config: FrameDataConfig = FRAME_DATA) -> "DepthGrid":
        """Grid of every `grid_step`-th pixel."""
        height, width = self.depth.shape
        step = config.grid_step
        rows, columns = np.mgrid[step // 2 : height : step, step // 2 : width : step]
        left, top = self.transform.crop[:2]
        sx, sy = self.transform.scale
        u = (left + (columns[0] + 0.5) / sx) * self.scale.factor
        v = (top + (rows[:, 0] + 0.5) / sy) * self.scale.factor
        z = np.where(self.usable[rows, columns] > 0, self.depth[rows, columns], np.float32(0))
        return DepthGrid(u.astype(np.float32), v.astype(np.float32), z.astype(np.float32))


DepthOf = Callable[[], DepthReader]
"""Reads a frame's depth map on demand, in the caller's thread."""


@dataclass(frozen=True)
class DepthGrid:
    """Depth of a frame on a coarse grid over the working image; 0 where there is no usable depth."""

    u: NDArray[np.float32]  # [columns]
    v: NDArray[np.float32]  # [rows]
    z: NDArray[np.float32]  # [rows, columns]

    @property
    def steps(self) -> tuple[float, float]:
        """Pixels between columns, and between rows."""
        u, v = (float(axis[1] - axis[0]) if len(axis) > 1 else 1.0 for axis in (self.u, self.v))
        return u, v

    def sample(self, uv: NDArray[np.floating]) -> NDArray[np.float32]:
        """Depths [N] of the nearest cells at working pixels [N, 2]; 0 outside."""
        row, column, inside = self.cells(uv)
        return np.where(inside, self.z[row, column], np.float32(0))

    def cells(self, uv: NDArray[np.floating]) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.bool_]]:
        """Rows and columns [N] of the nearest cells at working pixels [N, 2], 0 outside; and whether inside [N]."""
        at = (np.nan_to_num(uv, nan=-1e6) - (self.u[0], self.v[0])) / self.steps
        column, row = np.rint(np.clip(at, -1, 1e6)).astype(np.intp).T
        inside = (column >= 0) & (row >= 0) & (column < len(self.u)) & (row < len(self.v))
        return np.where(inside, row, 0), np.where(inside, column, 0), inside

    def scaled(self, scale: float) -> "DepthGrid":
        """The grid with all depths multiplied by ``scale``."""
        return DepthGrid(self.u, self.v, self.z * np.float32(scale))

    def pixels(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Working pixels [K, 2] and depths [K] of the cells with depth."""
        rows, columns = np.nonzero(self.z)
        return np.stack([self.u[columns], self.v[rows]], axis=1), self.z[rows, columns]


def project_world(camera_model: CameraModel, T_world_camera: FloatArray, points: FloatArray) -> FloatArray:
    """Pixels [N, 2] of world points [N, 3]; NaN behind the camera."""
    T = invert_pose(T_world_camera)
    return np.asarray(camera_model.project(points @ T[:3, :3].T + T[:3, 3]))


@dataclass(frozen=True)
class FrameData:
    """Camera and depth of one frame from the network."""

    index: int
    """Number of the frame in its source."""
    T_world_camera: FloatArray  # [4, 4]
    focal: float
    """In working pixels; geometric mean of both axes."""
    grid: DepthGrid
    sharpness: float
    """Variance of the Laplacian of the network's image at half size; see `sharpness`."""
    segment: int = 0
    """Number of the segment, as in `FrameResult`; poses of different segments are related only by a guess."""
    extent: tuple[float, float, float, float] | None = None
    """Left, top, width and height of the depth map in the working image; None: all of it."""

    def moved(self, T_world_camera: FloatArray, scale: float) -> "FrameData":
        """The frame with another pose, and its depth multiplied by ``scale``."""
        return replace(self, T_world_camera=T_world_camera, grid=self.grid.scaled(scale))

    @classmethod
    def from_result(cls, result: FrameResult, scale: Scale) -> "FrameData":
        k = result.intrinsics
        focal = float(np.sqrt(k.fx * k.fy)) * scale.factor
        pose = np.asarray(result.T_world_camera, np.float64)
        grid = DepthReader.from_result(result, scale).grid()
        left, top, width, height = (value * scale.factor for value in result.transform.crop)
        sharp = sharpness(np.asarray(cv2.cvtColor(result.rgb, cv2.COLOR_RGB2GRAY)))
        return cls(result.index, pose, focal, grid, sharp, result.segment, (left, top, width, height))


def sharpness(grey: NDArray[np.uint8]) -> float:
    """Variance of the Laplacian of a grey image at half size, where noise has less effect."""
    half = cv2.resize(grey, None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA)
    return float(cv2.Laplacian(half, cv2.CV_32F).var())


def reproject(
    camera_model: CameraModel, uv: NDArray[np.floating], z: NDArray[np.floating], T_target_source: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Pixels [N, 2] in a target camera, NaN behind it, and depths [N], of source pixels [N, 2] with depths [N]."""
    T = T_target_source
    xyz = (camera_model.unproject(uv) * np.asarray(z, np.float64)[:, None]) @ T[:3, :3].T + T[:3, 3]
    return camera_model.project(xyz), xyz[:, 2]
