"""Localization of single images: retrieval of similar keyframes, matches with their points, and PnP.

>>> place = LocalizationMap.open(Path("room-recon"))
>>> found = place.localize(rgb)
>>> if isinstance(found, Localization):
...     found.T_world_camera, found.position_sigma
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.camera_model import CameraModel
from stream_recon.app.core.types import Intrinsics
from stream_recon.app.localization.build import TrackedDepth, features_of, lens_of
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

CANDIDATES = 8
"""Similar keyframes that an image is matched with first."""
SPACING = 2
"""Least spacing of these in keyframes: neighbours give nearly the same matches."""
MORE_CANDIDATES = 24
"""Similar keyframes, neighbours too, that an image with less than `CLEAR` agreeing matches is matched with in all."""
CLEAR = 80
OWN_SHARE = 0.85
"""Share of the matches that agree with a pose of the map's own camera, from which no other camera is tried."""
GUIDED = 16
"""Keyframes that are matched again from the first pose: those that see the most of what the image shows."""
GUIDED_PX = 20.0, 8.0, 4.0
"""Search radii of these matches in working pixels, each from the pose of the one before."""
MIN_STAYING = 0.6
"""Least share of the unguided matches that agree with the pose of the guided ones: any pose finds some of its own."""
SAMPLED = 32
"""Points of a keyframe by which it is known what it sees."""
SAME_SIDE = 0.5
"""Least cosine of the directions from which an image and a keyframe see a point: SIFT seldom bridges more."""
MIN_INLIERS = 20
"""Least number of features whose unguided matches agree with one pose: chance matches reach about half of it."""
MIN_SHARE = 0.12
"""Least share of the unguided matches that agree with the pose."""
MIN_CELLS = 4
"""Least number of cells of a 4x4 grid over the image with such matches: a poster that was moved fills few."""
MAX_POSITION_SIGMA, MAX_ROTATION_SIGMA_DEG = 0.1, 3.0
"""Largest standard deviations of an accepted pose: of the position, as a share of the distance of the points."""
FOVS_DEG = (25.0, 35.0, 45.0, 55.0, 65.0, 78.0, 95.0)
"""Fields of view along the longer side that are tried for an unknown camera."""
OWN_FOCAL_SIGMA, FOCAL_SIGMA = 0.01, 0.3
"""Priors of the log focal length: about that of the map's camera, and about that of the best field of view."""
TRACKED_SIGMA, DEPTH_SIGMA = 0.01, 0.04
"""Standard deviations of the depth of triangulated points, and of the depth of others, as a share."""
CACHED = 256
"""Keyframes whose unpacked features stay in memory, about 0.4 MB each."""


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

    def unless_uncertain(self) -> "LocatedImage | NotLocalized":
        """The image, or why its pose is too uncertain."""
        fit, matched = self.fit, self.matched
        if len(np.unique(matched.feature)) < MIN_INLIERS:
            return NotLocalized(f"{len(matched)} matches agree with one pose")
        distance = float(np.median(np.linalg.norm(matched.points - fit.T_world_camera[:3, 3], axis=1)))
        if fit.sigmas[0] > MAX_POSITION_SIGMA * distance or fit.sigmas[1] > MAX_ROTATION_SIGMA_DEG:
            return NotLocalized("its matches leave the pose uncertain")
        return self

    def localization(self, scale: Scale) -> Localization:
        """The same in pixels of the source image."""
        lens, factor = self.fit.lens, scale.factor
        focal, cx, cy = lens.focal / factor, lens.cx / factor, lens.cy / factor
        camera = Intrinsics(focal, focal, cx, cy, k1=lens.k1, k2=lens.k2, fisheye=lens.fisheye)
        count = len(np.unique(self.matched.feature))
        return Localization(self.fit.T_world_camera, camera, count, *self.fit.sigmas, self.frames)


