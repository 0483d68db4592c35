"""Residuals of observations and their derivatives, vectorized.

Arrays are ordered by component, observations last, so that operations run over contiguous memory.
"""

from dataclasses import dataclass, replace

import numpy as np

from stream_recon.app.core.camera_model import CameraModel
from stream_recon.app.slam.ba.problem import INTRINSICS_SIZE, FloatArray, IntArray, Observations, ParameterBlocks

BEHIND_PX = 1e3
"""Reprojection error of a point behind a camera: large, and with zero derivatives."""
NEAR = 1e-3
"""Least depth in front of a camera, as a share of the median depth; nearer points count as behind it."""


@dataclass(frozen=True)
class Sightings:
    """Observations sorted by camera, in the adjustment's order of cameras; arrays by component."""

    camera: IntArray  # [O]
    per_camera: IntArray  # [N]
    point: IntArray  # [O]
    pixel: FloatArray  # [2, O], relative to the principal point
    inverse_sigma: FloatArray  # [O], 1 / pixels
    log_depth: FloatArray | None  # [O]; 0 without measurement
    inverse_depth_sigma: FloatArray | None  # [O]; 0 without measurement
    near: float
    """Least depth; points with less count as behind the camera."""


@dataclass(frozen=True)
class RobustLosses:
    """Scales of the Cauchy loss c^2 log(1 + e^2 / c^2), in sigmas (pixels where sigma is 1)."""

    pixel: float
    depth: float


@dataclass(frozen=True)
class ResidualRows:
    """Residuals and derivatives, times the square root of their weight; 2 rows per observation, 3 with depths."""

    joint: FloatArray  # [rows, D + INTRINSICS_SIZE + 1, O]
    """By rotation, centre, log depth scale; by intrinsics; residual."""
    point: FloatArray  # [rows, 3, O]

    @property
    def camera(self) -> FloatArray:
        """Derivatives [rows, D, O] by the camera; D is 6, or 7 with depths."""
        return self.joint[:, : -INTRINSICS_SIZE - 1]

    @property
    def intrinsics(self) -> FloatArray:
        """Derivatives [rows, INTRINSICS_SIZE, O] by log focal, k1 and k2."""
        return self.joint[:, -INTRINSICS_SIZE - 1 : -1]

    @property
    def residual(self) -> FloatArray:
        """Residuals [rows, O]."""
        return self.joint[:, -1]


def order_sightings(
    observations: Observations,
    rank: IntArray,
    start: ParameterBlocks,
    camera_model: CameraModel,
    depth_sigma: float = 1.0,
) -> tuple[Sightings, IntArray, float]:
    """Observations sorted by camera, cameras by ``rank`` [N]; their order [O]; and the median depth in ``start``.

    The median is NaN if no camera sees a point in front. ``start`` has its cameras sorted by rank.
    """
    order = np.lexsort((observations.point, rank[observations.camera]))
    ordered = observations.take(order)
    camera = rank[ordered.camera]
    sigma = np.ones(len(ordered)) if ordered.sigma is None else np.asarray(ordered.sigma, np.float64)
    log_depth = inverse = None
    if ordered.depth is not None:
        depth = np.asarray(ordered.depth, np.float64)
        known = np.isfinite(depth) & (depth > 0)
        log_depth = np.log(np.where(known, depth, 1.0))
        inverse = known / (depth_sigma if ordered.depth_sigma is None else ordered.depth_sigma)
    pixel = np.ascontiguousarray((np.asarray(ordered.pixel, np.float64) - (camera_model.cx, camera_model.cy)).T)
    per_camera = np.bincount(camera, minlength=len(rank))
    sightings = Sightings(camera, per_camera, ordered.point, pixel, 1 / sigma, log_depth, inverse, 0.0)
    z = in_camera(start, sightings)[0][2]
    positive = z[z > 0]
    usual = float(np.median(positive)) if len(positive) else float("nan")
    return replace(sightings, near=NEAR * usual if len(positive) else 0.0), order, usual


def in_camera(variables: ParameterBlocks, sightings: Sightings) -> tuple[FloatArray, FloatArray]:
    """Points [3, O] in camera axes, and rotations [3, 3, O] from the world to the camera."""
    counts = sightings.per_camera
    R = np.repeat(variables.rotation.transpose(2, 1, 0).reshape(9, -1), counts, axis=1).reshape(3, 3, -1)
    away = np.take(variables.points, sightings.point, axis=1) - np.repeat(variables.centre.T, counts, axis=1)
    return R[:, 0] * away[0] + R[:, 1] * away[1] + R[:, 2] * away[2], R


