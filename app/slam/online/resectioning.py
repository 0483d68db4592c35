"""Camera resectioning: the pose of a frame from tracked points of the last keyframe and the network's motion."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core import so3
from stream_recon.app.core.camera_model import CameraModel
from stream_recon.app.core.transforms import invert_pose
from stream_recon.app.slam.ba.pose_only import PoseEstimate, pose_only_ba
from stream_recon.app.slam.ba.problem import FloatArray
from stream_recon.app.slam.frame_data import project_world
from stream_recon.app.slam.matching.matching import track_klt
from stream_recon.app.slam.online.config import DEFAULT_ONLINE, OnlineConfig, ResectioningConfig
from stream_recon.app.slam.online.keyframe import Keyframe
from stream_recon.app.slam.online.keyframe_features import KeyframeImages

Grey = NDArray[np.uint8]


@dataclass(frozen=True)
class MotionPrior:
    """The network's motion, from which a frame is tracked."""

    T_predicted: FloatArray  # [4, 4], by the motion since the last frame; points are searched from here
    T_network: FloatArray  # [4, 4], pose in the network's world
    scale_ratio: float
    """Camera path in the map per path in the network's world."""


@dataclass(frozen=True)
class TrackingResult:
    """Pose of a frame and its points of the last keyframe."""

    T_world_camera: FloatArray  # [4, 4]
    row: NDArray[np.intp]  # [P], the keyframe's tracks that were found in the frame
    uv: NDArray[np.float32]  # [P, 2], their positions
    distance: FloatArray  # [P], reprojection errors in sigmas; inf without a pose
    attempted: int
    """Number of tracks that were searched."""
    displacement: float
    """Median image displacement since the keyframe, as a share of the longer side."""
    covariance: FloatArray | None = None
    """[6, 6], of the pose, as in `FrameResult`; None without a pose."""
    config: ResectioningConfig = DEFAULT_ONLINE.resectioning

    @property
    def good(self) -> bool:
        """Whether enough points agree with the pose."""
        agreeing = int((self.distance < self.config.agreeing_px).sum())
        return agreeing >= self.config.min_points and agreeing >= self.config.min_agreeing * len(self.row)


def track_frame(
    last: KeyframeImages,
    image: Grey,
    camera_model: CameraModel,
    prior: MotionPrior,
    online: OnlineConfig = DEFAULT_ONLINE,
) -> TrackingResult:
    """Track the points of the last keyframe into a frame and estimate its pose."""
    config = online.resectioning
    keyframe, predicted = last.keyframe, prior.T_predicted
    points = keyframe.points(camera_model)
    row = np.flatnonzero(keyframe.followed & np.isfinite(points[:, 0]))
    uv, is_tracked = track_klt(
        last.image, image, keyframe.uv[row], project_world(camera_model, predicted, points[row]), online.matching.klt
    )
    attempted, row, uv = len(row), row[is_tracked], uv[is_tracked]
    moved = np.linalg.norm(uv - keyframe.uv[row], axis=1)
    displacement = float(np.median(moved)) / max(image.shape) if len(moved) else 1.0
    error = np.nan_to_num(np.linalg.norm(project_world(camera_model, predicted, points[row]) - uv, axis=1), nan=np.inf)
    near = np.zeros(0, bool)
    if len(error):
        near = error < config.far_off * np.quantile(error, config.usual_quantile) + config.allowance * max(image.shape)
    used = np.flatnonzero(near)
    lost = TrackingResult(predicted, row, uv, np.full(len(row), np.inf), attempted, displacement, config=config)
    if len(used) < config.min_points:
        return lost
    sigma = _sigma(keyframe, row, config.guessed_sigma * camera_model.longer_side)
    estimate = pose_only_ba(
        predicted, points[row[used]], uv[used].astype(np.float64), sigma[used], camera_model, config.losses
    )
    agrees = estimate.distances < config.agreeing_px * sigma[used]
    if not agrees.any():
        return lost
    depth = float(np.median(keyframe.depths[row[used[agrees]]]))
    T, covariance = _with_network_motion(keyframe, estimate, prior.T_network, prior.scale_ratio, depth, config)
    if not np.isfinite(T).all():
        return lost
    residuals = np.nan_to_num(project_world(camera_model, T, points[row]) - uv, nan=np.inf)
    distance = np.linalg.norm(residuals, axis=1) / sigma
    return TrackingResult(T, row, uv, distance, attempted, displacement, covariance, config)


def _with_network_motion(
    keyframe: Keyframe,
    estimate: PoseEstimate,
    T_network: FloatArray,
    scale_ratio: float,
    depth: float,
    config: ResectioningConfig,
) -> tuple[FloatArray, FloatArray]:
    """An estimate combined with the network's motion since the keyframe, and its covariance [6, 6].

    Motion since the last frame would count errors of the points once more with each frame.
    """
    information = estimate.information / config.dependent
    if not config.has_network_motion:
        return estimate.T_world_camera, np.asarray(np.linalg.inv(information), np.float64)
    motion = invert_pose(keyframe.T_network) @ T_network
    motion[:3, 3] *= scale_ratio
    length = max(float(np.linalg.norm(motion[:3, 3])), config.min_motion * depth)
    T = combined_pose(estimate.T_world_camera, information, keyframe.T_world_camera @ motion, length, config)
    return T, np.asarray(np.linalg.inv(information + _prior_information(length, config)), np.float64)


def _sigma(keyframe: Keyframe, row: NDArray[np.intp], guessed_px: float) -> FloatArray:
    """Standard deviations [P] of tracks in pixels; ``guessed_px`` for points with only the network's depth."""
    return np.where(np.isnan(keyframe.z[row]), guessed_px, 1.0)


def _prior_information(length: float, config: ResectioningConfig) -> FloatArray:
    """Information [6, 6] of the network's motion, of a given length."""
    return np.diag([config.rotation_sigma**-2] * 3 + [(config.translation_sigma * length) ** -2] * 3)


def combined_pose(
    T: FloatArray,
    information: FloatArray,
    prior: FloatArray,
    length: float,
    config: ResectioningConfig = DEFAULT_ONLINE.resectioning,
) -> FloatArray:
    """Mean of a pose and a prior pose, weighted by their information; that of ``T`` [6, 6] is as in `PoseEstimate`.

    ``length``: of the motion that the prior's translation sigma is relative to.
    """
    prior_information = _prior_information(length, config)
    difference = np.concatenate([so3.log(T[:3, :3].T @ prior[:3, :3]), prior[:3, 3] - T[:3, 3]])
    step = np.linalg.solve(information + prior_information, prior_information @ difference)
    out = np.eye(4)
    out[:3, :3] = T[:3, :3] @ so3.exp(step[:3])
    out[:3, 3] = T[:3, 3] + step[3:]
    return out
