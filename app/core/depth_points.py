"""Depth maps: confidence, unprojection, projection, comparison, and change of the world frame."""

from dataclasses import dataclass, replace
from typing import Any, Literal

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.transforms import Similarity
from stream_recon.app.core.types import Certainty, FrameResult, Intrinsics
from stream_recon.configs.schema import PointsConfig

UNSURE = 0.1
"""Fraction of the median confidence below which a pixel, such as sky, has practically no confidence."""
CERTAINTY_LEVELS = np.array([0, 0.3, 0.7, 0.95], np.float32)
"""Confidence from 0 to 1 of each `Certainty`: the network's is below ``medium``, confirmed above ``high``."""


@dataclass(frozen=True)
class FramePoints:
    """Points of one frame in camera axes (x right, y down, z forward), in row-major pixel order."""

    xyz: NDArray[np.float32]  # [N, 3]
    rgb: NDArray[np.uint8]  # [N, 3]
    confidence: NDArray[np.float32]  # [N]

    def __len__(self) -> int:
        return len(self.xyz)

    def take(self, indices: NDArray[np.intp] | NDArray[np.bool_]) -> "FramePoints":
        """Points at ``indices`` (numbers or a mask)."""
        return FramePoints(self.xyz[indices], self.rgb[indices], self.confidence[indices])


def frame_points(
    result: FrameResult,
    config: PointsConfig,
    keep: NDArray[np.bool_] | None = None,
    depth: NDArray[np.float32] | None = None,
) -> FramePoints:
    """Unproject pixels of a frame.

    Args:
        keep: mask [h, w] of the pixels; None: the `sure_pixels`.
        depth: [h, w] in place of the frame's; None: the frame's.
    """
    pixels = np.flatnonzero(sure_pixels(result, config) if keep is None else keep)
    xyz = np.take(result.camera_points.reshape(-1, 3), pixels, axis=0)
    if depth is not None:
        xyz *= (depth.reshape(-1)[pixels] / xyz[:, 2])[:, None]
    rgb = np.take(result.rgb.reshape(-1, 3), pixels, axis=0)
    return FramePoints(xyz, rgb, result.confidence.reshape(-1)[pixels].astype(np.float32, copy=False))


def sure_pixels(result: FrameResult, config: PointsConfig) -> NDArray[np.bool_]:
    """Mask [h, w] of the pixels of enough confidence, whatever other views show.

    Excluded are pixels without finite positive depth, pixels whose `confidence_levels` are below ``config.confidence``,
    and depth edges that stereo did not confirm.
    """
    depth = result.depth
    with np.errstate(invalid="ignore"):
        valid = np.isfinite(depth) & (depth > 0)
        edges = depth_edges(np.where(valid, depth, np.float32(np.nan)), config.edge_ratio)
    if result.certainty is not None:
        edges &= result.certainty < Certainty.CONFIRMED
    return valid & ~edges & (confidence_levels(result) >= np.float32(config.confidence))


def confidence_levels(result: FrameResult) -> NDArray[np.float32]:
    """Confidence [h, w] of each pixel on one scale from 0 to 1.

    A network's confidence c is c / (1 + c). The embedded network was trained so that its relative error of depth is
    about half of what is missing to 1: 0.05 is a guess, as in sky, 0.5 an error of 25 %, 0.9 one of 5 %. Dense depth
    maps have the values of `CERTAINTY_LEVELS`.
    """
    if result.certainty is not None:
        return CERTAINTY_LEVELS[result.certainty]
    confidence = result.confidence.astype(np.float32, copy=False)
    with np.errstate(invalid="ignore"):
        return np.asarray(confidence / (1 + confidence), np.float32)


def unproject(
    rows: NDArray[np.integer], columns: NDArray[np.integer], z: NDArray[np.float32], camera: Intrinsics
) -> NDArray[np.float32]:
    """Points [N, 3] in camera axes of pixels [N] at depths ``z`` [N]."""
    xyz = np.empty((len(z), 3), np.float32)
    # Pixel (0, 0) covers [0, 1) x [0, 1), and rays pass through pixel centres.
    xyz[:, 0] = ((columns + np.float32(0.5)) - np.float32(camera.cx)) * np.float32(1 / camera.fx) * z
    xyz[:, 1] = ((rows + np.float32(0.5)) - np.float32(camera.cy)) * np.float32(1 / camera.fy) * z
    xyz[:, 2] = z
    return xyz


def depth_edges(depth: NDArray[np.float32], ratio: float) -> NDArray[np.bool_]:
    """Mask [h, w] of the pixels on both sides of a depth step.

    A step lies between two 4-neighbours whose depths differ by more than ``ratio`` of the nearer one. Pixels without
    depth are NaN and form no step.
    """
    edges = np.zeros(depth.shape, bool)
    limit = np.float32(1 + ratio)
    for first, second in (((slice(-1),), (slice(1, None),)), ((slice(None), slice(-1)), (slice(None), slice(1, None)))):
        near, far = depth[first], depth[second]
        step = (near > far * limit) | (far > near * limit)
        edges[first] |= step
        edges[second] |= step
    return edges


def look_up(
    values: NDArray[Any],
    x: NDArray[np.float32],
    y: NDArray[np.float32],
    how: Literal["nearest", "bilinear"],
    beyond: Literal["zero", "edge"] = "zero",
) -> NDArray[Any]:
    """Values of a map [h, w, ...] at positions x, y, [N] or [h', w'], where whole numbers are pixel centres.

    ``beyond``: values outside the map, and what bilinear ones at its border mix with; NaN counts as outside.
    """
    interpolation = cv2.INTER_NEAREST if how == "nearest" else cv2.INTER_LINEAR
    border = cv2.BORDER_CONSTANT if beyond == "zero" else cv2.BORDER_REPLICATE
    if x.ndim == 2:
        return np.asarray(cv2.remap(values, x, y, interpolation, borderMode=border, borderValue=0))
    # cv2.remap takes maps of fewer than 32768 rows.
    parts = [
        cv2.remap(values, x[i : i + 30000, None], y[i : i + 30000, None], interpolation, borderMode=border)[:, 0]
        for i in range(0, len(x), 30000)
    ]
    return np.concatenate(parts)


def project(xyz: NDArray[np.floating], K: NDArray[np.floating]) -> NDArray[np.float64]:
    """Pixels [N, 2] of points [N, 3] in camera axes, by the matrix ``K`` [3, 3]; NaN behind the camera."""
    points = np.asarray(xyz, np.float64)
    depth = np.where(points[:, 2:] > 0, points[:, 2:], np.nan)
    pixels: NDArray[np.float64] = (points / depth) @ np.asarray(K, np.float64)[:2].T
    return pixels


def depth_ratio(earlier: FrameResult, later: FrameResult) -> float | None:
    """Ratio of the median depths of two results of one image; None if no pixel has depth in both.

    Only pixels with practically no confidence are excluded. A stricter selection would prefer certain depths, where the
    ratio may differ.
    """
    chosen = (earlier.depth > 0) & (later.depth > 0)
    for result in (earlier, later):
        chosen &= result.confidence >= UNSURE * np.median(result.confidence)
    return float(np.median(earlier.depth[chosen]) / np.median(later.depth[chosen])) if chosen.any() else None


def transform_result(result: FrameResult, transform: Similarity) -> FrameResult:
    """Result in the coordinate frame and scale that ``transform`` leads to."""
    pose = transform.move_pose(result.T_world_camera)
    return replace(result, T_world_camera=pose, depth=result.depth * np.float32(transform.scale))
