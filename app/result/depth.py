"""Depth files, one per frame: depth and confidence as float16, the image as JPEG, and its crop in the source.

``depth/000000.npz`` holds ``depth`` and ``confidence`` [h, w] float16; ``rgb_jpeg``, the network's image [h, w, 3] as
the bytes of a JPEG file; ``source_size`` (width, height), ``crop`` (left, top, width, height) in source pixels and
``network_size`` (width, height): crop, then resize, maps source to network pixels. The zip is not compressed, because
compression of float16 depth costs much time and saves little.
"""

import io
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.depth_points import look_up
from stream_recon.app.core.types import FrameResult, ImageTransform, Intrinsics
from stream_recon.app.result.cameras import FrameCamera
from stream_recon.app.result.files import replace_file
from stream_recon.app.result.tracks import DAMAGE, read_arrays
from stream_recon.configs.errors import OutputError

DEPTH_FOLDER = "depth"
JPEG_QUALITY = 92
"""A compromise between size and quality: the image colours points, and refinement may match it."""
ARRAYS = ("rgb_jpeg", "crop", "source_size", "network_size", "depth", "confidence")
FLOAT16_MAX = float(np.finfo(np.float16).max)


@dataclass(frozen=True)
class DepthFile:
    """The content of a depth file."""

    depth: NDArray[np.float32]  # [h, w]
    confidence: NDArray[np.float32]  # [h, w]
    rgb: NDArray[np.uint8]  # [h, w, 3]
    transform: ImageTransform

    def result(self, camera: FrameCamera) -> FrameResult:
        """The frame's result, whose maps and image are those of a pinhole camera."""
        return FrameResult(
            index=camera.index, timestamp=camera.timestamp, T_world_camera=camera.T_world_camera,
            intrinsics=camera.intrinsics.pinhole, depth=self.depth, confidence=self.confidence, rgb=self.rgb,
            transform=self.transform, is_keyframe=camera.is_keyframe, flow=camera.flow, segment=camera.segment,
            health=camera.health,
        )  # fmt: skip


def depth_path(folder: Path, index: int) -> Path:
    return folder / DEPTH_FOLDER / f"{index:06d}.npz"


def write_depth(folder: Path, result: FrameResult) -> None:
    """Write a frame's file into the result folder. Raises OutputError."""
    maps = {"depth": half(result.depth), "confidence": half(result.confidence)}
    write_maps(depth_path(folder, result.index), maps, jpeg_of(result.rgb), result.transform)


def jpeg_of(rgb: NDArray[np.uint8], quality: int = JPEG_QUALITY) -> bytes:
    """An image [h, w, 3] as a JPEG file."""
    ok, jpeg = cv2.imencode(".jpg", cv2.cvtColor(rgb, cv2.COLOR_RGB2BGR), [cv2.IMWRITE_JPEG_QUALITY, quality])
    assert ok, "an 8-bit image can always be encoded"
    return bytes(jpeg)


def write_maps(path: Path, maps: Mapping[str, NDArray[Any]], rgb_jpeg: bytes, transform: ImageTransform) -> None:
    """Write named arrays with their image and its place in the source. Raises OutputError."""
    # In memory first: a zip written to a file takes many small writes.
    content = io.BytesIO()
    np.savez(
        content, allow_pickle=False, **maps, rgb_jpeg=np.frombuffer(rgb_jpeg, np.uint8),
        source_size=np.array(transform.source_size, np.int32), crop=np.array(transform.crop, np.float64),
        network_size=np.array(transform.network_size, np.int32),
    )  # fmt: skip
    replace_file(path, lambda file: file.write(content.getbuffer()))


def read_depth(path: Path) -> DepthFile:
    """Read a frame's file. Raises OutputError where it is missing or damaged."""
    try:
        return _depth_file(read_arrays(path, ARRAYS, stored=True))
    except (*DAMAGE, cv2.error) as error:
        raise OutputError(f"{path} is missing or damaged: {error}") from error


def _depth_file(arrays: Mapping[str, NDArray[Any]]) -> DepthFile:
    bgr = cv2.imdecode(arrays["rgb_jpeg"].reshape(-1), cv2.IMREAD_COLOR)
    depth, confidence = finite(arrays["depth"]), finite(arrays["confidence"])
    transform = stored_transform(arrays)
    if bgr is None or not depth.shape == confidence.shape == bgr.shape[:2] == transform.network_size[::-1]:
        raise ValueError("depth, confidence and image differ in size")
    return DepthFile(depth, confidence, cv2.cvtColor(bgr, cv2.COLOR_BGR2RGB), transform)


def stored_transform(arrays: Mapping[str, NDArray[Any]]) -> ImageTransform:
    """The place of a file's image in the source. Raises ValueError where it is not valid."""
    left, top, width, height = (float(value) for value in arrays["crop"].tolist())
    source_size, size = ((int(v[0]), int(v[1])) for v in (arrays["source_size"], arrays["network_size"]))
    if not np.isfinite([left, top, width, height]).all() or min(width, height, *source_size, *size) < 1:
        raise ValueError("its crop or sizes are not valid")
    return ImageTransform(source_size, (left, top, width, height), size)


def finite(values: NDArray[Any]) -> NDArray[np.float32]:
    """Values that are not finite become 0, no depth."""
    return np.nan_to_num(values.astype(np.float32), copy=False, nan=0.0, posinf=0.0, neginf=0.0)


def undistorted(file: DepthFile, camera: Intrinsics) -> DepthFile:
    """The maps and the image as of a pinhole camera; ``camera``: of the source. Depth is 0 outside the image."""
    maps = _pixels_in_distorted(camera, file.transform)
    if maps is None:
        return file
    # Interpolation would put depth between two surfaces.
    depth, confidence = (
        np.asarray(look_up(values, *maps, "nearest"), np.float32) for values in (file.depth, file.confidence)
    )
    rgb = np.asarray(cv2.remap(file.rgb, *maps, cv2.INTER_LINEAR, borderMode=cv2.BORDER_CONSTANT), np.uint8)
    return DepthFile(depth, confidence, rgb, file.transform)


@lru_cache(maxsize=4)
def _pixels_in_distorted(
    camera: Intrinsics, transform: ImageTransform
) -> tuple[NDArray[np.float32], NDArray[np.float32]] | None:
    """Positions x, y [h, w] in the network's image of the pixels of an undistorted one, for cv2.remap; None: equal."""
    model = camera.camera_model.straightened(transform.source_size)
    if model.is_straight:
        return None
    width, height = transform.network_size
    sx, sy = transform.scale
    x, y = np.meshgrid((np.arange(width) + 0.5) / sx, (np.arange(height) + 0.5) / sy)
    source = np.stack([x, y], axis=-1) + transform.crop[:2]
    focal, centre = (camera.fx, camera.fy), (camera.cx, camera.cy)
    pixels = model.distorted((source - centre) / focal) * focal + centre
    coordinates = ((pixels - transform.crop[:2]) * (sx, sy)).astype(np.float32) - np.float32(0.5)
    return np.ascontiguousarray(coordinates[..., 0]), np.ascontiguousarray(coordinates[..., 1])


def half(values: NDArray[np.float32]) -> NDArray[np.float16]:
    """Values as float16, clipped to its range."""
    return np.clip(values, np.float32(0), np.float32(FLOAT16_MAX)).astype(np.float16)
