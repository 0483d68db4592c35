"""Poses of all frames from refined keyframes: interpolated, then adjusted to points tracked into each frame."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core import so3
from stream_recon.app.core.transforms import invert_pose, rotation_angle_deg
from stream_recon.app.slam.ba.pose_only import LossSchedule, pose_only_ba
from stream_recon.app.slam.ba.problem import FloatArray, rows_by
from stream_recon.app.slam.ba.robust_ba import BAState
from stream_recon.app.slam.evidence.depth_scales import interpolated
from stream_recon.app.slam.evidence.judgement import runs
from stream_recon.app.slam.frame_data import project_world
from stream_recon.app.slam.matching.config import KltConfig
from stream_recon.app.slam.matching.features import Features
from stream_recon.app.slam.matching.matching import track_klt
from stream_recon.app.slam.offline.keyframe_matching import Images, VideoData
from stream_recon.app.slam.offline.report import InitialPoses

Grey = NDArray[np.uint8]


@dataclass(frozen=True)
class BetweenConfig:
    """How frames between keyframes get their poses."""

    max_points: int = 300
    """Points tracked from each keyframe; more improve a pose little."""
    wrong_motion: float = 0.5
    """`PoseInterpolator.misfit` from which the network's motion is not the camera's."""
    min_points: int = 15
    """Least number of inliers of a frame's pose."""
    klt: KltConfig = field(default=KltConfig(levels=1))
    """Few pyramid levels: refined keyframes predict positions to some pixels."""
    inlier_px: float = 2.0
    """Reprojection error up to which a keyframe's observation is tracked into other frames."""
    good_px: float = 3.0
    """Reprojection error up to which a tracked point agrees; larger, since KLT is less accurate than SIFT."""
    loss_scales: tuple[float, ...] = (20.0, 5.0, 1.5)
    """Loss scales from interpolated poses to the noise of KLT."""


BETWEEN = BetweenConfig()


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
        predicted = self._from(left, int(self.positions[right]))
        angle = np.radians(rotation_angle_deg(predicted[:3, :3].T @ self.after[right, :3, :3]))
        begin, end = self.after[left, :3, 3], self.after[right, :3, 3]
        length = max(float(np.linalg.norm(end - begin)), float(np.linalg.norm(predicted[:3, 3] - begin)), 1e-12)
        return float(angle) + float(np.linalg.norm(predicted[:3, 3] - end)) / length

    def _from(self, keyframe: int, frame: int) -> FloatArray:
        """Pose [4, 4] of a frame by the earlier motion from a keyframe."""
        relative = invert_pose(self.before[self.positions[keyframe]]) @ self.before[frame]
        relative[:3, 3] *= self.scale[keyframe]
        return np.asarray(self.after[keyframe] @ relative)


def interpolate_poses(
    data: VideoData,
    fit: BAState,
    fallback: NDArray[np.bool_],
    online: InitialPoses | None,
    depth_scale: FloatArray,
    config: BetweenConfig = BETWEEN,
    stream: NDArray[np.bool_] | None = None,
) -> tuple[FloatArray, FloatArray]:
    """Poses [N, 4, 4] and depth scales [N] of all frames from keyframes that do not fall back to the network.

    Args:
        depth_scale: [K], of the keyframes.
        stream: [K], keyframes that fall back to the online poses.
    """
    mapped, count = np.flatnonzero(~fallback), len(data.views)
    positions, scales = np.array(data.keyframes)[mapped], depth_scale[mapped]
    T_mapped = fit.scene.T_world_camera[mapped]
    interpolator = PoseInterpolator(positions, data.T_network, T_mapped, scales, data.segment)
    T = np.array([interpolator.pose(frame) for frame in range(count)])
    if online is not None:
        # Only where the network's motion is clearly wrong: online poses of blurred frames have the same errors as the
        # keyframes around them, and so seem to agree.
        before, ratio = online.T_world_camera, scales / online.depth_scale[positions]
        other = PoseInterpolator(positions, before, T_mapped, ratio, data.segment)
        of_stream = np.zeros(count, bool)
        ends = [-1, *data.keyframes, count]
        for begin, end in runs(np.zeros(0, bool) if stream is None else stream):
            of_stream[ends[begin] + 1 : ends[end + 1]] = True
        for frame in range(count):
            is_wrong = interpolator.misfit(frame) > max(config.wrong_motion, other.misfit(frame))
            if of_stream[frame] or is_wrong:
                T[frame] = other.pose(frame)
        of_online = interpolated(positions.tolist(), ratio, count) * online.depth_scale
        return T, np.where(of_stream, of_online, interpolated(positions.tolist(), scales, count))
    return T, interpolated(positions.tolist(), scales, count)


