"""Online map of one segment: its keyframes, their points, and corrections by bundle adjustment and loop closure."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.camera_model import CameraModel
from stream_recon.app.core.transforms import invert_pose
from stream_recon.app.slam.ba.problem import FloatArray
from stream_recon.app.slam.online.config import DEFAULT_ONLINE, OnlineConfig
from stream_recon.app.slam.online.keyframe import NO_TRACKS, Keyframe
from stream_recon.app.slam.online.keyframe_features import TrackIds, merge_tracks
from stream_recon.app.slam.online.local_ba import BAResult
from stream_recon.app.slam.online.loop_closure import LoopCorrection
from stream_recon.app.slam.online.resectioning import MotionPrior, resection


@dataclass(frozen=True)
class MapState:
    """End of the map of an interrupted run, from which a resumed run continues."""

    T_world_camera: FloatArray  # [4, 4]
    T_network: FloatArray  # [4, 4], in the network's world
    scale: float
    """Length in the map per length in the network's world."""
    focal: float
    """In pixels of the source image."""
    segment: int


class Map:
    """Keyframes of one segment. ``camera_model`` is replaced by global adjustments."""

    def __init__(self, camera_model: CameraModel, config: OnlineConfig = DEFAULT_ONLINE) -> None:
        self.camera_model, self._config = camera_model, config
        self.keyframes: list[Keyframe] = []
        self.track_ids = TrackIds()
        self.changed: set[int] = set()
        """Numbers of keyframes that moved since the last output, with their attached frames."""
        self.extended: set[int] = set()
        """Numbers of keyframes that frames were attached to since the last output."""
        self._loop_ends: list[int] = []
        """Numbers of keyframes with loop tracks, in the order of closing."""

    @property
    def active(self) -> list[Keyframe]:
        """Keyframes that can still be adjusted."""
        return self.keyframes[self._first_active :]

    @property
    def _first_active(self) -> int:
        return max(len(self.keyframes) - self._config.map.active, 0)

    @property
    def fixed(self) -> list[Keyframe]:
        """Inactive keyframes that share loop tracks with active ones; fixed in global adjustments."""
        if not self._loop_ends:
            return []
        tracks = np.unique(np.concatenate([keyframe.loop_tracks for keyframe in self.active]))
        old = [self.keyframes[number] for number in self._loop_ends if number < self._first_active]
        common = {keyframe.number: int(np.isin(keyframe.track, tracks).sum()) for keyframe in old}
        most = sorted((number for number in common if common[number]), key=lambda number: (-common[number], number))
        return [self.keyframes[number] for number in sorted(most[: self._config.map.max_fixed])]

    @property
    def newest_pose(self) -> FloatArray:
        """Pose [4, 4] of the last frame."""
        newest = self.keyframes[-1]
        return newest.pose_of(newest.attached[-1])

    def append(self, new: Keyframe) -> None:
        """Add a keyframe; the oldest active one becomes inactive."""
        self.keyframes.append(new)
        if len(self.keyframes) > self._config.map.active:
            self.refine_attached([self.keyframes[-self._config.map.active - 1]])
            self.keyframes[-self._config.map.active - 1].drop_tracks()

    def points(self) -> NDArray[np.float32]:
        """World points [N, 3] of the active keyframes' tracks."""
        active = self.active
        track = np.concatenate([keyframe.track[np.isfinite(keyframe.z)] for keyframe in active])
        xyz = np.concatenate([keyframe.points(self.camera_model)[np.isfinite(keyframe.z)] for keyframe in active])
        return np.asarray(xyz[np.unique(track, return_index=True)[1]], np.float32)

    def refine_attached(self, keyframes: Sequence[Keyframe]) -> None:
        """Estimate poses of attached frames anew, by the present points."""
        for keyframe in keyframes:
            around = self.keyframes[max(keyframe.number - 1, 0) : keyframe.number + 3]
            ratio = scale_ratio(around, keyframe.log_scale, self._config)
            for frame in keyframe.attached:
                if frame.tracked is None:
                    continue
                prior = MotionPrior(keyframe.pose_of(frame), frame.tracked.T_network, ratio)
                found = resection(keyframe, frame.tracked, prior, self.camera_model, self._config)
                if found.good:
                    frame.T_keyframe_frame = np.asarray(invert_pose(keyframe.T_world_camera) @ found.T_world_camera)
                    frame.log_scale = keyframe.log_scale
                    self.changed.add(keyframe.number)

    def apply_global_ba(self, adjusted: BAResult, numbers: list[int]) -> None:
        """Apply a global adjustment of keyframes ``numbers``; later keyframes follow the last one of these."""
        count = numbers[-1] + 1
        last = self.keyframes[count - 1]
        inverse_before, log_scale_before = invert_pose(last.T_world_camera), last.log_scale
        adjusted.apply([self.keyframes[number] for number in numbers])
        self.camera_model = adjusted.camera_model
        growth = last.log_scale - log_scale_before
        for keyframe in self.keyframes[count:]:
            relative = inverse_before @ keyframe.T_world_camera
            relative[:3, 3] *= np.exp(growth)
            keyframe.set_pose(np.asarray(last.T_world_camera @ relative), keyframe.log_scale + growth)
        self.changed |= {*numbers, *range(count, len(self.keyframes))}

    def apply_loop_correction(self, correction: LoopCorrection) -> None:
        """Move all keyframes so that loops close, and give both ends of each loop common tracks."""
        S = correction.interpolate(range(len(self.keyframes)))
        scale = np.cbrt(np.linalg.det(S[:, :3, :3]))
        T = S @ np.array([keyframe.T_world_camera for keyframe in self.keyframes])
        T[:, :3, :3] /= scale[:, None, None]
        for keyframe, pose, growth in zip(self.keyframes, T, np.log(scale), strict=True):
            keyframe.set_pose(pose, keyframe.log_scale + float(growth))
            # Later adjustments are aligned with the corrected poses.
            keyframe.T_output = keyframe.T_world_camera.copy()
        self.changed |= set(range(len(self.keyframes)))
        for loop in correction.loops:
            tracks = merge_tracks(loop.first, loop.second, loop.matches, self.track_ids)
            for keyframe in (loop.first.keyframe, loop.second.keyframe):
                keyframe.loop_tracks = np.union1d(keyframe.loop_tracks, np.array(sorted(tracks), np.int64))
                if keyframe.number not in self._loop_ends:
                    self._loop_ends.append(keyframe.number)
                if keyframe.number < len(self.keyframes) - self._config.map.active:
                    keyframe.drop_tracks()
        if len(self._loop_ends) > self._config.map.max_loop_ends:
            self._thin_loop_ends()

    def _thin_loop_ends(self) -> None:
        """Remove every other loop end of the older half."""
        half = self._config.map.max_loop_ends // 2
        for number in self._loop_ends[1:half:2]:
            keyframe = self.keyframes[number]
            keyframe.loop_tracks = NO_TRACKS
            if number < len(self.keyframes) - self._config.map.active:
                keyframe.drop_tracks()
        self._loop_ends = self._loop_ends[:half:2] + self._loop_ends[half:]


def scale_ratio(keyframes: Sequence[Keyframe], log_scale: float, config: OnlineConfig = DEFAULT_ONLINE) -> float:
    """Path along keyframes in the map per path in the network's world; the ratio of depths where nothing moves."""
    scale = float(np.exp(log_scale))
    if len(keyframes) < 2:
        return scale
    T, T_network = (np.array([getattr(k, name)[:3, 3] for k in keyframes]) for name in ("T_world_camera", "T_network"))
    ours, theirs = (np.linalg.norm(np.diff(centres, axis=0), axis=1) for centres in (T, T_network))
    floor = config.resectioning.min_motion * keyframes[-1].median_depth
    ratio = float(np.median((ours + floor) / (theirs * scale + floor)))
    return scale * float(np.clip(ratio, 1 / config.map.max_scale_ratio, config.map.max_scale_ratio))
