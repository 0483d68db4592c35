"""Online choice between the map's motion and the network's, by held-out tracks and by moving parts of the image."""

from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.camera_model import CameraModel
from stream_recon.app.core.transforms import invert_pose
from stream_recon.app.slam.ba.problem import FloatArray
from stream_recon.app.slam.evidence.held_out_error import HELD_OUT, HeldOutError, PoseCandidate, medians_by
from stream_recon.app.slam.matching.features import NO_DESCRIPTORS, Features
from stream_recon.app.slam.online.config import DEFAULT_ONLINE, DynamicSceneConfig, HeldOutChoiceConfig
from stream_recon.app.slam.online.keyframe import Keyframe, common_rows
from stream_recon.app.slam.online.resectioning import TrackingResult


class DynamicSceneTest:
    """Test whether the tracks belong to a large moving object.

    Over some keyframes, a network that sees the whole image is hardly ever as wrong as tracks on a moving object. But
    where it fails, as after a large rotation, the tracks agree with each other. So the test requires both: tracks that
    deviate from the network, and parts of the image that contradict them. A large contradicting part is sufficient
    alone, since the network is partly misled, too.
    """

    def __init__(self, config: DynamicSceneConfig = DEFAULT_ONLINE.dynamic) -> None:
        self._config = config
        self._steps: deque[tuple[FloatArray, FloatArray, float]] = deque(maxlen=self._config.window)
        """Motion by tracks [4, 4], by the network [4, 4], and moving share of the image, per keyframe."""
        self.positive = False
        """Result for the last keyframes."""

    def _moving(self, over: int = 0) -> float:
        """Share of the image that contradicts the tracks' pose, over the last keyframes; 0: over all."""
        return float(np.mean([each[2] for each in [*self._steps][-over:]])) if self._steps else 0.0

    def _deviation(self, over: int = 0) -> float:
        """Distance between the ends of both motions, as a share of the path."""
        last = [*self._steps][-over:]
        return float(np.linalg.norm(_end([each[0] for each in last]) - _end([each[1] for each in last])))

    def rejects_scale_jump(self, change: float, depth: float) -> bool:
        """Whether a change of the map's log scale at the last keyframe makes the test positive.

        ``depth``: median depth there, in the network's scale. Without camera motion the scale is undetermined.
        """
        motion = float(np.median([np.linalg.norm(each[1][:3, 3]) for each in self._steps])) if self._steps else 0.0
        rejected = (
            self._config.is_enabled
            and not self.positive
            and abs(change) > self._config.scale_jump
            and motion > self._config.min_motion * depth
            and self._moving() > self._config.moving_also
        )
        self.positive |= rejected
        return rejected

    def update(self, last: Keyframe, tracking: TrackingResult, T_network: FloatArray, side: float) -> None:
        """Add a new keyframe.

        ``T_network``: [4, 4], the network's motion since the ``last`` one; ``side``: longer side of the image.
        """
        config = self._config
        if not config.is_enabled or tracking.T_tracks is None or not tracking.good:
            # Where most tracks contradict any pose they are lost, as between distant frames.
            return
        significant = len(tracking.row) > config.min_tracked * tracking.attempted
        share = moving_share(tracking.uv, tracking.residuals, side, config) if significant else 0.0
        self._steps.append((invert_pose(last.T_world_camera) @ tracking.T_tracks, T_network, share))
        if len(self._steps) < config.min_window:
            return
        contradicted = self._moving() > config.moving_also
        if self.positive:
            self.positive = self._deviation() > config.end_deviation or contradicted
        else:
            deviates = self._deviation(config.recent) > config.recent_deviation
            recent = deviates and self._moving(config.recent) > config.recent_moving
            deviates = self._deviation() > config.deviation
            self.positive = self._moving() > config.moving or (deviates and contradicted) or recent


def moving_share(
    uv: NDArray[np.floating], residuals: FloatArray, side: float, config: DynamicSceneConfig = DEFAULT_ONLINE.dynamic
) -> float:
    """Share of the image's parts whose tracks at ``uv`` [N, 2] have similar, large ``residuals`` [N, 2] in pixels."""
    part = np.unique(uv // (side / HELD_OUT.parts), axis=0, return_inverse=True)[1].reshape(-1)
    known = np.isfinite(residuals).all(axis=1)
    part, residuals = part[known], residuals[known]
    used, part, count = np.unique(part, return_inverse=True, return_counts=True)
    if not len(used):
        return 0.0
    median = np.stack([medians_by(part, residuals[:, axis]) for axis in (0, 1)], axis=1)
    spread = medians_by(part, np.linalg.norm(residuals - median[part], axis=1))
    length = np.linalg.norm(median, axis=1)
    enough = count >= config.min_part_tracks
    moving = enough & (length > config.part_motion * side) & (spread < config.max_part_spread * length)
    return float(moving.sum() / max(enough.sum(), 1))


def _end(motions: Sequence[FloatArray]) -> FloatArray:
    """End [3] of consecutive motions [4, 4] in the first one's axes, divided by the path length."""
    T = np.eye(4)
    for motion in motions:
        T = T @ motion
    return np.asarray(T[:3, 3] / max(sum(float(np.linalg.norm(motion[:3, 3])) for motion in motions), 1e-12))


def network_is_better(
    keyframes: Sequence[Keyframe], camera_model: CameraModel, config: HeldOutChoiceConfig = DEFAULT_ONLINE.held_out
) -> bool:
    """Whether held-out tracks prefer the network's motion from the other keyframes to the last one."""
    last, held_out = len(keyframes) - 1, {}
    for k in range(last):
        rows = common_rows(keyframes[k], keyframes[last])
        held_out[k, last] = rows[keyframes[k].held_out[rows[:, 0]]].astype(np.int32)
    if sum(len(m) for m in held_out.values()) < config.min_matches:
        return False
    focal = float(np.median([keyframe.focal_network for keyframe in keyframes]))
    network_model = CameraModel(focal, camera_model.cx, camera_model.cy)
    network = PoseCandidate(np.array([k.T_network for k in keyframes]), network_model, np.ones(len(keyframes)))
    scales = np.exp([k.log_scale for k in keyframes])
    mapped = PoseCandidate(np.array([k.T_world_camera for k in keyframes]), camera_model, scales)
    features = [Features(k.uv, NO_DESCRIPTORS, k.z_network) for k in keyframes]
    theirs, ours = (HeldOutError.measure(one, features, held_out).pairs for one in (network, mapped))
    return bool(ours) and float(np.mean([(ours[pair] - theirs[pair]).mean() for pair in ours])) > config.margin
