"""Points and where the frames of an export see each: what a COLMAP model is made of.

Points of depth maps, each with an observation in every frame whose own depth map agrees that it sees it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.depth_points import depth_edges
from stream_recon.app.core.ply import positions
from stream_recon.app.core.transforms import invert_pose, transform_points
from stream_recon.app.core.types import FrameResult
from stream_recon.app.export.points import spread_indices, subsample
from stream_recon.app.export.view import PinholeView
from stream_recon.app.result.cameras import Camera
from stream_recon.app.result.cloud import POINTS_NAME
from stream_recon.app.result.files import stored_points
from stream_recon.app.result.folder import ResultFolder, result_of
from stream_recon.app.result.tracks import SparseTracks
from stream_recon.configs.errors import OutputError

MIN_VIEWS = 2
"""Of a point: one observation says nothing of where along its ray the point lies."""
WRONG_SHARE = 0.004
"""Of the longer side: an observation that misses by more is a wrong match, or its point is of an older refinement."""


@dataclass(frozen=True)
class Observed:
    """Points [M] with observations [O]; each point has two or more, in different frames."""

    xyz: NDArray[np.float64]  # [M, 3], in the result's world
    rgb: NDArray[np.uint8]  # [M, 3]
    point: NDArray[np.int64]  # [O], a number of the points
    camera: NDArray[np.int64]  # [O], a number of the export's frames
    pixel: NDArray[np.float64]  # [O, 2], in exported images

    def kept(self, good: NDArray[np.bool_]) -> "Observed":
        """With those observations alone, and the points that still have enough of them."""
        views = np.bincount(self.point[good], minlength=len(self.xyz))
        good = good & (views[self.point] >= MIN_VIEWS)
        used, point = np.unique(self.point[good], return_inverse=True)
        return Observed(self.xyz[used], self.rgb[used], point, self.camera[good], self.pixel[good])

    def joined(self, other: "Observed") -> "Observed":
        """The points of both."""
        return Observed(
            np.concatenate([self.xyz, other.xyz]),
            np.concatenate([self.rgb, other.rgb]),
            np.concatenate([self.point, other.point + len(self.xyz)]),
            np.concatenate([self.camera, other.camera]),
            np.concatenate([self.pixel, other.pixel]),
        )

    def errors(self, cameras: Sequence[Camera], view: PinholeView) -> NDArray[np.float64]:
        """Reprojection errors [O] in pixels of exported images; infinite behind the camera."""
        world = np.array([camera.T_world_camera for camera in cameras]).reshape(-1, 4, 4)
        T = invert_pose(world)[self.camera]
        xyz = np.einsum("nij,nj->ni", T[:, :3, :3], self.xyz[self.point]) + T[:, :3, 3]
        return np.asarray(np.linalg.norm(projected(xyz, view) - self.pixel, axis=1))


def none_observed() -> Observed:
    """No points at all."""
    return Observed(
        np.empty((0, 3)), np.empty((0, 3), np.uint8), np.empty(0, np.int64), np.empty(0, np.int64), np.empty((0, 2))
    )


def projected(xyz: NDArray[np.floating], view: PinholeView) -> NDArray[np.float64]:
    """Where exported images show points [N, 3] of the camera's axes; infinite behind it."""
    k, z = view.intrinsics, np.asarray(xyz[:, 2:], np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        pixels = xyz[:, :2] / z * (k.fx, k.fy) + (k.cx, k.cy)
    return np.where(z > 0, pixels, np.inf)


def tracked(tracks: SparseTracks, cameras: Sequence[Camera], view: PinholeView) -> Observed:
    """The refinement's points as the export's frames see them, without colours yet; wrong ones are left out."""
    place = {camera.index: number for number, camera in enumerate(cameras)}
    frames, of_frame = np.unique(tracks.frame, return_inverse=True)
    number = np.array([place.get(int(frame), -1) for frame in frames], np.int64)[of_frame]
    pixel = view.to_export(tracks.pixel)
    found = Observed(
        np.asarray(tracks.points, np.float64),
        np.full((len(tracks.points), 3), 128, np.uint8),
        tracks.point.astype(np.int64),
        number,
        pixel,
    )
    found = found.kept((number >= 0) & inside(pixel, view))
    if not len(found.xyz):
        return none_observed()
    found = found.kept(found.errors(cameras, view) < max(WRONG_SHARE * max(view.size), 2.0))
    # Two features of one image may have ended in one track.
    _, first = np.unique(found.point * len(cameras) + found.camera, return_index=True)
    once = np.zeros(len(found.point), bool)
    once[first] = True
    return found.kept(once)


def inside(pixel: NDArray[np.floating], view: PinholeView) -> NDArray[np.bool_]:
    """[N] which pixels lie in the image; not those that are no number."""
    return np.asarray(((pixel >= 0) & (pixel < view.size)).all(axis=1))


class Colours:
    """Colours of points, averaged over the images as these go by."""

    def __init__(self, observed: Observed) -> None:
        self._observed = observed
        self._sum = np.zeros((len(observed.xyz), 3))
        self._count = np.zeros(len(observed.xyz))
        self._order = np.argsort(observed.camera, kind="stable")
        self._sorted = observed.camera[self._order]

    def add(self, camera: int, image: NDArray[np.uint8]) -> None:
        """Take the colours that an image shows of its points."""
        first, last = np.searchsorted(self._sorted, [camera, camera + 1])
        mine = self._order[first:last]
        at = self._observed.pixel[mine].astype(np.intp)
        # Each point is there once in an image, so plain indexing adds up.
        self._sum[self._observed.point[mine]] += image[at[:, 1], at[:, 0]]
        self._count[self._observed.point[mine]] += 1

    def applied(self) -> Observed:
        """The points with what was gathered."""
        seen = self._count > 0
        rgb = self._observed.rgb.copy()
        rgb[seen] = np.rint(self._sum[seen] / self._count[seen, None]).astype(np.uint8)
        return replace(self._observed, rgb=rgb)


AGREEMENT = 0.02
"""Share by which a frame's depth may differ from a point's for it to be seen there."""
CANDIDATES = 2
"""How many points are looked at for each one that is wanted: some are seen once, or by no frame that is exported."""
MOST_VIEWS = 64
"""Of a point: more say little, and would take memory without bound."""


def dense_points(
    result: ResultFolder,
    most: int,
    cameras: Sequence[Camera],
    view: PinholeView,
    on_frame: Callable[[int], None],
) -> Observed:
    """At most ``most`` points of a result's cloud, spread over it, as ``cameras`` see them.

    A frame whose depth file cannot be read sees nothing. ``on_frame`` is told how many frames are done.

    Raises:
        OutputError: the cloud's file is missing or damaged.
    """
    folder_points, edge_ratio = stored_points(result.folder / POINTS_NAME), result.points.edge_ratio
    vertices = subsample(folder_points, CANDIDATES * most)
    xyz = positions(vertices)
    views = np.zeros(len(xyz), np.int32)
    point, camera_number, pixel = [], [], []
    for number, camera in enumerate(cameras):
        try:
            frame = result_of(result.folder, camera)
        except OutputError:
            continue
        seen, at = _seen(xyz, frame, view, edge_ratio)
        room = views[seen] < MOST_VIEWS
        seen, at = seen[room], at[room]
        views[seen] += 1
        point.append(seen)
        camera_number.append(np.full(len(seen), number))
        pixel.append(at)
        on_frame(number + 1)
    if not point:
        return none_observed()
    rgb = np.stack([vertices[channel] for channel in ("red", "green", "blue")], axis=1)
    found = Observed(
        xyz.astype(np.float64),
        rgb,
        np.concatenate(point).astype(np.int64),
        np.concatenate(camera_number).astype(np.int64),
        np.concatenate(pixel),
    )
    found = found.kept(np.ones(len(found.point), bool))
    wanted = np.zeros(len(found.xyz), bool)
    wanted[spread_indices(len(found.xyz), most)] = True
    return found.kept(wanted[found.point])


def _seen(
    xyz: NDArray[np.float32], frame: FrameResult, view: PinholeView, edge_ratio: float
) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """Numbers of the points that a frame sees, and the pixels where. None is seen at a step of depth."""
    depth = frame.depth
    local = transform_points(invert_pose(frame.T_world_camera), xyz)
    ahead = np.flatnonzero(local[:, 2] > 0)
    at = projected(local[ahead], view)
    here = inside(at, view)
    ahead, at = ahead[here], at[here]
    column, row = view.to_network(at, frame.transform).astype(np.intp).T
    column, row = column.clip(0, depth.shape[1] - 1), row.clip(0, depth.shape[0] - 1)
    known = np.where(depth > 0, depth, np.float32(np.nan))
    known[depth_edges(known, edge_ratio)] = np.nan
    with np.errstate(invalid="ignore"):
        agrees = np.abs(known[row, column] / local[ahead, 2] - 1) < AGREEMENT
    return ahead[agrees], at[agrees]
