"""What the viewer remembers of each frame: its camera for good, pictures of a bounded number of frames."""

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.depth_correction import GRID
from stream_recon.app.core.disk_table import AscendingColumn, DiskColumn, DiskTable
from stream_recon.app.core.types import FrameResult, Intrinsics, Revision

THUMBNAIL_SIDE = 128
"""Longer side of a thumbnail in pixels."""


@dataclass(frozen=True)
class TimelineView:
    """A frame's small picture."""

    ordinal: int
    image: NDArray[np.uint8]  # [h, w, 3]
    extent: tuple[float, float]
    """Width and height of what it shows, in pixels of the source."""

    def shape(self, camera: Intrinsics) -> tuple[float, float]:
        """Vertical field of view in radians and aspect of the frustum through the picture's borders."""
        width, height = (side / focal for side, focal in zip(self.extent, (camera.fx, camera.fy), strict=True))
        return 2 * float(np.arctan(height / 2)), width / height


def make_view(ordinal: int, result: FrameResult) -> TimelineView:
    """A frame's picture, shrunk to `THUMBNAIL_SIDE` along its longer side."""
    height, width = result.rgb.shape[:2]
    shrink = THUMBNAIL_SIDE / max(height, width)
    size = (max(1, round(width * shrink)), max(1, round(height * shrink)))
    image = np.asarray(cv2.resize(result.rgb, size, interpolation=cv2.INTER_AREA), np.uint8)
    return TimelineView(ordinal, image, result.transform.crop[2:])


