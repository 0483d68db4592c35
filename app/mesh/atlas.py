"""Texture atlas: patches of a mesh as crops of their views' images, packed into a few images."""

from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.mesh.config import AtlasConfig

FloatArray = NDArray[np.float32]


@dataclass(frozen=True)
class Packing:
    """Position of each patch in the atlas, and the part of its view's image that it shows."""

    image: NDArray[np.intp]  # [P] number of the atlas's image
    corner: NDArray[np.intp]  # [P, 2] upper left corner in it
    size: NDArray[np.intp]  # [P, 2] width and height in it
    origin: FloatArray  # [P, 2] pixel of the view at that corner
    scale: float
    """Pixels of the atlas per pixel of the views."""
    sizes: list[tuple[int, int]]
    """Width and height of each image of the atlas."""


def pack_patches(low: FloatArray, high: FloatArray, config: AtlasConfig) -> Packing:
    """Pack patches with bounding boxes from ``low`` to ``high`` [P, 2] in pixels of their views."""
    scale = config.scale
    room = config.fill * config.max_images * config.max_side**2
    while True:
        # Corners at whole pixels.
        origin = np.floor(low * scale) - config.padding
        size = np.ceil(high * scale - origin).astype(np.intp) + config.padding
        if (size <= config.max_side).all() and size.prod(axis=1).sum() <= room:
            image, corner, sizes = _packed(size, config)
            if len(sizes) <= config.max_images:
                return Packing(image, corner, size, (origin / scale).astype(np.float32), scale, sizes)
        scale *= 0.9


def _packed(
    size: NDArray[np.intp], config: AtlasConfig
) -> tuple[NDArray[np.intp], NDArray[np.intp], list[tuple[int, int]]]:
    """Image [P] and corner [P, 2] of rectangles, in shelves of falling height, and the images' sizes."""
    area = float(size.prod(axis=1).sum())
    width = int(min(config.max_side, max(np.sqrt(area / config.fill), size[:, 0].max(initial=1))))
    width += -width % 16
    order = np.lexsort((-size[:, 0], -size[:, 1]))
    image, corner, sizes = np.zeros(len(size), np.intp), np.zeros((len(size), 2), np.intp), list[tuple[int, int]]()
    x = top = shelf = 0
    for patch in order.tolist():
        w, h = int(size[patch, 0]), int(size[patch, 1])
        if x + w > width:
            x, top, shelf = 0, top + shelf, 0
        if top + h > config.max_side:
            sizes.append((width, top))
            x = top = shelf = 0
        shelf = max(shelf, h)
        image[patch], corner[patch] = len(sizes), (x, top)
        x += w
    sizes.append((width, max(top + shelf, 16)))
    return image, corner, [(w, h + -h % 16) for w, h in sizes]


def copy_patches(
    atlas: Sequence[NDArray[np.uint8]], packing: Packing, patches: NDArray[np.intp], image: NDArray[np.uint8]
) -> None:
    """Copy the crops of these patches from the image [H, W, 3] of their view into the atlas."""
    for patch in patches.tolist():
        (x, y), (w, h) = packing.corner[patch].tolist(), packing.size[patch].tolist()
        left, top = packing.origin[patch].tolist()
        scale = packing.scale
        # A pixel's centre in the atlas, in pixels of the view as OpenCV counts them.
        matrix = np.array([[1 / scale, 0, left + 0.5 / scale - 0.5], [0, 1 / scale, top + 0.5 / scale - 0.5]])
        crop = cv2.warpAffine(
            image, matrix, (w, h), flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP, borderMode=cv2.BORDER_REPLICATE
        )
        atlas[int(packing.image[patch])][y : y + h, x : x + w] = crop
