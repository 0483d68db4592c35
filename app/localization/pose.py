"""Pose and focal length of one image from points of a map: RANSAC with PnP, then a robust fit."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core import so3
from stream_recon.app.core.camera_model import CameraModel
from stream_recon.app.core.transforms import invert_pose, transform_each
from stream_recon.app.localization.config import DEFAULT_LOCALIZATION, PoseConfig
from stream_recon.app.slam.ba.levenberg import Damping, minimise
from stream_recon.app.slam.ba.problem import FloatArray
from stream_recon.app.slam.frame_data import project_world

BEHIND_PX = 1e3
"""Error of a point behind the camera."""
_DAMPING = Damping(min=0.0, factor=10.0, counts_failures=True)
_ITERATIONS, _TOLERANCE = 50, 1e-7


@dataclass(frozen=True)
class Correspondences:
    """Matches of an image's features with points of a map."""

    feature: NDArray[np.intp]  # [M]
    uv: FloatArray  # [M, 2], working pixels
    points: FloatArray  # [M, 3], in the world
    spread: FloatArray  # [M, 3], standard deviation of the point along its keyframe's ray
    row: NDArray[np.intp]  # [M], keyframe of the point

    def __len__(self) -> int:
        return len(self.feature)

    def take(self, chosen: NDArray[np.intp]) -> "Correspondences":
        """The matches at ``chosen``."""
        return Correspondences(*(values[chosen] for values in vars(self).values()))

    def with_more(self, more: "Correspondences") -> "Correspondences":
        """These matches, then others."""
        both = zip(vars(self).values(), vars(more).values(), strict=True)
        return Correspondences(*(np.concatenate(pair) for pair in both))


@dataclass(frozen=True)
class PoseStart:
    """Pose by RANSAC."""

    T_world_camera: FloatArray  # [4, 4]
    camera_model: CameraModel
    inliers: NDArray[np.intp]


@dataclass(frozen=True)
class PoseFit:
    """Fitted pose and camera."""

    T_world_camera: FloatArray  # [4, 4]
    camera_model: CameraModel
    inliers: NDArray[np.intp]
    sigmas: tuple[float, float]
    """Standard deviations of position, in the world's unit, and of rotation in degrees."""
    focal_sigma: float = 0.0
    """Standard deviation of the log focal length; 0 where it is known."""


def ransac_pose(
    matches: Correspondences,
    camera_models: Sequence[CameraModel],
    min_inliers: int = 0,
    config: PoseConfig = DEFAULT_LOCALIZATION.pose,
) -> PoseStart | None:
    """The pose and camera that most matches agree with; None if there is none.

    ``min_inliers``: fewer agreeing matches are of no use, which bounds the search.
    """
    best: PoseStart | None = None
    if len(matches) < config.min_matches:
        return None
    for camera_model in camera_models:
        plane = camera_model.unproject(matches.uv)[:, :2]
        params = _ransac(config.ransac_px / camera_model.focal, min_inliers / len(matches), config)
        # In normalized coordinates, so that no camera matrix or distortion is needed.
        try:
            ok, _, rotation, translation, inliers = cv2.solvePnPRansac(
                matches.points, plane, np.eye(3), None, params=params
            )
        except cv2.error:
            continue
        if not ok or inliers is None:
            continue
        rows = inliers[:, 0].astype(np.intp)
        T = np.eye(4)
        T[:3, :3], T[:3, 3] = cv2.Rodrigues(rotation)[0], translation.ravel()
        rows = rows[matches.points[rows] @ T[2, :3] + T[2, 3] > 0]
        if best is None or len(rows) > len(best.inliers):
            best = PoseStart(invert_pose(T), camera_model, rows)
            min_inliers = max(min_inliers, len(rows))
    return best if best is not None and len(best.inliers) >= config.min_matches else None


def _ransac(threshold: float, share: float, config: PoseConfig) -> cv2.UsacParams:
    """RANSAC with local optimization (Chum et al., DAGM 2003), the same for the same matches.

    ``share``: of the matches that agree with a pose that is looked for, if it is known.
    """
    enough = np.log(1 - config.confidence) / np.log1p(-(min(max(share, 1e-3), 0.999) ** 3))
    params = cv2.UsacParams()
    params.threshold, params.confidence = threshold, config.confidence
    params.maxIterations = int(min(np.ceil(enough) + 1, config.max_iterations))
    params.score, params.loMethod = cv2.SCORE_METHOD_MSAC, cv2.LOCAL_OPTIM_INNER_LO
    params.sampler, params.randomGeneratorState, params.isParallel = cv2.SAMPLING_UNIFORM, 1, False
    return params


