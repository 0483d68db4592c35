"""Texture atlas: patches of a mesh as crops of their views' images, packed into a few JPEG pages."""

from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]
PAGE_SIDE = 4096
"""Longest side of a page in pixels, which all graphics hardware takes."""
SCALE = 1.5
"""Pixels of the pages per pixel of the images, if they suffice: means of several views show more than one."""
MOST_PAGES = 3
"""Most pages: about 15 MB of JPEG. Larger textures are reduced."""
PADDING = 4
"""Pixels around a patch: filters and the smaller levels of a texture read them."""
JPEG_QUALITY = 90
"""Quality of the pages, as of photographs."""
FILL = 0.92
"""Share of the pages' area that the packing is expected to use."""


@dataclass(frozen=True)
class Placement:
    """Place of each patch in the atlas, and the part of its view's image that it shows."""

    page: NDArray[np.intp]  # [P]
    corner: NDArray[np.intp]  # [P, 2] upper left corner in the page
    size: NDArray[np.intp]  # [P, 2] width and height in the page
    origin: FloatArray  # [P, 2] pixel of the image at that corner
    scale: float
    """Pixels of the atlas per pixel of the images."""
    pages: list[tuple[int, int]]
    """Width and height of each page."""


def place_patches(low: FloatArray, high: FloatArray) -> Placement:
    """Place patches with bounding boxes from ``low`` to ``high`` [P, 2] in pixels of their images."""
    scale = SCALE
    room = FILL * MOST_PAGES * PAGE_SIDE**2
    while True:
        # Corners at whole pixels.
        origin = np.floor(low * scale) - PADDING
        size = np.ceil(high * scale - origin).astype(np.intp) + PADDING
        if (size <= PAGE_SIDE).all() and size.prod(axis=1).sum() <= room:
            page, corner, pages = _packed(size)
            if len(pages) <= MOST_PAGES:
                return Placement(page, corner, size, (origin / scale).astype(np.float32), scale, pages)
        scale *= 0.9


def _packed(size: NDArray[np.intp]) -> tuple[NDArray[np.intp], NDArray[np.intp], list[tuple[int, int]]]:
    """Page [P] and corner [P, 2] of rectangles, in shelves of falling height, and the pages' sizes."""
    area = float(size.prod(axis=1).sum())
    width = int(min(PAGE_SIDE, max(np.sqrt(area / FILL), size[:, 0].max(initial=1))))
    width += -width % 16
    order = np.lexsort((-size[:, 0], -size[:, 1]))
    page, corner, pages = np.zeros(len(size), np.intp), np.zeros((len(size), 2), np.intp), list[tuple[int, int]]()
    x = top = shelf = 0
    for patch in order.tolist():
        w, h = int(size[patch, 0]), int(size[patch, 1])
        if x + w > width:
            x, top, shelf = 0, top + shelf, 0
        if top + h > PAGE_SIDE:
            pages.append((width, top))
            x = top = shelf = 0
        shelf = max(shelf, h)
        page[patch], corner[patch] = len(pages), (x, top)
        x += w
    pages.append((width, max(top + shelf, 16)))
    return page, corner, [(w, h + -h % 16) for w, h in pages]


def copy_patches(
    atlas: Sequence[NDArray[np.uint8]], placement: Placement, patches: NDArray[np.intp], image: NDArray[np.uint8]
) -> None:
    """Copy the crops of these patches from the image [H, W, 3] of their view into the pages."""
    for patch in patches.tolist():
        (x, y), (w, h) = placement.corner[patch].tolist(), placement.size[patch].tolist()
        left, top = placement.origin[patch].tolist()
        scale = placement.scale
        # A pixel's centre in the page, in pixels of the image as OpenCV counts them.
        matrix = np.array([[1 / scale, 0, left + 0.5 / scale - 0.5], [0, 1 / scale, top + 0.5 / scale - 0.5]])
        crop = cv2.warpAffine(
            image, matrix, (w, h), flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP, borderMode=cv2.BORDER_REPLICATE
        )
        atlas[int(placement.page[patch])][y : y + h, x : x + w] = crop


def encoded_page(page: NDArray[np.uint8]) -> bytes:
    """A page [H, W, 3] as a JPEG file."""
    ok, jpeg = cv2.imencode(".jpg", cv2.cvtColor(page, cv2.COLOR_RGB2BGR), [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY])
    assert ok, "an 8-bit image can always be encoded"
    return bytes(jpeg)
