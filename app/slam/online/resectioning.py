"""A frame's pose against the points of the last keyframe: followed into the frame, fitted, weighed with the network."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core import so3
from stream_recon.app.core.transforms import invert_pose
from stream_recon.app.slam.ba.problem import CameraModel
from stream_recon.app.slam.offline.pose_interpolation import in_view, track_klt
from stream_recon.app.slam.online.keyframe import Keyframe, TrackedPoints
from stream_recon.app.slam.online.pose_only import FittedPose, pose_only_ba

FloatArray = NDArray[np.float64]
Grey = NDArray[np.uint8]

MIN_POINTS = 25
USUAL, FAR_OFF, FAR_OFF_PX = 0.3, 3.0, 4.0
"""A point that is so many times further from where the network's motion has it than this quantile of them, and so many
pixels more, moves by itself: where others move, too, they may be most of what is seen."""
AGREEING = 0.5
"""Share of the points followed that have to agree with the pose."""
AGREEING_PX = 3.0
LOSSES, ITERATIONS, TOLERANCE = (10.0, 3.0, 1.0), 8, 1e-3
GUESSED_SIGMA = 4.0
"""Pixels; of points that only the network's depth places."""
DEPENDENT = 10.0
"""Errors of points near one another are alike: their information counts so many times less; where tracks are unsurely
seen they are more so, by the square of how unsurely."""
ROTATION_SIGMA, TRANSLATION_SIGMA = np.radians(1.0), 0.3
"""Of the network's motion since the keyframe; the translation as a share of its length."""
LEAST_MOTION = 0.005
"""Of the depth: shorter motions are no more certain than this one."""


@dataclass(frozen=True)
class TrackingResult:
    """A frame against the last keyframe."""

    T_world_camera: FloatArray  # [4, 4]
    row: NDArray[np.intp]  # [P], of the keyframe's tracks that arrived in the frame
    uv: NDArray[np.float32]  # [P, 2], where
    distance: FloatArray  # [P], from where the pose has them, in their sigmas; inf where there is no pose
    asked: int
    """Tracks that were followed."""
    T_tracks: FloatArray | None
    """[4, 4], the pose by the tracks alone, before it was weighed with the network's; None where there is none."""
    missed: FloatArray  # [P, 2], from where they are to where that pose has them, in pixels; empty without it
    moved: float
    """Median way of the points since the keyframe, as a share of the image's longer side."""

    @property
    def good(self) -> bool:
        """Whether enough points say the same."""
        agreeing = int((self.distance < AGREEING_PX).sum())
        return agreeing >= MIN_POINTS and agreeing >= AGREEING * len(self.row)


def track_frame(
    keyframe: Keyframe,
    before: Grey,
    image: Grey,
    lens: CameraModel,
    guess: FloatArray,
    T_network: FloatArray,
    gain: float,
) -> TrackingResult:
    """Follow a keyframe's points into a frame and fit its pose to them.

    Args:
        before: the keyframe's image.
        guess: [4, 4], where the network's motion since the last frame puts the camera: there they are looked for.
        T_network: [4, 4], of the frame, in the network's world.
        gain: lengths of the camera's way in the map, for each of the network's.
    """
    points = keyframe.points(lens)
    row = np.flatnonzero(np.isfinite(points[:, 0]))
    there, arrived = track_klt(before, image, keyframe.uv[row], in_view(lens, guess, points[row]))
    asked, row, there = len(row), row[arrived], there[arrived]
    way = np.linalg.norm(there - keyframe.uv[row], axis=1)
    moved = float(np.median(way)) / max(image.shape) if len(way) else 1.0
    off = np.nan_to_num(np.linalg.norm(in_view(lens, guess, points[row]) - there, axis=1), nan=np.inf)
    near = off < FAR_OFF * np.quantile(off, USUAL) + FAR_OFF_PX if len(off) else np.zeros(0, bool)
    fitted = np.flatnonzero(near & ~keyframe.held_out[row])
    lost = TrackingResult(guess, row, there, np.full(len(row), np.inf), asked, None, np.zeros((0, 2)), moved)
    if len(fitted) < MIN_POINTS:
        return lost
    sigma = _sigma(keyframe, row)
    found = pose_only_ba(
        guess, points[row[fitted]], there[fitted].astype(np.float64), sigma[fitted], lens, LOSSES, ITERATIONS, TOLERANCE
    )
    agrees = found.distances < AGREEING_PX * sigma[fitted]
    if not agrees.any():
        return lost
    depth = float(np.median(keyframe.depths[row[fitted[agrees]]]))
    alone = found.T_world_camera
    T = _with_network(keyframe, found, T_network, gain, depth)
    if not np.isfinite(T).all():
        return lost

    def missed(pose: FloatArray) -> FloatArray:
        return np.asarray(np.nan_to_num(in_view(lens, pose, points[row]) - there, nan=np.inf), np.float64)

    distance = np.linalg.norm(missed(T), axis=1) / sigma
    return TrackingResult(T, row, there, distance, asked, alone, missed(alone), moved)


