"""Depth maps to points, and the few rigid-body formulas that writers, viewer and evaluation share."""

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.results import FrameResult, Intrinsics
from stream_recon.configs.schema import PointsConfig


@dataclass(frozen=True)
class FramePoints:
    """The points of one frame in its camera's axes (x right, y down, z forward), in row-major pixel order."""

    xyz: NDArray[np.float32]  # [N, 3]
    rgb: NDArray[np.uint8]  # [N, 3]
    confidence: NDArray[np.float32]  # [N]

    def __len__(self) -> int:
        return len(self.xyz)

    def take(self, indices: NDArray[np.intp] | NDArray[np.bool_]) -> "FramePoints":
        """The points at ``indices`` (numbers or a mask)."""
        return FramePoints(self.xyz[indices], self.rgb[indices], self.confidence[indices])


def frame_points(result: FrameResult, config: PointsConfig) -> FramePoints:
    """Unproject a frame's sure pixels.

    Left out are pixels without a finite positive depth, depth edges, pixels below ``config.min_confidence``, and the
    least confident share of the pixels (``config.confidence_quantile``; pixels as confident as the last one kept all
    stay).
    """
    depth = result.depth
    with np.errstate(invalid="ignore"):
        valid = np.isfinite(depth) & (depth > 0)
        keep = valid & ~depth_edges(np.where(valid, depth, np.float32(np.nan)), config.edge_ratio)
    keep &= result.confidence >= config.min_confidence
    if valid.any():
        keep &= result.confidence >= _quantile(result.confidence[valid], config.confidence_quantile)
    pixels = np.flatnonzero(keep)
    z = depth.reshape(-1)[pixels].astype(np.float32, copy=False)
    rows, columns = np.divmod(pixels.astype(np.int32), np.int32(depth.shape[1]))
    xyz = unproject(rows, columns, z, result.network_intrinsics)
    rgb = np.take(result.rgb.reshape(-1, 3), pixels, axis=0)
    return FramePoints(xyz, rgb, result.confidence.reshape(-1)[pixels].astype(np.float32, copy=False))


def unproject(
    rows: NDArray[np.integer], columns: NDArray[np.integer], z: NDArray[np.float32], camera: Intrinsics
) -> NDArray[np.float32]:
    """Points [N, 3] in the camera's axes of pixels [N] at depths ``z`` [N]."""
    xyz = np.empty((len(z), 3), np.float32)
    # Pixel (0, 0) covers [0, 1) x [0, 1): rays pass through its centre.
    xyz[:, 0] = ((columns + np.float32(0.5)) - np.float32(camera.cx)) * np.float32(1 / camera.fx) * z
    xyz[:, 1] = ((rows + np.float32(0.5)) - np.float32(camera.cy)) * np.float32(1 / camera.fy) * z
    xyz[:, 2] = z
    return xyz


def depth_edges(depth: NDArray[np.float32], ratio: float) -> NDArray[np.bool_]:
    """Mask [h, w] of the pixels on either side of a depth step.

    A step lies between two 4-neighbours whose depths differ by more than ``ratio`` of the nearer one.
    NaN marks pixels without depth; they make no step.
    """
    edges = np.zeros(depth.shape, bool)
    limit = np.float32(1 + ratio)
    for first, second in (
        ((slice(-1),), (slice(1, None),)),
        ((slice(None), slice(-1)), (slice(None), slice(1, None))),
    ):
        near, far = depth[first], depth[second]
        step = (near > far * limit) | (far > near * limit)
        edges[first] |= step
        edges[second] |= step
    return edges


def _quantile(values: NDArray[np.float32], share: float) -> np.float32:
    """Smallest value that is kept when ``share`` of ``values`` is dropped from below; no interpolation."""
    rank = min(int(share * len(values)), len(values) - 1)
    kept: np.float32 = np.partition(values, rank)[rank]
    return kept


def project(xyz: NDArray[np.floating], K: NDArray[np.floating]) -> NDArray[np.float64]:
    """Pixels [N, 2] of camera-space points [N, 3] under the 3x3 matrix ``K``; NaN behind the camera."""
    points = np.asarray(xyz, np.float64)
    depth = np.where(points[:, 2:] > 0, points[:, 2:], np.nan)
    pixels: NDArray[np.float64] = (points / depth) @ np.asarray(K, np.float64)[:2].T
    return pixels


