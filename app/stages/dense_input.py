"""What dense depth reads from a refined result: keyframes, their undistorted images, and triangulated points."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.depth_points import confidence_levels
from stream_recon.app.core.transforms import invert_pose
from stream_recon.app.core.types import Frame, Intrinsics, reduced_size
from stream_recon.app.result.cameras import FrameCamera
from stream_recon.app.result.dense import IMAGE_SIDE, reduced
from stream_recon.app.result.folder import ResultFolder, result_of
from stream_recon.app.result.run_record import REFINEMENT
from stream_recon.app.result.tracks import SparseTracks, read_tracks
from stream_recon.app.slam.dense.views import StereoView, at_pixels
from stream_recon.app.sources.source import Source
from stream_recon.configs.errors import InputError
from stream_recon.configs.schema import CONFIDENCE_LEVELS

MIN_KEYFRAMES = 3
"""Least number of keyframes: fewer confirm nothing."""
HALF_BASELINE = 0.034
"""Extent of the cameras that observe a triangulated point, as a share of its distance, at which its weight is 1 / 2."""
MAX_TRACK_ERROR_PX = 1.5
"""Largest mean reprojection error of a triangulated point that corrects depth, in pixels of the refinement."""


@dataclass(frozen=True)
class DenseInput:
    """A refined result and what its views are made of."""

    result: ResultFolder
    tracks: SparseTracks
    keyframes: list[FrameCamera]
    observed: dict[int, tuple[int, int]] = field(repr=False)
    """Rows of each keyframe's observations in ``order``."""
    order: NDArray[np.intp] = field(repr=False)

    @staticmethod
    def of(result: ResultFolder) -> "DenseInput | None":
        """None where the result was not refined, or too little of it."""
        tracks = read_tracks(result.folder)
        if result.refinement_id is None or tracks is None:
            return None
        left = [(s["first"], s["last"]) for s in result.run[REFINEMENT].get("fallback_segments", [])]
        with_tracks = set(tracks.frame.tolist())
        keyframes = [
            camera
            for camera in result.with_depth(result.cameras)
            if camera.index in with_tracks and not any(first <= camera.index <= last for first, last in left)
        ]
        if len(keyframes) < MIN_KEYFRAMES:
            return None
        order = np.argsort(tracks.frame, kind="stable")
        frames, starts = np.unique(tracks.frame[order], return_index=True)
        ends = [*starts[1:].tolist(), len(order)]
        observed = {int(f): (int(s), int(e)) for f, s, e in zip(frames, starts, ends, strict=True)}
        return DenseInput(result, tracks, keyframes, observed, order)

    def view(self, frame: Frame, camera: FrameCamera, side: int) -> tuple[StereoView, NDArray[np.uint8]]:
        """The stereo view of a keyframe, and its undistorted image."""
        stored = result_of(self.result.folder, camera)
        image = _undistorted(reduced(frame.rgb, max(IMAGE_SIDE, side)), camera)
        height, width = image.shape[:2]
        size = reduced_size((width, height), side)
        grey = cv2.resize(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), size, interpolation=cv2.INTER_AREA)
        full = stored.transform.source_size
        sx, sy = size[0] / full[0], size[1] / full[1]
        k = camera.intrinsics
        pixels, depths, weights = self._points(camera)
        level = np.where(stored.depth > 0, confidence_levels(stored), np.float32(0))
        view = StereoView(
            camera.index,
            grey.astype(np.float32),
            Intrinsics(k.fx * sx, k.fy * sy, k.cx * sx, k.cy * sy),
            camera.T_world_camera,
            at_pixels(stored.depth, stored.transform, size),
            (pixels * (sx, sy)).astype(np.float32),
            depths.astype(np.float32),
            weights.astype(np.float32),
            at_pixels(level, stored.transform, size) < CONFIDENCE_LEVELS["low"],
        )
        return view, image

    @cached_property
    def _point_weights(self) -> NDArray[np.float64]:
        """Weights [M] of the triangulated points from 0 to 1, by the extent of the cameras that observe them.

        The weight is the inverse of the sum of two variances of log depth, one of triangulation and one of all points.
        """
        centres = {camera.index: camera.T_world_camera[:3, 3] for camera in self.result.cameras}
        observers = np.array([centres.get(index, np.zeros(3)) for index in self.tracks.frame.tolist()])
        starts = np.flatnonzero(np.diff(self.tracks.point, prepend=-1))
        extent = np.maximum.reduceat(observers, starts) - np.minimum.reduceat(observers, starts)
        distance = np.linalg.norm(self.tracks.points[self.tracks.point[starts]] - observers[starts], axis=1)
        weights = np.zeros(len(self.tracks.points))
        baseline = np.linalg.norm(extent, axis=1) / np.maximum(distance, 1e-12)
        weights[self.tracks.point[starts]] = 1 / (1 + (HALF_BASELINE / np.maximum(baseline, 1e-9)) ** 2)
        return weights

    def _points(self, camera: FrameCamera) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Undistorted source pixels [N, 2], depths [N] and weights [N] of the points that a keyframe observes."""
        first, last = self.observed[camera.index]
        points = np.unique(self.tracks.point[self.order[first:last]])
        full = camera.source_size
        limit = MAX_TRACK_ERROR_PX * max(1.0, max(full) / 800)
        points = points[self.tracks.errors[points] < limit]
        T = invert_pose(camera.T_world_camera)
        local = self.tracks.points[points] @ T[:3, :3].T + T[:3, 3]
        points, local = points[local[:, 2] > 0], local[local[:, 2] > 0]
        k = camera.intrinsics
        pixels = local[:, :2] / local[:, 2:] * (k.fx, k.fy) + (k.cx, k.cy)
        return pixels, local[:, 2], self._point_weights[points]


def _undistorted(image: NDArray[np.uint8], camera: FrameCamera) -> NDArray[np.uint8]:
    maps = _undistortion(camera.intrinsics, camera.source_size, (image.shape[1], image.shape[0]))
    if maps is None:
        return image
    return np.asarray(cv2.remap(image, *maps, cv2.INTER_LINEAR, None, cv2.BORDER_CONSTANT), np.uint8)


@lru_cache(maxsize=2)
def _undistortion(
    camera: Intrinsics, full: tuple[int, int], size: tuple[int, int]
) -> tuple[NDArray[np.float32], NDArray[np.float32]] | None:
    """Columns and rows [h, w] in a source's image of ``size`` of the pixels of the undistorted one; None: the same.

    ``full``: size in which the camera counts.
    """
    model = camera.camera_model.straightened(full)
    if model.is_straight:
        return None
    x, y = np.meshgrid(*((np.arange(n) + 0.5) * whole / n for n, whole in zip(size, full, strict=True)))
    pixels = model.pixels((np.stack([x, y], axis=-1) - (model.cx, model.cy)) / model.focal)
    coordinates = (pixels * (size[0] / full[0], size[1] / full[1]) - 0.5).astype(np.float32)
    return np.ascontiguousarray(coordinates[..., 0]), np.ascontiguousarray(coordinates[..., 1])


def frames_of(source: Source, cameras: Sequence[FrameCamera]) -> Iterator[tuple[Frame, FrameCamera]]:
    """The source's frames of these cameras, in order."""
    by_index = {camera.index: camera for camera in cameras}
    for frame in source.frames_at(by_index):
        camera = by_index[frame.index]
        if camera.source_size != (frame.rgb.shape[1], frame.rgb.shape[0]):
            raise InputError(f"{source.name}: frame {frame.index} has another size than in the result")
        yield frame, camera
