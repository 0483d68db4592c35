"""Cameras of all frames, and thumbnails of a bounded number of them."""

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.depth_correction import GRID
from stream_recon.app.core.per_frame_arrays import PerFrameArray, PerFrameArrays, SortedFrameNumbers
from stream_recon.app.core.rig import VIEW_STRIDE
from stream_recon.app.core.types import FrameResult, Intrinsics, Revision

THUMBNAIL_SIDE = 128
"""Longer side of a thumbnail in pixels."""


@dataclass(frozen=True)
class TimelineView:
    """A frame's thumbnail."""

    ordinal: int
    image: NDArray[np.uint8]  # [h, w, 3]
    extent: tuple[float, float]
    """Width and height of the shown crop, in pixels of the source."""

    def shape(self, camera: Intrinsics) -> tuple[float, float]:
        """Vertical field of view in radians and aspect of the frustum through the image's borders."""
        width, height = (side / focal for side, focal in zip(self.extent, (camera.fx, camera.fy), strict=True))
        return 2 * float(np.arctan(height / 2)), width / height


def make_view(ordinal: int, result: FrameResult) -> TimelineView:
    """A frame's thumbnail."""
    height, width = result.rgb.shape[:2]
    shrink = THUMBNAIL_SIDE / max(height, width)
    size = (max(1, round(width * shrink)), max(1, round(height * shrink)))
    image = np.asarray(cv2.resize(result.rgb, size, interpolation=cv2.INTER_AREA), np.uint8)
    return TimelineView(ordinal, image, result.transform.crop[2:])


