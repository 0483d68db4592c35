"""Localization of single images: retrieval of similar keyframes, matches with their points, and PnP.

>>> place = LocalizationMap.open(Path("room-recon"))
>>> located = place.localize(rgb)
>>> if isinstance(located, Localization):
...     located.T_world_camera, located.position_sigma
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.camera_model import CameraModel
from stream_recon.app.core.types import Intrinsics
from stream_recon.app.localization.build import TrackedDepth, camera_model_of, features_of
from stream_recon.app.localization.config import DEFAULT_LOCALIZATION, LocalizationConfig, QueryConfig
from stream_recon.app.localization.learned import LearnedFrames
from stream_recon.app.localization.pose import (
    Correspondences,
    PoseFit,
    PoseStart,
    agreeing_share,
    fit_pose,
    ransac_pose,
)
from stream_recon.app.result.cameras import FrameCamera
from stream_recon.app.result.feature_map import VECTOR_STEPS, FeatureMap, read_map
from stream_recon.app.result.folder import ResultFolder
from stream_recon.app.result.tracks import read_tracks
from stream_recon.app.slam.ba.problem import FloatArray
from stream_recon.app.slam.frame_data import Scale, project_world
from stream_recon.app.slam.matching.covisibility import non_maximum_suppression
from stream_recon.app.slam.matching.features import NO_FEATURES, Features, detect, vlad
from stream_recon.app.slam.matching.matching import match
from stream_recon.configs.errors import InputError


@dataclass(frozen=True)
class Localization:
    """Pose of an image in a result's world."""

    T_world_camera: FloatArray  # [4, 4], in the result's unit
    intrinsics: Intrinsics
    """In pixels of the image, with its distortion; given or estimated."""
    inliers: int
    """Features of the image that agree with the pose."""
    position_sigma: float
    """Standard deviation of the camera's position, in the result's unit."""
    rotation_sigma_deg: float
    frames: tuple[int, ...]
    """Frames of the result that show the same, the one with the most matches first."""


@dataclass(frozen=True)
class NotLocalized:
    """An image that does not show the place, or not enough of it."""

    reason: str


@dataclass(frozen=True)
class MapKeyframe:
    """Features of a keyframe that have depth."""

    features: Features
    points: FloatArray  # [N, 3], in the world
    spread: FloatArray  # [N, 3], standard deviation of the points along their rays
    tracked: NDArray[np.bool_]  # [N], whether other keyframes confirm the depth


@dataclass(frozen=True)
class LocatedImage:
    """Pose of a working image, and the points of the map that it shows."""

    fit: PoseFit
    matched: Correspondences
    frames: tuple[int, ...]

    def why_uncertain(self, config: QueryConfig) -> str:
        """Why its pose is too uncertain; empty where it is not."""
        fit, matched = self.fit, self.matched
        if len(np.unique(matched.feature)) < config.min_inliers:
            return f"{len(matched)} matches agree with one pose"
        distance = float(np.median(np.linalg.norm(matched.points - fit.T_world_camera[:3, 3], axis=1)))
        position, rotation_deg = fit.sigmas
        if position > config.max_position_sigma * distance or rotation_deg > config.max_rotation_sigma_deg:
            return "its matches leave the pose uncertain"
        return ""

    def localization(self, scale: Scale) -> Localization:
        """The same in pixels of the source image."""
        camera, factor = self.fit.camera_model, scale.factor
        focal, cx, cy = camera.focal / factor, camera.cx / factor, camera.cy / factor
        intrinsics = Intrinsics(focal, focal, cx, cy, k1=camera.k1, k2=camera.k2, fisheye=camera.fisheye)
        count = len(np.unique(self.matched.feature))
        return Localization(self.fit.T_world_camera, intrinsics, count, *self.fit.sigmas, self.frames)


