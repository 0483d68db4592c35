"""The pinhole camera of an export, and the up direction of a result.

Pixel (0, 0) covers [0, 1) x [0, 1) in all images. Source images may be distorted; exported images are not. They keep
the source's focal length in pixels, and are as large as possible without blank pixels, and up to `WIDEST_DEG`.
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
from stream_recon.app.result.cameras import FrameCamera
from stream_recon.app.result.folder import ResultFolder
from stream_recon.app.result.tracks import SparseTracks
from stream_recon.configs.errors import InputError

FloatArray = NDArray[np.float64]
WIDEST_DEG = 110.0
"""Widest field of view along each side of undistorted images: beyond it, a plane stretches the border several times."""


@dataclass(frozen=True)
class PinholeView:
    """Cameras of source and exported images, with maps between their pixels."""

    source_size: tuple[int, int]
    source: Intrinsics
    """Its camera, with distortion where source images have it."""
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
        undistorted = s.camera_model.undistorted(distorted)
        exact = np.abs(s.camera_model.distorted(undistorted) - distorted).max(axis=-1, keepdims=True) < 1e-6
        undistorted = np.where(exact, undistorted, np.nan)
        return np.asarray(undistorted * (k.fx, k.fy) + (k.cx, k.cy))

    def to_source(self, pixels: NDArray[np.floating]) -> FloatArray:
        """Pixels [..., 2] of an exported image in the source image."""
        s, k = self.source, self.intrinsics
        undistorted = (np.asarray(pixels, np.float64) - (k.cx, k.cy)) / (k.fx, k.fy)
        return np.asarray(s.camera_model.distorted(undistorted) * (s.fx, s.fy) + (s.cx, s.cy))

    def image(self, rgb: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """The exported image [h, w, 3] of a source image [H, W, 3]."""
        if not self.source.camera_model.is_straight:
            # Undistorted at full size, then resized: sampling a large image sparsely would alias.
            rgb = cv2.remap(rgb, *self._full_maps, interpolation=cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE)
        if (rgb.shape[1], rgb.shape[0]) == self.size:
            return rgb
        return np.asarray(cv2.resize(rgb, self.size, interpolation=cv2.INTER_AREA), np.uint8)

    def mask(self, mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """The mask [h, w] of an exported image from the mask [H, W] of a source image."""
        white = np.repeat(np.where(mask, np.uint8(0), np.uint8(255))[..., None], 3, axis=2)
        return np.asarray(self.image(white)[..., 0] < 128)

    def from_network(self, image: NDArray[Any], transform: ImageTransform) -> NDArray[Any]:
        """An image or map of the network's size resampled to an exported one [h, w, ...]."""
        xy = self.to_network(self._grid, transform).astype(np.float32) - np.float32(0.5)
        border = cv2.BORDER_REPLICATE if image.ndim == 3 else cv2.BORDER_CONSTANT
        return np.asarray(cv2.remap(image, xy[..., 0], xy[..., 1], cv2.INTER_LINEAR, borderMode=border))

    def from_map(self, image: NDArray[Any], result: FrameResult, interpolation: int = cv2.INTER_LINEAR) -> NDArray[Any]:
        """A map of a frame's result, which may be a dense one, resampled to an exported image; see `to_map`."""
        xy = self.to_map(self._grid, result).astype(np.float32) - np.float32(0.5)
        border = cv2.BORDER_REPLICATE if image.ndim == 3 else cv2.BORDER_CONSTANT
        return np.asarray(cv2.remap(image, xy[..., 0], xy[..., 1], interpolation, borderMode=border))

    def to_map(self, pixels: NDArray[np.floating], result: FrameResult) -> FloatArray:
        """Pixels [..., 2] of an exported image in the depth map of a frame's result, which is of a pinhole camera."""
        k, own = self.intrinsics, result.network_intrinsics
        rays = (np.asarray(pixels, np.float64) - (k.cx, k.cy)) / (k.fx, k.fy)
        return np.asarray(rays * (own.fx, own.fy) + (own.cx, own.cy))

    def to_network(self, pixels: NDArray[np.floating], transform: ImageTransform) -> FloatArray:
        """Pixels [..., 2] of an exported image in the image that the network was given."""
        return np.asarray((self.to_source(pixels) - transform.crop[:2]) * transform.scale)

    @property
    def _grid(self) -> FloatArray:
        x, y = np.meshgrid(np.arange(self.size[0]) + 0.5, np.arange(self.size[1]) + 0.5)
        return np.stack([x, y], axis=-1)

    @cached_property
    def _full_maps(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        full = pinhole_view(self.source_size, self.source)
        xy = full.to_source(full._grid).astype(np.float32) - np.float32(0.5)
        return np.ascontiguousarray(xy[..., 0]), np.ascontiguousarray(xy[..., 1])


def pinhole_view(source_size: tuple[int, int], source: Intrinsics) -> PinholeView:
    """The view of a source at full size, without resampling where distortion moves no pixel noticeably."""
    camera_model = source.camera_model.straightened(source_size)
    if camera_model.is_straight:
        return PinholeView(source_size, source.pinhole, source_size, source.pinhole)
    # Half sizes to the nearer border, so that the principal point is at the image centre.
    half = np.array(
        [min(source.cx, source_size[0] - source.cx) / source.fx, min(source.cy, source_size[1] - source.cy) / source.fy]
    )
    # Where distortion grows outward corners limit the size, otherwise the middles of the borders.
    corner, middles = camera_model.undistorted(half), np.diag(camera_model.undistorted(np.diag(half)))
    half = np.minimum(np.minimum(corner, middles), np.tan(np.radians(WIDEST_DEG / 2)))
    wide, high = (max(1, int(2 * value)) for value in (half[0] * source.fx, half[1] * source.fy))
    # Odd or even like the source: an offset of half a pixel between the centres would blur the image.
    size = (max(1, wide - (source_size[0] - wide) % 2), max(1, high - (source_size[1] - high) % 2))
    return PinholeView(source_size, source, size, Intrinsics(source.fx, source.fy, size[0] / 2, size[1] / 2))


def undistorted_view(source_size: tuple[int, int], source: Intrinsics) -> PinholeView:
    """The view of undistorted images with size and centre of the source's, as of depth maps."""
    return PinholeView(source_size, source, source_size, source.pinhole)


def shared_view(cameras: Sequence[FrameCamera], tracks: SparseTracks | None) -> PinholeView:
    """One view for all frames, of the refinement's camera, or else of the median of the frames' cameras.

    Raises InputError: the frames' images had different sizes.
    """
    sizes = {camera.source_size for camera in cameras}
    if len(sizes) > 1:
        raise InputError("the result's images are of different sizes: an export needs images of one camera")
    size = sizes.pop()
    if tracks is not None and len(tracks.lens) >= 4:
        return pinhole_view(size, Intrinsics.from_camera_model(tracks.camera_model))
    rows = np.array([[c.intrinsics.fx, c.intrinsics.fy, c.intrinsics.cx, c.intrinsics.cy] for c in cameras])
    return pinhole_view(size, Intrinsics(*(float(value) for value in np.median(rows, axis=0))))


Up = Literal["auto", "keep"]


def world_up(cameras: Sequence[FrameCamera]) -> NDArray[np.float64]:
    """Up direction of the world as a unit vector [3], from one or more cameras; see `up_direction`."""
    return up_direction(np.array([camera.T_world_camera[:3, :3] for camera in cameras]))


def gltf_axes(result: ResultFolder, up: Up) -> NDArray[np.float64]:
    """Rotation [3, 3] from the world to glTF's axes: x right, y up, z backward.

    ``auto``: the first camera's axes with y along the result's up direction; ``keep``: the first camera's axes.
    """
    if up == "keep":
        return np.diag([1.0, -1.0, -1.0])
    return level_axes(result.up, result.cameras[0].T_world_camera[:3, 2])


def gltf_note(axes: NDArray[np.float64]) -> str:
    """A line for README.txt on the rotation ``axes`` [3, 3] of `gltf_axes`."""
    rows = "; ".join(" ".join(f"{value:.6f}" for value in row + 0.0) for row in axes)
    return (
        "In the file y is up and z backward, as in glTF: a point of the world above is multiplied by the rotation "
        f"with the rows ({rows})."
    )
