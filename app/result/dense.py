"""Dense depth maps of keyframes from multi-view stereo, one file per keyframe of an accepted refinement.

``dense/000000.npz`` holds ``depth`` [h, w] float16, in the unit of the frame's depth file; ``certainty`` [h, w] uint8,
see `Certainty`; ``rgb_jpeg``, the source image, reduced to at most `IMAGE_SIDE` on its longer side, as the bytes of a
JPEG file; ``source_size``, ``crop`` and ``network_size`` as in a depth file; and ``refinement``, the id of the
refinement that gave the poses. A file with the id of another refinement is ignored.

Depth map and image are those of a pinhole camera with the frame's intrinsics: radial distortion is removed.
"""

import io
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.output_file import temporary_name
from stream_recon.app.core.types import Certainty, FrameResult, ImageTransform, reduced_size
from stream_recon.app.result.cameras import FrameCamera
from stream_recon.app.result.depth import FLOAT16_MAX, JPEG_QUALITY
from stream_recon.app.result.files import replace_file
from stream_recon.app.result.tracks import DAMAGE, read_arrays
from stream_recon.configs.errors import OutputError

DENSE_FOLDER = "dense"
IMAGE_SIDE = 960
"""Longer side of the stored image in pixels: sharp enough as a texture, about 120 kB."""
ARRAYS = ("depth", "certainty", "rgb_jpeg", "source_size", "crop", "network_size", "refinement")


@dataclass(frozen=True)
class DenseMap:
    """Dense depth of a keyframe, its certainty, and its image."""

    index: int
    """Number of the frame in its source."""
    depth: NDArray[np.float32]
    """[h, w] along the optical axis, 0 where unknown, in the unit of the frame's depth file: times the camera's
    ``depth_scale`` it is in the result's unit. The camera's depth field is not applied to it."""
    certainty: NDArray[np.uint8]
    """[h, w], see `Certainty`."""
    rgb_jpeg: bytes
    """The image, at least of the size of the depth map unless the source is smaller, as a JPEG file."""
    transform: ImageTransform
    """From the source image to the depth map."""

    @cached_property
    def image(self) -> NDArray[np.uint8]:
        """The image [H, W, 3]. Raises ValueError where it is damaged."""
        bgr = cv2.imdecode(np.frombuffer(self.rgb_jpeg, np.uint8), cv2.IMREAD_COLOR)
        if bgr is None:
            raise ValueError("its image is damaged")
        return np.asarray(cv2.cvtColor(bgr, cv2.COLOR_BGR2RGB), np.uint8)

    def result(self, camera: FrameCamera) -> FrameResult:
        """The frame's result at the size of the dense map; ``confidence`` is the certainty."""
        height, width = self.depth.shape
        return FrameResult(
            index=camera.index, timestamp=camera.timestamp, T_world_camera=camera.T_world_camera,
            intrinsics=camera.intrinsics.pinhole, depth=self.depth * np.float32(camera.depth_scale),
            confidence=self.certainty.astype(np.float32),
            rgb=np.asarray(cv2.resize(self.image, (width, height), interpolation=cv2.INTER_AREA), np.uint8),
            transform=self.transform, is_keyframe=camera.is_keyframe, flow=camera.flow, segment=camera.segment,
            health=camera.health, certainty=self.certainty,
        )  # fmt: skip


def reduced(image: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    """An image [H, W, 3] with a longer side of at most ``side``; never enlarged."""
    size = reduced_size((image.shape[1], image.shape[0]), side)
    if size == (image.shape[1], image.shape[0]):
        return image
    return np.asarray(cv2.resize(image, size, interpolation=cv2.INTER_AREA), np.uint8)


def encoded_image(rgb: NDArray[np.uint8]) -> bytes:
    """An image [H, W, 3] as a JPEG file, reduced to at most `IMAGE_SIDE` on its longer side."""
    small = reduced(rgb, IMAGE_SIDE)
    ok, jpeg = cv2.imencode(".jpg", cv2.cvtColor(small, cv2.COLOR_RGB2BGR), [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY])
    assert ok, "an 8-bit image can always be encoded"
    return bytes(jpeg)


def dense_path(folder: Path, index: int) -> Path:
    return folder / DENSE_FOLDER / f"{index:06d}.npz"


def write_dense_beside(folder: Path, dense: DenseMap, refinement: str) -> Path:
    """Write a keyframe's file under a temporary name, which is returned. ``refinement``: its id. Raises OutputError."""
    transform = dense.transform
    arrays: dict[str, NDArray[Any]] = {
        "depth": np.clip(dense.depth, 0, FLOAT16_MAX).astype(np.float16),
        "certainty": dense.certainty,
        "rgb_jpeg": np.frombuffer(dense.rgb_jpeg, np.uint8),
        "source_size": np.array(transform.source_size, np.int32),
        "crop": np.array(transform.crop, np.float64),
        "network_size": np.array(transform.network_size, np.int32),
        "refinement": np.frombuffer(refinement.encode("ascii"), np.uint8),
    }
    content = io.BytesIO()
    np.savez(content, allow_pickle=False, **arrays)
    path = temporary_name(dense_path(folder, dense.index))
    replace_file(path, lambda file: file.write(content.getbuffer()))
    return path


def read_dense(folder: Path, index: int, refinement: str) -> DenseMap:
    """Read a keyframe's file.

    Raises OutputError where it is missing, damaged, or of another refinement than the one with the id ``refinement``.
    """
    path = dense_path(folder, index)
    try:
        return _dense_map(index, read_arrays(path, ARRAYS, stored=True), refinement)
    except (*DAMAGE, cv2.error) as error:
        raise OutputError(f"{path} is missing or damaged: {error}") from error


def _dense_map(index: int, arrays: Mapping[str, NDArray[Any]], refinement: str) -> DenseMap:
    if arrays["refinement"].tobytes() != refinement.encode("ascii"):
        raise ValueError("it is of another refinement")
    left, top, width, height = (float(value) for value in arrays["crop"].tolist())
    source_size, size = ((int(v[0]), int(v[1])) for v in (arrays["source_size"], arrays["network_size"]))
    depth = np.nan_to_num(arrays["depth"].astype(np.float32), copy=False, nan=0.0, posinf=0.0, neginf=0.0)
    certainty = np.asarray(arrays["certainty"], np.uint8)
    if not depth.shape == certainty.shape == size[::-1] or depth.size == 0 or (depth < 0).any():
        raise ValueError("depth and certainty differ in size or are not valid")
    if not np.isfinite([left, top, width, height]).all() or min(width, height, *source_size) < 1:
        raise ValueError("its crop or sizes are not valid")
    if certainty.max() > max(Certainty):
        raise ValueError("a certainty is out of range")
    transform = ImageTransform(source_size, (left, top, width, height), size)
    return DenseMap(index, depth, certainty, arrays["rgb_jpeg"].tobytes(), transform)
