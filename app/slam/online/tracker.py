"""SLAM front end: tracks each frame against the last keyframe, makes keyframes and adjusts the latest ones."""

import logging
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.camera_model import CameraModel
from stream_recon.app.core.transforms import invert_pose
from stream_recon.app.core.types import FrameResult, Intrinsics
from stream_recon.app.slam.ba.levenberg import SingularError
from stream_recon.app.slam.ba.problem import FloatArray
from stream_recon.app.slam.ba.robust_ba import SolveOptions
from stream_recon.app.slam.frame_data import DepthReader, Scale, sharpness
from stream_recon.app.slam.matching.features import Features
from stream_recon.app.slam.online.config import DEFAULT_ONLINE, OnlineConfig
from stream_recon.app.slam.online.keyframe import AttachedFrame, Keyframe, common_rows
from stream_recon.app.slam.online.keyframe_features import (
    KeyframeImages,
    detect_corners,
    match_keyframes,
    pose_from_tracks,
)
from stream_recon.app.slam.online.local_ba import BAResult, adjust_window
from stream_recon.app.slam.online.loop_closure import LoopCorrection
from stream_recon.app.slam.online.map import Map, scale_ratio
from stream_recon.app.slam.online.resectioning import MotionPrior, TrackingResult, track_frame

logger = logging.getLogger(__name__)

FAILURES = (SingularError, np.linalg.LinAlgError, cv2.error)
"""Numerical failures, after which the network's pose is used."""

Grey = NDArray[np.uint8]


@dataclass
class TrackerCounts:
    """Figures of tracking, over all segments."""

    tracks: int = 0
    error_px: float | None = None
    keyframes: int = 0
    skipped: int = 0
    """Adjustments skipped because the source was ahead."""


