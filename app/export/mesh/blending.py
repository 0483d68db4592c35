"""Images of views averaged with those of other views, warped over the mesh, where they agree.

The mean of a few images has less noise, and less error where the mesh or a pose is off. Where two images differ by more
than noise, as at something that moves, in reflections and where the mesh is wrong, the view's own image stays.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.transforms import invert_pose
from stream_recon.app.export.mesh.fusion import SourceView
from stream_recon.app.export.mesh.rasterizer import project_vertices, rasterize
from stream_recon.app.export.mesh.surface import Mesh

FloatArray = NDArray[np.float32]
OTHERS = 3
"""Most views that an image is averaged with."""
HELD_VIEWS = 24
"""Views whose images and depth buffers are held in memory."""
DEPTH_FACTOR = 0.5
"""Size of the depth buffers against that of the images."""
SAME_SURFACE = 0.02
"""Relative difference of depth up to which two views show the same surface."""
SAME_COLOUR = 20.0
"""Difference of colours, averaged over `WINDOW` pixels, at which another view's weight falls to 0.6."""
WINDOW = 5
LEAST_SHARE = 0.1
"""Least share of a view's triangles that another view shows at half of its quality or better."""


def companions(scores: NDArray[np.float16], labels: NDArray[np.int32]) -> list[list[int]]:
    """For each view, the up to `OTHERS` views that show the triangles labelled with it best, best first."""
    found = []
    for view in range(len(scores)):
        own = np.flatnonzero(labels == view)
        relative = scores[:, own].astype(np.float32) / np.maximum(scores[view, own].astype(np.float32), 1e-3)
        share = (relative > 0.5).mean(axis=1) if len(own) else np.zeros(len(scores))
        share[view] = 0
        best = np.argsort(-share, kind="stable")[:OTHERS]
        found.append([int(other) for other in best if share[other] > LEAST_SHARE])
    return found


@dataclass(frozen=True)
class _Shown:
    """A view, its image with its gain, and the inverse depth of the mesh in it."""

    view: SourceView
    image: FloatArray  # [H, W, 3]
    inverse: FloatArray  # [h, w], 0 where there is none


class Blender:
    """Averaged images of the views of a mesh."""

    def __init__(self, opened: Callable[[int], SourceView], mesh: Mesh, gains: FloatArray) -> None:
        """
        Args:
            opened: returns a view by its number; may raise OutputError.
            gains: factors [V, 3] of the channels of each view.
        """
        self._opened, self._mesh, self._gains = opened, mesh, gains
        self._shown = lru_cache(HELD_VIEWS)(self._drawn)

    def image(self, view: int, others: Sequence[int]) -> NDArray[np.uint8]:
        """The view's image [H, W, 3] averaged with others'. Raises OutputError where one cannot be read."""
        own = self._shown(view)
        if not others:
            return _rounded(own.image)
        height, width = own.image.shape[:2]
        inverse = cv2.resize(own.inverse, (width, height), interpolation=cv2.INTER_LINEAR)
        edge = cv2.dilate(own.inverse, np.ones((3, 3))) - cv2.erode(own.inverse, np.ones((3, 3)))
        smooth = cv2.resize(np.float32(edge < 2 * SAME_SURFACE * own.inverse), (width, height)) > 0.99
        known = smooth & (inverse > 0)
        depth = 1 / np.where(known, inverse, 1)
        smoothed = cv2.blur(own.image, (WINDOW, WINDOW))
        total, weights = own.image.copy(), np.ones((height, width, 1), np.float32)
        for other in others:
            warped, visible = _warped(own.view, depth, self._shown(other))
            difference = np.abs(cv2.blur(warped, (WINDOW, WINDOW)) - smoothed).max(axis=2)
            weight = np.exp(-0.5 * np.square(difference / np.float32(SAME_COLOUR)))
            weight = np.where(known & visible, weight, np.float32(0))[..., None]
            total += weight * warped
            weights += weight
        return _rounded(total / weights)

    def _drawn(self, view: int) -> _Shown:
        source = self._opened(view)
        height, width = source.image.shape[:2]
        size = max(round(width * DEPTH_FACTOR), 1), max(round(height * DEPTH_FACTOR), 1)
        projection = project_vertices(self._mesh.xyz, source.T_world_camera, source.camera)
        _, inverse = rasterize(projection.scaled(size[0] / width), self._mesh.faces, size)
        return _Shown(source, source.image * self._gains[view], inverse)


def _warped(own: SourceView, depth: FloatArray, other: _Shown) -> tuple[FloatArray, NDArray[np.bool_]]:
    """Another view's image at the pixels of a view with ``depth`` [H, W], and where it shows the same surface."""
    height, width = depth.shape
    T = (invert_pose(other.view.T_world_camera) @ own.T_world_camera).astype(np.float32)
    k, camera = own.camera, other.view.camera
    x = (np.arange(width, dtype=np.float32) + np.float32(0.5 - k.cx)) / np.float32(k.fx)
    y = ((np.arange(height, dtype=np.float32) + np.float32(0.5 - k.cy)) / np.float32(k.fy))[:, None]
    there = [(T[row, 0] * x + T[row, 1] * y + T[row, 2]) * depth + T[row, 3] for row in range(3)]
    z = np.maximum(there[2], 1e-9)
    u, v = (
        (there[0] / z * camera.fx + camera.cx).astype(np.float32),
        (there[1] / z * camera.fy + camera.cy).astype(np.float32),
    )
    image = cv2.remap(other.image, u - np.float32(0.5), v - np.float32(0.5), cv2.INTER_LINEAR, borderValue=0)
    rows, columns = other.inverse.shape
    to_buffer = columns / other.image.shape[1], rows / other.image.shape[0]
    seen = cv2.remap(
        other.inverse,
        (u * to_buffer[0] - 0.5).astype(np.float32),
        (v * to_buffer[1] - 0.5).astype(np.float32),
        cv2.INTER_NEAREST,
        borderValue=0,
    )
    visible = (there[2] > 0) & (np.abs(seen * there[2] - 1) < SAME_SURFACE)
    return np.asarray(image, np.float32), visible


def _rounded(colours: FloatArray) -> NDArray[np.uint8]:
    return np.asarray(np.rint(colours).clip(0, 255), np.uint8)
