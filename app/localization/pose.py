"""Pose and focal length of one image from points of a map: RANSAC with PnP, then a robust fit."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core import so3
from stream_recon.app.core.camera_model import CameraModel
from stream_recon.app.core.transforms import invert_pose
from stream_recon.app.slam.ba.levenberg import Damping, minimise
from stream_recon.app.slam.ba.problem import FloatArray
from stream_recon.app.slam.frame_data import project_world

RANSAC_PX = 6.0
"""Inlier distance of PnP in working pixels: depth errors of some percent move a projection by some pixels."""
ITERATIONS = 2000
"""Of RANSAC for each camera: enough for samples of 3 where a seventh of the matches is right (99 %)."""
CONFIDENCE = 0.999
LEAST = 8
"""Least number of matches."""
LOSS_PX = 2.0
"""Scale of the Cauchy loss."""
INLIER_PX = 5.0
"""Reprojection error up to which a match agrees with the fitted pose."""
TYPICAL_PX = 1.5
"""Usual error of a match, which weighs matches against the prior of the focal length."""
DEPENDENT = 12.0
"""Divisor of the matches' information: errors of the map's points are common to a surface, and many matches are of one
feature."""
BEHIND_PX = 1e3
"""Error of a point behind the camera."""
DAMPING = Damping(min=0.0, factor=10.0, counts_failures=True)
STEPS, TOLERANCE = 50, 1e-7
"""Most steps; relative decrease of the cost that ends the fit."""


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
    lens: CameraModel
    inliers: NDArray[np.intp]


@dataclass(frozen=True)
class PoseFit:
    """Fitted pose and camera."""

    T_world_camera: FloatArray  # [4, 4]
    lens: CameraModel
    inliers: NDArray[np.intp]
    sigmas: tuple[float, float]
    """Standard deviations of position, in the world's unit, and of rotation in degrees."""
    focal_sigma: float = 0.0
    """Standard deviation of the log focal length; 0 where it is known."""


def ransac_pose(found: Correspondences, lenses: Sequence[CameraModel], least: int = 0) -> PoseStart | None:
    """The pose and camera that most matches agree with; None if there is none.

    ``least``: fewer agreeing matches are of no use, which bounds the search.
    """
    best: PoseStart | None = None
    if len(found) < LEAST:
        return None
    for lens in lenses:
        plane = lens.unproject(found.uv)[:, :2]
        # In normalized coordinates, so that no camera matrix or distortion is needed.
        try:
            ok, _, rotation, translation, inliers = cv2.solvePnPRansac(
                found.points, plane, np.eye(3), None, params=_ransac(RANSAC_PX / lens.focal, least / len(found))
            )
        except cv2.error:
            continue
        if not ok or inliers is None:
            continue
        rows = inliers[:, 0].astype(np.intp)
        T = np.eye(4)
        T[:3, :3], T[:3, 3] = cv2.Rodrigues(rotation)[0], translation.ravel()
        ahead = found.points[rows] @ T[2, :3] + T[2, 3] > 0
        rows = rows[ahead]
        if best is None or len(rows) > len(best.inliers):
            best = PoseStart(invert_pose(T), lens, rows)
            least = max(least, len(rows))
    return best if best is not None and len(best.inliers) >= LEAST else None


def _ransac(threshold: float, share: float) -> cv2.UsacParams:
    """RANSAC with local optimization (Chum et al., DAGM 2003), the same for the same matches.

    ``share``: of the matches that agree with a pose that is looked for, if it is known.
    """
    enough = np.log(1 - CONFIDENCE) / np.log1p(-(min(max(share, 1e-3), 0.999) ** 3))
    params = cv2.UsacParams()
    params.threshold, params.confidence = threshold, CONFIDENCE
    params.maxIterations = int(min(np.ceil(enough) + 1, ITERATIONS))
    params.score, params.loMethod = cv2.SCORE_METHOD_MSAC, cv2.LOCAL_OPTIM_INNER_LO
    params.sampler, params.randomGeneratorState, params.isParallel = cv2.SAMPLING_UNIFORM, 1, False
    return params


def fit_pose(found: Correspondences, T_start: FloatArray, lens: CameraModel, focal_sigma: float | None) -> PoseFit:
    """Robust fit of a pose near a start, and of the focal length, unless ``focal_sigma`` is None: it is known.

    ``focal_sigma``: standard deviation of the log focal length about that of ``lens``.
    """
    view = _View(found, T_start, lens, focal_sigma)
    seen = minimise(view, view.seen(np.array(T_start, np.float64), lens), STEPS, TOLERANCE, rule=DAMPING).state
    T, camera = seen.T_world_camera, seen.lens
    inliers = np.flatnonzero(seen.distance < INLIER_PX)
    noise = max(1.0, 1.48 * float(np.median(seen.distance[inliers]))) if len(inliers) else INLIER_PX
    covariance = np.linalg.pinv(view.linearise(seen)[0]) * noise**2 * DEPENDENT
    rotation = float(np.degrees(np.sqrt(np.trace(covariance[:3, :3]))))
    position = view.distance * float(np.sqrt(np.trace(covariance[3:6, 3:6])))
    focal = float(np.sqrt(covariance[6, 6])) if focal_sigma else 0.0
    return PoseFit(T, camera, inliers, (position, rotation), focal)


