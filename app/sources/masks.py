"""Masks beside the frames of a source: what is black in one is left out of all that comes of its frame."""

import re
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.sources.readers import IMAGE_SUFFIXES, list_images, read_image
from stream_recon.configs.errors import InputError

BLACK = 128
"""Levels below count as black."""


class MaskFolder:
    """Mask images, each called like its frame's image or by the frame's number.

    The mask of ``walk_07.jpg`` is ``walk_07.png`` or ``walk_07.jpg.png``; that of frame 12 of a video any image with 12
    as the last number of its name. A frame without a mask is taken whole.
    """

    def __init__(self, folder: Path) -> None:
        """Raises InputError: no such folder, or no images in it."""
        try:
            images = list_images(folder)
        except OSError as error:
            raise InputError(f"--masks {folder} cannot be read: {error.strerror}") from error
        if not images:
            raise InputError(f"--masks {folder}: no images in it")
        self.folder = folder
        self._by_name = {_bare(path.name): path for path in images}
        numbers = [re.findall(r"\d+", path.stem) for path in images]
        self._by_number = {int(found[-1]): path for path, found in zip(images, numbers, strict=True) if found}

    def check(self, names: list[str] | None) -> None:
        """See whether any mask is of a source with images of these names, or of a video (None). Raises InputError."""
        if names is None and not self._by_number:
            raise InputError(f"--masks {self.folder}: no mask has a frame's number in its name")
        if names is not None and not any(_bare(name) in self._by_name for name in names):
            raise InputError(f"--masks {self.folder}: no mask is called like one of the images, such as {names[0]}")

    def read(self, name: str | None, index: int, size: tuple[int, int]) -> NDArray[np.bool_] | None:
        """What is left out [h, w] of a frame of that width and height; None where it has no mask.

        Args:
            name: of the frame's image file; None: of a video, where its number counts.

        Raises:
            InputError: an unreadable mask, or one of another shape.
        """
        path = self._by_number.get(index) if name is None else self._by_name.get(_bare(name))
        if path is None:
            return None
        image = read_image(path)
        if image is None:
            raise InputError(f"--masks: {path.name} is not a readable image")
        height, width = image.shape[:2]
        if abs(width * size[1] - height * size[0]) > 0.01 * width * size[1]:
            raise InputError(
                f"--masks: {path.name} is {width}x{height}, its frame {size[0]}x{size[1]}: they are of different shapes"
            )
        grey = image.max(axis=2)
        if (width, height) != size:
            grey = cv2.resize(grey, size, interpolation=cv2.INTER_NEAREST)
        return np.asarray(grey < BLACK)


def _bare(name: str) -> str:
    """A name without the suffixes of images."""
    path = Path(name)
    while path.suffix.lower() in IMAGE_SUFFIXES:
        path = path.with_suffix("")
    return path.name.casefold()