def refine_attached_pose(
    keyframe: Keyframe, followed: TrackedPoints, T_keyframe_frame: FloatArray, gain: float, lens: CameraModel
) -> FloatArray:
    """A frame's pose [4, 4] in the axes of its keyframe, whose points are better known by now; begun where it was.

    ``gain``: lengths of the camera's way in the map around there, for each of the network's.
    """
    row = followed.row
    points = keyframe.points(lens)[row]
    fitted = np.flatnonzero(np.isfinite(points[:, 0]) & ~keyframe.held_out[row])
    if len(fitted) < MIN_POINTS:
        return T_keyframe_frame
    sigma = _sigma(keyframe, row[fitted])
    start = keyframe.T_world_camera @ T_keyframe_frame
    uv = followed.uv[fitted].astype(np.float64)
    found = pose_only_ba(start, points[fitted], uv, sigma, lens, LOSSES[-1:], ITERATIONS, TOLERANCE)
    agrees = found.distances < AGREEING_PX * sigma
    if agrees.sum() < max(MIN_POINTS, AGREEING * len(fitted)):
        return T_keyframe_frame
    T = _with_network(keyframe, found, followed.T_network, gain, keyframe.usual_depth)
    return np.asarray(invert_pose(keyframe.T_world_camera) @ T) if np.isfinite(T).all() else T_keyframe_frame


def _with_network(
    keyframe: Keyframe, found: FittedPose, T_network: FloatArray, gain: float, depth: float
) -> FloatArray:
    """A pose fitted to a keyframe's points, weighed with the network's motion since that keyframe.

    Not since the last frame: what is wrong with the points has moved that one alike, and would count once more with
    each frame.
    """
    network = invert_pose(keyframe.T_network) @ T_network
    network[:3, 3] *= gain
    length = max(float(np.linalg.norm(network[:3, 3])), LEAST_MOTION * depth)
    dependent = DEPENDENT * max(keyframe.unsure, 1.0) ** 2
    return weighed(found.T_world_camera, found.information / dependent, keyframe.T_world_camera @ network, length)


def _sigma(keyframe: Keyframe, row: NDArray[np.intp]) -> FloatArray:
    """[P] in pixels, of tracks: points whose depth only the network knows are off by more."""
    guessed = np.isnan(keyframe.z[row])
    return np.where(guessed, GUESSED_SIGMA, 1.0) * keyframe.sigma[row].astype(np.float64)


def weighed(T: FloatArray, information: FloatArray, guess: FloatArray, length: float) -> FloatArray:
    """A pose with what the network says of it, by what both know.

    Args:
        information: [6, 6], of ``T``, as `motion.Motion` has it.
        length: of the motion that the network's translation is a guess of.
    """
    prior = np.diag([ROTATION_SIGMA**-2] * 3 + [(TRANSLATION_SIGMA * length) ** -2] * 3)
    off = np.concatenate([so3.log(T[:3, :3].T @ guess[:3, :3]), guess[:3, 3] - T[:3, 3]])
    step = np.linalg.solve(information + prior, prior @ off)
    out = np.eye(4)
    out[:3, :3] = T[:3, :3] @ so3.exp(step[:3])
    out[:3, 3] = T[:3, 3] + step[3:]
    return out