def pixel_errors(variables: ParameterBlocks, sightings: Sightings) -> tuple[FloatArray, FloatArray]:
    """Projection minus observation [2, O] in pixels, NaN behind the camera; and depths [O]."""
    xyz, _ = in_camera(variables, sightings)
    z = np.where(xyz[2] > sightings.near, xyz[2], np.nan)
    plane = xyz[:2] / z
    factor = np.exp(variables.log_focal) * variables.camera_model.radial_factor(plane[0] ** 2 + plane[1] ** 2)
    return factor * plane - sightings.pixel, xyz[2]


def squared_errors(error: FloatArray, sightings: Sightings) -> FloatArray:
    """Squared errors [O] in sigmas, of errors [2, O] in pixels."""
    square = error[0] ** 2 + error[1] ** 2
    return np.asarray(np.where(np.isnan(square), BEHIND_PX**2, square) * sightings.inverse_sigma**2)


def sightings_cost(variables: ParameterBlocks, sightings: Sightings, losses: RobustLosses) -> float:
    """Half the sum of the losses of all sightings."""
    error, z = pixel_errors(variables, sightings)
    cost = cauchy(squared_errors(error, sightings), losses.pixel)
    if sightings.log_depth is not None and sightings.inverse_depth_sigma is not None:
        scale = np.repeat(variables.log_scale, sightings.per_camera)
        log_z = np.log(np.maximum(z, sightings.near))
        cost += cauchy(((log_z - sightings.log_depth - scale) * sightings.inverse_depth_sigma) ** 2, losses.depth)
    return cost


def linearise_sightings(variables: ParameterBlocks, sightings: Sightings, losses: RobustLosses) -> ResidualRows:
    """Weighted residuals of all sightings and their derivatives."""
    xyz, R = in_camera(variables, sightings)
    in_front = xyz[2] > sightings.near
    x, y, z = xyz
    per_z = 1 / np.where(in_front, z, 1.0)
    u, v = x * per_z, y * per_z
    focal = np.exp(variables.log_focal)
    g, bend, by_k1, by_k2 = variables.camera_model.radial_derivatives(u * u + v * v)
    radial = focal * g
    error = np.stack([radial * u, radial * v])
    by_focal = error.copy()
    error -= sightings.pixel
    e2 = (error[0] ** 2 + error[1] ** 2) * sightings.inverse_sigma**2
    weight = np.where(in_front, sightings.inverse_sigma / np.sqrt(1 + e2 / losses.pixel**2), 0.0)

    depths = sightings.log_depth is not None and sightings.inverse_depth_sigma is not None
    rows, count = (3 if depths else 2), len(z)
    joint = np.zeros((rows, (7 if depths else 6) + INTRINSICS_SIZE + 1, count))
    linear = ResidualRows(joint, np.empty((rows, 3, count)))
    residual, by_camera, by_point, intrinsics = linear.residual, linear.camera, linear.point, linear.intrinsics
    residual[:2] = error * weight
    intrinsics[:2, 0] = by_focal * weight
    for k, factor in ((1, focal * weight * by_k1), (2, focal * weight * by_k2)):
        intrinsics[0, k], intrinsics[1, k] = factor * u, factor * v

    # Derivatives by the point in camera axes, from those by (u, v), a symmetric matrix.
    scaled = weight * per_z
    slope = focal * bend
    uu, uv, vv = (radial + slope * u * u) * scaled, (slope * scaled) * (u * v), (radial + slope * v * v) * scaled
    inner = [(uu, uv, -(uu * u + uv * v)), (uv, vv, -(uv * u + vv * v))]
    for row, (a, b, c) in enumerate(inner):
        by_camera[row, 0], by_camera[row, 1], by_camera[row, 2] = b * z - c * y, c * x - a * z, a * y - b * x
        by_point[row] = a * R[0] + b * R[1] + c * R[2]
    if sightings.log_depth is not None and sightings.inverse_depth_sigma is not None:
        scale = np.repeat(variables.log_scale, sightings.per_camera)
        error = (np.log(np.where(in_front, z, 1.0)) - sightings.log_depth - scale) * sightings.inverse_depth_sigma
        weight = np.where(in_front, sightings.inverse_depth_sigma / np.sqrt(1 + (error / losses.depth) ** 2), 0.0)
        residual[2] = error / np.sqrt(1 + (error / losses.depth) ** 2) * in_front
        c = weight * per_z
        by_camera[2, 0], by_camera[2, 1], by_camera[2, 6] = -c * y, c * x, -weight
        by_point[2] = c * R[2]
    np.negative(by_point, out=by_camera[:, 3:6])
    return linear


def cauchy(square: FloatArray, scale: float) -> float:
    """Half the sum of the Cauchy losses of squared residuals."""
    return float(0.5 * scale**2 * np.log1p(square / scale**2).sum())
