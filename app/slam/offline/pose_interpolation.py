"""Poses of frames between keyframes, by their earlier motion relative to both; and KLT tracking into them."""

from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core import so3
from stream_recon.app.core.transforms import invert_pose, rotation_angle_deg
from stream_recon.app.slam.ba.problem import CameraModel, FloatArray
from stream_recon.app.slam.frame_data import project_points

WINDOW = 21
"""Window of KLT in pixels; OpenCV's default."""
LEVELS = 3
"""Pyramid levels above the base; with two, fast pans are lost."""
ROUND_TRIP_PX = 1.0
"""Largest error after tracking forth and back."""
MAX_POINTS = 300
"""Points tracked from each keyframe; more improve a pose little."""


@dataclass(frozen=True)
class PoseInterpolator:
    """Interpolates the poses of all frames from those of keyframes, by an earlier trajectory of all frames."""

    positions: NDArray[np.intp]  # [K], of the keyframes among all frames, ascending
    before: FloatArray  # [N, 4, 4], earlier poses of all frames, the network's or online ones
    after: FloatArray  # [K, 4, 4], new poses of the keyframes
    scale: FloatArray  # [K], length in the map per length of the earlier trajectory, around each keyframe
    segment: NDArray[np.integer]  # [N], of all frames; frames follow keyframes of their own segment only

    def around(self, frame: int) -> tuple[int, int, float]:
        """Indices of the keyframes on both sides, and the frame's relative position between them, 0 to 1."""
        last = len(self.positions) - 1
        right = min(max(int(np.searchsorted(self.positions, frame)), 1), last)
        left = max(right - 1, 0)
        span = self.positions[right] - self.positions[left]
        return left, right, float(np.clip((frame - self.positions[left]) / max(span, 1), 0, 1))

    def pose(self, frame: int) -> FloatArray:
        """Pose [4, 4] by the earlier motion from the previous and to the next keyframe, blended."""
        left, right, share = self.around(frame)
        mine = [k for k in (left, right) if self.segment[self.positions[k]] == self.segment[frame]]
        if len(mine) < 2 or left == right:
            return self._from(mine[0], frame) if mine else self.before[frame]
        first, second = self._from(left, frame), self._from(right, frame)
        rotation = so3.log(first[:3, :3].T @ second[:3, :3])
        T = np.eye(4)
        T[:3, :3] = first[:3, :3] @ so3.exp(share * rotation)
        T[:3, 3] = (1 - share) * first[:3, 3] + share * second[:3, 3]
        return T

    def misfit(self, frame: int) -> float:
        """Contradiction between the two keyframes around a frame and the earlier motion.

        It is the rotation in rad, plus the translation relative to the keyframes' distance (the larger of both).
        """
        left, right, _ = self.around(frame)
        there = self._from(left, int(self.positions[right]))
        angle = np.radians(rotation_angle_deg(there[:3, :3].T @ self.after[right, :3, :3]))
        begin, end = self.after[left, :3, 3], self.after[right, :3, 3]
        length = max(float(np.linalg.norm(end - begin)), float(np.linalg.norm(there[:3, 3] - begin)), 1e-12)
        return float(angle) + float(np.linalg.norm(there[:3, 3] - end)) / length

    def _from(self, keyframe: int, frame: int) -> FloatArray:
        """Pose [4, 4] of a frame by the earlier motion from a keyframe."""
        relative = invert_pose(self.before[self.positions[keyframe]]) @ self.before[frame]
        relative[:3, 3] *= self.scale[keyframe]
        return np.asarray(self.after[keyframe] @ relative)


def interpolated(positions: Sequence[int], values: FloatArray, count: int) -> FloatArray:
    """Positive values [count] of all frames from those of some, linear in the logarithm; NaN counts as unknown."""
    known = np.isfinite(values)
    if not known.any():
        return np.ones(count)
    return np.exp(np.interp(np.arange(count), np.asarray(positions)[known], np.log(values[known])))


def track_klt(
    source: NDArray[np.uint8], target: NDArray[np.uint8], uv: NDArray[np.floating], predicted: NDArray[np.floating]
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Points [N, 2] of one image tracked into another (pyramidal KLT, Bouguet 2001), and a mask of those found.

    Args:
        predicted: [N, 2], initial positions; NaN: unknown.
    """
    if not len(uv):
        return np.zeros((0, 2), np.float32), np.zeros(0, bool)
    height, width = target.shape
    begin = np.asarray(predicted, np.float32)
    ahead = np.isfinite(begin) & (begin >= 0) & (begin < (width, height))
    inside = np.asarray(ahead.all(axis=1))
    at = np.asarray(uv, np.float32) - np.float32(0.5)
    begin = np.where(inside[:, None], begin - np.float32(0.5), at)
    there, found = _tracked(source, target, at, begin)
    # Back without help from the result: from where the prediction puts it.
    back, returned = _tracked(target, source, there, there + (at - begin))
    arrived = inside & found & returned
    arrived &= np.linalg.norm(back - at, axis=1) < ROUND_TRIP_PX
    return there + np.float32(0.5), np.asarray(arrived)


def _tracked(
    source: NDArray[np.uint8], target: NDArray[np.uint8], at: NDArray[np.float32], begin: NDArray[np.float32]
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    size, flags = (WINDOW, WINDOW), cv2.OPTFLOW_USE_INITIAL_FLOW
    there, found, _ = cv2.calcOpticalFlowPyrLK(
        source, target, at, np.array(begin, np.float32), winSize=size, maxLevel=LEVELS, flags=flags
    )
    return np.asarray(there, np.float32), np.asarray(found).reshape(-1) > 0


def project_world(lens: CameraModel, T_world_camera: FloatArray, points: FloatArray) -> FloatArray:
    """Pixels [N, 2] of world points [N, 3]; NaN behind the camera."""
    T = invert_pose(T_world_camera)
    return np.asarray(project_points(lens, points @ T[:3, :3].T + T[:3, 3]))