class LocalizationMap:
    """The place of a refined result, in which images are localized."""

    def __init__(
        self,
        content: FeatureMap,
        cameras: Sequence[FrameCamera],
        tracked: TrackedDepth,
        config: LocalizationConfig = DEFAULT_LOCALIZATION,
        learned: LearnedFrames | None = None,
    ) -> None:
        self.config, self._learned = config, learned
        self._content, self._tracked = content, tracked
        self._cameras = {camera.index: camera for camera in cameras}
        self._words = content.words.astype(np.float32)
        vectors = content.vectors.astype(np.float32) / VECTOR_STEPS
        self._mean = vectors.mean(axis=0)
        self._vectors = vectors - self._mean
        self._vectors /= np.maximum(np.linalg.norm(self._vectors, axis=1, keepdims=True), 1e-9)
        self.camera_model = camera_model_of(content)
        self.keyframe = lru_cache(config.map.cached)(self._keyframe)

    @classmethod
    def open(cls, folder: Path, config: LocalizationConfig = DEFAULT_LOCALIZATION) -> "LocalizationMap":
        """The map of a result folder. Raises OutputError, and InputError where the result has no map."""
        result = ResultFolder(folder)
        content = read_map(folder, result.refinement_id)
        if content is None or not len(content.frame):
            raise InputError(f"{folder} has no map: stream-recon refine {folder} makes it")
        width = max(camera.source_size[0] for camera in result.cameras)
        size = (int(content.size[0]), int(content.size[1]))
        tracked = TrackedDepth(read_tracks(folder), Scale(size[0] / width, size), config.map)
        return cls(content, result.cameras, tracked, config, LearnedFrames(result, config))

    def __len__(self) -> int:
        """Number of keyframes."""
        return len(self._content.frame)

    def localize(self, rgb: NDArray[np.uint8], intrinsics: Intrinsics | None = None) -> Localization | NotLocalized:
        """Pose of an image [H, W, 3]; ``intrinsics`` in its pixels, if they are known."""
        scale = Scale.from_source_size((rgb.shape[1], rgb.shape[0]))
        located = self.find(scale.grey(rgb), scale, None if intrinsics is None else scaled_camera(intrinsics, scale))
        return located if isinstance(located, NotLocalized) else located.localization(scale)

    def find(self, grey: NDArray[np.uint8], scale: Scale, known: CameraModel | None) -> LocatedImage | NotLocalized:
        """Pose of a working image of ``scale``, and the points it shows; ``known``: its camera in its pixels."""
        config = self.config.image
        features = detect(grey, None)
        located: LocatedImage | NotLocalized = NotLocalized("the image has too little texture")
        if len(features) >= config.min_inliers:
            located = self._located(*self._first_matches(features, known, scale), features, known, scale)
        if isinstance(located, LocatedImage) or self._learned is None or self._learned.matcher is None:
            return located
        # SIFT says little of how similar they are: it has not found the place.
        frames = {row: int(self._content.frame[row]) for row in self._similar(features, config.compared, 1)}
        matches = self._learned.matches(grey, frames, config.learned)
        other = self._located(matches, self._first_pose(matches, known, scale), None, known, scale)
        return other if isinstance(other, LocatedImage) else located

    def _located(
        self,
        matches: Correspondences,
        start: PoseStart | None,
        features: Features | None,
        known: CameraModel | None,
        scale: Scale,
    ) -> LocatedImage | NotLocalized:
        """Pose of an image from its unguided matches and the pose by them, with guided ones of ``features``."""
        config = self.config.image
        if start is None:
            return NotLocalized("no pose agrees with its matches")
        matched = matches.take(start.inliers)
        support, tried = len(np.unique(matched.feature)), len(np.unique(matches.feature))
        is_spread = _cells(matched.uv, scale.size) >= config.min_cells
        if support < max(config.min_inliers, config.min_share * tried) or not is_spread:
            return NotLocalized(f"{support} of {tried} matches agree with one pose")
        fit, focal_sigma = self._first_fit(matched, start, known, scale)
        if features is not None:
            matched, fit = self._guided(features, matched, fit, focal_sigma, scale)
        matched = matched.take(fit.inliers)
        located = LocatedImage(fit, matched, self._frames_of(matched))
        reason = located.why_uncertain(config)
        return NotLocalized(reason) if reason else located

    def _first_matches(
        self, features: Features, known: CameraModel | None, scale: Scale
    ) -> tuple[Correspondences, PoseStart | None]:
        """Unguided matches with similar keyframes, with more of them where few agree, and the pose by them."""
        config = self.config.image
        rows = self._similar(features, config.candidates, config.spacing)
        matches = self._matched(features, rows)
        start = self._first_pose(matches, known, scale)
        if start is None or len(np.unique(matches.feature[start.inliers])) < config.clear:
            more = [row for row in self._similar(features, config.more_candidates, 1) if row not in rows]
            if more:
                matches = matches.with_more(self._matched(features, more))
                start = self._first_pose(matches, known, scale)
        return matches, start

    def _first_pose(self, matches: Correspondences, known: CameraModel | None, scale: Scale) -> PoseStart | None:
        """The pose that most matches agree with, of the known camera, the map's own, or one of usual fields of view."""
        config, pose = self.config.image, self.config.pose
        if known is not None:
            return ransac_pose(matches, [known], config=pose)
        start = ransac_pose(matches, [self._own_camera_model(scale)], config=pose)
        if start is not None and len(start.inliers) >= config.own_share * len(matches):
            return start
        cameras = _cameras_of_fields(config.fovs_deg, scale)
        other = ransac_pose(matches, cameras, 0 if start is None else len(start.inliers), pose)
        return other if start is None or (other is not None and len(other.inliers) > len(start.inliers)) else start

    def _first_fit(
        self, matched: Correspondences, start: PoseStart, known: CameraModel | None, scale: Scale
    ) -> tuple[PoseFit, float | None]:
        """The fitted pose, and the prior of its focal length; None: it is known."""
        config, pose, own = self.config.image, self.config.pose, self._own_camera_model(scale)
        sigma = None if known is not None else config.focal_sigma
        fit = fit_pose(matched, start.T_world_camera, start.camera_model, sigma, pose)
        if known is None and abs(np.log(fit.camera_model.focal / own.focal)) < 2 * fit.focal_sigma:
            # Most pictures are of the camera that made the map; its focal length is known better.
            sigma = config.own_focal_sigma
            fit = fit_pose(matched, fit.T_world_camera, own, sigma, pose)
        return fit, sigma

    def _guided(
        self, features: Features, matched: Correspondences, fit: PoseFit, focal_sigma: float | None, scale: Scale
    ) -> tuple[Correspondences, PoseFit]:
        """Matches near where a pose predicts them, and the pose by them, as long as that gains matches."""
        config, pose, unguided = self.config.image, self.config.pose, matched
        for radius in config.guided_px:
            near = self._matched_near(features, fit, self._viewing(fit, matched, scale), radius)
            if len(near) <= len(fit.inliers):
                break
            better = fit_pose(near, fit.T_world_camera, fit.camera_model, focal_sigma, pose)
            if agreeing_share(unguided, better, pose) < config.min_staying:
                break
            matched, fit = near, better
        return matched, fit

    def _frames_of(self, matches: Correspondences) -> tuple[int, ...]:
        """Frames of the keyframes of some matches, the one with the most first."""
        count = np.bincount(matches.row, minlength=len(self))
        best = np.argsort(-count, kind="stable")[: np.count_nonzero(count)]
        return tuple(self._content.frame[best].tolist())

    def _similar(self, features: Features, count: int, spacing: int) -> list[int]:
        """Rows of the keyframes most similar to an image, best first, and at least ``spacing`` apart."""
        vector = vlad(features, self._words) - self._mean
        similarity = self._vectors @ (vector / max(float(np.linalg.norm(vector)), 1e-9))
        rows = np.arange(len(similarity))
        return [int(r) for r in non_maximum_suppression(rows, similarity, -1.0, count, spacing)]

    def _keyframe(self, row: int) -> "MapKeyframe":
        index = int(self._content.frame[row])
        camera = self._cameras.get(index)
        features = features_of(self._content, row)
        if camera is None:
            return MapKeyframe(NO_FEATURES, np.zeros((0, 3)), np.zeros((0, 3)), np.zeros(0, bool))
        known = np.flatnonzero(features.z > 0)
        features = Features(features.uv[known], features.descriptors[known], features.z[known])
        rays = self.camera_model.unproject(features.uv)
        local = rays * (features.z.astype(np.float64) * camera.depth_scale)[:, None]
        T = camera.T_world_camera
        turned = np.asarray(local @ T[:3, :3].T)
        tracked = self._tracked.has_depth(index, features.uv)
        sigma = np.where(tracked, self.config.map.tracked_sigma, self.config.map.depth_sigma)
        return MapKeyframe(features, turned + T[:3, 3], turned * sigma[:, None], tracked)

    def match(self, features: Features) -> Correspondences:
        """Unguided matches of an image's features with the points of similar keyframes."""
        config = self.config.image
        return self._matched(features, self._similar(features, config.candidates, config.spacing))

    def _matched(self, features: Features, rows: Sequence[int]) -> Correspondences:
        parts = []
        for row in rows:
            known = self.keyframe(row)
            pairs = match(features, known.features)
            parts.append((pairs[:, 0], known, pairs[:, 1], row))
        return _joined(parts, features)

    def _matched_near(self, features: Features, fit: PoseFit, rows: Sequence[int], radius: float) -> Correspondences:
        """Matches near where points are predicted by a pose."""
        parts = []
        for row in rows:
            known = self.keyframe(row)
            predicted = project_world(fit.camera_model, fit.T_world_camera, known.points)
            pairs = match(known.features, features, predicted, radius)
            parts.append((pairs[:, 1], known, pairs[:, 0], row))
        return _joined(parts, features)

    def _viewing(self, fit: PoseFit, matches: Correspondences, scale: Scale) -> list[int]:
        """Keyframes that see the most of what an image shows from the same side: by matches, then by their points."""
        config, points, centres = self.config.image, self.outline, self.poses[:, :3, 3]
        T = fit.T_world_camera
        uv = project_world(fit.camera_model, T, points.reshape(-1, 3)).reshape(*points.shape[:2], 2)
        with np.errstate(invalid="ignore"):
            inside = ((uv > 0) & (uv < scale.size)).all(axis=2)
        ours, theirs = points - T[:3, 3], points - centres[:, None]
        length = np.linalg.norm(ours, axis=2) * np.linalg.norm(theirs, axis=2)
        inside &= (ours * theirs).sum(axis=2) > config.same_side * length
        support = np.bincount(matches.row[fit.inliers], minlength=len(self))
        order = np.lexsort((-inside.mean(axis=1), -support))
        chosen = order[(support[order] > 0) | (inside[order].mean(axis=1) > 0)]
        half: list[int] = chosen[: config.guided // 2].tolist()
        others = sorted(set(range(len(self))) - set(half), key=lambda row: -float(inside[row].mean()))
        return half + [row for row in others if inside[row].any()][: config.guided - len(half)]

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the keyframes' images in the pixels of ``camera_model``."""
        return int(self._content.size[0]), int(self._content.size[1])

    @cached_property
    def poses(self) -> FloatArray:
        """Poses [K, 4, 4] of the keyframes, NaN where the result has none."""
        unknown = np.full((4, 4), np.nan)
        cameras = [self._cameras.get(frame) for frame in self._content.frame.tolist()]
        return np.array([unknown if camera is None else camera.T_world_camera for camera in cameras])

    @cached_property
    def outline(self) -> FloatArray:
        """Some points [K, S, 3] of each keyframe, NaN where it has none."""
        count = self.config.map.outline_points
        points = np.full((len(self), count, 3), np.nan)
        for row in range(len(self)):
            known = self.keyframe(row).points
            if len(known):
                points[row] = known[np.linspace(0, len(known) - 1, count).astype(np.intp)]
        return points

    def tracked_count(self, row: int) -> int:
        """Number of a keyframe's features that other keyframes share."""
        return int(self.keyframe(row).tracked.sum())

    def _own_camera_model(self, scale: Scale) -> CameraModel:
        """The map's camera for images of another size."""
        width, height = scale.size
        factor = max(width, height) / max(self._content.size.tolist())
        return replace(self.camera_model, focal=self.camera_model.focal * factor, cx=width / 2, cy=height / 2)


def _cameras_of_fields(fovs_deg: Sequence[float], scale: Scale) -> list[CameraModel]:
    """Cameras of several fields of view along the longer side."""
    width, height = scale.size
    focals = [max(width, height) / 2 / np.tan(np.radians(fov) / 2) for fov in fovs_deg]
    return [CameraModel(float(focal), width / 2, height / 2) for focal in focals]


def scaled_camera(k: Intrinsics, scale: Scale) -> CameraModel:
    """A camera in pixels of the working image."""
    return CameraModel(float(np.sqrt(k.fx * k.fy)) * scale.factor, k.cx * scale.factor, k.cy * scale.factor)


_Part = tuple[NDArray[np.integer], MapKeyframe, NDArray[np.integer], int]
"""Features of an image, and the keyframe with its features and its number that they match."""


def _joined(parts: Sequence[_Part], features: Features) -> Correspondences:
    feature = np.concatenate([part[0] for part in parts]).astype(np.intp)
    points = np.concatenate([known.points[theirs] for _, known, theirs, _ in parts])
    spread = np.concatenate([known.spread[theirs] for _, known, theirs, _ in parts])
    row = np.concatenate([np.full(len(theirs), row, np.intp) for _, _, theirs, row in parts])
    return Correspondences(feature, features.uv[feature].astype(np.float64), points, spread, row)


def _cells(uv: NDArray[np.floating], size: tuple[int, int]) -> int:
    """Number of cells of a 4x4 grid over the image that hold points."""
    cell = (uv / size * 4).astype(np.intp).clip(0, 3)
    return len(np.unique(cell[:, 1] * 4 + cell[:, 0]))
