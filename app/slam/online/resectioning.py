"""Camera resectioning: the pose of a frame from tracked points of the last keyframe and the network's motion."""

from dataclasses import dataclass, replace

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
from stream_recon.app.slam.online.keyframe import Keyframe, TrackedPoints
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
    tracked: TrackedPoints
    distance: FloatArray  # [P], reprojection errors in sigmas; inf without a pose
    covariance: FloatArray | None = None
    """[6, 6], of the pose, as in `FrameResult`; None without a pose."""
    attempted: int = 0
    """Number of tracks that were searched."""
    displacement: float = 1.0
    """Median image displacement since the keyframe, as a share of the longer side."""
    good: bool = False
    """Whether enough points agree with the pose."""


def track_frame(
    last: KeyframeImages,
    image: Grey,
    camera_model: CameraModel,
    prior: MotionPrior,
    online: OnlineConfig = DEFAULT_ONLINE,
) -> TrackingResult:
    """Track the points of the last keyframe into a frame and estimate its pose."""
    keyframe = last.keyframe
    points = keyframe.points(camera_model)
    row = np.flatnonzero(keyframe.followed & np.isfinite(points[:, 0]))
    predicted = project_world(camera_model, prior.T_predicted, points[row])
    uv, is_tracked = track_klt(last.image, image, keyframe.uv[row], predicted, online.matching.klt)
    tracked = TrackedPoints(row[is_tracked], uv[is_tracked], prior.T_network)
    moved = np.linalg.norm(tracked.uv - keyframe.uv[tracked.row], axis=1)
    displacement = float(np.median(moved)) / max(image.shape) if len(moved) else 1.0
    result = resection(keyframe, tracked, prior, camera_model, online)
    return replace(result, attempted=len(row), displacement=displacement)


def resection(
    keyframe: Keyframe,
    tracked: TrackedPoints,
    prior: MotionPrior,
    camera_model: CameraModel,
    online: OnlineConfig = DEFAULT_ONLINE,
) -> TrackingResult:
    """Pose of a frame, near the predicted one, by its keyframe's points and the network's motion since the keyframe."""
    config, row, uv, predicted = online.resectioning, tracked.row, tracked.uv.astype(np.float64), prior.T_predicted
    points = keyframe.points(camera_model)[row]
    lost = TrackingResult(predicted, tracked, np.full(len(row), np.inf))
    error = np.nan_to_num(np.linalg.norm(project_world(camera_model, predicted, points) - uv, axis=1), nan=np.inf)
    if not len(error):
        return lost
    allowance = config.allowance * camera_model.longer_side
    used = np.flatnonzero(error < config.far_off * np.quantile(error, config.usual_quantile) + allowance)
    if len(used) < config.min_points:
        return lost
    sigma = np.where(np.isnan(keyframe.z[row]), config.guessed_sigma * camera_model.longer_side, 1.0)  # [P], pixels
    estimate = pose_only_ba(predicted, points[used], uv[used], sigma[used], camera_model, config.losses)
    T, covariance = _with_network_motion(keyframe, estimate, prior, config)
    if not np.isfinite(T).all():
        return lost
    residuals = np.nan_to_num(project_world(camera_model, T, points) - uv, nan=np.inf)
    distance = np.linalg.norm(residuals, axis=1) / sigma
    good = (distance < config.agreeing_px).sum() >= max(config.min_points, config.min_agreeing * len(row))
    return replace(lost, T_world_camera=T, distance=distance, covariance=covariance, good=bool(good))


def _with_network_motion(
    keyframe: Keyframe, estimate: PoseEstimate, prior: MotionPrior, config: ResectioningConfig
) -> tuple[FloatArray, FloatArray]:
    """An estimate combined with the network's motion since the keyframe, and its covariance [6, 6].

    Motion since the last frame would count errors of the points once more with each frame.
    """
    T, information = estimate.T_world_camera, estimate.information / config.dependent
    if config.has_network_motion:
        motion = invert_pose(keyframe.T_network) @ prior.T_network
        motion[:3, 3] *= prior.scale_ratio
        length = max(float(np.linalg.norm(motion[:3, 3])), config.min_motion * keyframe.median_depth)
        added = np.diag([config.rotation_sigma**-2] * 3 + [(config.translation_sigma * length) ** -2] * 3)
        T, information = combined_pose(T, information, keyframe.T_world_camera @ motion, added), information + added
    return T, np.asarray(np.linalg.inv(information), np.float64)


def combined_pose(
    T: FloatArray, information: FloatArray, other: FloatArray, other_information: FloatArray
) -> FloatArray:
    """Mean [4, 4] of two poses, weighted by their information [6, 6], which is as in `PoseEstimate`."""
    difference = np.concatenate([so3.log(T[:3, :3].T @ other[:3, :3]), other[:3, 3] - T[:3, 3]])
    step = np.linalg.solve(information + other_information, other_information @ difference)
    out = np.eye(4)
    out[:3, :3] = T[:3, :3] @ so3.exp(step[:3])
    out[:3, 3] = T[:3, 3] + step[3:]
    return out
