"""Views that stereo compares: images, cameras and the network's depth of keyframes, and the choice of source views."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.transforms import FloatArray
from stream_recon.app.core.types import ImageTransform, Intrinsics, reduced_size
from stream_recon.app.slam.dense.config import SourceConfig

MIN_SIDE = 16
"""Least side of an image of a pyramid in pixels."""


@dataclass(frozen=True)
class StereoView:
    """A keyframe: pinhole image, camera, and prior depth. All images have the same size."""

    index: int
    """Number of the frame in its source."""
    grey: NDArray[np.float32]  # [h, w]
    camera: Intrinsics
    """In pixels of ``grey``."""
    T_world_camera: FloatArray  # [4, 4]
    prior: NDArray[np.float32]  # [h, w]
    """The network's depth after refinement; 0 where there is none."""
    pixels: NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, 2), np.float32))
    """Pixels [N, 2] of triangulated points."""
    depths: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    """Depths [N] of these points."""
    weights: NDArray[np.float32] | None = None
    """Weights [N] of these points from 0 to 1, by how exact their depths are; None: 1."""
    is_guess: NDArray[np.bool_] | None = None
    """Where the prior [h, w] is no more than a guess, as in sky: depth there has to be confirmed. None: nowhere."""

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in pixels."""
        return self.grey.shape[1], self.grey.shape[0]

    def bare(self, rows: int | None = None) -> "StereoView":
        """A view of which only the camera counts, and the image in the first ``rows``; None: the whole image."""
        return StereoView(self.index, self.grey[:rows], self.camera, self.T_world_camera, self.prior[:0])

    def level(self, side: int) -> "tuple[NDArray[np.float32], Intrinsics]":
        """The image with a longer side of at most ``side``, and its camera."""
        size = reduced_size(self.size, side, MIN_SIDE)
        if size == self.size:
            return self.grey, self.camera
        sx, sy = size[0] / self.size[0], size[1] / self.size[1]
        k = self.camera
        small = cv2.resize(self.grey, size, interpolation=cv2.INTER_AREA)
        return np.asarray(small, np.float32), Intrinsics(k.fx * sx, k.fy * sy, k.cx * sx, k.cy * sy)


def at_pixels(values: NDArray[np.float32], transform: ImageTransform, size: tuple[int, int]) -> NDArray[np.float32]:
    """Values of the network's map [h, w] at the pixels of an undistorted image of ``size``; 0 where not positive."""
    height, width = values.shape
    left, top, crop_width, crop_height = transform.crop
    x, y = ((np.arange(n) + 0.5) * full / n for n, full in zip(size, transform.source_size, strict=True))
    column = np.floor((x[None] - left) / crop_width * width).astype(np.intp)
    row = np.floor((y[:, None] - top) / crop_height * height).astype(np.intp)
    inside = (column >= 0) & (row >= 0) & (column < width) & (row < height)
    sampled = values[row.clip(0, height - 1), column.clip(0, width - 1)]
    return np.where(inside & np.isfinite(sampled) & (sampled > 0), sampled, np.float32(0))


def pixel_transfers(
    T_from: FloatArray, camera_from: FloatArray, T_to: FloatArray, camera_to: FloatArray
) -> NDArray[np.float32]:
    """Matrices [n, 3, 4] that project from pixels of views into other ones.

    Pixel p at depth z is at ``P (p z, 1)`` (homogeneous), whose third coordinate is the depth in the other view.

    Args:
        T_from, T_to: camera-to-world poses, [4, 4] or [n, 4, 4].
        camera_from, camera_to: camera matrices, [3, 3] or [n, 3, 3].
    """
    to_pixels = camera_to @ np.swapaxes(T_to[..., :3, :3], -1, -2)
    M = to_pixels @ T_from[..., :3, :3] @ np.linalg.inv(camera_from)
    v = to_pixels @ (T_from[..., :3, 3:] - T_to[..., :3, 3:])
    return np.concatenate([M, v], axis=-1).astype(np.float32)