def refine_between(
    data: VideoData,
    fit: BAState,
    T: FloatArray,
    images: Images,
    workers: int,
    advance: Callable[[float], None],
    config: BetweenConfig = BETWEEN,
) -> FloatArray:
    """Poses [N, 4, 4] of all frames, those between keyframes adjusted from ``T`` to the keyframes' points."""
    T = T.copy()
    points = keyframe_points(fit, data.features, config)
    index = {position: k for k, position in enumerate(data.keyframes)}
    waiting: list[tuple[int, Grey]] = []
    left: tuple[int, Grey] | None = None
    count = len(data.views)
    with ThreadPoolExecutor(workers) as pool:
        running: list[tuple[int, Future[FloatArray]]] = []
        for position, grey, _ in images.read(range(count)):
            advance(position / count)
            if position not in index:
                waiting.append((position, grey))
                continue
            right = (index[position], grey)
            sides = [points[k] + (g,) for k, g in ((left, right) if left else (right,))]
            # Bounds the images in memory to those between two keyframes.
            for frame, future in running:
                T[frame] = future.result()
            running = [
                (frame, pool.submit(_refined_pose, fit, T[frame], image, sides, config)) for frame, image in waiting
            ]
            left, waiting = right, []
        for frame, future in running:
            T[frame] = future.result()
    return T


def keyframe_points(
    fit: BAState, features: Sequence[Features], config: BetweenConfig = BETWEEN
) -> list[tuple[NDArray[np.float32], FloatArray]]:
    """Pixels [P, 2] and world points [P, 3] of the inliers of each keyframe."""
    points: list[tuple[NDArray[np.float32], FloatArray]] = []
    observations, inliers = fit.observations, np.flatnonzero(fit.errors < config.inlier_px)
    for k, own in enumerate(rows_by(observations.camera[inliers], len(features))):
        rows = inliers[own]
        if len(rows) > config.max_points:
            rows = rows[np.linspace(0, len(rows) - 1, config.max_points).astype(int)]
        points.append((features[k].uv[fit.feature[rows]], fit.scene.points[observations.point[rows]]))
    return points


def _refined_pose(
    fit: BAState,
    T_start: FloatArray,
    image: Grey,
    sides: Sequence[tuple[NDArray[np.float32], FloatArray, Grey]],
    config: BetweenConfig,
) -> FloatArray:
    """Pose [4, 4] of a frame by points of the keyframes around it; the start where too few are found.

    ``sides``: pixels, points and image of these keyframes.
    """
    camera_model = fit.scene.camera_model
    pixels, xyz = [], []
    for uv, points, grey in sides:
        end, is_tracked = track_klt(grey, image, uv, project_world(camera_model, T_start, points), config.klt)
        pixels.append(end[is_tracked])
        xyz.append(points[is_tracked])
    uv, world = np.concatenate(pixels), np.concatenate(xyz)
    if len(uv) < config.min_points:
        return T_start
    estimate = pose_only_ba(
        T_start, world, uv.astype(np.float64), np.ones(len(uv)), camera_model, LossSchedule(config.loss_scales)
    )
    good = estimate.distances < config.good_px
    if good.sum() < max(config.min_points, 0.3 * len(uv)):
        return T_start
    return estimate.T_world_camera
