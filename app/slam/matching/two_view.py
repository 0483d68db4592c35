"""Relative pose of two images by an essential matrix."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.camera_model import CameraModel
from stream_recon.app.core.transforms import invert_pose, rotation_angle_deg
from stream_recon.app.slam.ba.problem import FloatArray, Mask, Observations
from stream_recon.app.slam.ba.triangulation import triangulate
from stream_recon.app.slam.matching.config import DEFAULT_MATCHING, TwoViewConfig
from stream_recon.app.slam.matching.features import Features
from stream_recon.app.slam.matching.matching import Matches


@dataclass(frozen=True)
class TwoViewPose:
    """Relative pose of two images by an essential matrix; its translation has length 1."""

    T_second_first: FloatArray  # [4, 4]
    inliers: Mask  # [N]
    angle_deg: float
    """Median triangulation angle."""


def relative_pose(
    camera_model: CameraModel,
    first: NDArray[np.floating],
    second: NDArray[np.floating],
    config: TwoViewConfig = DEFAULT_MATCHING.two_view,
) -> TwoViewPose | None:
    """Relative pose from matched pixels [N, 2]; None if there is none."""
    if len(first) < config.min_matches:
        return None
    x, y = camera_model.unproject(first), camera_model.unproject(second)
    a, b = x[:, :2], y[:, :2]
    limit = config.epipolar_px / camera_model.focal
    try:
        E, mask = cv2.findEssentialMat(a, b, np.eye(3), cv2.USAC_MAGSAC, 0.999, limit, config.iterations)
        if E is None or E.shape != (3, 3):
            return None
        _, R, t, mask = cv2.recoverPose(E, a, b, np.eye(3), mask=mask)
    except cv2.error:
        return None
    inliers = mask.reshape(-1) > 0
    if inliers.sum() < config.min_matches:
        return None
    T = np.eye(4)
    T[:3, :3], T[:3, 3] = R, t[:, 0]
    rows = np.flatnonzero(inliers)
    count = len(rows)
    pixels = np.concatenate([first[rows], second[rows]]).astype(np.float64)
    point = np.tile(np.arange(count), 2)
    observations = Observations(np.repeat([0, 1], count), point, pixels)
    angle = triangulate(
        np.stack([np.eye(4), invert_pose(T)]), camera_model, observations, count, iterations=0
    ).angle_deg
    return TwoViewPose(T, inliers, float(np.median(angle)))


def rotation_errors_deg(
    T_world_camera: FloatArray,
    features: Sequence[Features],
    camera_model: CameraModel,
    matches: Mapping[tuple[int, int], Matches],
) -> FloatArray:
    """Angles between relative rotations of poses [N, 4, 4] and those by matches, of pairs that have a two-view pose."""
    angles = []
    for (i, j), m in matches.items():
        pose = relative_pose(camera_model, features[i].uv[m[:, 0]], features[j].uv[m[:, 1]])
        if pose is not None:
            relative = invert_pose(T_world_camera[j]) @ T_world_camera[i]
            angles.append(float(rotation_angle_deg(relative[:3, :3].T @ pose.T_second_first[:3, :3])))
    return np.array(angles)
