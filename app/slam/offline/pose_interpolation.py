"""Frames between keyframes: carried along with these, then fitted to the map's points by what is tracked into them."""

from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from stream_recon.app.core.transforms import invert_pose
from stream_recon.app.slam.ba.problem import CameraModel
from stream_recon.app.slam.frame_data import project_points

FloatArray = NDArray[np.float64]

WINDOW = 21
LEVELS = 3
"""Above the base: with two, fast pans are lost."""
ROUND_TRIP_PX = 1.0
MOST_POINTS = 300
"""Followed from each keyframe."""


@dataclass(frozen=True)
class PoseInterpolator:
    """How keyframes moved: takes any frame of an earlier trajectory along."""

    positions: NDArray[np.intp]  # [K], of the keyframes among all frames, ascending
    before: FloatArray  # [N, 4, 4], poses of all frames, the network's or a stream's
    after: FloatArray  # [K, 4, 4], the keyframes' poses in the map
    scale: FloatArray  # [K], lengths around each keyframe in the map, for each of those before
    segment: NDArray[np.integer]  # [N], of all frames: none is carried by a keyframe of another one

    def around(self, frame: int) -> tuple[int, int, float]:
        """The keyframes on either side, by their numbers, and how far the frame is from the first, 0 to 1."""
        last = len(self.positions) - 1
        right = min(max(int(np.searchsorted(self.positions, frame)), 1), last)
        left = max(right - 1, 0)
        span = self.positions[right] - self.positions[left]
        return left, right, float(np.clip((frame - self.positions[left]) / max(span, 1), 0, 1))

    def pose(self, frame: int) -> FloatArray:
        """The earlier motion since the keyframe before and until the one after, blended."""
        left, right, share = self.around(frame)
        mine = [k for k in (left, right) if self.segment[self.positions[k]] == self.segment[frame]]
        if len(mine) < 2 or left == right:
            return self._from(mine[0], frame) if mine else self.before[frame]
        first, second = self._from(left, frame), self._from(right, frame)
        turn = Rotation.from_matrix(first[:3, :3].T @ second[:3, :3]).as_rotvec()
        T = np.eye(4)
        T[:3, :3] = first[:3, :3] @ Rotation.from_rotvec(share * turn).as_matrix()
        T[:3, 3] = (1 - share) * first[:3, 3] + share * second[:3, 3]
        return T

    def misfit(self, frame: int) -> float:
        """How far from each other the keyframes on either side put the frame between them, as an angle (rad): moves
        count by their share of the way from the one to the other, in the map or before."""
        left, right, _ = self.around(frame)
        there = self._from(left, int(self.positions[right]))
        turn = Rotation.from_matrix(there[:3, :3].T @ self.after[right, :3, :3]).magnitude()
        begin, end = self.after[left, :3, 3], self.after[right, :3, 3]
        way = max(float(np.linalg.norm(end - begin)), float(np.linalg.norm(there[:3, 3] - begin)), 1e-12)
        return float(turn) + float(np.linalg.norm(there[:3, 3] - end)) / way

    def _from(self, keyframe: int, frame: int) -> FloatArray:
        relative = invert_pose(self.before[self.positions[keyframe]]) @ self.before[frame]
        relative[:3, 3] *= self.scale[keyframe]
        return np.asarray(self.after[keyframe] @ relative)


def interpolated(positions: Sequence[int], values: FloatArray, count: int) -> FloatArray:
    """[count] positive values at all frames from those known at some, linear in the logarithm; NaN is not known."""
    known = np.isfinite(values)
    if not known.any():
        return np.ones(count)
    return np.exp(np.interp(np.arange(count), np.asarray(positions)[known], np.log(values[known])))


def track_klt(
    source: NDArray[np.uint8], target: NDArray[np.uint8], uv: NDArray[np.floating], predicted: NDArray[np.floating]
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Points [N, 2] of one image in another (pyramidal KLT, Bouguet 2001), there and back; where, and which arrived.

    Args:
        predicted: [N, 2] where to begin; NaN is not known.
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
    # Back from there, begun where the prediction would put it: no help from the answer.
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


def in_view(lens: CameraModel, T_world_camera: FloatArray, points: FloatArray) -> FloatArray:
    """Pixels [N, 2] of points [N, 3] of the world; NaN behind the camera."""
    T = invert_pose(T_world_camera)
    return np.asarray(project_points(lens, points @ T[:3, :3].T + T[:3, 3]))
