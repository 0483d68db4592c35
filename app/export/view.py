"""The pinhole camera of an export, and the up direction of a result.

Pixel (0, 0) covers [0, 1) x [0, 1) in all images. A source image may have radial distortion (COLMAP's SIMPLE_RADIAL):
u = cx + f (1 + k1 r^2) x / z with r^2 = (x^2 + y^2) / z^2. Exported images are undistorted. They keep the source's
focal length in pixels, and are as large as possible without blank pixels.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.transforms import level_axes, up_direction
from stream_recon.app.core.types import FrameResult, ImageTransform, Intrinsics
from stream_recon.app.result.cameras import Camera
from stream_recon.app.result.tracks import SparseTracks
from stream_recon.configs.errors import InputError

FloatArray = NDArray[np.float64]
NEWTON_STEPS = 20
"""Iterations that invert the distortion, more than any lens needs."""
MIN_DISTORTION_PX = 0.1
"""Least distortion that is removed: for a smaller one, resampling would blur more than it corrects."""


@dataclass(frozen=True)
class PinholeView:
    """Cameras of source and exported images, with maps between their pixels."""

    source_size: tuple[int, int]
    source: Intrinsics
    k1: float
    size: tuple[int, int]
    """Width and height of exported images."""
    intrinsics: Intrinsics
    """Intrinsics of exported images, in their pixels."""

    def scaled(self, max_side: int | None) -> "PinholeView":
        """The same view with a longer side of at most ``max_side``."""
        longer = max(self.size)
        if max_side is None or longer <= max_side:
            return self
        size = (max(1, round(self.size[0] * max_side / longer)), max(1, round(self.size[1] * max_side / longer)))
        sx, sy = size[0] / self.size[0], size[1] / self.size[1]
        k = self.intrinsics
        return replace(self, size=size, intrinsics=Intrinsics(k.fx * sx, k.fy * sy, k.cx * sx, k.cy * sy))

    def to_export(self, pixels: NDArray[np.floating]) -> FloatArray:
        """Pixels [N, 2] of the source image in an exported one; NaN where the distortion has no inverse."""
        s, k = self.source, self.intrinsics
        distorted = (np.asarray(pixels, np.float64) - (s.cx, s.cy)) / (s.fx, s.fy)
        undistorted = distorted * _undistortion(np.linalg.norm(distorted, axis=-1), self.k1)[..., None]
        return np.asarray(undistorted * (k.fx, k.fy) + (k.cx, k.cy))

    def to_source(self, pixels: NDArray[np.floating]) -> FloatArray:
        """Pixels [..., 2] of an exported image in the source image."""
        s, k = self.source, self.intrinsics
        undistorted = (np.asarray(pixels, np.float64) - (k.cx, k.cy)) / (k.fx, k.fy)
        factor = 1 + self.k1 * np.square(undistorted).sum(axis=-1, keepdims=True)
        return np.asarray(undistorted * factor * (s.fx, s.fy) + (s.cx, s.cy))

    def image(self, rgb: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """The exported image [h, w, 3] of a source image [H, W, 3]."""
        if self.k1:
            # Undistorted at full size, then resized: sampling a large image sparsely would alias.
            rgb = cv2.remap(rgb, *self._full_maps, interpolation=cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE)
        if (rgb.shape[1], rgb.shape[0]) == self.size:
            return rgb
        return np.asarray(cv2.resize(rgb, self.size, interpolation=cv2.INTER_AREA), np.uint8)

    def mask(self, mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """The mask [h, w] of an exported image from the mask [H, W] of a source image."""
        white = np.repeat(np.where(mask, np.uint8(0), np.uint8(255))[..., None], 3, axis=2)
        return np.asarray(self.image(white)[..., 0] < 128)

    def from_network(
        self, image: NDArray[Any], transform: ImageTransform, interpolation: int = cv2.INTER_LINEAR
    ) -> NDArray[Any]:
        """An image or map of the network's size resampled to an exported one [h, w, ...]."""
        xy = self.to_network(self._grid, transform).astype(np.float32) - np.float32(0.5)
        border = cv2.BORDER_REPLICATE if image.ndim == 3 else cv2.BORDER_CONSTANT
        return np.asarray(cv2.remap(image, xy[..., 0], xy[..., 1], interpolation, borderMode=border))

    def from_map(self, image: NDArray[Any], result: FrameResult, interpolation: int = cv2.INTER_LINEAR) -> NDArray[Any]:
        """A map of a frame's result, which may be a dense one, resampled to an exported image; see `to_map`."""
        xy = self.to_map(self._grid, result).astype(np.float32) - np.float32(0.5)
        border = cv2.BORDER_REPLICATE if image.ndim == 3 else cv2.BORDER_CONSTANT
        return np.asarray(cv2.remap(image, xy[..., 0], xy[..., 1], interpolation, borderMode=border))

    def to_map(self, pixels: NDArray[np.floating], result: FrameResult) -> FloatArray:
        """Pixels [..., 2] of an exported image in the depth map of a frame's result.

        The network's maps are distorted as the source's images are; dense ones are of a pinhole camera.
        """
        if result.certainty is None:
            return self.to_network(pixels, result.transform)
        k, own = self.intrinsics, result.network_intrinsics
        rays = (np.asarray(pixels, np.float64) - (k.cx, k.cy)) / (k.fx, k.fy)
        return np.asarray(rays * (own.fx, own.fy) + (own.cx, own.cy))

    def to_network(self, pixels: NDArray[np.floating], transform: ImageTransform) -> FloatArray:
        """Pixels [..., 2] of an exported image in the network's image."""
        return np.asarray((self.to_source(pixels) - transform.crop[:2]) * transform.scale)

    @property
    def _grid(self) -> FloatArray:
        x, y = np.meshgrid(np.arange(self.size[0]) + 0.5, np.arange(self.size[1]) + 0.5)
        return np.stack([x, y], axis=-1)

    @cached_property
    def _full_maps(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        full = pinhole_view(self.source_size, self.source, self.k1)
        xy = full.to_source(full._grid).astype(np.float32) - np.float32(0.5)
        return np.ascontiguousarray(xy[..., 0]), np.ascontiguousarray(xy[..., 1])


def pinhole_view(source_size: tuple[int, int], source: Intrinsics, k1: float = 0.0) -> PinholeView:
    """The view of a source at full size, without resampling where distortion is below `MIN_DISTORTION_PX`."""
    corner = np.hypot(
        max(source.cx, source_size[0] - source.cx) / source.fx, max(source.cy, source_size[1] - source.cy) / source.fy
    )
    if abs(k1) * corner**3 * max(source.fx, source.fy) < MIN_DISTORTION_PX:
        return PinholeView(source_size, source, 0.0, source_size, source)
    # Half sizes in focal lengths, to the nearer border, so that the principal point is at the image centre.
    half = np.array(
        [min(source.cx, source_size[0] - source.cx) / source.fx, min(source.cy, source_size[1] - source.cy) / source.fy]
    )
    # With pincushion distortion corners limit the size, with barrel distortion the middles of the borders.
    half = half * _undistortion(np.full(2, np.hypot(*half)) if k1 > 0 else half, k1)
    wide, high = (max(1, int(2 * value)) for value in (half[0] * source.fx, half[1] * source.fy))
    # Odd or even like the source: an offset of half a pixel between the centres would blur the image.
    size = (max(1, wide - (source_size[0] - wide) % 2), max(1, high - (source_size[1] - high) % 2))
    intrinsics = Intrinsics(source.fx, source.fy, size[0] / 2, size[1] / 2)
    return PinholeView(source_size, source, k1, size, intrinsics)


def shared_view(cameras: Sequence[Camera], tracks: SparseTracks | None, fallback: tuple[int, int]) -> PinholeView:
    """One view for all frames, of the refinement's camera, or else of the median of the frames' cameras.

    ``fallback``: the source's size where the cameras do not have it, as in old results. Raises InputError: the frames'
    images had different sizes.
    """
    sizes = {camera.source_size or fallback for camera in cameras}
    if len(sizes) > 1:
        raise InputError("the result's images are of different sizes: an export needs images of one camera")
    size = sizes.pop()
    if tracks is not None and len(tracks.lens) == 4:
        focal, cx, cy, k1 = (float(value) for value in tracks.lens)
        return pinhole_view(size, Intrinsics(focal, focal, cx, cy), k1)
    rows = np.array([[c.intrinsics.fx, c.intrinsics.fy, c.intrinsics.cx, c.intrinsics.cy] for c in cameras])
    return pinhole_view(size, Intrinsics(*(float(value) for value in np.median(rows, axis=0))))


def _undistortion(distorted: FloatArray, k1: float) -> FloatArray:
    """Factor r / d that undistorts radii d [...], where d = r (1 + k1 r^2).

    NaN beyond the largest radius of such a camera.
    """
    if not k1:
        return np.ones_like(distorted)
    r = np.asarray(distorted, np.float64).copy()
    limit = np.inf if k1 > 0 else np.sqrt(-1 / (3 * k1))
    r = np.minimum(r, limit)
    for _ in range(NEWTON_STEPS):
        slope = np.maximum(1 + 3 * k1 * r * r, 1e-9)
        r = np.clip(r - (r * (1 + k1 * r * r) - distorted) / slope, 0, limit)
    solved = np.abs(r * (1 + k1 * r * r) - distorted) < 1e-6 * np.maximum(distorted, 1e-3)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(distorted < 1e-12, 1.0, np.where(solved, r / distorted, np.nan))


Up = Literal["auto", "keep"]


def world_up(cameras: Sequence[Camera]) -> NDArray[np.float64]:
    """Up direction of the world as a unit vector [3], from one or more cameras; see `up_direction`."""
    return up_direction(np.array([camera.T_world_camera[:3, :3] for camera in cameras]))


def gltf_axes(cameras: Sequence[Camera], up: Up) -> NDArray[np.float64]:
    """Rotation [3, 3] from the world to glTF's axes: x right, y up, z backward.

    ``auto``: the first camera's axes with y along the estimated up direction; ``keep``: the first camera's axes.
    """
    if up == "keep":
        return np.diag([1.0, -1.0, -1.0])
    return level_axes(np.array([camera.T_world_camera[:3, :3] for camera in cameras]))


def gltf_note(axes: NDArray[np.float64]) -> str:
    """A line for README.txt on the rotation ``axes`` [3, 3] of `gltf_axes`."""
    rows = "; ".join(" ".join(f"{value:.6f}" for value in row + 0.0) for row in axes)
    return (
        "In the file y is up and z backward, as in glTF: a point of the world above is multiplied by the rotation "
        f"with the rows ({rows})."
    )