def agreeing_share(found: Correspondences, fit: PoseFit) -> float:
    """Share of matches that agree with a pose, which need not be fitted to them."""
    error = np.linalg.norm(project_world(fit.lens, fit.T_world_camera, found.points) - found.uv, axis=1)
    return float((error < 2 * RANSAC_PX).mean())  # of a point behind the camera it is NaN


@dataclass(frozen=True)
class _Seen:
    """A pose and camera, and their errors."""

    T_world_camera: FloatArray  # [4, 4]
    lens: CameraModel
    xyz: FloatArray  # [M, 3], points in the camera's axes
    ahead: NDArray[np.bool_]  # [M]
    error: FloatArray  # [M, 2], pixels, without what an uncertain depth explains
    distance: FloatArray  # [M], their lengths
    cost: float


class RayErrors:
    """What an uncertain depth explains of errors in pixels: those along the image of a point's ray count less."""

    def __init__(self, apart: FloatArray) -> None:
        """``apart``: images [M, 2] of the points' standard deviation; NaN of what is behind the camera."""
        length = np.nan_to_num(np.linalg.norm(apart, axis=1), nan=BEHIND_PX)
        self.along = np.nan_to_num(apart) / np.maximum(length, 1e-9)[:, None]
        """Unit vectors [M, 2]."""
        self.lost = 1 - TYPICAL_PX / np.hypot(TYPICAL_PX, length)
        """Share [M] of an error along them that is explained."""

    def without(self, error: FloatArray) -> FloatArray:
        """Errors [M, 2] without it."""
        along = (error * self.along).sum(axis=1) * self.lost
        return np.asarray(error - along[:, None] * self.along)


class _View:
    """`levenberg.LinearizedModel` of one image over `_Seen`.

    Unknowns are a rotation in the camera's axes, the position in units of ``distance``, and the log focal length unless
    it is known.
    """

    def __init__(self, found: Correspondences, T: FloatArray, lens: CameraModel, focal_sigma: float | None) -> None:
        self._points, self._uv, self._focal, self._sigma = found.points, found.uv, lens.focal, focal_sigma
        self.distance = float(np.median(np.linalg.norm(found.points - T[:3, 3], axis=1)))
        # Each feature counts once, however many keyframes share it.
        _, inverse, count = np.unique(found.feature, return_inverse=True, return_counts=True)
        self._weight = 1 / count[inverse]
        # Along the image of its keyframe's ray a point is as uncertain as its depth, across it as its feature.
        self._rays = RayErrors(
            project_world(lens, T, found.points + found.spread) - project_world(lens, T, found.points)
        )

    def cost(self, seen: _Seen) -> float:
        return seen.cost

    def step(self, seen: _Seen, linear: tuple[FloatArray, FloatArray], damping: float) -> tuple[_Seen, float]:
        (H, g), T, lens = linear, seen.T_world_camera, seen.lens
        step = -np.asarray(np.linalg.solve(H + damping * np.diag(np.diag(H)), g), np.float64)
        moved = np.eye(4)
        moved[:3, :3] = T[:3, :3] @ so3.exp(step[:3])
        moved[:3, 3] = T[:3, 3] + self.distance * step[3:6]
        camera = replace(lens, focal=lens.focal * float(np.exp(step[6]))) if self._sigma else lens
        return self.seen(moved, camera), np.inf

    def seen(self, T: FloatArray, lens: CameraModel) -> _Seen:
        xyz = (self._points - T[:3, 3]) @ T[:3, :3]
        ahead = xyz[:, 2] > 1e-6
        plane = xyz[:, :2] / np.where(ahead, xyz[:, 2], 1.0)[:, None]
        error = self._rays.without(np.where(ahead[:, None], lens.pixels(plane) - self._uv, BEHIND_PX))
        distance = np.linalg.norm(error, axis=1)
        cost = float((self._weight * LOSS_PX**2 * np.log1p((distance / LOSS_PX) ** 2)).sum())
        if self._sigma:
            cost += self._prior * float(np.log(lens.focal / self._focal)) ** 2
        return _Seen(T, lens, xyz, ahead, error, distance, cost)

    def linearise(self, seen: _Seen) -> tuple[FloatArray, FloatArray]:
        """Matrix and gradient of the reweighted least squares."""
        T, lens = seen.T_world_camera, seen.lens
        xyz = np.where(seen.ahead[:, None], seen.xyz, 1.0)
        plane = xyz[:, :2] / xyz[:, 2:]
        by_point = lens.jacobian(xyz)
        parts = [by_point @ so3.skew(xyz), -self.distance * by_point @ T[:3, :3].T]
        if self._sigma:
            parts.append((lens.distorted(plane) * lens.focal)[:, :, None])
        J = np.concatenate(parts, axis=2)
        along, lost = self._rays.along, self._rays.lost
        J = J - lost[:, None, None] * along[:, :, None] * (along[:, None] @ J)
        weight = self._weight * seen.ahead / (1 + (seen.distance / LOSS_PX) ** 2)
        flat = J.reshape(-1, J.shape[2])
        weighted = flat * np.repeat(weight, 2)[:, None]
        H, g = flat.T @ weighted, weighted.T @ seen.error.ravel()
        if self._sigma:
            H[6, 6] += self._prior
            g[6] += self._prior * float(np.log(lens.focal / self._focal))
        return H, g

    @property
    def _prior(self) -> float:
        return TYPICAL_PX**2 * DEPENDENT / (self._sigma or 1.0) ** 2
