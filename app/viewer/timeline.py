"""What the viewer remembers of each frame: its pose for good, pictures of a bounded number of frames."""

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.results import FrameResult

THUMBNAIL_SIDE = 128
"""Longer side of a thumbnail in pixels."""


@dataclass(frozen=True)
class View:
    """A frame's small picture and the shape of its camera."""

    ordinal: int
    image: NDArray[np.uint8]  # [h, w, 3]
    fov: float
    """Vertical field of view in radians."""
    aspect: float


def make_view(ordinal: int, result: FrameResult) -> View:
    height, width = result.rgb.shape[:2]
    shrink = THUMBNAIL_SIDE / max(height, width)
    size = (max(1, round(width * shrink)), max(1, round(height * shrink)))
    image = np.asarray(cv2.resize(result.rgb, size, interpolation=cv2.INTER_AREA), np.uint8)
    fov = 2 * np.arctan(height / 2 / result.network_intrinsics.fy)
    fov_x = 2 * np.arctan(width / 2 / result.network_intrinsics.fx)
    return View(ordinal, image, float(fov), float(np.tan(fov_x / 2) / np.tan(fov / 2)))


class Timeline:
    """Poses of all frames in order of arrival (their ordinals), and evenly thinned views of at most ``max_views``."""

    def __init__(self, max_views: int = 256) -> None:
        assert max_views >= 2
        self.max_views = max_views
        self.views: dict[int, View] = {}
        self._stride = 1
        self._poses = np.empty((256, 4, 4))
        self._indices: list[int] = []
        self._ordinals: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._indices)

    @property
    def poses(self) -> NDArray[np.float64]:
        """T_world_camera [n, 4, 4] of all frames."""
        return self._poses[: len(self)]

    def add_pose(self, index: int, T_world_camera: NDArray[np.float64]) -> int:
        """Append source frame ``index``; gives its ordinal."""
        ordinal = len(self)
        if ordinal == len(self._poses):
            self._poses = np.concatenate([self._poses, np.empty_like(self._poses)])
        self._poses[ordinal] = T_world_camera
        self._indices.append(index)
        self._ordinals[index] = ordinal
        return ordinal

    def revise(self, index: int, T_world_camera: NDArray[np.float64]) -> int:
        """Replace the pose of source frame ``index``; gives its ordinal."""
        assert index in self._ordinals, f"frame {index} has no result to revise"
        ordinal = self._ordinals[index]
        self._poses[ordinal] = T_world_camera
        return ordinal

    def index(self, ordinal: int) -> int:
        """Number in its source of a frame."""
        return self._indices[ordinal]

    def wants_view(self, ordinal: int) -> bool:
        """Whether no view of this frame's stretch is there yet."""
        return ordinal // self._stride not in self.views

    def add_view(self, view: View) -> None:
        """Keep a view; beyond ``max_views`` every second one goes, now and from here on."""
        self.views[view.ordinal // self._stride] = view
        while len(self.views) > self.max_views:
            self._stride *= 2
            kept: dict[int, View] = {}
            for kept_view in self.views.values():
                kept.setdefault(kept_view.ordinal // self._stride, kept_view)
            self.views = kept

    def nearest_view(self, ordinal: int) -> View | None:
        """The view whose frame is nearest to ``ordinal``."""
        return min(self.views.values(), key=lambda v: abs(v.ordinal - ordinal), default=None)

    def thinned_views(self, count: int) -> list[View]:
        """At most ``count`` views, evenly over time and steady as the video goes on: strides are powers of two."""
        stride = self._stride
        while len(self) / stride > count:
            stride *= 2
        chosen: dict[int, View] = {}
        for view in self.views.values():
            chosen.setdefault(view.ordinal // stride, view)
        return list(chosen.values())[:count]

    def path(self, vertices: int) -> NDArray[np.float32]:
        """Camera centres [m, 3], m <= ``vertices``, with the first and the last frame's."""
        n = len(self)
        picks = np.unique(np.linspace(0, n - 1, min(n, vertices)).round().astype(int)) if n else np.empty(0, int)
        return self.poses[picks, :3, 3].astype(np.float32)
