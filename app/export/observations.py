"""Points with observations in exported frames, for COLMAP models: from tracks, and from depth maps."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.depth_points import depth_edges
from stream_recon.app.core.ply import colours, positions, subsample, uniform_indices
from stream_recon.app.core.transforms import invert_pose, transform_points
from stream_recon.app.core.types import Certainty, FrameResult
from stream_recon.app.export.job import ExportJob
from stream_recon.app.export.view import PinholeView
from stream_recon.app.result.cameras import FrameCamera
from stream_recon.app.result.tracks import SparseTracks
from stream_recon.configs.errors import OutputError

MIN_VIEWS = 2
"""Fewest observations of a point: one does not determine its depth."""
MAX_ERROR_SHARE = 0.004
"""Largest reprojection error as a share of the longer side: beyond it a match is wrong, or of an older refinement."""


@dataclass(frozen=True)
class PointObservations:
    """Points [M] with observations [O]; each point has two or more, in different frames."""

    xyz: NDArray[np.float64]  # [M, 3], in the result's world
    rgb: NDArray[np.uint8]  # [M, 3]
    point: NDArray[np.int64]  # [O], row of the point
    camera: NDArray[np.int64]  # [O], number of the exported frame
    pixel: NDArray[np.float64]  # [O, 2], in exported images

    def filtered(self, good: NDArray[np.bool_]) -> "PointObservations":
        """The ``good`` observations [O], with the points that still have enough of them."""
        views = np.bincount(self.point[good], minlength=len(self.xyz))
        good = good & (views[self.point] >= MIN_VIEWS)
        used, point = np.unique(self.point[good], return_inverse=True)
        return PointObservations(self.xyz[used], self.rgb[used], point, self.camera[good], self.pixel[good])

    def joined(self, other: "PointObservations") -> "PointObservations":
        """The points and observations of both."""
        return PointObservations(
            np.concatenate([self.xyz, other.xyz]),
            np.concatenate([self.rgb, other.rgb]),
            np.concatenate([self.point, other.point + len(self.xyz)]),
            np.concatenate([self.camera, other.camera]),
            np.concatenate([self.pixel, other.pixel]),
        )

    def errors(self, cameras: Sequence[FrameCamera], view: PinholeView) -> NDArray[np.float64]:
        """Reprojection errors [O] in pixels of exported images; infinite behind the camera."""
        world = np.array([camera.T_world_camera for camera in cameras]).reshape(-1, 4, 4)
        T = invert_pose(world)[self.camera]
        xyz = np.einsum("nij,nj->ni", T[:, :3, :3], self.xyz[self.point]) + T[:, :3, 3]
        return np.asarray(np.linalg.norm(projected(xyz, view) - self.pixel, axis=1))


def no_observations() -> PointObservations:
    """No points at all."""
    return PointObservations(
        np.empty((0, 3)), np.empty((0, 3), np.uint8), np.empty(0, np.int64), np.empty(0, np.int64), np.empty((0, 2))
    )


def projected(xyz: NDArray[np.floating], view: PinholeView) -> NDArray[np.float64]:
    """Projections [N, 2] of points [N, 3] in camera coordinates to exported images; infinite behind the camera."""
    k, z = view.intrinsics, np.asarray(xyz[:, 2:], np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        pixels = xyz[:, :2] / z * (k.fx, k.fy) + (k.cx, k.cy)
    return np.where(z > 0, pixels, np.inf)


def track_observations(tracks: SparseTracks, cameras: Sequence[FrameCamera], view: PinholeView) -> PointObservations:
    """Points of the refinement with their observations in exported frames, in grey, without wrong matches."""
    row = {camera.index: number for number, camera in enumerate(cameras)}
    frames, of_frame = np.unique(tracks.frame, return_inverse=True)
    number = np.array([row.get(int(frame), -1) for frame in frames], np.int64)[of_frame]
    pixel = view.to_export(tracks.pixel)
    observed = PointObservations(
        np.asarray(tracks.points, np.float64),
        np.full((len(tracks.points), 3), 128, np.uint8),
        tracks.point.astype(np.int64),
        number,
        pixel,
    )
    observed = observed.filtered((number >= 0) & inside(pixel, view))
    if not len(observed.xyz):
        return no_observations()
    observed = observed.filtered(observed.errors(cameras, view) < max(MAX_ERROR_SHARE * max(view.size), 2.0))
    # A track may hold two features of one image.
    _, first = np.unique(observed.point * len(cameras) + observed.camera, return_index=True)
    once = np.zeros(len(observed.point), bool)
    once[first] = True
    return observed.filtered(once)


def inside(pixel: NDArray[np.floating], view: PinholeView) -> NDArray[np.bool_]:
    """Which pixels [N, 2] lie in the exported image; False for NaN."""
    return np.asarray(((pixel >= 0) & (pixel < view.size)).all(axis=1))


class PointColours:
    """Colours of points, averaged over the images one after the other."""

    def __init__(self, observed: PointObservations) -> None:
        self._observed = observed
        self._sum = np.zeros((len(observed.xyz), 3))
        self._count = np.zeros(len(observed.xyz))
        self._order = np.argsort(observed.camera, kind="stable")
        self._sorted = observed.camera[self._order]

    def add(self, camera: int, image: NDArray[np.uint8]) -> None:
        """Add the colours of points in the image [H, W, 3] of a camera."""
        first, last = np.searchsorted(self._sorted, [camera, camera + 1])
        rows = self._order[first:last]
        xy = self._observed.pixel[rows].astype(np.intp)
        # A point has one observation in an image, so indexed addition has no duplicates.
        self._sum[self._observed.point[rows]] += image[xy[:, 1], xy[:, 0]]
        self._count[self._observed.point[rows]] += 1

    def coloured(self) -> PointObservations:
        """The points with their mean colours."""
        known = self._count > 0
        rgb = self._observed.rgb.copy()
        rgb[known] = np.rint(self._sum[known] / self._count[known, None]).astype(np.uint8)
        return replace(self._observed, rgb=rgb)


DEPTH_TOLERANCE = 0.02
"""Largest relative difference between a frame's depth and a point's for an observation: about the noise of depth."""
CANDIDATES = 2
"""Candidate points for each one wanted: some are visible in one exported frame or none."""
MAX_VIEWS = 64
"""Most observations of a point, so that memory is bounded."""


def dense_points(
    job: ExportJob, most: int, cameras: Sequence[FrameCamera], view: PinholeView, on_frame: Callable[[int], None]
) -> PointObservations:
    """At most ``most`` points of a result's cloud, sampled uniformly, observed in frames whose depth maps agree.

    A frame whose depth cannot be read observes nothing. ``on_frame`` is called with the number of frames done.
    Raises OutputError: the cloud's file is missing or damaged.
    """
    vertices, edge_ratio = subsample(job.cloud(), CANDIDATES * most), job.points.edge_ratio
    xyz = positions(vertices)
    views = np.zeros(len(xyz), np.int32)
    point, camera_number, pixel = [], [], []
    for number, camera in enumerate(cameras):
        try:
            frame = job.result.surface_of(camera)
        except OutputError:
            continue
        visible, xy = _visible(xyz, frame, view, edge_ratio)
        few = views[visible] < MAX_VIEWS
        visible, xy = visible[few], xy[few]
        views[visible] += 1
        point.append(visible)
        camera_number.append(np.full(len(visible), number))
        pixel.append(xy)
        on_frame(number + 1)
    if not point:
        return no_observations()
    rgb = colours(vertices)
    observed = PointObservations(
        xyz.astype(np.float64),
        rgb,
        np.concatenate(point).astype(np.int64),
        np.concatenate(camera_number).astype(np.int64),
        np.concatenate(pixel),
    )
    observed = observed.filtered(np.ones(len(observed.point), bool))
    chosen = np.zeros(len(observed.xyz), bool)
    chosen[uniform_indices(len(observed.xyz), most)] = True
    return observed.filtered(chosen[observed.point])


def _visible(
    xyz: NDArray[np.float32], frame: FrameResult, view: PinholeView, edge_ratio: float
) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """Rows [K] of the points visible in a frame, and their pixels [K, 2]; none at depth edges."""
    depth = frame.depth
    local = transform_points(invert_pose(frame.T_world_camera), xyz)
    ahead = np.flatnonzero(local[:, 2] > 0)
    xy = projected(local[ahead], view)
    in_image = inside(xy, view)
    ahead, xy = ahead[in_image], xy[in_image]
    column, row = view.to_map(xy, frame).astype(np.intp).T
    column, row = column.clip(0, depth.shape[1] - 1), row.clip(0, depth.shape[0] - 1)
    known = np.where(depth > 0, depth, np.float32(np.nan))
    edges = depth_edges(known, edge_ratio)
    if frame.certainty is not None:
        edges &= frame.certainty < Certainty.CONFIRMED
    known[edges] = np.nan
    with np.errstate(invalid="ignore"):
        agrees = np.abs(known[row, column] / local[ahead, 2] - 1) < DEPTH_TOLERANCE
    return ahead[agrees], xy[agrees]