class Tracker:
    """Tracks the frames of one segment and builds its map.

    ``first``: network result of the first frame, which is not added yet. ``T_world_camera``: pose [4, 4] of the first
    frame; None: the network's.
    """

    def __init__(
        self,
        scale: Scale,
        first: FrameResult,
        counts: TrackerCounts,
        T_world_camera: FloatArray | None = None,
        log_scale: float = 0.0,
        config: OnlineConfig = DEFAULT_ONLINE,
    ) -> None:
        self.scale, self._config = scale, config
        self._centre = first.intrinsics.cx, first.intrinsics.cy
        self.map = Map(CameraModel(self._focal(first), scale.size[0] / 2, scale.size[1] / 2), config)
        self.counts = counts
        self.log_scale = log_scale
        self._hurried = False
        self._executor = ThreadPoolExecutor(1, "features")
        self._detection: Future[Features] | None = None
        """Of the newest keyframe's features, the longest work on a keyframe; None once it is matched."""
        self._recent: deque[KeyframeImages] = deque(maxlen=self._config.tracker.recent)
        self._T: FloatArray | None = T_world_camera
        """Pose of the last frame."""
        self._T_network: FloatArray | None = None
        """Pose of the last frame in the network's world."""
        self._continues = T_world_camera is not None
        """The scale comes from an earlier map."""
        self._sharpness: deque[float] = deque(maxlen=config.tracker.sharpness_window)

    def resume(self, T_network: FloatArray, focal: float) -> None:
        """The initial pose is that of the frame before the first, with ``T_network`` in the network's world.

        ``focal``: the earlier map's focal length in pixels of the source image.
        """
        self._T_network = T_network
        self.map.camera_model = replace(self.map.camera_model, focal=focal * self.scale.factor)

    def add(self, result: FrameResult, image: Grey, *, hurried: bool = False) -> None:
        """Add the next frame, attached to the last keyframe or as a keyframe; ``hurried``: without local adjustment."""
        self._hurried = hurried
        prior = self._predict(np.asarray(result.T_world_camera, np.float64))
        blurred = self._is_blurred(image)
        if not self.map.keyframes:
            self._T = self._insert(result, image, prior.T_predicted, None)
        elif blurred:
            self._T = self._attach(result.index, prior.T_predicted)
        else:
            try:
                self._T = self._track(result, image, prior)
            except FAILURES:
                # Each frame needs a pose, if only the predicted one.
                logger.exception("tracking of frame %d failed", result.index)
                self._T = self._attach(result.index, prior.T_predicted)
        self.map.extended.add(self.map.keyframes[-1].number)

    @property
    def newest(self) -> KeyframeImages:
        """Last keyframe with its image."""
        return self._recent[-1]

    @property
    def matched(self) -> KeyframeImages | None:
        """The keyframe before the newest, which has its matches; None if there is none."""
        return self._recent[-2] if len(self._recent) > 1 else None

    def match_newest(self) -> None:
        """Match the last keyframe with those before it by descriptors, which a thread has detected meanwhile."""
        if self._detection is None:
            return
        detection, self._detection = self._detection, None
        *earlier, newest = self._recent
        try:
            detection.result()
            match_keyframes(newest, earlier, self.map.camera_model, self.map.track_ids)
        except FAILURES:
            logger.exception("descriptors of keyframe %d failed", newest.keyframe.number)

    @property
    def intrinsics(self) -> Intrinsics:
        """The map's intrinsics in pixels of the source image."""
        focal = self.map.camera_model.focal / self.scale.factor
        return Intrinsics(focal, focal, *self._centre)

    def apply_global_ba(self, adjusted: BAResult, numbers: list[int]) -> None:
        """Apply a global adjustment of keyframes ``numbers``."""
        self.map.apply_global_ba(adjusted, numbers)
        self._follow_map()

    def apply_loop_correction(self, correction: LoopCorrection) -> None:
        """Correct the map so that loops close."""
        self.map.apply_loop_correction(correction)
        self._follow_map()

    def _follow_map(self) -> None:
        self._T, self.log_scale = self.map.newest_pose, self.map.keyframes[-1].log_scale

    def _predict(self, T_network: FloatArray) -> MotionPrior:
        """Pose by the network's motion since the last frame."""
        if self._T is None:
            self._T = T_network
        if self._T_network is None:
            self._T_network = T_network
        relative = invert_pose(self._T_network) @ T_network
        ratio = self._scale_ratio()
        relative[:3, 3] *= ratio
        self._T_network = T_network
        return MotionPrior(np.asarray(self._T @ relative), T_network, ratio)

    def _scale_ratio(self) -> float:
        """Recent path in the map per path in the network's world; the network's depths may have another scale."""
        return scale_ratio(self.map.keyframes[-self._config.tracker.ratio_window :], self.log_scale, self._config)

    def _track(self, result: FrameResult, image: Grey, prior: MotionPrior) -> FloatArray:
        """Track a frame against the last keyframe; returns its pose."""
        tracking = track_frame(self.newest, image, self.map.camera_model, prior, self._config)
        T = tracking.T_world_camera if tracking.good else prior.T_predicted
        config = self._config.tracker
        near = tracking.good and tracking.displacement < config.keyframe_step
        if near and len(tracking.distance) >= config.min_tracked * tracking.attempted:
            return self._attach(result.index, T, tracking)
        return self._insert(result, image, T, tracking)

    def _attach(self, index: int, T: FloatArray, tracking: TrackingResult | None = None) -> FloatArray:
        """Attach a frame with pose ``T`` to the last keyframe."""
        last = self.map.keyframes[-1]
        relative = np.asarray(invert_pose(last.T_world_camera) @ T)
        found = (None, None) if tracking is None else (tracking.covariance, tracking.tracked)
        last.attached.append(AttachedFrame(index, relative, last.log_scale, None, *found))
        return T

    def _insert(self, result: FrameResult, image: Grey, T: FloatArray, tracking: TrackingResult | None) -> FloatArray:
        """Make a frame a keyframe, unless it has too few tracks; returns its pose."""
        new = self._new_keyframe(result, image, T)
        keyframe = new.keyframe
        if tracking is not None:
            self._take_tracks(new, tracking)
        config = self._config.descriptors
        self.match_newest()
        if config.is_enabled and self._recent and len(keyframe.track) < config.min_tracks:
            self._match_lost(new)
        detect_corners(new, self.map.track_ids)
        if keyframe.followed.sum() < self._config.tracker.min_tracks and self.map.keyframes:
            return self._attach(result.index, keyframe.T_world_camera)
        earlier = [images.keyframe for images in self._recent]
        _take_points(keyframe, earlier, self.map.camera_model, self._config.tracker.point_px)
        self._recent.append(new)
        self.map.append(keyframe)
        if config.is_enabled and not self._hurried:
            self._detection = self._executor.submit(new.features)
        self.counts.keyframes += 1
        try:
            if self._config.local_ba.is_enabled and (
                keyframe.number < self._config.local_ba.beginning or keyframe.number % 2
            ):
                self._adjust()
        except FAILURES:
            logger.exception("adjustment at keyframe %d failed", keyframe.number)
        self.log_scale = keyframe.log_scale
        return keyframe.T_world_camera

    def _new_keyframe(self, result: FrameResult, image: Grey, T: FloatArray) -> KeyframeImages:
        """Keyframe without tracks."""
        T_network = np.asarray(result.T_world_camera, np.float64)
        attached = [AttachedFrame(result.index, np.eye(4), self.log_scale)]
        number, focal = len(self.map.keyframes), self._focal(result)
        keyframe = Keyframe(number, T_network, focal, T, self.log_scale, attached=attached, config=self._config.map)
        return KeyframeImages(keyframe, image, DepthReader.from_result(result, self.scale), config=self._config)

    def _take_tracks(self, new: KeyframeImages, tracking: TrackingResult) -> None:
        """Give a new keyframe the tracks that were found in it."""
        if not tracking.good:
            return
        last, keyframe = self.map.keyframes[-1], new.keyframe
        keyframe.attached[0].covariance = tracking.covariance
        kept = tracking.distance < 2 * self._config.resectioning.agreeing_px
        row, uv = tracking.tracked.row[kept], tracking.tracked.uv[kept]
        keyframe.add_tracks(last.track[row], uv, new.reader.sample(uv))
        keyframe.displacement = tracking.displacement

    def _match_lost(self, new: KeyframeImages) -> None:
        """Match a keyframe with few tracks by descriptors, and set its pose by PnP."""
        match_keyframes(new, self._recent, self.map.camera_model, self.map.track_ids, is_lost=True)
        pose = pose_from_tracks(
            new.keyframe, [images.keyframe for images in self._recent], self.map.camera_model, self._config.descriptors
        )
        if pose is not None:
            new.keyframe.T_world_camera = pose

    def _adjust(self) -> None:
        config = self._config.local_ba
        window = self.map.keyframes[-config.window :]
        if len(window) < 2:
            return
        if self._hurried:
            self.counts.skipped += 1
            return
        fixed = max(len(window) - config.free, 1)
        options = SolveOptions(False, np.arange(len(window)) < fixed)
        adjusted = adjust_window(window, self.map.camera_model, config.rounds, options, config=self._config)
        if adjusted is not None:
            if fixed == 1 and not self._continues:
                adjusted = adjusted.aligned(window, self._config.window)
            adjusted.apply(window)
            self.map.changed |= {keyframe.number for keyframe in window}
            self.counts.tracks, self.counts.error_px = adjusted.tracks, adjusted.error_px

    def _focal(self, result: FrameResult) -> float:
        return float(np.sqrt(result.intrinsics.fx * result.intrinsics.fy)) * self.scale.factor

    def _is_blurred(self, image: Grey) -> bool:
        value = sharpness(image)
        usual = float(np.median(self._sharpness)) if self._sharpness else value
        if value < self._config.tracker.min_sharpness * usual:
            return True
        self._sharpness.append(value)
        return False


def _take_points(new: Keyframe, earlier: Sequence[Keyframe], camera_model: CameraModel, max_px: float) -> None:
    """Give a new keyframe the map's points of its tracks, where they project close to them."""
    inverse = invert_pose(new.T_world_camera)
    for old in earlier:
        rows = common_rows(old, new)
        rows = rows[np.isfinite(old.z[rows[:, 0]])]
        xyz = old.points(camera_model)[rows[:, 0]] @ inverse[:3, :3].T + inverse[:3, 3]
        with np.errstate(invalid="ignore"):
            near = np.linalg.norm(camera_model.project(xyz) - new.uv[rows[:, 1]], axis=1) < max_px
        new.z[rows[near, 1]] = xyz[near, 2]