def fit_pose(
    matches: Correspondences,
    T_start: FloatArray,
    camera_model: CameraModel,
    focal_sigma: float | None,
    config: PoseConfig = DEFAULT_LOCALIZATION.pose,
    T_view_body: FloatArray | None = None,
) -> PoseFit:
    """Robust fit of a pose near a start, and of the focal length, unless ``focal_sigma`` is None: it is known.

    Args:
        focal_sigma: standard deviation of the log focal length about that of ``camera_model``.
        T_view_body: [M, 4, 4], of the view of each match, where the pose is that of a rig's body.
    """
    model = _PoseAndFocal(matches, T_start, camera_model, focal_sigma, config, T_view_body)
    start = model.projected(np.array(T_start, np.float64), camera_model)
    end = minimise(model, start, _ITERATIONS, _TOLERANCE, rule=_DAMPING).state
    inliers = np.flatnonzero(end.distance < config.inlier_px)
    noise = max(1.0, 1.48 * float(np.median(end.distance[inliers]))) if len(inliers) else config.inlier_px
    covariance = np.linalg.pinv(model.linearise(end)[0]) * noise**2 * config.correlated
    rotation = float(np.degrees(np.sqrt(np.trace(covariance[:3, :3]))))
    position = model.distance * float(np.sqrt(np.trace(covariance[3:6, 3:6])))
    focal = float(np.sqrt(covariance[6, 6])) if focal_sigma else 0.0
    return PoseFit(end.T_world_camera, end.camera_model, inliers, (position, rotation), focal)


def agreeing_share(matches: Correspondences, fit: PoseFit, config: PoseConfig = DEFAULT_LOCALIZATION.pose) -> float:
    """Share of matches that agree with a pose, which need not be fitted to them."""
    projected = project_world(fit.camera_model, fit.T_world_camera, matches.points)
    error = np.linalg.norm(projected - matches.uv, axis=1)
    return float((error < 2 * config.ransac_px).mean())  # of a point behind the camera it is NaN


class RayErrors:
    """What an uncertain depth explains of errors in pixels: those along the image of a point's ray count less."""

    def __init__(self, deviation: FloatArray, typical_px: float = DEFAULT_LOCALIZATION.pose.typical_px) -> None:
        """``deviation``: images [M, 2] of the points' standard deviation; NaN of what is behind the camera."""
        length = np.nan_to_num(np.linalg.norm(deviation, axis=1), nan=BEHIND_PX)
        self.along = np.nan_to_num(deviation) / np.maximum(length, 1e-9)[:, None]
        """Unit vectors [M, 2]."""
        self.explained = 1 - typical_px / np.hypot(typical_px, length)
        """Share [M] of an error along them that is explained."""

    def without(self, error: FloatArray) -> FloatArray:
        """Errors [M, 2] without it."""
        along = (error * self.along).sum(axis=1) * self.explained
        return np.asarray(error - along[:, None] * self.along)


@dataclass(frozen=True)
class _Projection:
    """A pose and camera, and their errors."""

    T_world_camera: FloatArray  # [4, 4]
    camera_model: CameraModel
    xyz: FloatArray  # [M, 3], points in the camera's axes
    in_front: NDArray[np.bool_]  # [M]
    error: FloatArray  # [M, 2], pixels, without what an uncertain depth explains
    distance: FloatArray  # [M], their lengths
    cost: float


