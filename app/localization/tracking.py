"""Localization of a film's frames: points are tracked from frame to frame, and the place is recognized now and then."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.camera_model import CameraModel
from stream_recon.app.core.types import Intrinsics
from stream_recon.app.localization.localize import (
    Localization,
    LocalizationMap,
    LocatedImage,
    NotLocalized,
    scaled_camera,
)
from stream_recon.app.localization.pose import fit_pose
from stream_recon.app.slam.frame_data import Scale
from stream_recon.app.slam.matching.matching import track_klt


@dataclass(frozen=True)
class _Tracked:
    grey: NDArray[np.uint8]
    located: LocatedImage
    age: int
    """Frames since the place was recognized."""


class FilmLocalizer:
    """Localizes the frames of one film or live camera, in order."""

    def __init__(self, place: LocalizationMap, intrinsics: Intrinsics | None = None) -> None:
        """``intrinsics``: of the frames, in their pixels; None: they are estimated."""
        self._place, self._intrinsics = place, intrinsics
        self._config = place.config.film
        self._scale: Scale | None = None
        self._last: _Tracked | None = None
        self._focals: list[float] = []

    def push(self, rgb: NDArray[np.uint8]) -> Localization | NotLocalized:
        """Pose of the next frame [H, W, 3]."""
        scale = Scale.from_source_size((rgb.shape[1], rgb.shape[0]))
        if scale != self._scale:
            self._scale, self._last, self._focals = scale, None, []
        grey = scale.grey(rgb)
        located = self._tracked(grey) or self._recognized(grey, scale)
        if isinstance(located, NotLocalized):
            self._last = None
            return located
        return located.localization(scale)

    def _tracked(self, grey: NDArray[np.uint8]) -> LocatedImage | None:
        """The frame by the points of the last one; None where they are too few or too old."""
        last, config = self._last, self._config
        if last is None or last.age + 1 >= config.relocalize_every:
            return None
        matched = last.located.matched
        uv, is_tracked = track_klt(last.grey, grey, matched.uv, matched.uv)
        rows = np.flatnonzero(is_tracked)
        if len(rows) < config.min_tracked:
            return None
        tracked = replace(matched.take(rows), uv=uv[rows].astype(np.float64))
        start, pose = last.located.fit, self._place.config.pose
        fit = fit_pose(tracked, start.T_world_camera, start.camera_model, None, pose)
        if len(fit.inliers) < max(config.min_tracked, config.min_agreeing * len(rows)):
            return None
        located = LocatedImage(fit, tracked.take(fit.inliers), last.located.frames)
        if located.why_uncertain(self._place.config.image):
            return None
        self._last = _Tracked(grey, located, last.age + 1)
        return located

    def _recognized(self, grey: NDArray[np.uint8], scale: Scale) -> LocatedImage | NotLocalized:
        located = self._place.find(grey, scale, self._camera_model(scale))
        if isinstance(located, LocatedImage):
            if self._intrinsics is None and len(self._focals) < self._config.focal_frames:
                self._focals.append(located.fit.camera_model.focal)
            self._last = _Tracked(grey, located, 0)
        return located

    def _camera_model(self, scale: Scale) -> CameraModel | None:
        if self._intrinsics is not None:
            return scaled_camera(self._intrinsics, scale)
        if self._last is None or len(self._focals) < self._config.focal_frames:
            return None
        return replace(self._last.located.fit.camera_model, focal=float(np.median(self._focals)))
