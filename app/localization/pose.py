"""Pose and focal length of one image from points of a map: RANSAC with PnP, then a robust fit."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import cv2
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from stream_recon.app.core import so3
from stream_recon.app.core.camera_model import CameraModel
from stream_recon.app.core.transforms import invert_pose
from stream_recon.app.slam.ba.problem import FloatArray
from stream_recon.app.slam.frame_data import project_world, unproject

RANSAC_PX = 6.0
"""Inlier distance of PnP in working pixels: depth errors of some percent move a projection by some pixels."""
ITERATIONS = 400
"""Of RANSAC for each camera: enough for samples of 4 where a third of the matches is right (99 %)."""
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


def ransac_pose(found: Correspondences, lenses: Sequence[CameraModel]) -> PoseStart | None:
    """The pose and camera that most matches agree with; None if there is none."""
    best: PoseStart | None = None
    if len(found) < LEAST:
        return None
    for lens in lenses:
        plane = unproject(lens, found.uv)[:, :2]
        # In normalized coordinates, so that no camera matrix or distortion is needed.
        cv2.setRNGSeed(1)
        try:
            ok, rotation, translation, inliers = cv2.solvePnPRansac(
                found.points, plane, np.eye(3), None, iterationsCount=ITERATIONS,
                reprojectionError=RANSAC_PX / lens.focal, confidence=0.999, flags=cv2.SOLVEPNP_SQPNP,
            )  # fmt: skip
        except cv2.error:
            continue
        if not ok or inliers is None:
            continue
        rows = inliers[:, 0].astype(np.intp)
        T = np.eye(4)
        T[:3, :3], T[:3, 3] = cv2.Rodrigues(rotation)[0], translation[:, 0]
        ahead = found.points[rows] @ T[2, :3] + T[2, 3] > 0
        rows = rows[ahead]
        if best is None or len(rows) > len(best.inliers):
            best = PoseStart(invert_pose(T), lens, rows)
    return best if best is not None and len(best.inliers) >= LEAST else None


def fit_pose(found: Correspondences, T_start: FloatArray, lens: CameraModel, focal_sigma: float | None) -> PoseFit:
    """Robust fit of a pose near a start, and of the focal length, unless ``focal_sigma`` is None: it is known.

    ``focal_sigma``: standard deviation of the log focal length about that of ``lens``.
    """
    distance = float(np.median(np.linalg.norm(found.points - T_start[:3, 3], axis=1)))
    # Each feature counts once, however many keyframes share it.
    _, inverse, count = np.unique(found.feature, return_inverse=True, return_counts=True)
    weight = np.sqrt(1 / count[inverse])[:, None]

    def state(x: FloatArray) -> tuple[FloatArray, CameraModel]:
        T = np.eye(4)
        T[:3, :3] = T_start[:3, :3] @ so3.exp(x[:3])
        T[:3, 3] = T_start[:3, 3] + distance * x[3:6]
        return T, replace(lens, focal=lens.focal * float(np.exp(x[6]))) if focal_sigma else lens

    # A point whose depth is uncertain counts less, the more so the further the camera is from its keyframe.
    apart = project_world(lens, T_start, found.points + found.spread) - project_world(lens, T_start, found.points)
    uncertain = np.nan_to_num(np.linalg.norm(apart, axis=1), nan=1e3)
    relative = (TYPICAL_PX / np.hypot(TYPICAL_PX, uncertain))[:, None]

    def errors(x: FloatArray) -> FloatArray:
        T, camera = state(x)
        return np.asarray(np.nan_to_num(project_world(camera, T, found.points) - found.uv, nan=1e3) * relative)

    def residuals(x: FloatArray) -> FloatArray:
        error = errors(x)
        norm = np.linalg.norm(error, axis=1, keepdims=True)
        # Cauchy loss of the distance, as a residual whose square is the loss.
        robust = error * (LOSS_PX * np.sqrt(np.log1p((norm / LOSS_PX) ** 2)) / np.maximum(norm, 1e-9)) * weight
        prior = [x[6] / focal_sigma * TYPICAL_PX * np.sqrt(DEPENDENT)] if focal_sigma else []
        return np.concatenate([robust.ravel(), prior])

    solved = least_squares(residuals, np.zeros(7 if focal_sigma else 6), method="lm", max_nfev=200)
    T, camera = state(solved.x)
    distances = np.linalg.norm(errors(solved.x), axis=1)
    inliers = np.flatnonzero(distances < INLIER_PX)
    noise = max(1.0, 1.48 * float(np.median(distances[inliers]))) if len(inliers) else INLIER_PX
    covariance = np.linalg.pinv(solved.jac.T @ solved.jac) * noise**2 * DEPENDENT
    rotation = float(np.degrees(np.sqrt(np.trace(covariance[:3, :3]))))
    position = distance * float(np.sqrt(np.trace(covariance[3:6, 3:6])))
    focal = float(np.sqrt(covariance[6, 6])) if focal_sigma else 0.0
    return PoseFit(T, camera, inliers, (position, rotation), focal)
