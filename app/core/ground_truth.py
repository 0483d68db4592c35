"""Ground truth of a scene: poses, camera, depth. Data set readers create it; evaluation compares with it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.types import ImageTransform, Intrinsics

DEPTH_RANGE_M = (0.1, 60.0)
"""Range of metric ground-truth depth that is used: sensors err outside, and the sky is far."""


@dataclass(frozen=True)
class MatchedPixels:
    """Ground-truth depths and the network pixels that show the same points."""

    z: NDArray[np.float64]  # [K]
    rows: NDArray[np.intp]  # [K]
    columns: NDArray[np.intp]  # [K]


@dataclass(frozen=True)
class DepthMap:
    """Dense ground truth: depth in metres over the complete source image, at any resolution."""

    metres: NDArray[np.floating]  # [H, W], 0 where unknown

    def at_network(self, transform: ImageTransform) -> MatchedPixels:
        """Ground truth at the centre of each network pixel, where it is known and in `DEPTH_RANGE_M`."""
        width, height = transform.network_size
        left, top, _, _ = transform.crop
        scale_x, scale_y = transform.scale
        u = left + (np.arange(width) + 0.5) / scale_x
        v = top + (np.arange(height) + 0.5) / scale_y
        x = _cells(u, transform.source_size[0], self.metres.shape[1])
        y = _cells(v, transform.source_size[1], self.metres.shape[0])
        z = self.metres[y[:, None], x[None, :]]
        rows, columns = np.nonzero((z > DEPTH_RANGE_M[0]) & (z < DEPTH_RANGE_M[1]))
        return MatchedPixels(z[rows, columns].astype(np.float64), rows, columns)


@dataclass(frozen=True)
class DepthPoints:
    """Sparse ground truth: points in source pixels with depth, in the scale of the scene."""

    uvz: NDArray[np.float64]  # [K, 3]

    def at_network(self, transform: ImageTransform) -> MatchedPixels:
        """Points in front of the camera and inside the network's image, with their pixels."""
        width, height = transform.network_size
        scale_x, scale_y = transform.scale
        columns = np.floor((self.uvz[:, 0] - transform.crop[0]) * scale_x).astype(np.intp)
        rows = np.floor((self.uvz[:, 1] - transform.crop[1]) * scale_y).astype(np.intp)
        inside = (columns >= 0) & (columns < width) & (rows >= 0) & (rows < height) & (self.uvz[:, 2] > 0)
        return MatchedPixels(self.uvz[inside, 2], rows[inside], columns[inside])


def _cells(position: NDArray[np.floating], extent: int, cells: int) -> NDArray[np.intp]:
    """Cell of each position on a grid of ``cells`` over [0, extent)."""
    indices: NDArray[np.intp] = np.clip(position * (cells / extent), 0, cells - 1).astype(np.intp)
    return indices


DepthTruth = DepthMap | DepthPoints
Poses = Mapping[int, NDArray[np.float64]]


def no_depth(index: int) -> DepthTruth | None:
    """Ground-truth depth of a scene without depth: None."""
    return None


@dataclass(frozen=True)
class GroundTruth:
    """Ground truth of a scene, by frame number as in `Frame.index`."""

    source_size: tuple[int, int]
    """Width and height of the images."""
    poses: Poses
    """Camera-to-world [4, 4], camera axes x right, y down, z forward; frames without a known pose are missing."""
    intrinsics: Intrinsics | None
    """Camera in pixels of the images, see `Intrinsics`; None if it is unknown or not a pinhole."""
    metric: bool
    """Whether lengths are metres; else in an arbitrary scale, as from structure from motion."""
    has_depth: bool
    read_depth: Callable[[int], DepthTruth | None] = field(default=no_depth, repr=False)

    def depth(self, index: int) -> DepthTruth | None:
        """Ground-truth depth of one frame, read from its file; None if it has none. Raises InputError."""
        return self.read_depth(index)