class Timeline:
    """Cameras of all frames in order of arrival (their ordinals), and evenly thinned views of at most ``max_views``."""

    def __init__(self, max_views: int = 256) -> None:
        assert max_views >= 2
        self.max_views = max_views
        self.views: dict[int, TimelineView] = {}
        self._stride = 1
        # Cameras are fx, fy, cx, cy.
        self._rows = DiskTable(
            pose=(4, 4), first_pose=(4, 4), depth_scale=(), first_camera=(4,), camera=(4,), field=(GRID, GRID)
        )
        self._indices = AscendingColumn()
        self.revised = False
        """Whether a frame has been moved since it was given out."""

    def __len__(self) -> int:
        return len(self._indices)

    @property
    def poses(self) -> DiskColumn:
        """T_world_camera [n, 4, 4] of all frames."""
        return self._rows["pose"]

    @property
    def first_poses(self) -> DiskColumn:
        """The same [n, 4, 4] as first given out."""
        return self._rows["first_pose"]

    @property
    def depth_scales(self) -> DiskColumn:
        """What the depth [n] that frames came with has to be multiplied with."""
        return self._rows["depth_scale"]

    @property
    def depth_fields(self) -> DiskColumn:
        """By what else it has to be corrected [n, GRID, GRID], zeros where by nothing."""
        return self._rows["field"]

    def intrinsics(self, ordinal: int) -> Intrinsics:
        """A camera in pixels of the source image, as last known."""
        return Intrinsics(*self._rows["camera"][ordinal].tolist())

    def add_frame(self, index: int, T_world_camera: NDArray[np.float64], intrinsics: Intrinsics) -> int:
        """Append source frame ``index``; gives its ordinal."""
        ordinal = len(self)
        camera = _numbers(intrinsics)
        self._rows.append(
            pose=T_world_camera, first_pose=T_world_camera, depth_scale=1.0, first_camera=camera, camera=camera
        )
        self._indices.append(index)
        return ordinal

    def revise(self, revision: Revision) -> NDArray[np.intp]:
        """Take over a whole revision; gives the ordinals [m] of the frames that it names."""
        frames = revision.frames
        ordinals = np.array([self._indices.position(f.index) for f in frames], np.intp)
        if frames:
            poses = np.stack([f.T_world_camera for f in frames])
            self.revised |= not np.array_equal(poses, self.first_poses[ordinals])
            self.poses[ordinals] = poses
            self.depth_scales[ordinals] = [f.depth_scale for f in frames]
            fields = np.zeros((len(frames), GRID, GRID))
            for number, frame in enumerate(frames):
                if frame.depth_field is not None:
                    fields[number] = frame.depth_field
            self.depth_fields[ordinals] = fields
        known = [number for number, frame in enumerate(frames) if frame.intrinsics is not None]
        cameras = [_numbers(frame.intrinsics) for frame in frames if frame.intrinsics is not None]
        self._rows["camera"][ordinals[known]] = np.reshape(cameras, (-1, 4))
        return ordinals

    def placements(self, ordinals: NDArray[np.intp]) -> NDArray[np.float64]:
        """Affine maps [m, 4, 4] into the world from the camera axes in which frames' points were first unprojected.

        A point first seen at K_first^-1 (u, v, 1) z is at K^-1 (u, v, 1) depth_scale z now, but for `depth_fields`.
        """
        first, now = self._rows["first_camera"][ordinals], self._rows["camera"][ordinals]
        change = np.zeros((len(ordinals), 4, 4))
        for axis in range(2):
            change[:, axis, axis] = first[:, axis] / now[:, axis]
            change[:, axis, 2] = (first[:, 2 + axis] - now[:, 2 + axis]) / now[:, axis]
        change[:, 2, 2] = 1.0
        change[:, :3, :3] *= self.depth_scales[ordinals][:, None, None]
        change[:, 3, 3] = 1.0
        return np.asarray(self.poses[ordinals] @ change)

    def index(self, ordinal: int) -> int:
        """Number in its source of a frame."""
        return self._indices[ordinal]

    def wants_view(self, ordinal: int) -> bool:
        """Whether no view of this frame's stretch is there yet."""
        return ordinal // self._stride not in self.views

    def add_view(self, view: TimelineView) -> None:
        """Keep a view; beyond ``max_views`` every second one goes, now and from here on."""
        self.views[view.ordinal // self._stride] = view
        while len(self.views) > self.max_views:
            self._stride *= 2
            kept: dict[int, TimelineView] = {}
            for kept_view in self.views.values():
                kept.setdefault(kept_view.ordinal // self._stride, kept_view)
            self.views = kept

    def nearest_view(self, ordinal: int) -> TimelineView | None:
        """The view whose frame is nearest to ``ordinal``."""
        return min(self.views.values(), key=lambda v: abs(v.ordinal - ordinal), default=None)

    def thinned_views(self, count: int) -> list[TimelineView]:
        """At most ``count`` views, evenly over time and steady as the video goes on: strides are powers of two."""
        stride = self._stride
        while len(self) / stride > count:
            stride *= 2
        chosen: dict[int, TimelineView] = {}
        for view in self.views.values():
            chosen.setdefault(view.ordinal // stride, view)
        return list(chosen.values())[:count]

    def path(self, vertices: int) -> NDArray[np.float32]:
        """Camera centres [m, 3], m <= ``vertices``, with the first and the last frame's."""
        return _thinned(self.poses, vertices)

    def first_path(self, vertices: int) -> NDArray[np.float32]:
        """The same as first given out."""
        return _thinned(self.first_poses, vertices)

    def segments(self, edges: NDArray[np.int64]) -> NDArray[np.float32]:
        """Lines [m, 2, 3] between the cameras of pairs of source frames [E, 2]; without those not shown here."""
        position = self._indices.position
        known = [(position(a), position(b)) for a, b in edges.tolist() if a in self._indices and b in self._indices]
        ends = self.poses[np.array(known, np.intp).reshape(-1)][:, :3, 3]
        return ends.reshape(-1, 2, 3).astype(np.float32)


def _thinned(poses: DiskColumn, vertices: int) -> NDArray[np.float32]:
    n = len(poses)
    picks = np.unique(np.linspace(0, n - 1, min(n, vertices)).round().astype(int)) if n else np.empty(0, int)
    return poses[picks][:, :3, 3].astype(np.float32)


def _numbers(camera: Intrinsics) -> tuple[float, float, float, float]:
    return camera.fx, camera.fy, camera.cx, camera.cy
