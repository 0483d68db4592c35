"""Mask images of a source's frames: black pixels are excluded from depth and points."""

import re
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.input_file import input_errors
from stream_recon.app.sources.calibration import TURNED_BY_90
from stream_recon.app.sources.image_decoding import (
    HEIF_SUFFIXES,
    IMAGE_SUFFIXES,
    oriented,
    read_depth_image,
    read_with_opacity,
)
from stream_recon.app.sources.image_files import list_images
from stream_recon.configs.errors import InputError

COMPLETE = 0.95
"""Share of a video's frames that have masks where all of them are meant to; containers state rough numbers."""
BLACK = 128
"""Grey level below which a pixel is masked: half of the range, so that JPEG artefacts do not matter."""
GREY, SHADED, MAX_LEVELS = (32, 224), 0.25, 32
"""Levels between black and white, and their share and number beyond which an image is no mask: edges have few."""
MOSTLY = 0.8
"""Share of a frame from which its mask may be meant the other way round."""


class MaskFolder:
    """Mask images, named like the frame's image or by the frame's number.

    The mask of ``walk_07.jpg`` is ``walk_07.png`` or ``walk_07.jpg.png``. The mask of frame 12 of a video is the image
    with 12 as the number by which names differ. A frame without a mask is used completely.
    """

    def __init__(self, folder: Path) -> None:
        """Raises InputError: no such folder, or no images in it."""
        with input_errors(f"--masks {folder}"):
            images = list_images(folder)
        if not images:
            raise InputError(f"--masks {folder}: no images in it")
        self.folder = folder
        self._images = images
        self._by_name = {_bare(path.name): path for path in images}
        self._by_number = {n: path for path, n in zip(images, _frame_numbers(images), strict=True) if n is not None}

    def check(self, names: list[str] | None) -> None:
        """Check that a mask fits one of the image ``names``, or a video (None). Raises InputError."""
        if names is None and not self._by_number:
            raise InputError(f"--masks {self.folder}: no mask has a frame's number in its name")
        used = self._by_name if names is not None else self._by_number
        left = set(self._images) - set(used.values())
        if twice := [path for path in left if names is not None or re.search(r"\d", path.stem)]:
            raise InputError(f"--masks {self.folder}: {min(twice).name} and another mask are for the same frame")
        if names is not None and not any(_bare(name) in self._by_name for name in names):
            raise InputError(f"--masks {self.folder}: no mask is named like one of the images, such as {names[0]}")

    def unused(self, names: list[str]) -> list[str]:
        """Warnings on masks that belong to none of the image ``names``, and on images without a mask."""
        used = {_bare(name): name for name in names}
        others = sorted(path.name for bare, path in self._by_name.items() if bare not in used)
        left = [name for bare, name in used.items() if bare not in self._by_name]
        said = (
            [f"{len(others)} of {len(self._by_name)} masks belong to no image, such as {others[0]}"] if others else []
        )
        return said + ([f"{len(left)} of {len(used)} images have no mask, such as {left[0]}"] if left else [])

    def number(self, frames: int | None) -> list[str]:
        """Find whether the masks of a video of about ``frames`` frames are numbered from 1; warnings for the user."""
        numbers = sorted(self._by_number)
        if numbers[0] != 1 or numbers != list(range(1, len(numbers) + 1)):
            count = frames or numbers[-1] + 1
            left = sorted({*range(count)} - {*numbers})
            if not left or (left[0] > numbers[-1] >= COMPLETE * count):
                return []
            return [f"masks are for {count - len(left)} of {count} frames, not for frame {left[0]}"]
        if frames is not None and len(numbers) >= COMPLETE * frames:
            self._by_number = {number - 1: path for number, path in self._by_number.items()}
            return ["masks are numbered from 1: the first one is taken for the first frame"]
        return ["masks are numbered from 1, and frames from 0: the first mask is taken for the second frame"]

    def read(
        self,
        name: str | None,
        index: int,
        size: tuple[int, int],
        orientation: Callable[[], int] = lambda: 1,
        stored: tuple[int, int] | None = None,
    ) -> NDArray[np.bool_] | None:
        """Masked pixels [h, w] of a frame of ``size`` (width, height); None if it has no mask.

        Args:
            name: image file of the frame; None: a frame of a video, found by its number.
            orientation: gives the EXIF orientation by which the frame was turned; a mask of the image as stored is
                turned along.
            stored: width and height of the frame before its pixels were made square, which the mask may have, too.

        Raises InputError: an unreadable mask, or one of another aspect ratio.
        """
        path = self._by_number.get(index) if name is None else self._by_name.get(_bare(name))
        if path is None:
            return None
        grey = _turned_along(_levels(path), size, orientation)
        height, width = grey.shape[:2]
        if (width, height) != stored and abs(width * size[1] - height * size[0]) > 0.01 * width * size[1]:
            raise InputError(
                f"--masks: {path.name} is {width}x{height}, its frame {size[0]}x{size[1]}: their aspect ratios differ"
            )
        if (width, height) != size:
            grey = cv2.resize(grey, size, interpolation=cv2.INTER_NEAREST)
        return np.asarray(grey < BLACK)


def _levels(path: Path) -> NDArray[np.uint8]:
    """Grey levels [H, W] of a mask: 0 to 255, or 0 and 1. What is transparent is black.

    Raises InputError: an unreadable mask, or one of other levels, of which none is white.
    """
    image, opacity = read_with_opacity(path)
    if image is None:
        raise InputError(f"--masks: {path.name} is not a readable image")
    grey = image.max(axis=2) if opacity is None else np.minimum(image.max(axis=2), opacity)
    if not grey.any() and (deep := read_depth_image(path)) is not None:
        grey = np.asarray(np.minimum(deep, BLACK - 1), np.uint8)
    between = grey[(grey > GREY[0]) & (grey < GREY[1])]
    if len(between) > SHADED * grey.size and len(np.unique(between)) > MAX_LEVELS:
        raise InputError(f"--masks: {path.name} is a picture in {len(np.unique(grey))} levels, not in black and white")
    brightest = int(grey.max())
    if brightest == 1:
        return np.asarray(grey * 255, np.uint8)
    if 0 < brightest < BLACK:
        raise InputError(
            f"--masks: {path.name} has levels of 0 to {brightest}: use 0 (black) for what is excluded, 255 for the rest"
        )
    return np.asarray(grey, np.uint8)


def _turned_along(image: NDArray[np.uint8], size: tuple[int, int], orientation: Callable[[], int]) -> NDArray[np.uint8]:
    height, width = image.shape[:2]
    if width == height or (width - height) * (size[0] - size[1]) >= 0:
        return image
    turned = orientation()
    return oriented(image, turned) if turned in TURNED_BY_90 else image


def _frame_numbers(images: list[Path]) -> list[int | None]:
    """The frame's number in each name: the number that differs from name to name, of several the one that counts."""
    rows = [[int(digits) for digits in re.findall(r"\d+", path.stem)] for path in images]
    if len({len(row) for row in rows}) > 1 or not rows[0]:
        return [row[-1] if row else None for row in rows]
    columns = list(zip(*rows, strict=True))[::-1]
    distinct = [column for column in columns if len(set(column)) == len(column)]
    # Beside a frame's number there may be a time stamp, whose steps are larger.
    return list(min(distinct, key=lambda column: max(column) - min(column), default=columns[0]))


def _bare(name: str) -> str:
    """File name without image suffixes, in lower case."""
    path = Path(name)
    while path.suffix.lower() in IMAGE_SUFFIXES | HEIF_SUFFIXES:
        path = path.with_suffix("")
    return path.name.casefold()
