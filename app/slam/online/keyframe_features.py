"""Tracks of a new keyframe: tracked points, new corners and matches of descriptors."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.camera_model import CameraModel
from stream_recon.app.core.transforms import invert_pose, rotation_angle_deg
from stream_recon.app.slam.ba.pose_only import pose_only_ba
from stream_recon.app.slam.ba.problem import FloatArray
from stream_recon.app.slam.frame_data import DepthReader, reproject
from stream_recon.app.slam.matching.config import DescriptorMatchConfig
from stream_recon.app.slam.matching.features import Features, detect, select_evenly
from stream_recon.app.slam.matching.matching import Matches, match, verify
from stream_recon.app.slam.online.config import DEFAULT_ONLINE, DescriptorConfig, OnlineConfig
from stream_recon.app.slam.online.keyframe import Keyframe, common_rows

Grey = NDArray[np.uint8]


@dataclass
class PlaceDescriptor:
    """Features of a keyframe for place recognition, without its image."""

    keyframe: Keyframe
    features: Features
    tracks: dict[int, int]
    """Track ids by feature, see `KeyframeImages`."""


@dataclass
class KeyframeImages:
    """Image, depth and features of a recent keyframe."""

    keyframe: Keyframe
    image: Grey
    reader: DepthReader
    detected: Features | None = None
    """Features with descriptors, once they are detected."""
    tracks: dict[int, int] = field(default_factory=dict)
    """Track ids by feature, of the features in tracks."""
    config: OnlineConfig = DEFAULT_ONLINE

    def features(self) -> Features:
        """Features with descriptors, detected at the first call."""
        if self.detected is None:
            self.detected = detect(
                self.image, self.reader, self.config.descriptors.count, self.config.matching.features
            )
        return self.detected

    def descriptor(self, features: Features | None = None) -> PlaceDescriptor:
        """Place descriptor with ``features``, or its own."""
        features = self.features() if features is None else features
        return PlaceDescriptor(self.keyframe, features, self.tracks)


class TrackIds:
    """Allocator of track ids."""

    def __init__(self) -> None:
        self._next = 0

    def allocate(self, count: int) -> NDArray[np.int64]:
        """New ids [count]."""
        self._next += count
        return np.arange(self._next - count, self._next, dtype=np.int64)


def detect_corners(new: KeyframeImages, track_ids: TrackIds) -> None:
    """Add corners (Shi and Tomasi, CVPR 1994) to a keyframe where it has no tracks, up to the configured number."""
    keyframe, image, config = new.keyframe, new.image, new.config.corners
    need = config.count - int(keyframe.followed.sum())
    if need < config.count // 20:
        return
    height, width = image.shape
    spacing = max(int(0.6 * np.sqrt(height * width / config.count)), 6)
    mask = new.reader.detection_mask()
    if mask is None:
        mask = np.full(image.shape, 255, np.uint8)
    for x, y in keyframe.uv[keyframe.followed].astype(int).tolist():
        cv2.circle(mask, (x, y), spacing, 0, -1)
    corners = cv2.goodFeaturesToTrack(
        image, config.candidates * need, config.min_quality, spacing, mask=mask, blockSize=5
    )
    if corners is None:
        return
    uv = corners.reshape(-1, 2).astype(np.float32) + np.float32(0.5)
    uv = uv[select_evenly(uv, (width, height), need, new.config.matching.features.cells)]
    keyframe.add_tracks(track_ids.allocate(len(uv)), uv, new.reader.sample(uv))


def match_keyframes(
    new: KeyframeImages,
    earlier: Sequence[KeyframeImages],
    camera_model: CameraModel,
    track_ids: TrackIds,
    is_lost: bool = False,
) -> None:
    """Match a keyframe by descriptors with earlier ones, in order, and give both common tracks.

    ``is_lost``: its predicted pose may be wrong, and later frames follow these tracks, since it has few others.
    """
    config, matching = new.config.descriptors, new.config.matching.descriptors
    for back, old in enumerate(reversed(earlier)):
        ends = old.descriptor(), new.descriptor()
        matches = _guided_matches(*ends, camera_model, max(new.image.shape), matching)
        if is_lost and back < config.unguided and len(matches) < 3 * matching.min_unguided:
            first, second = (end.features for end in ends)
            candidates = match(first, second, config=matching)
            unguided = verify(first, second, candidates, matching.min_unguided, matching)
            matches = unguided if len(unguided) > len(matches) else matches
        merge_tracks(*ends, matches, track_ids, is_lost)


def _guided_matches(
    old: PlaceDescriptor, new: PlaceDescriptor, camera_model: CameraModel, side: int, config: DescriptorMatchConfig
) -> Matches:
    """Verified matches of two keyframes near where the map's poses and the network's depth predict them."""
    first, second = old.features, new.features
    T = invert_pose(new.keyframe.T_world_camera) @ old.keyframe.T_world_camera
    z = np.where(first.z > 0, first.z, np.nan).astype(np.float64) * np.exp(old.keyframe.log_scale)
    predicted, _ = reproject(camera_model, first.uv, z, T)
    candidates = match(first, second, predicted, config.guided_radius * side, config)
    return verify(first, second, candidates, config.min_guided, config)


def merge_tracks(
    old: PlaceDescriptor, new: PlaceDescriptor, matches: Matches, track_ids: TrackIds, followed: bool = False
) -> set[int]:
    """Put matched features of two keyframes into common tracks, existing or new ones; returns the track ids."""
    ends = old, new
    known_tracks = [set(end.keyframe.track.tolist()) for end in ends]
    added: tuple[list[int], list[int]] = ([], [])
    merged = set()
    for pair in matches.tolist():
        known = [end.tracks.get(feature) for end, feature in zip(ends, pair, strict=True)]
        track = next((one for one in known if one is not None), None)
        if track is None:
            track = int(track_ids.allocate(1)[0])
        if any(one not in (None, track) for one in known):
            continue
        merged.add(track)
        for side in (0, 1):
            # Of several features of one image, the first one gets the track.
            if track not in known_tracks[side]:
                known_tracks[side].add(track)
                ends[side].tracks[pair[side]] = track
                added[side].append(pair[side])
    for end, chosen in zip(ends, added, strict=True):
        features, tracks = end.features, np.array([end.tracks[feature] for feature in chosen], np.int64)
        end.keyframe.add_tracks(tracks, features.uv[chosen], features.z[chosen], followed)
    return merged


def pose_from_tracks(
    new: Keyframe,
    earlier: Sequence[Keyframe],
    camera_model: CameraModel,
    config: DescriptorConfig = DEFAULT_ONLINE.descriptors,
) -> FloatArray | None:
    """Pose [4, 4] of a keyframe by PnP on points that it shares with earlier ones; None with too few inliers."""
    world = np.full((len(new.track), 3), np.nan)
    for keyframe in earlier:
        rows = common_rows(keyframe, new)
        world[rows[:, 1]] = keyframe.points(camera_model)[rows[:, 0]]
    known = np.isfinite(world).all(axis=1)
    points, uv = world[known], new.uv[known].astype(np.float64)
    if len(points) < config.min_inliers:
        return None
    starts, middle = [new.T_world_camera], points.mean(axis=0)
    limit = config.pnp * camera_model.longer_side
    # In normalized coordinates, so that no camera matrix or distortion is needed.
    is_solved, rotation, translation, _ = cv2.solvePnPRansac(
        points - middle,
        camera_model.unproject(uv)[:, :2].copy(),
        np.eye(3),
        None,
        iterationsCount=100,
        reprojectionError=limit / camera_model.focal,
        flags=cv2.SOLVEPNP_SQPNP,
    )
    if is_solved:
        T = np.eye(4)
        T[:3, :3] = cv2.Rodrigues(rotation)[0]
        T[:3, 3] = translation[:, 0]
        T = invert_pose(T)
        T[:3, 3] += middle
        starts.append(T)
    best, agreeing = None, max(config.min_inliers, config.min_agreeing * len(points))
    for start in starts:
        estimate = pose_only_ba(start, points, uv, np.ones(len(uv)), camera_model, config.losses)
        T, count = estimate.T_world_camera, int((estimate.distances < limit).sum())
        angle_deg = float(rotation_angle_deg(T[:3, :3].T @ new.T_world_camera[:3, :3]))
        distance = np.linalg.norm(T[:3, 3] - new.T_world_camera[:3, 3])
        odd = angle_deg > config.odd_deg or distance > config.odd_motion * new.median_depth
        if count > agreeing and (not odd or count > config.min_odd_agreeing * len(points)):
            best, agreeing = T, count
    return best
