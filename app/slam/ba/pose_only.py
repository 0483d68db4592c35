"""Pose-only bundle adjustment: the pose of one camera against points that stay fixed.

Levenberg-Marquardt on reweighted least squares with a Cauchy loss, whose scale falls step by step.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core import so3
from stream_recon.app.core.camera_model import CameraModel
from stream_recon.app.slam.ba.levenberg import Damping, minimise
from stream_recon.app.slam.ba.problem import FloatArray, Observations, rows_by
from stream_recon.app.slam.ba.residuals import BEHIND_PX, NEAR, cauchy

_DAMPING = Damping(min=0.0, factor=10.0, counts_failures=True)


@dataclass(frozen=True)
class LossSchedule:
    """Scales of the Cauchy loss, one after the other, and when to stop at each."""

    scales: Sequence[float] = (20.0, 6.0, 2.0)
    """In sigmas of the observations."""
    iterations: int = 15
    """Limit for each scale."""
    tolerance: float = 1e-5
    """A scale ends with a step that lowers the cost by a smaller share than this."""


@dataclass(frozen=True)
class PoseEstimate:
    """Pose of one camera, with errors and information."""

    T_world_camera: FloatArray  # [4, 4]
    distances: FloatArray  # [N]
    """Reprojection errors in pixels; inf where a point lies behind the camera."""
    information: FloatArray  # [6, 6]
    """Of a rotation in the camera's axes (rad) and a translation of its centre along the world's."""


def pose_only_ba(
    T_world_camera: FloatArray,
    points: FloatArray,
    uv: FloatArray,
    sigma: FloatArray,
    camera_model: CameraModel,
    schedule: LossSchedule,
) -> PoseEstimate:
    """Pose near an initial one [4, 4] from which points [N, 3] are seen at ``uv`` [N, 2], with sigmas [N] in pixels."""
    model = _PoseOnly(points, uv, sigma, camera_model, T_world_camera)
    pose = model.projected(T_world_camera[:3, :3], T_world_camera[:3, 3])
    for model.loss_scale in schedule.scales:
        pose = minimise(model, pose, schedule.iterations, schedule.tolerance, rule=_DAMPING).state
    T = np.eye(4)
    T[:3, :3], T[:3, 3] = pose.rotation, pose.centre
    distances = np.where(pose.in_front, np.hypot(pose.error[0], pose.error[1]), np.inf)
    return PoseEstimate(T, distances, model.linearise(pose)[0])


def pose_only_ba_each(
    T_world_camera: FloatArray, points: FloatArray, observations: Observations, camera_model: CameraModel
) -> tuple[FloatArray, FloatArray]:
    """Poses [K, 4, 4] of cameras, each on its own, and reprojection errors [O] in pixels.

    Cameras without observations keep their pose. Measured depths are ignored.
    """
    T = np.array(T_world_camera, np.float64)
    distances = np.empty(len(observations))
    sigma = np.ones(len(observations)) if observations.sigma is None else observations.sigma
    for k, rows in enumerate(rows_by(observations.camera, len(T))):
        if len(rows):
            xyz, uv = points[observations.point[rows]], observations.pixel[rows]
            estimate = pose_only_ba(T[k], xyz, uv, sigma[rows], camera_model, LossSchedule())
            T[k], distances[rows] = estimate.T_world_camera, estimate.distances
    return T, distances


@dataclass(frozen=True)
class _Pose:
    """A pose, and the projections from it."""

    rotation: FloatArray  # [3, 3], camera to world
    centre: FloatArray  # [3]
    plane: FloatArray  # [2, N], at depth 1
    per_z: FloatArray  # [N]
    in_front: NDArray[np.bool_]  # [N]
    error: FloatArray  # [2, N], pixels
    square: FloatArray  # [N], in sigmas


class _PoseOnly:
    """`levenberg.LinearizedModel` over `_Pose`."""

    loss_scale = 1.0

    def __init__(
        self, points: FloatArray, uv: FloatArray, sigma: FloatArray, camera_model: CameraModel, start: FloatArray
    ) -> None:
        self._points, self._inverse, self._camera_model = points.T, 1 / sigma, camera_model
        self._pixel = (uv - (camera_model.cx, camera_model.cy)).T
        z = start[:3, 2] @ (self._points - start[:3, 3:])
        self._near = NEAR * float(np.median(z[z > 0])) if (z > 0).any() else 0.0

    def cost(self, pose: _Pose) -> float:
        return cauchy(pose.square, self.loss_scale)

    def step(self, pose: _Pose, linear: tuple[FloatArray, FloatArray], damping: float) -> tuple[_Pose, float]:
        H, g = linear
        diagonal = np.maximum(np.diag(H), max(1e-15 * float(np.diag(H).max()), np.finfo(float).tiny))
        step = -np.asarray(np.linalg.solve(H + np.diag(damping * diagonal), g), np.float64)
        return self.projected(np.asarray(pose.rotation @ so3.exp(step[:3])), pose.centre + step[3:]), np.inf

    def projected(self, R: FloatArray, centre: FloatArray) -> _Pose:
        """The projections from a rotation [3, 3] and centre [3]."""
        xyz = R.T @ (self._points - centre[:, None])
        in_front = xyz[2] > self._near
        per_z = 1 / np.where(in_front, xyz[2], 1.0)
        plane = xyz[:2] * per_z
        distorted, camera_model = plane, self._camera_model
        if not camera_model.is_straight:
            distorted = plane * camera_model.radial_factor(plane[0] ** 2 + plane[1] ** 2)
        error = camera_model.focal * distorted - self._pixel
        square = (error[0] ** 2 + error[1] ** 2) * self._inverse**2
        square[~in_front] = (BEHIND_PX * self._inverse[~in_front]) ** 2
        return _Pose(R, centre, plane, per_z, in_front, error, square)

    def linearise(self, pose: _Pose) -> tuple[FloatArray, FloatArray]:
        """H [6, 6] and g [6], by a rotation in the camera's axes and a translation of its centre."""
        R, camera_model = pose.rotation, self._camera_model
        weight = np.where(pose.in_front, self._inverse / np.sqrt(1 + pose.square / self.loss_scale**2), 0.0)
        (u, v), f = pose.plane, camera_model.focal * weight
        J = np.empty((7, 2, len(u)))
        fu, fv = f * u, f * v
        J[0, 0], J[1, 0], J[2, 0] = fu * v, -(f + fu * u), fv
        J[0, 1], J[1, 1], J[2, 1] = f + fv * v, -J[0, 0], -fu
        near = f * pose.per_z
        inner = np.stack([near * u, near * v])
        J[3:6] = R[:, 2, None, None] * inner
        J[3:6, 0] -= R[:, 0, None] * near
        J[3:6, 1] -= R[:, 1, None] * near
        if not camera_model.is_straight:
            uu, uv, vv = camera_model.distortion_derivatives(u, v)
            J[:6] = np.stack([uu * J[:6, 0] + uv * J[:6, 1], uv * J[:6, 0] + vv * J[:6, 1]], axis=1)
        J[6] = pose.error * weight
        flat = J.reshape(7, -1)
        product = flat[:6] @ flat.T
        return product[:, :6], product[:, 6]
