"""Poses split into odometry and its correction, as REP 105 has it: only ``map`` -> ``odom`` takes corrections."""

from dataclasses import dataclass, replace

import numpy as np

from stream_recon.app.core import so3
from stream_recon.app.core.transforms import FloatArray, invert_pose, rotation_matrix
from stream_recon.app.core.types import FrameResult
from stream_recon.app.slam.online.config import DEFAULT_ONLINE

R_BODY_OPTICAL = np.array([[0.0, 0.0, 1.0], [-1.0, 0.0, 0.0], [0.0, -1.0, 0.0]])
"""Optical axes (x right, y down, z forward) in body axes (x forward, y left, z up)."""
MIN_HEALTH = 0.1
"""Health below which standard deviations grow no further."""
UNKNOWN_VARIANCE = 9999.0
"""Variance of a pose that is a guess."""
RENORMALISED_EVERY = 100
"""Frames after which rounding is removed from the rotation of odom."""
GUESSED_TURN = np.radians(60.0)
"""Standard deviation of the rotation across a discontinuity of the source."""


def camera_on_base(mount: tuple[float, ...] = (0.0,) * 6) -> FloatArray:
    """Pose [4, 4] of the optical frame in ``base_link``.

    ``mount``: position x, y, z of the camera and its roll, pitch and yaw in rad, in body axes.
    """
    T = np.eye(4)
    half = np.array(mount[3:]) / 2
    (sr, sp, sy), (cr, cp, cy) = np.sin(half), np.cos(half)
    quaternion = [
        sr * cp * cy - cr * sp * sy,
        cr * sp * cy + sr * cp * sy,
        cr * cp * sy - sr * sp * cy,
        cr * cp * cy + sr * sp * sy,
    ]
    T[:3, :3], T[:3, 3] = rotation_matrix(np.array(quaternion)) @ R_BODY_OPTICAL, mount[:3]
    return T


@dataclass(frozen=True)
class Tracked:
    """One frame's pose, network motion and evidence, without its images."""

    index: int
    stamp_ns: int
    T_world_camera: FloatArray  # [4, 4]
    T_network: FloatArray  # [4, 4], in the network's world
    scale: float
    """Length in the reconstruction per length in the network's world."""
    depth: float
    """Median depth."""
    segment: int
    health: float | None
    covariance: FloatArray | None  # [6, 6], see `FrameResult`
    is_keyframe: bool

    @staticmethod
    def of(result: FrameResult, stamp_ns: int) -> "Tracked":
        network = result.network
        depth = result.depth[::8, ::8]
        known = depth[np.isfinite(depth) & (depth > 0)]
        return Tracked(
            result.index,
            stamp_ns,
            np.asarray(result.T_world_camera, np.float64),
            np.asarray(result.T_world_camera if network is None else network.T_world_camera, np.float64),
            1.0 if network is None else network.map_scale,
            float(np.median(known)) if len(known) else 1.0,
            result.segment,
            result.health,
            result.covariance,
            result.is_keyframe,
        )


