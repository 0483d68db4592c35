"""Resizing of source images of any shape to a grid of network patches, and grey images for tracking."""

import math

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.types import Frame, ImageTransform, PreparedFrame
from stream_recon.app.sources.frame_choice import check_frame_size
from stream_recon.configs.errors import InputError
from stream_recon.configs.schema import ImageConfig

ASPECT_PRICE = 5.0
"""Percent of patches that 1 % of change in aspect ratio is worth. With 5 the published rule (longer side full, shorter
side rounded) results for usual aspect ratios; a grid that distorts by several percent loses to a smaller one."""
GREY_SIDE = 640
"""Longer side in pixels of the image for tracking: a larger image costs tracking time in every frame."""


def plan_image(source_size: tuple[int, int], image: ImageConfig, patch_size: int) -> ImageTransform:
    """Choose the network's image size for sources of ``source_size`` (width, height).

    The complete image is used at any aspect ratio. Among patch grids within ``image.max_patches`` and
    ``image.max_side`` the best trade of patches against change in aspect ratio wins, see `ASPECT_PRICE`. Raises
    InputError: an image without pixels.
    """
    width, height = source_size
    if width < 1 or height < 1:
        raise InputError(f"an image of {width}x{height} pixels cannot be used")
    longest = max(1, image.max_side // patch_size)
    aspect = width / height
    best, best_score = (1, 1), -math.inf
    for columns in range(1, longest + 1):
        for rows in range(1, min(longest, image.max_patches // columns) + 1):
            score = math.log(columns * rows) - ASPECT_PRICE * abs(math.log(columns / rows / aspect))
            if score > best_score:
                best, best_score = (columns, rows), score
    return ImageTransform(
        source_size=(width, height),
        crop=(0.0, 0.0, float(width), float(height)),
        network_size=(best[0] * patch_size, best[1] * patch_size),
    )


def prepare(frame: Frame, transform: ImageTransform) -> PreparedFrame:
    """Crop and resize a frame to the network's image.

    Shrinking uses area averaging, against aliasing; enlarging is bicubic. Raises InputError: the frame's size is not
    ``transform.source_size``.
    """
    height, width = frame.rgb.shape[:2]
    check_frame_size(f"frame {frame.index}", (width, height), "the first one", transform.source_size)
    left, top, crop_width, crop_height = (round(v) for v in transform.crop)
    assert (left, top, crop_width, crop_height) == transform.crop, "a crop has integer bounds"
    used = frame.rgb[top : top + crop_height, left : left + crop_width]
    shrinks = transform.network_size[0] < crop_width or transform.network_size[1] < crop_height
    resized: NDArray[np.uint8] = cv2.resize(
        np.ascontiguousarray(used), transform.network_size, interpolation=cv2.INTER_AREA if shrinks else cv2.INTER_CUBIC
    )
    return PreparedFrame(frame.index, frame.timestamp, resized, transform, segment=frame.segment, turn=frame.turn)


def grey_image(rgb: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Grey image [H', W'] of a frame [H, W, 3], with a longer side of at most `GREY_SIDE` pixels.

    A source pixel (x, y) lies at (x * W' / W, y * H' / H); pixel (0, 0) covers [0, 1) x [0, 1) in both.
    """
    return reduced_image(np.asarray(cv2.cvtColor(rgb, cv2.COLOR_RGB2GRAY), np.uint8), GREY_SIDE)


def reduced_image(image: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    """An image [H, W, ...] with a longer side of at most ``side`` pixels."""
    height, width = image.shape[:2]
    longer = max(height, width)
    if longer <= side:
        return image
    size = (max(1, round(width * side / longer)), max(1, round(height * side / longer)))
    return np.asarray(cv2.resize(image, size, interpolation=cv2.INTER_AREA), np.uint8)