class Timeline:
    """Cameras of all frames by ordinal (order of arrival), and at most ``max_views`` evenly spaced thumbnails."""

    def __init__(self, max_views: int = 256) -> None:
        assert max_views >= 2
        self.max_views = max_views
        self.views: dict[int, TimelineView] = {}
        self._stride = 1
        # Cameras are fx, fy, cx, cy.
        self._rows = PerFrameArrays(
            pose=(4, 4), causal_pose=(4, 4), depth_scale=(), causal_camera=(4,), camera=(4,), field=(GRID, GRID)
        )
        self.poses: PerFrameArray = self._rows["pose"]
        """T_world_camera [n, 4, 4] of all frames."""
        self.causal_poses: PerFrameArray = self._rows["causal_pose"]
        """T_world_camera [n, 4, 4] before any revision."""
        self.depth_scales: PerFrameArray = self._rows["depth_scale"]
        """Factors [n] of the causal depth."""
        self.depth_fields: PerFrameArray = self._rows["field"]
        """Depth fields [n, GRID, GRID] in addition to the scales; zeros where there is none."""
        self._indices = SortedFrameNumbers()
        self.revisions = 0
        """Number of revisions so far."""
        self.revised = False
        """Whether a frame was revised."""

    def __len__(self) -> int:
        return len(self._indices)

    def intrinsics(self, ordinal: int) -> Intrinsics:
        """Final intrinsics of a frame, in pixels of the source image."""
        return Intrinsics(*self._rows["camera"][ordinal].tolist())

    def add_frame(self, index: int, T_world_camera: NDArray[np.float64], intrinsics: Intrinsics) -> int:
        """Append source frame ``index``; gives its ordinal."""
        ordinal = len(self)
        camera = pinhole_vector(intrinsics)
        self._rows.append(
            pose=T_world_camera, causal_pose=T_world_camera, depth_scale=1.0, causal_camera=camera, camera=camera
        )
        self._indices.append(index)
        return ordinal

    def revise(self, revision: Revision) -> NDArray[np.intp]:
        """Apply a revision; gives the ordinals [m] of its frames."""
        frames = revision.frames
        self.revisions += 1
        ordinals = np.array([self._indices.position(f.index) for f in frames], np.intp)
        if frames:
            poses = np.stack([f.T_world_camera for f in frames])
            self.revised |= not np.array_equal(poses, self.causal_poses[ordinals])
            self.poses[ordinals] = poses
            self.depth_scales[ordinals] = [f.depth_scale for f in frames]
            fields = np.zeros((len(frames), GRID, GRID))
            for number, frame in enumerate(frames):
                if frame.depth_field is not None:
                    fields[number] = frame.depth_field
            self.depth_fields[ordinals] = fields
        known = [number for number, frame in enumerate(frames) if frame.intrinsics is not None]
        cameras = [pinhole_vector(frame.intrinsics) for frame in frames if frame.intrinsics is not None]
        self._rows["camera"][ordinals[known]] = np.reshape(cameras, (-1, 4))
        return ordinals

    def point_transforms(self, ordinals: NDArray[np.intp]) -> NDArray[np.float64]:
        """Affine maps [m, 4, 4] from the axes of the causal camera, in which points were unprojected, to the world.

        A point K_causal^-1 (u, v, 1) z becomes K^-1 (u, v, 1) depth_scale z, and then moves with the pose. Depth fields
        are not included.
        """
        causal, final = self._rows["causal_camera"][ordinals], self._rows["camera"][ordinals]
        change = np.zeros((len(ordinals), 4, 4))
        for axis in range(2):
            change[:, axis, axis] = causal[:, axis] / final[:, axis]
            change[:, axis, 2] = (causal[:, 2 + axis] - final[:, 2 + axis]) / final[:, axis]
        change[:, 2, 2] = 1.0
        change[:, :3, :3] *= self.depth_scales[ordinals][:, None, None]
        change[:, 3, 3] = 1.0
        return np.asarray(self.poses[ordinals] @ change)

    def index(self, ordinal: int) -> int:
        """Index in the source of a frame."""
        return self._indices[ordinal]

    def ordinal(self, index: int) -> int | None:
        """Ordinal of source frame ``index``; None where it was not added."""
        return self._indices.position(index) if index in self._indices else None

    def wants_view(self, ordinal: int) -> bool:
        """Whether no frame of this frame's interval has a view yet."""
        return ordinal // self._stride not in self.views

    def add_view(self, view: TimelineView) -> None:
        """Keep a view; above ``max_views``, every second one is dropped and the interval doubles."""
        self.views[view.ordinal // self._stride] = view
        while len(self.views) > self.max_views:
            self._stride *= 2
            views: dict[int, TimelineView] = {}
            for kept_view in self.views.values():
                views.setdefault(kept_view.ordinal // self._stride, kept_view)
            self.views = views

    def nearest_view(self, ordinal: int) -> TimelineView | None:
        """The view whose frame is nearest to ``ordinal``."""
        return min(self.views.values(), key=lambda v: abs(v.ordinal - ordinal), default=None)

    def thinned_views(self, count: int) -> list[TimelineView]:
        """At most ``count`` evenly spaced views. Strides are powers of two, so the choice changes rarely."""
        stride = self._stride
        while len(self) / stride > count:
            stride *= 2
        chosen: dict[int, TimelineView] = {}
        for view in self.views.values():
            chosen.setdefault(view.ordinal // stride, view)
        return list(chosen.values())[:count]

    def path(self, vertices: int) -> NDArray[np.float32]:
        """Camera centres [m, 3], m <= ``vertices``, with the first and the last frame's; of a rig those of view 0."""
        return self._thinned(self.poses, vertices)

    def spaced_poses(self, count: int) -> NDArray[np.float64]:
        """T_world_camera [m, 4, 4], m <= ``count``, of evenly spaced frames."""
        return np.asarray(self.poses[_spaced(len(self.poses), count)])

    def rotations(self, count: int) -> NDArray[np.float64]:
        """Rotations R_world_camera [m, 3, 3] of `spaced_poses`."""
        return self.spaced_poses(count)[:, :3, :3]

    def causal_path(self, vertices: int) -> NDArray[np.float32]:
        """`path` by the causal poses."""
        return self._thinned(self.causal_poses, vertices)

    def segments(self, edges: NDArray[np.int64]) -> NDArray[np.float32]:
        """Lines [m, 2, 3] between the cameras of pairs of source frames [E, 2], of those frames that were added."""
        position = self._indices.position
        known = [(position(a), position(b)) for a, b in edges.tolist() if a in self._indices and b in self._indices]
        ends = self.poses[np.array(known, np.intp).reshape(-1)][:, :3, 3]
        return ends.reshape(-1, 2, 3).astype(np.float32)

    def _thinned(self, poses: PerFrameArray, vertices: int) -> NDArray[np.float32]:
        return poses[_spaced(self._indices.below(VIEW_STRIDE), vertices)][:, :3, 3].astype(np.float32)


def _spaced(n: int, count: int) -> NDArray[np.intp]:
    """Evenly spaced numbers below ``n``, at most ``count``."""
    return np.unique(np.linspace(0, n - 1, min(n, count)).round().astype(np.intp)) if n else np.empty(0, np.intp)


def pinhole_vector(camera: Intrinsics) -> tuple[float, float, float, float]:
    """fx, fy, cx, cy."""
    return camera.fx, camera.fy, camera.cx, camera.cy
