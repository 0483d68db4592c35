"""One camera against points that stay: what `motion.motion_only` does for many, in a fraction of the time for one."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core import so3
from stream_recon.app.slam.ba.problem import CameraModel
from stream_recon.app.slam.ba.residuals import BEHIND_PX, NEAR

FloatArray = NDArray[np.float64]

DAMPING, MOST_DAMPING = 1e-4, 1e6


@dataclass(frozen=True)
class FittedPose:
    """Of one camera."""

    T_world_camera: FloatArray  # [4, 4]
    distances: FloatArray  # [N]
    """Reprojection errors in pixels; inf where behind the camera."""
    information: FloatArray  # [6, 6]
    """As `motion.Motion` has it."""


def pose_only_ba(
    T_world_camera: FloatArray,
    points: FloatArray,
    uv: FloatArray,
    sigma: FloatArray,
    lens: CameraModel,
    loss_scales: Sequence[float],
    iterations: int,
    tolerance: float,
) -> FittedPose:
    """The pose near a guess [4, 4] from which points [N, 3] are seen at ``uv`` [N, 2], known to ``sigma`` [N] pixels.

    Levenberg-Marquardt on Cauchy's loss at each of ``loss_scales`` in turn, in sigmas, ``iterations`` at most for each,
    fewer where a step lowers the cost by less than its share ``tolerance``. The lens has no radial term.
    """
    view = _View(points, (uv - (lens.cx, lens.cy)).T, 1 / sigma, lens.focal, T_world_camera)
    R, centre = T_world_camera[:3, :3], T_world_camera[:3, 3]
    for scale in loss_scales:
        seen = view.at(R, centre)
        cost = view.cost(seen, scale)
        damping = DAMPING
        for _ in range(iterations):
            H, g = view.normal(seen, R, scale)
            diagonal = np.maximum(np.diag(H), max(1e-15 * float(np.diag(H).max()), np.finfo(float).tiny))
            step = -np.asarray(np.linalg.solve(H + np.diag(damping * diagonal), g), np.float64)
            turned, moved = np.asarray(R @ so3.exp(step[:3])), centre + step[3:]
            candidate = view.at(turned, moved)
            reached = view.cost(candidate, scale)
            if reached < cost:
                settled = cost - reached <= tolerance * cost
                R, centre, seen, cost, damping = turned, moved, candidate, reached, damping / 10
                if settled:
                    break
            else:
                damping *= 10
                if damping > MOST_DAMPING:
                    break
    T = np.eye(4)
    T[:3, :3], T[:3, 3] = R, centre
    distances = np.where(seen.ahead, np.hypot(seen.error[0], seen.error[1]), np.inf)
    return FittedPose(T, distances, view.normal(seen, R, loss_scales[-1])[0])


@dataclass(frozen=True)
class _SeenPoints:
    plane: FloatArray  # [2, N]
    per_z: FloatArray  # [N]
    ahead: NDArray[np.bool_]  # [N]
    error: FloatArray  # [2, N], pixels
    square: FloatArray  # [N], in sigmas


class _View:
    def __init__(
        self, points: FloatArray, pixel: FloatArray, inverse_sigma: FloatArray, focal: float, start: FloatArray
    ) -> None:
        self._points, self._pixel, self._inverse, self._focal = points.T, pixel, inverse_sigma, focal
        z = start[:3, 2] @ (self._points - start[:3, 3:])
        self._near = NEAR * float(np.median(z[z > 0])) if (z > 0).any() else 0.0

    def at(self, R: FloatArray, centre: FloatArray) -> _SeenPoints:
        xyz = R.T @ (self._points - centre[:, None])
        ahead = xyz[2] > self._near
        per_z = 1 / np.where(ahead, xyz[2], 1.0)
        plane = xyz[:2] * per_z
        error = self._focal * plane - self._pixel
        square = (error[0] ** 2 + error[1] ** 2) * self._inverse**2
        square[~ahead] = (BEHIND_PX * self._inverse[~ahead]) ** 2
        return _SeenPoints(plane, per_z, ahead, error, square)

    def cost(self, seen: _SeenPoints, scale: float) -> float:
        return float(0.5 * scale**2 * np.log1p(seen.square / scale**2).sum())

    def normal(self, seen: _SeenPoints, R: FloatArray, scale: float) -> tuple[FloatArray, FloatArray]:
        """H [6, 6] and g [6], by a turn in the camera's axes and a move of its centre."""
        weight = np.where(seen.ahead, self._inverse / np.sqrt(1 + seen.square / scale**2), 0.0)
        (u, v), f = seen.plane, self._focal * weight
        J = np.empty((7, 2, len(u)))
        fu, fv = f * u, f * v
        J[0, 0], J[1, 0], J[2, 0] = fu * v, -(f + fu * u), fv
        J[0, 1], J[1, 1], J[2, 1] = f + fv * v, -J[0, 0], -fu
        near = f * seen.per_z
        inner = np.stack([near * u, near * v])
        J[3:6] = R[:, 2, None, None] * inner
        J[3:6, 0] -= R[:, 0, None] * near
        J[3:6, 1] -= R[:, 1, None] * near
        J[6] = seen.error * weight
        flat = J.reshape(7, -1)
        product = flat[:6] @ flat.T
        return product[:, :6], product[:, 6]
