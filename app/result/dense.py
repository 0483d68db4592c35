"""Dense depth maps of keyframes from multi-view stereo, one file per keyframe of an accepted refinement.

``dense/000000.npz`` holds ``depth`` [h, w] float16, in the unit of the frame's depth file; ``certainty`` [h, w] uint8,
see `Certainty`; ``rgb_jpeg``, the source image, reduced to at most `IMAGE_SIDE` on its longer side, as the bytes of a
JPEG file; ``source_size``, ``crop`` and ``network_size`` as in a depth file; and ``refinement``, the id of the
refinement that gave the poses. A file with the id of another refinement is ignored.

Depth map and image are those of a pinhole camera with the frame's intrinsics: radial distortion is removed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.output_file import temporary_name
from stream_recon.app.core.types import Certainty, FrameResult, ImageTransform, reduced_size
from stream_recon.app.result.cameras import FrameCamera
from stream_recon.app.result.depth import DepthFile, finite, half, jpeg_of, stored_transform, write_maps
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
        rgb = np.asarray(cv2.resize(self.image, (width, height), interpolation=cv2.INTER_AREA), np.uint8)
        depth = self.depth * np.float32(camera.depth_scale)
        file = DepthFile(depth, self.certainty.astype(np.float32), rgb, self.transform)
        return replace(file.result(camera), certainty=self.certainty)


def reduced(image: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    """An image [H, W, 3] with a longer side of at most ``side``; never enlarged."""
    size = reduced_size((image.shape[1], image.shape[0]), side)
    if size == (image.shape[1], image.shape[0]):
        return image
    return np.asarray(cv2.resize(image, size, interpolation=cv2.INTER_AREA), np.uint8)


def encoded_image(rgb: NDArray[np.uint8]) -> bytes:
    """An image [H, W, 3] as a JPEG file, reduced to at most `IMAGE_SIDE` on its longer side."""
    return jpeg_of(reduced(rgb, IMAGE_SIDE))


def dense_path(folder: Path, index: int) -> Path:
    return folder / DENSE_FOLDER / f"{index:06d}.npz"


def write_dense_beside(folder: Path, dense: DenseMap, refinement: str) -> Path:
    """Write a keyframe's file under a temporary name, which is returned. ``refinement``: its id. Raises OutputError."""
    identity = np.frombuffer(refinement.encode("ascii"), np.uint8)
    maps: dict[str, NDArray[Any]] = {"depth": half(dense.depth), "certainty": dense.certainty, "refinement": identity}
    path = temporary_name(dense_path(folder, dense.index))
    write_maps(path, maps, dense.rgb_jpeg, dense.transform)
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
    depth, certainty = finite(arrays["depth"]), np.asarray(arrays["certainty"], np.uint8)
    transform = stored_transform(arrays)
    if not depth.shape == certainty.shape == transform.network_size[::-1] or (depth < 0).any():
        raise ValueError("depth and certainty differ in size or are not valid")
    if certainty.max() > max(Certainty):
        raise ValueError("a certainty is out of range")
    return DenseMap(index, depth, certainty, arrays["rgb_jpeg"].tobytes(), transform)