def source_views(views: Sequence[StereoView], reference: int, config: SourceConfig) -> list[int]:
    """Positions of the best source views of ``views[reference]``, best first.

    A view is good if it sees the same points, at an angle near the best one and from a similar distance.
    """
    view = views[reference]
    points, depth = _probe_points(view, config.probes)
    others = [n for n in range(len(views)) if n != reference]
    if not len(points) or not others:
        return []
    poses = np.array([views[n].T_world_camera for n in others])
    centres = poses[:, :3, 3]
    rays = points[None] - centres[:, None]
    # Points in the axes of each other view [V, N, 3].
    local = rays @ poses[:, :3, :3]
    z = local[..., 2]
    front = np.where(z > 0, z, np.nan)
    cameras = np.array([(k.fx, k.fy, k.cx, k.cy) for k in (views[n].camera for n in others)])
    with np.errstate(invalid="ignore"):
        x = cameras[:, 0, None] * local[..., 0] / front + cameras[:, 2, None]
        y = cameras[:, 1, None] * local[..., 1] / front + cameras[:, 3, None]
        width, height = view.size
        visible = (x >= 0) & (y >= 0) & (x < width) & (y < height)
    overlap = visible.mean(axis=1)
    away = points - view.T_world_camera[:3, 3]
    along = rays[..., 0] * away[:, 0] + rays[..., 1] * away[:, 1] + rays[..., 2] * away[:, 2]
    cosine = along / (_lengths(away) * np.maximum(_lengths(rays), 1e-12))
    angle = np.maximum(_medians(np.degrees(np.arccos(cosine.clip(-1, 1))), visible), 1e-3)
    zoom = _medians(z / depth, visible)
    preference = (np.log(angle / config.best_angle_deg) / config.angle_spread) ** 2
    preference += (np.log(zoom) / config.zoom_spread) ** 2
    score = np.where(overlap >= config.min_overlap, overlap * np.exp(-0.5 * preference), 0.0)
    scores = sorted(zip(score.tolist(), range(len(others)), strict=True), key=lambda scored: (-scored[0], scored[1]))
    chosen: list[int] = []
    least = config.min_baseline * float(np.median(depth))
    for score, row in scores:
        if score < config.min_score or len(chosen) == config.max_count:
            break
        if (_lengths(centres[chosen] - centres[row]) > least).all():
            chosen.append(row)
    return [others[row] for row in chosen]


def _lengths(vectors: FloatArray) -> FloatArray:
    """Lengths [...] of vectors [..., 3]."""
    x, y, z = vectors[..., 0], vectors[..., 1], vectors[..., 2]
    return np.asarray(np.sqrt(x * x + y * y + z * z))


def _medians(values: FloatArray, chosen: NDArray[np.bool_]) -> FloatArray:
    """Median [V] of the chosen values of each row of ``values`` [V, N]; 1 where none is chosen."""
    ordered = np.sort(np.where(chosen, values, np.inf), axis=1)
    count = chosen.sum(axis=1)
    middle = np.take_along_axis(ordered, (np.maximum(count, 1) // 2)[:, None].clip(max=values.shape[1] - 1), axis=1)
    return np.where(count > 0, middle[:, 0], 1.0)


def _probe_points(view: StereoView, probes: tuple[int, int]) -> tuple[FloatArray, FloatArray]:
    """Points [N, 3] in the world on a coarse grid of the view's prior depth, and their depths [N]."""
    width, height = view.size
    rows, columns = (
        (np.linspace(0.06, 0.94, n) * side).astype(np.intp) for n, side in zip(probes, (height, width), strict=True)
    )
    row, column = (grid.ravel() for grid in np.meshgrid(rows, columns, indexing="ij"))
    z = view.prior[row, column].astype(np.float64)
    row, column, z = row[z > 0], column[z > 0], z[z > 0]
    k, T = view.camera, view.T_world_camera
    local = np.stack([(column + 0.5 - k.cx) / k.fx * z, (row + 0.5 - k.cy) / k.fy * z, z], axis=1)
    return local @ T[:3, :3].T + T[:3, 3], z