class FrameTree:
    """Poses of ``odom`` and ``base_link``, fed frame by frame.

    ``odom`` -> ``base_link`` is the sum of the network's motions, in the scale of the reconstruction: it never jumps.
    ``map`` -> ``odom`` is what is left to the reconstruction's pose, which loops and refinement change.
    """

    def __init__(self, T_base_camera: FloatArray) -> None:
        self.T_base_camera = T_base_camera
        self._inverse = invert_pose(T_base_camera)
        self.T_odom_base = np.eye(4)
        self.covariance = np.zeros((6, 6))
        """[6, 6], of the pose in ``odom``: it grows with the path."""
        self.map_covariance = np.zeros((6, 6))
        """[6, 6], of the pose in ``map``: the tracker's, given the map; where it does not track, it grows as that of
        the odometry."""
        self.last: Tracked | None = None
        self._step, self._noise, self._seconds = np.eye(4), np.zeros((6, 6)), 1.0
        self._count = 0

    def add(self, frame: Tracked) -> None:
        """Take the next frame."""
        last, self.last = self.last, frame
        if last is None:
            self.T_odom_base = self.base_pose(frame.T_world_camera)
            return
        motion = np.asarray(invert_pose(last.T_network) @ frame.T_network)
        motion[:3, 3] *= frame.scale
        step = np.asarray(self.T_base_camera @ motion @ self._inverse)
        noise = _noise(last, frame, float(np.linalg.norm(motion[:3, 3])))
        self.covariance = _after_step(self.covariance, self.T_odom_base, step, noise)
        if frame.covariance is None:
            self.map_covariance = _after_step(self.map_covariance, self.base_pose(last.T_world_camera), step, noise)
        else:
            self.map_covariance = self._tracked_covariance(frame, frame.covariance)
        self.T_odom_base = self.T_odom_base @ step
        self._count += 1
        if self._count % RENORMALISED_EVERY == 0:
            self.T_odom_base[:3, :3] = so3.nearest(self.T_odom_base[:3, :3])
        self._step, self._noise = step, noise
        self._seconds = max((frame.stamp_ns - last.stamp_ns) * 1e-9, 1e-3)

    @property
    def velocity(self) -> FloatArray:
        """Linear and angular velocity [6] of the last step, along the axes of base_link."""
        motion = np.concatenate([self._step[:3, 3], so3.log(self._step[:3, :3])])
        return np.asarray(motion / self._seconds)

    @property
    def velocity_covariance(self) -> FloatArray:
        """[6, 6]"""
        return np.asarray(self._noise / self._seconds**2)

    def correct(self, T_world_camera: FloatArray) -> None:
        """A revision of the last frame's pose."""
        if self.last is not None:
            self.last = replace(self.last, T_world_camera=np.asarray(T_world_camera, np.float64))

    def base_pose(self, T_world_camera: FloatArray) -> FloatArray:
        """Pose of ``base_link`` in ``map``. The map's origin is ``base_link`` where the world is the first camera."""
        return np.asarray(self.T_base_camera @ T_world_camera @ self._inverse)

    @property
    def T_map_base(self) -> FloatArray:
        """The last frame's pose [4, 4]."""
        return np.eye(4) if self.last is None else self.base_pose(self.last.T_world_camera)

    @property
    def T_map_odom(self) -> FloatArray:
        return np.asarray(self.T_map_base @ invert_pose(self.T_odom_base))

    def _tracked_covariance(self, frame: Tracked, covariance: FloatArray) -> FloatArray:
        """The tracker's covariance as one of base_link along the map's axes."""
        R = self.T_base_camera[:3, :3] @ frame.T_world_camera[:3, :3]
        J = np.zeros((6, 6))
        J[3:, :3] = R
        J[:3, 3:] = self.T_base_camera[:3, :3]
        J[:3, :3] = -so3.skew(R @ self._inverse[:3, 3]) @ R
        return np.asarray(J @ covariance @ J.T / _certainty(frame.health) ** 2)


def _noise(last: Tracked, frame: Tracked, length: float) -> FloatArray:
    """Covariance [6, 6] of a step of the network, of a translation and a rotation along any axes."""
    if frame.segment != last.segment:
        translation, rotation = frame.depth, GUESSED_TURN
    else:
        certainty = _certainty(frame.health)
        config = DEFAULT_ONLINE.resectioning
        translation = config.translation_sigma * max(length, config.min_motion * frame.depth) / certainty
        rotation = config.rotation_sigma / certainty
    return np.diag([translation**2] * 3 + [rotation**2] * 3)


def _after_step(covariance: FloatArray, T: FloatArray, step: FloatArray, noise: FloatArray) -> FloatArray:
    """Covariance [6, 6] of a pose ``T`` after a step in its axes, of errors along the fixed axes.

    An error of the rotation moves the end of the step. The noise is the same along all axes of each kind, so that it
    need not be turned.
    """
    F = np.eye(6)
    F[:3, 3:] = -so3.skew(T[:3, :3] @ step[:3, 3])
    return np.asarray(F @ covariance @ F.T + noise)


def _certainty(health: float | None) -> float:
    return 1.0 if health is None else max(health, MIN_HEALTH)
