"""Geometric consistency of depth maps: which pixels other views confirm, and which they see through.

A pixel's point is projected into another view. The other depth map agrees with it, sees through it (its surface is
clearly farther: the point is in free space), hides it (its surface is clearly nearer), or says nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.depth_points import confidence_levels, look_up, sure_pixels
from stream_recon.app.core.transforms import invert_pose
from stream_recon.app.core.types import Certainty, FrameResult, Intrinsics
from stream_recon.configs.schema import PointsConfig

AGREEMENT, MAX_AGREEMENT = 0.02, 0.08
"""Largest relative difference of depths that agree: where two maps differ more as a whole, up to the second value."""
TYPICAL = 2.5
"""The same in medians of all differences between two maps."""
SLANT = 0.02
"""Largest part of the difference that the slant of a surface within a pixel explains."""
FREE_SPACE = 3.0
"""Least difference of depths of which one is clearly farther, as a multiple of the largest that agrees."""
SMOOTH = 0.2
"""Largest relative difference of depth within 3x3 pixels of one surface, however slanted."""
MIN_DEVIATION = 0.02
"""Deviation of depth at full confidence, where it is 1 at none: means are weighted by inverse variance."""
NEIGHBOURS = 4
"""Views that a frame is compared with where earlier and later ones are known: more hardly change the result."""
MANY = 3
"""Views with a free sight from which one that agrees may do so by chance."""
MIN_OVERLAP = 0.25
"""Least share of a view that a neighbour sees."""
GOOD_ANGLE = np.radians(5.0)
"""Angle between the rays of two views from which depth errors show well."""
LARGE_ANGLE = np.radians(35.0)
"""Angle from which surfaces look different."""
SECOND_DIFFERENCE = np.array([[1, 0, -2, 0, 1]], np.float32)
MAX_BEND = 0.01
"""Largest second difference of inverse depth on a plane, relative to it, over two pixels on either side."""
TINY = np.float32(1e-12)
OUTSIDE = np.float32(-1e4)
"""Coordinate of no pixel."""
GRID = 5
"""Points along each side of a view that its overlap with others is estimated from."""


@dataclass(frozen=True)
class DepthView:
    """A depth map with its camera, to compare other views with."""

    depth: NDArray[np.float32]  # [h, w], 0 where there is none
    level: NDArray[np.float32]  # [h, w], confidence from 0 to 1
    camera: Intrinsics
    """In pixels of ``depth``."""
    T_world_camera: NDArray[np.float64]  # [4, 4]
    segment: int = 0

    @staticmethod
    def from_result(result: FrameResult, config: PointsConfig) -> "DepthView":
        """The view of a frame, without depth below the configuration's confidence."""
        level = confidence_levels(result)
        with np.errstate(invalid="ignore"):
            known = np.isfinite(result.depth) & (result.depth > 0) & (level >= config.confidence)
        depth = np.where(known, result.depth, np.float32(0))
        return DepthView(depth, level, result.network_intrinsics, result.T_world_camera, result.segment)

    @cached_property
    def bounds(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Nearest and farthest depth [h, w] of the surface within 3x3 pixels; at depth edges the pixel's own."""
        square = np.ones((3, 3), np.uint8)
        known = self.depth > 0
        near = cv2.erode(np.where(known, self.depth, np.float32(np.inf)), square)
        far = cv2.dilate(self.depth, square)
        smooth = known & (far - near <= np.float32(SMOOTH) * far)
        return (
            np.where(smooth, near, self.depth).astype(np.float32),
            np.where(smooth, far, self.depth).astype(np.float32),
        )

    @cached_property
    def inverse(self) -> NDArray[np.float32]:
        """Inverse depth [h, w], which is linear over a plane; 0 where there is none."""
        return np.divide(1, self.depth, out=np.zeros_like(self.depth), where=self.depth > 0)

    @cached_property
    def weight(self) -> NDArray[np.float32]:
        """Weight [h, w] of the depth in a mean; 0 in creases, where depth between pixels is not that of a plane."""
        smooth = cv2.blur(self.inverse, (3, 3))
        bends = [np.abs(cv2.filter2D(smooth, -1, kernel)) for kernel in (SECOND_DIFFERENCE, SECOND_DIFFERENCE.T)]
        plane = np.maximum(*bends) < np.float32(MAX_BEND) * self.inverse
        return np.where(plane, np.square(1 / (1 + np.float32(MIN_DEVIATION) - self.level)), np.float32(0))

    @cached_property
    def nearest(self) -> NDArray[np.float32]:
        """Nearest depth [h, w] within 3x3 pixels, on whatever surface; 0 where one of them has none."""
        return np.asarray(cv2.erode(self.depth, np.ones((3, 3), np.uint8)), np.float32)

    @cached_property
    def table(self) -> NDArray[np.float32]:
        """`bounds`, `nearest` and `weight` [h, w, 4], which are sampled together."""
        return np.asarray(cv2.merge([*self.bounds, self.nearest, self.weight]), np.float32)

    @cached_property
    def sparse_points(self) -> NDArray[np.float64]:
        """Points [N, 3] in the world of a coarse grid of pixels."""
        height, width = self.depth.shape
        rows = ((np.arange(GRID) + 0.5) * height / GRID).astype(np.intp)
        columns = ((np.arange(GRID) + 0.5) * width / GRID).astype(np.intp)
        z = self.depth[np.ix_(rows, columns)].astype(np.float64)
        x = (columns + 0.5 - self.camera.cx) / self.camera.fx * z
        y = ((rows + 0.5 - self.camera.cy) / self.camera.fy)[:, None] * z
        xyz = np.stack([x, y, z], axis=-1)[z > 0]
        return np.asarray(xyz @ self.T_world_camera[:3, :3].T + self.T_world_camera[:3, 3])


@dataclass(frozen=True)
class Votes:
    """What other views say about each pixel [h, w] of a depth map."""

    agree: NDArray[np.uint8]
    """Views whose depth agrees."""
    through: NDArray[np.uint8]
    """Views that see through the pixel's point."""
    hidden: NDArray[np.uint8]
    """Views that show a clearly nearer surface."""
    observed: NDArray[np.uint8]
    """Views with any depth there."""
    depth: NDArray[np.float32]
    """Mean of the pixel's own depth and the depths that agree, weighted by confidence."""


def compare(result: FrameResult, own: DepthView, others: Sequence[DepthView], step: int = 1) -> Votes:
    """Compare a frame, whose view is ``own``, with other views of the same world and unit.

    ``step``: only every n-th row and column is compared; the votes have that size.
    """
    depth = own.depth[::step, ::step]
    shape = depth.shape
    agree, through, hidden, observed = (np.zeros(shape, np.uint8) for _ in range(4))
    known = depth > 0
    points = np.ascontiguousarray(result.camera_points[::step, ::step].reshape(-1, 3).T)
    total = np.zeros(shape, np.float32)
    weights = np.square(1 / (1 + np.float32(MIN_DEVIATION) - own.level[::step, ::step]))
    for other in others:
        k = other.camera
        K = np.array([[k.fx, 0, k.cx - 0.5], [0, k.fy, k.cy - 0.5], [0, 0, 1]])
        P = (K @ (invert_pose(other.T_world_camera) @ own.T_world_camera)[:3]).astype(np.float32)
        x, y, z = (P[:, :3] @ points + P[:, 3:]).reshape(3, *shape)
        ahead = (z > 0) & known
        inverse = 1 / np.where(ahead, z, np.float32(np.inf))
        # Pixels behind the camera fall outside.
        x = np.where(ahead, x * inverse, OUTSIDE)
        y *= inverse
        for axis in (x, y):
            np.clip(axis, OUTSIDE, -OUTSIDE, out=axis)
        near, far, nearest, weight = cv2.split(look_up(other.table, x, y, "nearest"))
        # The depth of the other surface along nearly the same ray, and its relative difference.
        difference = np.maximum(look_up(other.inverse, x, y, "bilinear"), TINY)
        np.divide(1, difference, out=difference)
        np.minimum(np.maximum(difference, near, out=difference), far, out=difference)
        difference *= inverse
        difference -= 1
        slack = (far - near) * inverse
        slack *= np.float32(0.5)
        np.minimum(slack, np.float32(SLANT), out=slack)
        has_depth = near > 0
        tolerance = _tolerance(difference[::3, ::3][has_depth[::3, ::3]])
        slack += tolerance
        agrees = has_depth & (np.abs(difference) < slack)
        observed += has_depth.view(np.uint8)
        agree += agrees.view(np.uint8)
        hidden += (has_depth & (difference < -FREE_SPACE * tolerance)).view(np.uint8)
        through += (nearest * inverse > 1 + FREE_SPACE * tolerance).view(np.uint8)
        weight *= agrees
        weights += weight
        weight *= difference
        total += weight
    return Votes(agree, through, hidden, observed, np.asarray(depth * (1 + total / weights), np.float32))


def _tolerance(differences: NDArray[np.float32]) -> np.float32:
    """Largest difference that agrees, from the differences [N] of two maps."""
    typical = TYPICAL * float(np.median(np.abs(differences))) if len(differences) else 0.0
    return np.float32(np.clip(typical, AGREEMENT, MAX_AGREEMENT))


def consistent_pixels(
    result: FrameResult, own: DepthView, others: Sequence[DepthView], config: PointsConfig, step: int = 1
) -> tuple[NDArray[np.bool_], NDArray[np.float32]]:
    """Mask [h, w] of a frame's pixels to keep, and its depth [h, w], averaged over the views that agree.

    With a ``step`` above 1, blocks of so many pixels are judged by their first one, whose depth alone is averaged.

    Of the `sure_pixels`, those stay that one view confirms, or two where `MANY` have a free sight, and that not more
    views see through; also those that no other view sees. Measured stereo stays where no more than one view more sees
    through it than agrees.
    """
    keep = sure_pixels(result, config)
    if not others:
        return keep, own.depth
    votes = compare(result, own, others, step)
    balance = votes.agree.astype(np.int8) - votes.through.astype(np.int8)
    needed = np.where(votes.observed - votes.hidden >= MANY, 2, 1)
    free = (votes.observed == 0) | ((votes.agree >= needed) & (balance >= 0))
    if result.certainty is not None:
        free |= (result.certainty[::step, ::step] >= Certainty.NEAR) & (balance >= -1)
    height, width = keep.shape
    depth = own.depth.copy()
    depth[::step, ::step] = votes.depth
    return keep & free.repeat(step, axis=0).repeat(step, axis=1)[:height, :width], depth


def choose_neighbours(
    own: DepthView, cameras: Sequence[tuple[NDArray[np.float64], Intrinsics, tuple[int, int]]], max_count: int
) -> list[int]:
    """Numbers of at most ``max_count`` cameras that see much of a view from other directions, the best first.

    Args:
        cameras: pose [4, 4], intrinsics and image size (width, height) of each camera.
    """
    points = own.sparse_points
    if not cameras or not len(points):
        return []
    T = np.array([pose for pose, _, _ in cameras])
    K = np.array([[k.fx, k.fy, k.cx, k.cy] for _, k, _ in cameras])[:, None]
    size = np.array([size for _, _, size in cameras], np.float64)[:, None]
    local = np.einsum("nji,nkj->nki", T[:, :3, :3], points[None] - T[:, None, :3, 3])
    with np.errstate(divide="ignore", invalid="ignore"):
        pixels = local[..., :2] / local[..., 2:] * K[..., :2] + K[..., 2:]
        visible = (local[..., 2] > 0) & ((pixels >= 0) & (pixels < size)).all(axis=2)
    overlap = visible.mean(axis=1)
    middle = np.median(points, axis=0)
    rays = _unit(T[:, :3, 3] - middle)
    angle = _angles(rays, _unit(own.T_world_camera[None, :3, 3] - middle)[0])
    score = overlap * np.minimum(angle / GOOD_ANGLE, 1) * np.minimum(LARGE_ANGLE / np.maximum(angle, 1e-6), 1)
    score = np.where(overlap < MIN_OVERLAP, 0, score + 1e-3 * overlap)
    chosen: list[int] = []
    while len(chosen) < max_count:
        best = int(np.argmax(score))
        if score[best] <= 0:
            break
        chosen.append(best)
        # Views from the same direction have the same errors.
        score = score * np.clip(_angles(rays, rays[best]) / GOOD_ANGLE, 0.01, 1)
        score[best] = 0
    return chosen


def _unit(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12))


def _angles(rays: NDArray[np.float64], ray: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.arccos(np.clip(rays @ ray, -1, 1)))