class _PoseAndFocal:
    """`levenberg.LinearizedModel` of one image over `_Projection`.

    Unknowns are a rotation in the camera's axes, the position in units of ``distance``, and the log focal length unless
    it is known.
    """

    def __init__(
        self,
        matches: Correspondences,
        T: FloatArray,
        camera_model: CameraModel,
        focal_sigma: float | None,
        config: PoseConfig,
        T_view_body: FloatArray | None,
    ) -> None:
        self._T_view_body = T_view_body
        self._points, self._uv, self._focal, self._sigma = matches.points, matches.uv, camera_model.focal, focal_sigma
        self._loss_px = config.loss_px
        self._prior = config.typical_px**2 * config.correlated / (focal_sigma or 1.0) ** 2
        self.distance = float(np.median(np.linalg.norm(matches.points - T[:3, 3], axis=1)))
        # Each feature counts once, however many keyframes share it.
        _, inverse, count = np.unique(matches.feature, return_inverse=True, return_counts=True)
        self._weight = 1 / count[inverse]
        # Along the image of its keyframe's ray a point is as uncertain as its depth, across it as its feature.
        T_body = invert_pose(T)
        near, far = (
            camera_model.project(self._in_view(points @ T_body[:3, :3].T + T_body[:3, 3]))
            for points in (matches.points, matches.points + matches.spread)
        )
        self._rays = RayErrors(far - near, config.typical_px)

    def _in_view(self, xyz: FloatArray) -> FloatArray:
        """Points [M, 3] of the body's axes in those of each match's view."""
        return xyz if self._T_view_body is None else transform_each(self._T_view_body, xyz)

    def cost(self, state: _Projection) -> float:
        return state.cost

    def step(
        self, state: _Projection, linear: tuple[FloatArray, FloatArray], damping: float
    ) -> tuple[_Projection, float]:
        (H, g), T, camera_model = linear, state.T_world_camera, state.camera_model
        step = -np.asarray(np.linalg.solve(H + damping * np.diag(np.diag(H)), g), np.float64)
        moved = np.eye(4)
        moved[:3, :3] = T[:3, :3] @ so3.exp(step[:3])
        moved[:3, 3] = T[:3, 3] + self.distance * step[3:6]
        if self._sigma:
            camera_model = replace(camera_model, focal=camera_model.focal * float(np.exp(step[6])))
        return self.projected(moved, camera_model), np.inf

    def projected(self, T: FloatArray, camera_model: CameraModel) -> _Projection:
        """The projections from a pose [4, 4]."""
        xyz = self._in_view((self._points - T[:3, 3]) @ T[:3, :3])
        in_front = xyz[:, 2] > 1e-6
        plane = xyz[:, :2] / np.where(in_front, xyz[:, 2], 1.0)[:, None]
        error = np.where(in_front[:, None], camera_model.pixels(plane) - self._uv, BEHIND_PX)
        error = self._rays.without(error)
        distance = np.linalg.norm(error, axis=1)
        cost = float((self._weight * self._loss_px**2 * np.log1p((distance / self._loss_px) ** 2)).sum())
        if self._sigma:
            cost += self._prior * float(np.log(camera_model.focal / self._focal)) ** 2
        return _Projection(T, camera_model, xyz, in_front, error, distance, cost)

    def linearise(self, state: _Projection) -> tuple[FloatArray, FloatArray]:
        """Matrix and gradient of the reweighted least squares."""
        T, camera_model = state.T_world_camera, state.camera_model
        xyz = np.where(state.in_front[:, None], state.xyz, 1.0)
        by_point = camera_model.jacobian(xyz)
        body, by_body = xyz, by_point
        if self._T_view_body is not None:
            body, by_body = (self._points - T[:3, 3]) @ T[:3, :3], by_point @ self._T_view_body[:, :3, :3]
        parts = [by_body @ so3.skew(body), -self.distance * by_body @ T[:3, :3].T]
        if self._sigma:
            parts.append((camera_model.distorted(xyz[:, :2] / xyz[:, 2:]) * camera_model.focal)[:, :, None])
        J = np.concatenate(parts, axis=2)
        along, explained = self._rays.along, self._rays.explained
        J = J - explained[:, None, None] * along[:, :, None] * (along[:, None] @ J)
        weight = self._weight * state.in_front / (1 + (state.distance / self._loss_px) ** 2)
        flat = J.reshape(-1, J.shape[2])
        weighted = flat * np.repeat(weight, 2)[:, None]
        H, g = flat.T @ weighted, weighted.T @ state.error.ravel()
        if self._sigma:
            H[6, 6] += self._prior
            g[6] += self._prior * float(np.log(camera_model.focal / self._focal))
        return H, g
