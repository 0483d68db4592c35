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

RELOCALIZE_EVERY = 15
"""Frames after which the place is recognized again, which bounds the drift of tracked points."""
MIN_TRACKED = 40
"""Least number of tracked points that agree with a pose; with fewer the place is recognized again."""
MIN_AGREEING = 0.6
"""Least share of the tracked points that agree."""
FOCAL_FRAMES = 5
"""Frames whose median focal length becomes the film's: one lens made them all."""


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
        self._scale: Scale | None = None
        self._last: _Tracked | None = None
        self._focals: list[float] = []

    def push(self, rgb: NDArray[np.uint8]) -> Localization | NotLocalized:
        """Pose of the next frame [H, W, 3]."""
        scale = Scale.from_source_size((rgb.shape[1], rgb.shape[0]))
        if scale != self._scale:
            self._scale, self._last, self._focals = scale, None, []
        grey = scale.grey(rgb)
        found = self._tracked(grey) or self._recognized(grey, scale)
        if isinstance(found, NotLocalized):
            self._last = None
            return found
        return found.localization(scale)

    def _tracked(self, grey: NDArray[np.uint8]) -> LocatedImage | None:
        """The frame by the points of the last one; None where they are too few or too old."""
        last = self._last
        if last is None or last.age + 1 >= RELOCALIZE_EVERY:
            return None
        matched = last.located.matched
        uv, arrived = track_klt(last.grey, grey, matched.uv, matched.uv)
        rows = np.flatnonzero(arrived)
        if len(rows) < MIN_TRACKED:
            return None
        there = replace(matched.take(rows), uv=uv[rows].astype(np.float64))
        fit = fit_pose(there, last.located.fit.T_world_camera, last.located.fit.lens, focal_sigma=None)
        if len(fit.inliers) < max(MIN_TRACKED, MIN_AGREEING * len(rows)):
            return None
        located = LocatedImage(fit, there.take(fit.inliers), last.located.frames).unless_uncertain()
        if isinstance(located, NotLocalized):
            return None
        self._last = _Tracked(grey, located, last.age + 1)
        return located

    def _recognized(self, grey: NDArray[np.uint8], scale: Scale) -> LocatedImage | NotLocalized:
        found = self._place.find(grey, scale, self._camera(scale))
        if isinstance(found, LocatedImage):
            if self._intrinsics is None and len(self._focals) < FOCAL_FRAMES:
                self._focals.append(found.fit.lens.focal)
            self._last = _Tracked(grey, found, 0)
        return found

    def _camera(self, scale: Scale) -> CameraModel | None:
        if self._intrinsics is not None:
            return scaled_camera(self._intrinsics, scale)
        if self._last is None or len(self._focals) < FOCAL_FRAMES:
            return None
        return replace(self._last.located.fit.lens, focal=float(np.median(self._focals)))
