"""One small file a frame: depth and confidence as float16, the picture as JPEG, and where it lies in the source.

``depth/000000.npz`` holds ``depth`` and ``confidence`` [h, w] float16; ``rgb_jpeg``, the network's image [h, w, 3] as
the bytes of a JPEG file; ``source_size`` (width, height), ``crop`` (left, top, width, height) in source pixels and
``network_size`` (width, height): crop, then resize, maps source to network pixels. The zip is not compressed: that
costs far more time than it saves space.
"""

import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.output_files import replace_file
from stream_recon.app.results import FrameResult, ImageTransform
from stream_recon.configs.errors import OutputError

DEPTH_FOLDER = "depth"
JPEG_QUALITY = 92
FLOAT16_MAX = float(np.finfo(np.float16).max)


@dataclass(frozen=True)
class DepthFile:
    depth: NDArray[np.float32]  # [h, w]
    confidence: NDArray[np.float32]  # [h, w]
    rgb: NDArray[np.uint8]  # [h, w, 3]
    transform: ImageTransform


def depth_path(folder: Path, index: int) -> Path:
    return folder / DEPTH_FOLDER / f"{index:06d}.npz"


def write_depth(folder: Path, result: FrameResult) -> None:
    """Write a frame's file into the result folder. Raises OutputError."""
    bgr = cv2.cvtColor(result.rgb, cv2.COLOR_RGB2BGR)
    ok, jpeg = cv2.imencode(".jpg", bgr, [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY])
    assert ok, "an 8-bit image can always be encoded"
    transform = result.transform
    arrays: dict[str, NDArray[Any]] = {
        "depth": np.clip(result.depth, 0, FLOAT16_MAX).astype(np.float16),
        "confidence": np.clip(result.confidence, 0, FLOAT16_MAX).astype(np.float16),
        "rgb_jpeg": np.asarray(jpeg, np.uint8).reshape(-1),
        "source_size": np.array(transform.source_size, np.int32),
        "crop": np.array(transform.crop, np.float64),
        "network_size": np.array(transform.network_size, np.int32),
    }
    replace_file(depth_path(folder, result.index), lambda file: np.savez(file, allow_pickle=False, **arrays))


def read_depth(path: Path) -> DepthFile:
    """Read a frame's file. Raises OutputError where it is missing or damaged."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            bgr = cv2.imdecode(arrays["rgb_jpeg"], cv2.IMREAD_COLOR)
            left, top, width, height = arrays["crop"].tolist()
            return DepthFile(
                depth=arrays["depth"].astype(np.float32),
                confidence=arrays["confidence"].astype(np.float32),
                rgb=cv2.cvtColor(bgr, cv2.COLOR_BGR2RGB),
                transform=ImageTransform(
                    source_size=_pair(arrays["source_size"]),
                    crop=(left, top, width, height),
                    network_size=_pair(arrays["network_size"]),
                ),
            )
    except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile, cv2.error) as error:
        raise OutputError(f"{path} is missing or damaged: {error}") from error


def _pair(values: NDArray[np.int32]) -> tuple[int, int]:
    return int(values[0]), int(values[1])