def transform_points(T: NDArray[np.floating], xyz: NDArray[np.floating]) -> NDArray[np.float32]:
    """Apply a 4x4 transform (rigid or similar) to points [N, 3]; the product is in float32, the shift too."""
    if not len(xyz):
        return np.empty((0, 3), np.float32)
    # For matrices this thin numpy's product takes twenty times as long.
    points = np.ascontiguousarray(xyz, np.float32)[:, None]
    moved: NDArray[np.float32] = cv2.transform(points, np.asarray(T[:3], np.float32)).reshape(-1, 3)
    return moved


def invert_pose(T: NDArray[np.floating]) -> NDArray[np.float64]:
    """Inverse of rigid transforms [..., 4, 4]."""
    pose = np.asarray(T, np.float64)
    inverse = np.zeros_like(pose)
    R_inverse = np.swapaxes(pose[..., :3, :3], -1, -2)
    inverse[..., :3, :3] = R_inverse
    inverse[..., :3, 3] = -np.einsum("...ij,...j->...i", R_inverse, pose[..., :3, 3])
    inverse[..., 3, 3] = 1.0
    return inverse


def rotation_angle_deg(R: NDArray[np.floating]) -> NDArray[np.float64]:
    """Angles [...] in degrees of rotations [..., 3, 3]; exact near 0 and 180, unlike arccos of the trace."""
    m = np.asarray(R, np.float64)
    axis = np.stack([m[..., 2, 1] - m[..., 1, 2], m[..., 0, 2] - m[..., 2, 0], m[..., 1, 0] - m[..., 0, 1]], axis=-1)
    sine, cosine = np.linalg.norm(axis, axis=-1), np.trace(m, axis1=-2, axis2=-1) - 1.0
    angle: NDArray[np.float64] = np.degrees(np.arctan2(sine, cosine))
    return angle


def quaternion_xyzw(R: NDArray[np.floating]) -> NDArray[np.float64]:
    """Unit quaternions [..., 4] (x, y, z, w; w >= 0) of rotations [..., 3, 3].

    Of the four ways to solve for a quaternion the one with the largest divisor is taken (Shepperd 1978).
    """
    m = np.asarray(R, np.float64)
    xx, yy, zz = m[..., 0, 0], m[..., 1, 1], m[..., 2, 2]
    # Outer product 4 q q^T, written in the entries of the matrix; its longest row is the best conditioned.
    outer = np.empty((*m.shape[:-2], 4, 4))
    outer[..., 0, 0], outer[..., 1, 1] = 1 + xx - yy - zz, 1 - xx + yy - zz
    outer[..., 2, 2], outer[..., 3, 3] = 1 - xx - yy + zz, 1 + xx + yy + zz
    for a, b, c in ((0, 1, 2), (0, 2, 1), (1, 2, 0)):
        outer[..., a, b] = outer[..., b, a] = m[..., a, b] + m[..., b, a]
        # (c + 2) % 3 and (c + 1) % 3 are the rows left over, in the order that gives +sin.
        outer[..., c, 3] = outer[..., 3, c] = m[..., (c + 2) % 3, (c + 1) % 3] - m[..., (c + 1) % 3, (c + 2) % 3]
    best = np.argmax(np.diagonal(outer, axis1=-2, axis2=-1), axis=-1)
    q = np.take_along_axis(outer, best[..., None, None], axis=-2)[..., 0, :]
    q /= np.linalg.norm(q, axis=-1, keepdims=True)
    signed: NDArray[np.float64] = np.where(q[..., 3:] < 0, -q, q)
    return signed


def rotation_matrix(quaternion: NDArray[np.floating]) -> NDArray[np.float64]:
    """Rotations [..., 3, 3] of quaternions [..., 4] (x, y, z, w) of any length but zero."""
    q = np.asarray(quaternion, np.float64)
    x, y, z, w = np.moveaxis(q / np.linalg.norm(q, axis=-1, keepdims=True), -1, 0)
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
        [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
        [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
    ]
    return np.stack([np.stack(row, axis=-1) for row in rows], axis=-2)