class LocalizationMap:
    """The place of a refined result, in which images are localized."""

    def __init__(self, content: FeatureMap, cameras: Sequence[FrameCamera], tracked: TrackedDepth) -> None:
        self._content, self._tracked = content, tracked
        self._cameras = {camera.index: camera for camera in cameras}
        self._words = content.words.astype(np.float32)
        vectors = content.vectors.astype(np.float32) / VECTOR_STEPS
        self._mean = vectors.mean(axis=0)
        self._vectors = vectors - self._mean
        self._vectors /= np.maximum(np.linalg.norm(self._vectors, axis=1, keepdims=True), 1e-9)
        self.lens = lens_of(content)
        self.keyframe = lru_cache(CACHED)(self._keyframe)

    @classmethod
    def open(cls, folder: Path) -> "LocalizationMap":
        """The map of a result folder. Raises OutputError, and InputError where the result has no map."""
        result = ResultFolder(folder)
        content = read_map(folder, result.refinement_id)
        if content is None or not len(content.frame):
            raise InputError(f"{folder} has no map: stream-recon refine {folder} makes it")
        width = max((camera.source_size or (1, 1))[0] for camera in result.cameras)
        size = (int(content.size[0]), int(content.size[1]))
        return cls(content, result.cameras, TrackedDepth(read_tracks(folder), Scale(size[0] / width, size)))

    def __len__(self) -> int:
        """Number of keyframes."""
        return len(self._content.frame)

    def localize(self, rgb: NDArray[np.uint8], intrinsics: Intrinsics | None = None) -> Localization | NotLocalized:
        """Pose of an image [H, W, 3]; ``intrinsics`` in its pixels, if they are known."""
        scale = Scale.from_source_size((rgb.shape[1], rgb.shape[0]))
        found = self.find(scale.grey(rgb), scale, None if intrinsics is None else scaled_camera(intrinsics, scale))
        return found if isinstance(found, NotLocalized) else found.localization(scale)

    def find(self, grey: NDArray[np.uint8], scale: Scale, known: CameraModel | None) -> LocatedImage | NotLocalized:
        """Pose of a working image of ``scale``, and the points it shows; ``known``: its camera in its pixels."""
        features = detect(grey, None)
        if len(features) < MIN_INLIERS:
            return NotLocalized("the image has too little texture")
        own = self._own_lens(scale)
        rows = self._similar(features, CANDIDATES, SPACING)
        found = self._matched(features, rows)
        start = _first_pose(found, known, own, scale)
        if start is None or len(np.unique(found.feature[start.inliers])) < CLEAR:
            rest = [row for row in self._similar(features, MORE_CANDIDATES, 1) if row not in rows]
            if rest:
                found = found.with_more(self._matched(features, rest))
                start = _first_pose(found, known, own, scale)
        if start is None:
            return NotLocalized("no pose agrees with its matches")
        support = len(np.unique(found.feature[start.inliers]))
        tried = len(np.unique(found.feature))
        cells = _cells(features.uv[found.feature[start.inliers]], scale.size)
        if support < MIN_INLIERS or support < MIN_SHARE * tried or cells < MIN_CELLS:
            return NotLocalized(f"{support} of {tried} matches agree with one pose")
        matched = found.take(start.inliers)
        sigma = None if known is not None else FOCAL_SIGMA
        fit = fit_pose(matched, start.T_world_camera, start.lens, sigma)
        if known is None and abs(np.log(fit.lens.focal / own.focal)) < 2 * fit.focal_sigma:
            # Most pictures are of the camera that made the map; its focal length is known better.
            sigma = OWN_FOCAL_SIGMA
            fit = fit_pose(matched, fit.T_world_camera, own, sigma)
        unguided = matched
        for radius in GUIDED_PX:
            near = self._matched_near(features, fit, self._seeing(fit, matched, scale), radius)
            if len(near) <= len(fit.inliers):
                break
            better = fit_pose(near, fit.T_world_camera, fit.lens, sigma)
            if agreeing_share(unguided, better) < MIN_STAYING:
                break
            matched, fit = near, better
        matched = matched.take(fit.inliers)
        return LocatedImage(fit, matched, self._frames_of(matched)).unless_uncertain()

    def _frames_of(self, found: Correspondences) -> tuple[int, ...]:
        """Frames of the keyframes of some matches, the one with the most first."""
        count = np.bincount(found.row, minlength=len(self))
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
        kept = Features(features.uv[known], features.descriptors[known], features.z[known])
        rays = self.lens.unproject(kept.uv)
        local = rays * (kept.z.astype(np.float64) * camera.depth_scale)[:, None]
        T = camera.T_world_camera
        turned = np.asarray(local @ T[:3, :3].T)
        tracked = self._tracked.has_depth(index, kept.uv)
        sigma = np.where(tracked, TRACKED_SIGMA, DEPTH_SIGMA)
        return MapKeyframe(kept, turned + T[:3, 3], turned * sigma[:, None], tracked)

    def match(self, features: Features) -> Correspondences:
        """Unguided matches of an image's features with the points of similar keyframes."""
        return self._matched(features, self._similar(features, CANDIDATES, SPACING))

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
            predicted = project_world(fit.lens, fit.T_world_camera, known.points)
            pairs = match(known.features, features, predicted, radius)
            parts.append((pairs[:, 1], known, pairs[:, 0], row))
        return _joined(parts, features)

    def _seeing(self, fit: PoseFit, found: Correspondences, scale: Scale) -> list[int]:
        """Keyframes that see the most of what an image shows from the same side: by matches, then by their points."""
        points, centres = self.outline, self.poses[:, :3, 3]
        T = fit.T_world_camera
        uv = project_world(fit.lens, T, points.reshape(-1, 3)).reshape(*points.shape[:2], 2)
        with np.errstate(invalid="ignore"):
            inside = ((uv > 0) & (uv < scale.size)).all(axis=2)
        mine, theirs = points - T[:3, 3], points - centres[:, None]
        length = np.linalg.norm(mine, axis=2) * np.linalg.norm(theirs, axis=2)
        inside &= (mine * theirs).sum(axis=2) > SAME_SIDE * length
        support = np.bincount(found.row[fit.inliers], minlength=len(self))
        order = np.lexsort((-inside.mean(axis=1), -support))
        chosen = order[(support[order] > 0) | (inside[order].mean(axis=1) > 0)]
        half: list[int] = chosen[: GUIDED // 2].tolist()
        rest = sorted(set(range(len(self))) - set(half), key=lambda row: -float(inside[row].mean()))
        return half + [row for row in rest if inside[row].any()][: GUIDED - len(half)]

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the keyframes' images in the pixels of ``lens``."""
        return int(self._content.size[0]), int(self._content.size[1])

    @cached_property
    def poses(self) -> FloatArray:
        """Poses [K, 4, 4] of the keyframes, NaN where the result has none."""
        unknown = np.full((4, 4), np.nan)
        cameras = [self._cameras.get(frame) for frame in self._content.frame.tolist()]
        return np.array([unknown if camera is None else camera.T_world_camera for camera in cameras])

    @cached_property
    def outline(self) -> FloatArray:
        """Some points [K, SAMPLED, 3] of each keyframe, NaN where it has none."""
        points = np.full((len(self), SAMPLED, 3), np.nan)
        for row in range(len(self)):
            known = self.keyframe(row).points
            if len(known):
                points[row] = known[np.linspace(0, len(known) - 1, SAMPLED).astype(np.intp)]
        return points

    def tracked_count(self, row: int) -> int:
        """Number of a keyframe's features that other keyframes share."""
        return int(self.keyframe(row).tracked.sum())

    def _own_lens(self, scale: Scale) -> CameraModel:
        """The map's camera for images of another size."""
        width, height = scale.size
        factor = max(width, height) / max(self._content.size.tolist())
        return replace(self.lens, focal=self.lens.focal * factor, cx=width / 2, cy=height / 2)


def _first_pose(found: Correspondences, known: CameraModel | None, own: CameraModel, scale: Scale) -> PoseStart | None:
    """The pose that most matches agree with, of the known camera, the map's own one, or one of usual fields of view."""
    if known is not None:
        return ransac_pose(found, [known])
    start = ransac_pose(found, [own])
    if start is not None and len(start.inliers) >= OWN_SHARE * len(found):
        return start
    other = ransac_pose(found, _lenses(scale), 0 if start is None else len(start.inliers))
    return other if start is None or (other is not None and len(other.inliers) > len(start.inliers)) else start


def _lenses(scale: Scale) -> list[CameraModel]:
    """Cameras of several fields of view."""
    width, height = scale.size
    focals = [max(width, height) / 2 / np.tan(np.radians(fov) / 2) for fov in FOVS_DEG]
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
