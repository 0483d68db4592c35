"""Baselines of an evaluation: trivial guesses, and a classical two-view pipeline.

Trivial guesses put a metric into proportion: a straight line has a small ATE on a forward drive, and a constant depth
a fair AbsRel in a room. The two-view pipeline (SIFT, essential matrix, triangulation; Hartley and Zisserman, chapters
9 to 12) uses OpenCV alone, with the true intrinsics.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.transforms import FloatArray, invert_pose
from stream_recon.app.core.types import Frame, Intrinsics

logger = logging.getLogger(__name__)

RAMP_TOP, RAMP_BOTTOM = 2.0, 0.7
"""Relative depth of the first and last image row: in a level view of a room the wall is farther than the floor."""


def static(frames: int) -> FloatArray:
    """Poses [frames, 4, 4] of a camera that does not move."""
    return np.tile(np.eye(4), (frames, 1, 1))


def straight_line(frames: int) -> FloatArray:
    """Poses [frames, 4, 4] of a camera that moves forward by 1 a frame, without rotation."""
    poses = static(frames)
    poses[:, 2, 3] = np.arange(frames)
    return poses


def constant_velocity(frames: int, step: FloatArray) -> FloatArray:
    """Poses [frames, 4, 4] with the relative pose ``step`` [4, 4] from each frame to the next."""
    poses = static(frames)
    for i in range(1, frames):
        poses[i] = poses[i - 1] @ step
    return poses


def ramp_depth(height: int) -> FloatArray:
    """Depth of each image row [height], far at the top and near at the bottom."""
    return np.linspace(RAMP_TOP, RAMP_BOTTOM, height)


@dataclass
class _BaselineView:
    """Features, depths and pose of a frame in the two-view pipeline."""

    points: FloatArray  # [K, 2] in pixels
    descriptors: NDArray[np.float32]  # [K, 128]
    pose: FloatArray  # [4, 4] camera-to-world
    depth: FloatArray = field(default_factory=lambda: np.empty(0))
    """Depth of each feature [K] in the scale of the chain, nan where it is not triangulated."""

    def __post_init__(self) -> None:
        self.depth = np.full(len(self.points), np.nan)


@dataclass(frozen=True)
class _TwoViewMotion:
    """Relative pose of two views with their matches; the distance of the views is 1."""

    T_a_b: FloatArray  # [4, 4]
    matches: NDArray[np.intp]  # [M, 2] features of a and of b
    depth: FloatArray  # [M] depth of each match in a, nan behind a camera
    parallax: FloatArray  # [M] in degrees


class TwoViewOdometry:
    """Visual odometry by essential matrices, chained from keyframe to keyframe.

    Each frame is matched with the last keyframe, and becomes the keyframe once the image displacement is large enough
    to measure a direction. The length of a translation comes from points shared with the step before; where that
    fails, the last length is used again.
    """

    max_side = 1024
    """Longer side of the images that features are found in, in pixels: beyond it SIFT takes longer for little gain."""
    features = 2000
    """Most features of an image."""
    ratio = 0.75
    """Lowe's ratio test of matches (IJCV 2004)."""
    min_matches = 16
    """Fewest matches for an essential matrix: twice the eight of the linear method."""
    min_common = 6
    """Fewest shared points for the length of a translation, so that their median is robust."""
    keyframe_move = 0.025
    """Median displacement that makes a keyframe, as a share of the image's diagonal."""
    min_tracked = 200
    """Fewest matches with the keyframe: below it the frame becomes the keyframe at any displacement."""
    min_parallax_deg = 0.4
    """Least parallax of a depth that is kept. For the length of a translation the median over all points serves."""
    threshold_px = 1.0
    """Inlier threshold of the essential matrix in pixels."""
    far = 1e4
    """Largest depth, in baselines, of points that decide which of the four poses is right."""

    def __init__(self, intrinsics: Intrinsics, size: tuple[int, int]) -> None:
        """``intrinsics`` in pixels of images of ``size`` (width, height)."""
        self._scale = min(1.0, self.max_side / max(size))
        k, s = intrinsics, self._scale
        self._K = np.array([[k.fx * s, 0, k.cx * s], [0, k.fy * s, k.cy * s], [0, 0, 1]])
        self._diagonal = float(np.hypot(*size)) * s
        self._sift = cv2.SIFT.create(nfeatures=self.features)
        self._matcher = cv2.BFMatcher(cv2.NORM_L2)
        self._keyframe: _BaselineView | None = None
        self._last_pose: FloatArray = np.eye(4)
        self._last_step: FloatArray = np.eye(4)
        self._last_length = 1.0
        self.failures = 0
        """Number of frames without an estimated motion, where the last motion was repeated."""

    def push(self, rgb: NDArray[np.uint8]) -> FloatArray:
        """Camera-to-world pose [4, 4] of the next image [H, W, 3]."""
        view = self._describe(rgb)
        if self._keyframe is None:
            self._keyframe = view
            return view.pose
        motion = self._motion(self._keyframe, view)
        if motion is None:
            self.failures += 1
            view.pose = self._last_pose @ self._last_step
            self._keyframe = view
        else:
            self._chain(self._keyframe, view, motion)
        self._last_step = invert_pose(self._last_pose) @ view.pose
        self._last_pose = view.pose
        return view.pose

    def _describe(self, rgb: NDArray[np.uint8]) -> _BaselineView:
        grey = cv2.cvtColor(rgb, cv2.COLOR_RGB2GRAY)
        if self._scale < 1:
            grey = cv2.resize(grey, None, fx=self._scale, fy=self._scale, interpolation=cv2.INTER_AREA)
        keypoints, descriptors = self._sift.detectAndCompute(grey, None)
        # OpenCV has pixel centres at integers, intrinsics here at halves.
        points = np.array([k.pt for k in keypoints], dtype=np.float64).reshape(-1, 2) + 0.5
        if descriptors is None:
            descriptors = np.empty((0, 128), np.float32)
        return _BaselineView(points, descriptors, np.eye(4))

    def _match(self, a: _BaselineView, b: _BaselineView) -> NDArray[np.intp]:
        if min(len(a.points), len(b.points)) < self.min_matches:
            return np.empty((0, 2), np.intp)
        best: dict[int, tuple[float, int]] = {}
        for pair in self._matcher.knnMatch(a.descriptors, b.descriptors, k=2):
            first, second = pair
            if first.distance < self.ratio * second.distance:
                rival = best.get(first.trainIdx)
                if rival is None or first.distance < rival[0]:
                    best[first.trainIdx] = (first.distance, first.queryIdx)
        return np.array([(i, j) for j, (_, i) in best.items()], dtype=np.intp).reshape(-1, 2)

    def _motion(self, a: _BaselineView, b: _BaselineView) -> _TwoViewMotion | None:
        matches = self._match(a, b)
        if len(matches) < self.min_matches:
            return None
        points_a, points_b = a.points[matches[:, 0]], b.points[matches[:, 1]]
        essential, mask = cv2.findEssentialMat(points_a, points_b, self._K, cv2.USAC_MAGSAC, 0.999, self.threshold_px)
        if essential is None or essential.shape != (3, 3):
            return None
        _, R_b_a, t_b_a, mask, _ = cv2.recoverPose(
            essential, points_a, points_b, self._K, distanceThresh=self.far, mask=mask
        )
        inliers = mask.ravel() > 0
        if inliers.sum() < self.min_matches:
            return None
        T_b_a: FloatArray = np.eye(4)
        T_b_a[:3, :3], T_b_a[:3, 3] = R_b_a, t_b_a.ravel()
        depth, parallax = self._triangulate(points_a[inliers], points_b[inliers], T_b_a)
        return _TwoViewMotion(invert_pose(T_b_a), matches[inliers], depth, parallax)

    def _triangulate(
        self, points_a: FloatArray, points_b: FloatArray, T_b_a: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Depth in camera a [M], nan unless in front of both cameras, and the parallax in degrees [M]."""
        homogeneous = cv2.triangulatePoints(
            self._K @ np.eye(3, 4), self._K @ T_b_a[:3], points_a.T.copy(), points_b.T.copy()
        )
        with np.errstate(divide="ignore", invalid="ignore"):
            in_a = (homogeneous[:3] / homogeneous[3]).T
            in_b = in_a @ T_b_a[:3, :3].T + T_b_a[:3, 3]
            from_b = in_b @ T_b_a[:3, :3]
            sine = np.linalg.norm(np.cross(in_a, from_b), axis=1)
            parallax: FloatArray = np.degrees(np.arctan2(sine, (in_a * from_b).sum(axis=1)))
            in_front = (in_a[:, 2] > 0) & (in_b[:, 2] > 0)
        depth: FloatArray = np.where(in_front, in_a[:, 2], np.nan)
        return depth, parallax

    def _chain(self, reference: _BaselineView, view: _BaselineView, motion: _TwoViewMotion) -> None:
        """Set the pose of ``view`` in the scale of the chain, and make it the keyframe if the image moved enough."""
        in_a, in_b = motion.matches[:, 0], motion.matches[:, 1]
        reliable = np.isfinite(motion.depth) & (motion.parallax > self.min_parallax_deg)
        ratios = reference.depth[in_a] / motion.depth
        ratios = ratios[np.isfinite(ratios)]
        if len(ratios) >= self.min_common:
            length = float(np.median(ratios))
        else:
            # With little parallax the motion is taken for a pure rotation.
            length = self._last_length if reliable.sum() >= self.min_matches else 0.0
        step = motion.T_a_b.copy()
        step[:3, 3] *= length
        view.pose = reference.pose @ step
        new = reliable & np.isnan(reference.depth[in_a])
        if length > 0:
            reference.depth[in_a[new]] = motion.depth[new] * length
        moved = np.linalg.norm(reference.points[in_a] - view.points[in_b], axis=1)
        if np.median(moved) > self.keyframe_move * self._diagonal or len(in_a) < self.min_tracked:
            view.depth[in_b] = self._depth_in(reference, in_a, step)
            self._keyframe = view
            self._last_length = length or self._last_length

    def _depth_in(self, reference: _BaselineView, features: NDArray[np.intp], step: FloatArray) -> FloatArray:
        """Depth of the reference's features [M] in the camera at relative pose ``step`` [4, 4], nan behind it."""
        pixels = np.concatenate([reference.points[features], np.ones((len(features), 1))], axis=1)
        points = pixels @ np.linalg.inv(self._K).T * reference.depth[features, None]
        depth = ((points - step[:3, 3]) @ step[:3, :3])[:, 2]
        return np.where(depth > 0, depth, np.nan)


def two_view(frames: Iterable[Frame], intrinsics: Intrinsics, size: tuple[int, int]) -> FloatArray:
    """Poses [N, 4, 4] of the frames by `TwoViewOdometry`, the first at the origin, in arbitrary scale."""
    odometry = TwoViewOdometry(intrinsics, size)
    poses = [odometry.push(frame.rgb) for frame in frames]
    if odometry.failures:
        logger.info("two-view baseline: no motion estimated for %d of %d frames", odometry.failures, len(poses))
    return np.stack(poses) if poses else np.empty((0, 4, 4))
