"""Poses split into odometry and its correction, as REP 105 has it: only ``map`` -> ``odom`` takes corrections."""

from dataclasses import dataclass, replace

import numpy as np

from stream_recon.app.core import so3
from stream_recon.app.core.transforms import FloatArray, invert_pose, rotation_matrix
from stream_recon.app.core.types import FrameResult

R_BODY_OPTICAL = np.array([[0.0, 0.0, 1.0], [-1.0, 0.0, 0.0], [0.0, -1.0, 0.0]])
"""Optical axes (x right, y down, z forward) in body axes (x forward, y left, z up)."""
MIN_HEALTH = 0.1
"""Health below which standard deviations grow no further."""
UNKNOWN_VARIANCE = 9999.0
"""Variance of a pose that is a guess."""
RENORMALISED_EVERY = 100
"""Frames after which rounding is removed from the rotation of odom."""
UNKNOWN = np.diag([-1.0] + [0.0] * 5)
"""Covariance of a pose of whose errors nothing is known, as messages of ROS state it."""
GUESSED_TURN = np.radians(60.0)
"""Standard deviation of the rotation across a discontinuity of the source."""


@dataclass(frozen=True)
class PoseSigmas:
    """Standard deviations of poses along each axis, which do not add up from frame to frame.

    They are those of the packaged sample against its exact ground truth, of 12 to 120 of its frames, within a factor
    of 2.
    """

    rotation: float
    """In rad."""
    position: float
    """Share of the median depth."""
    path: float = 0.0
    """Share of the length of the path, in addition."""

    def covariance(self, depth: float, path: float = 0.0) -> FloatArray:
        """[6, 6], of a rotation and a translation of a camera, along its axes."""
        position = (self.position * depth) ** 2 + (self.path * path) ** 2
        return np.diag([self.rotation**2] * 3 + [position] * 3)


NETWORK = PoseSigmas(float(np.radians(0.2)), 0.003, 0.003)
"""Poses of the network, and of maps that begin with them, with regard to the first one."""
STEP = PoseSigmas(float(np.radians(0.03)), 0.0005)
"""The network's motion from one frame to the next."""


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
            result.index, stamp_ns, np.asarray(result.T_world_camera, np.float64),
            np.asarray(result.T_world_camera if network is None else network.T_world_camera, np.float64),
            1.0 if network is None else network.map_scale, float(np.median(known)) if len(known) else 1.0,
            result.segment, result.health, result.covariance, result.is_keyframe,
        )  # fmt: skip


class FrameTree:
    """Poses of ``odom`` and ``base_link``, fed frame by frame.

    ``odom`` -> ``base_link`` is the sum of the network's motions, in the scale of the reconstruction: it never jumps.
    ``map`` -> ``odom`` is what is left to the reconstruction's pose, which loops and refinement change.
    """

    def __init__(self, T_base_camera: FloatArray, errors: PoseSigmas | None = NETWORK) -> None:
        """``errors``: of the poses in the map; None: frames state all that is known of theirs."""
        self.T_base_camera, self.errors = T_base_camera, errors
        self._inverse = invert_pose(T_base_camera)
        self.T_odom_base = np.eye(4)
        self.covariance = np.zeros((6, 6))
        """[6, 6], of the pose in ``odom``: that of the network."""
        self.map_covariance = np.zeros((6, 6))
        """[6, 6], of the pose in ``map``: that of the map, and the tracker's given the map."""
        self.last: Tracked | None = None
        self._step, self._noise, self._seconds = np.eye(4), np.zeros((6, 6)), 1.0
        self._odom_guess, self._map_guess = np.zeros((6, 6)), np.zeros((6, 6))
        """Uncertainty that discontinuities of the source have left."""
        self._path, self._count = 0.0, 0

    def add(self, frame: Tracked) -> None:
        """Take the next frame."""
        last, self.last = self.last, frame
        if last is None:
            self.T_odom_base = self.base_pose(frame.T_world_camera)
        else:
            self._move(last, frame)
        certainty = 1.0 if frame.health is None else max(frame.health, MIN_HEALTH)
        if frame.covariance is not None:
            self._map_guess = np.zeros((6, 6))  # it was found again
        stated = np.zeros((6, 6)) if frame.covariance is None else self._of_base(self.T_map_base, frame.covariance)
        if self.errors is None:
            self.map_covariance = UNKNOWN if frame.covariance is None else stated
        else:
            in_map = self._of_base(self.T_map_base, self.errors.covariance(frame.depth, self._path) / certainty**2)
            self.map_covariance = in_map + stated + self._map_guess
        in_odom = NETWORK.covariance(frame.depth, self._path)
        self.covariance = self._of_base(self.T_odom_base, in_odom / certainty**2) + self._odom_guess
        self._noise = self._of_base(np.eye(4), STEP.covariance(frame.depth) / certainty**2)

    def _move(self, last: Tracked, frame: Tracked) -> None:
        motion = np.asarray(invert_pose(last.T_network) @ frame.T_network)
        motion[:3, 3] *= frame.scale
        self._path += float(np.linalg.norm(motion[:3, 3]))
        if frame.segment != last.segment:
            guess = np.diag([frame.depth**2] * 3 + [GUESSED_TURN**2] * 3)
            self._odom_guess, self._map_guess = self._odom_guess + guess, self._map_guess + guess
        self._step = np.asarray(self.T_base_camera @ motion @ self._inverse)
        self.T_odom_base = self.T_odom_base @ self._step
        self._count += 1
        if self._count % RENORMALISED_EVERY == 0:
            self.T_odom_base[:3, :3] = so3.nearest(self.T_odom_base[:3, :3])
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
        """Pose of ``base_link`` in ``map``: the world, with the axes that ``base_link`` has to the camera."""
        return np.asarray(self.T_base_camera @ T_world_camera @ self._inverse)

    @property
    def T_map_base(self) -> FloatArray:
        """The last frame's pose [4, 4]."""
        return np.eye(4) if self.last is None else self.base_pose(self.last.T_world_camera)

    @property
    def T_map_odom(self) -> FloatArray:
        return np.asarray(self.T_map_base @ invert_pose(self.T_odom_base))

    def _of_base(self, T_parent_base: FloatArray, covariance: FloatArray) -> FloatArray:
        """The covariance of a camera, see `FrameResult`, as one of base_link along its parent's axes."""
        R = T_parent_base[:3, :3] @ self.T_base_camera[:3, :3]
        J = np.zeros((6, 6))
        J[3:, :3] = R
        J[:3, 3:] = self.T_base_camera[:3, :3]
        J[:3, :3] = -so3.skew(R @ self._inverse[:3, 3]) @ R
        return np.asarray(J @ covariance @ J.T)
