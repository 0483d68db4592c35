"""Incremental structure from motion from matches alone (Schönberger and Frahm, CVPR 2016).

A pair of keyframes with many matches and a wide angle begins. Then the keyframe that sees most points is registered by
PnP, its tracks are triangulated, and all is adjusted from time to time. Of the network only the focal length is used,
as a first guess.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import cv2
import numpy as np

from stream_recon.app.core.camera_model import CameraModel
from stream_recon.app.core.transforms import invert_pose, transform_each
from stream_recon.app.slam.ba.adjustment import adjust
from stream_recon.app.slam.ba.pose_only import LossSchedule, pose_only_ba
from stream_recon.app.slam.ba.problem import BAScene, FloatArray, IntArray, Mask, Observations, Priors, Problem, rows_by
from stream_recon.app.slam.ba.triangulation import triangulate
from stream_recon.app.slam.matching.features import Features
from stream_recon.app.slam.matching.matching import Matches, Tracks, build_tracks
from stream_recon.app.slam.matching.two_view import relative_pose


@dataclass(frozen=True)
class SfmConfig:
    """When pairs, keyframes and points are taken."""

    initial_pairs: int = 60
    """Pairs that are tried as the initial one: half of them those with most matches, the others spread over the
    rest."""
    max_initial: int = 3
    """Most initial pairs from which a reconstruction is begun, where the earlier ones registered few keyframes."""
    sufficient_share: float = 0.7
    """Registered share of the matched keyframes, from which no other initial pair is tried."""
    wide_deg: float = 12.0
    """Median triangulation angle of an initial pair beyond which more is no advantage."""
    min_deg: float = 2.0
    """Least median triangulation angle of an initial pair."""
    min_initial: int = 30
    """Least number of points of an initial pair."""
    pnp_px: float = 8.0
    """Inlier distance of PnP, while the focal length is not exact yet."""
    registered_px: float = 4.0
    """Reprojection error up to which a point supports a registered keyframe."""
    min_registered: int = 12
    """Least number of points that support a registered keyframe."""
    min_registered_share: float = 0.25
    """Least share of supporting points among those that the keyframe sees."""
    cells: int = 6
    """Cells along each axis of the image: points all over it determine a pose better than many in one corner."""
    point_px: float = 4.0
    """Largest reprojection error of an observation of a triangulated point."""
    point_deg: float = 1.0
    """Least triangulation angle of a point."""
    growth: float = 1.15
    """Growth of the number of registered keyframes after which all are adjusted."""
    log_focal_sigma: float = 0.5
    """Of the log of the first focal length: wide, since matches determine it."""


SFM = SfmConfig()


@dataclass(frozen=True)
class Reconstruction:
    """Keyframes registered in one world of arbitrary unit."""

    T_world_camera: FloatArray  # [N, 4, 4]; identity where not registered
    registered: Mask  # [N]
    camera_model: CameraModel
    points: FloatArray  # [M, 3]; NaN where a track is not triangulated
    observations: Observations
    """Of the triangulated points by registered keyframes, within `point_px`."""
    feature: IntArray  # [O], index among the features of the observation's keyframe


def reconstruct(
    features: Sequence[Features],
    matches: Mapping[tuple[int, int], Matches],
    camera_model: CameraModel,
    known_intrinsics: bool = False,
    config: SfmConfig = SFM,
) -> Reconstruction | None:
    """Reconstruction of most keyframes among a few initial pairs; None without an initial pair.

    ``matches``: verified by epipolar geometry. ``camera_model``: its focal length is a first guess, unless known.
    """
    tracks = build_tracks([len(f) for f in features], matches)
    matched = len({k for pair in matches for k in pair})
    best: Reconstruction | None = None
    for pair, T_second_first in _initial_pairs(features, matches, camera_model, config):
        if best is not None and best.registered[list(pair)].all():
            continue
        reconstruction = _Mapper(features, tracks, camera_model, known_intrinsics, config).run(pair, T_second_first)
        if best is None or reconstruction.registered.sum() > best.registered.sum():
            best = reconstruction
        if best.registered.sum() >= config.sufficient_share * matched:
            break
    return best


def _initial_pairs(
    features: Sequence[Features],
    matches: Mapping[tuple[int, int], Matches],
    camera_model: CameraModel,
    config: SfmConfig,
) -> list[tuple[tuple[int, int], FloatArray]]:
    """Pairs with the pose of the second relative to the first, best first: many points at a wide angle."""
    most = sorted(matches, key=lambda pair: -len(matches[pair]))
    # Neighbours in a video have most matches, but narrow angles.
    half = config.initial_pairs // 2
    others = [pair for pair in most[half:] if len(matches[pair]) >= 2 * config.min_initial]
    scored = []
    for i, j in [*most[:half], *others[:: max(len(others) // half, 1)][:half]]:
        uv = features[i].uv[matches[i, j][:, 0]], features[j].uv[matches[i, j][:, 1]]
        relative = relative_pose(camera_model, *uv)
        if relative is None or relative.angle_deg < config.min_deg or relative.inliers.sum() < config.min_initial:
            continue
        score = float(relative.inliers.sum()) * min(relative.angle_deg, config.wide_deg)
        scored.append((score, (i, j), relative.T_second_first))
    scored.sort(key=lambda each: -each[0])
    return [(pair, T) for _, pair, T in scored[: config.max_initial]]


class _Mapper:
    """State of one reconstruction."""

    def __init__(
        self,
        features: Sequence[Features],
        tracks: Tracks,
        camera_model: CameraModel,
        known_intrinsics: bool,
        config: SfmConfig,
    ) -> None:
        self._camera_model, self._known, self._config = camera_model, known_intrinsics, config
        starts = np.cumsum([0, *(len(f) for f in features)])
        uv = np.concatenate([f.uv for f in features]).astype(np.float64)
        self._observations = Observations(tracks.keyframe, tracks.track, uv[starts[tracks.keyframe] + tracks.feature])
        self._feature = tracks.feature
        self._of_keyframe = rows_by(tracks.keyframe, len(features))
        self._of_track = rows_by(tracks.track, len(tracks))
        self._T = np.tile(np.eye(4), (len(features), 1, 1))
        self._registered = np.zeros(len(features), bool)
        self._points = np.full((len(tracks), 3), np.nan)
        self._good = np.zeros(len(self._observations), bool)
        """Observations of triangulated points with a small error."""
        self._priors = Priors(
            focal=camera_model.focal, log_focal_sigma=config.log_focal_sigma, known_intrinsics=known_intrinsics
        )

    def run(self, pair: tuple[int, int], T_second_first: FloatArray) -> Reconstruction:
        """Register as many keyframes as possible, beginning with a pair."""
        first, second = pair
        self._T[second] = invert_pose(T_second_first)
        self._registered[[first, second]] = True
        self._triangulate(np.unique(self._observations.point[np.concatenate([self._of_keyframe[k] for k in pair])]))
        self._adjust(5.0)
        adjusted = 2
        while True:
            if not self._register_next():
                break
            count = int(self._registered.sum())
            if count >= min(self._config.growth * adjusted, adjusted + 12):
                self._adjust(2.0)
                adjusted = count
        for loss_px in (2.0, 1.0, 1.0):
            self._triangulate(np.arange(len(self._points)))
            self._adjust(loss_px, free_k1=True)
            while self._register_next():
                pass
        rows = np.flatnonzero(self._good)
        observations, feature = self._observations.take(rows), self._feature[rows]
        return Reconstruction(self._T, self._registered, self._camera_model, self._points, observations, feature)

    def _register_next(self) -> bool:
        """Register the keyframe with the best view of the points; False if none can be."""
        known = np.isfinite(self._points[:, 0])
        scores = {}
        for k in np.flatnonzero(~self._registered).tolist():
            rows = self._of_keyframe[k]
            rows = rows[known[self._observations.point[rows]]]
            if len(rows) >= self._config.min_registered:
                size = 2 * self._camera_model.cx, 2 * self._camera_model.cy
                cells = (self._observations.pixel[rows] / size * self._config.cells).astype(int)
                scores[k] = len(np.unique(cells, axis=0)) * np.sqrt(len(rows))
        return any(self._register(k, known) for k in sorted(scores, key=lambda k: -scores[k]))

    def _register(self, k: int, known: Mask) -> bool:
        rows = self._of_keyframe[k]
        rows = rows[known[self._observations.point[rows]]]
        xyz, uv = self._points[self._observations.point[rows]], self._observations.pixel[rows]
        plane = self._camera_model.unproject(uv)[:, :2]
        limit = self._config.pnp_px / self._camera_model.focal
        try:
            ok, rotation, translation, inliers = cv2.solvePnPRansac(
                xyz, plane, np.eye(3), None, iterationsCount=500, reprojectionError=limit, flags=cv2.SOLVEPNP_SQPNP
            )
        except cv2.error:
            return False
        if not ok or inliers is None or len(inliers) < self._config.min_registered:
            return False
        T = np.eye(4)
        T[:3, :3], T[:3, 3] = cv2.Rodrigues(rotation)[0], translation[:, 0]
        schedule = LossSchedule((4.0, 2.0), iterations=10)
        estimate = pose_only_ba(invert_pose(T), xyz, uv, np.ones(len(uv)), self._camera_model, schedule)
        near = estimate.distances < self._config.registered_px
        if near.sum() < max(self._config.min_registered, self._config.min_registered_share * len(rows)):
            return False
        self._T[k], self._registered[k] = estimate.T_world_camera, True
        self._good[rows] = near
        self._triangulate(self._observations.point[self._of_keyframe[k]], only_new=True)
        return True

    def _triangulate(self, tracks: IntArray, only_new: bool = False) -> None:
        """Points of tracks with at least two registered views; views of large error are left out."""
        if only_new:
            tracks = tracks[~np.isfinite(self._points[tracks, 0])]
        if not len(tracks):
            return
        rows = np.concatenate([self._of_track[t] for t in tracks])
        rows = rows[self._registered[self._observations.camera[rows]]]
        self._points[tracks], self._good[rows] = np.nan, False
        # In the second round without the views that contradict the others.
        for _ in range(2):
            chosen, point = np.unique(self._observations.point[rows], return_inverse=True)
            if not len(chosen):
                return
            observations = replace(self._observations.take(rows), point=point)
            new = triangulate(self._T, self._camera_model, observations, len(chosen), loss_scale=2.0)
            sure = new.in_front & (new.angle_deg > self._config.point_deg) & (new.views >= 2)
            self._points[chosen] = np.where(sure[:, None], new.points, np.nan)
            near = self._errors(rows) < self._config.point_px
            rows = rows[near]
        views = np.bincount(self._observations.point[rows], minlength=len(self._points))
        self._points[tracks[views[tracks] < 2]] = np.nan
        self._good[rows] = views[self._observations.point[rows]] >= 2

    def _errors(self, rows: IntArray) -> FloatArray:
        """Reprojection errors of observations in pixels; inf where unknown or behind the camera."""
        xyz = transform_each(
            invert_pose(self._T)[self._observations.camera[rows]], self._points[self._observations.point[rows]]
        )
        away = np.linalg.norm(self._camera_model.project(xyz) - self._observations.pixel[rows], axis=1)
        return np.asarray(np.nan_to_num(away, nan=np.inf))

    def _adjust(self, loss_px: float, free_k1: bool = False) -> None:
        """Adjust all registered keyframes and points, and drop observations of large error."""
        rows = np.flatnonzero(self._good)
        cameras = np.flatnonzero(self._registered)
        if len(rows) < 2 * self._config.min_registered:
            return
        used, point = np.unique(self._observations.point[rows], return_inverse=True)
        camera = np.searchsorted(cameras, self._observations.camera[rows])
        observations = replace(self._observations.take(rows), camera=camera, point=point)
        scene = BAScene(self._T[cameras], self._points[used], self._camera_model)
        free = not self._known
        # With two images the focal length would follow the noise.
        enough = free and len(cameras) > 3
        problem = Problem(scene, observations, None, None, enough, free_k1 and free, priors=self._priors)
        scene = adjust(problem, loss_scale=loss_px, iterations=15, tolerance=1e-3).scene
        self._T[cameras], self._points[used] = scene.T_world_camera, scene.points
        self._camera_model = scene.camera_model
        near = self._errors(rows) < self._config.point_px
        self._good[rows] = near
        views = np.bincount(self._observations.point[rows[near]], minlength=len(self._points))
        self._points[used[views[used] < 2]] = np.nan
        self._good &= np.isfinite(self._points[self._observations.point, 0])
