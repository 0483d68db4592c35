"""Images that a program gives one after the other, as a source."""

import math
from collections.abc import Iterable, Iterator, Sized

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.sources.frame_choice import FrameChoice
from stream_recon.app.sources.readers import Reader
from stream_recon.app.sources.source import Source, source_of
from stream_recon.configs.errors import InputError

NAME = "python://images"
"""What stands for such a source where others have a path or an address; there is no such file."""
NOMINAL_FPS = 30.0
"""Rate of images that come without a time."""


def checked_image(rgb: object) -> NDArray[np.uint8]:
    """The image itself. Raises InputError: it is not uint8 [H, W, 3]."""
    if not isinstance(rgb, np.ndarray) or isinstance(rgb, np.ma.MaskedArray):
        raise InputError(f"an image is a numpy array, uint8 [H, W, 3], not {type(rgb).__name__}")
    if rgb.dtype != np.uint8 or rgb.ndim != 3 or rgb.shape[2] != 3 or 0 in rgb.shape:
        raise InputError(f"an image is uint8 [H, W, 3], not {rgb.dtype} {list(rgb.shape)}")
    return rgb


def checked_time(timestamp: object, last: float | None) -> float:
    """Seconds of an image after one at ``last``; None: 1/30 s after it. Raises InputError: no time, or no later one."""
    if timestamp is None:
        return 0.0 if last is None else last + 1 / NOMINAL_FPS
    if isinstance(timestamp, bool | np.timedelta64) or not isinstance(
        timestamp, int | float | np.integer | np.floating
    ):
        raise InputError(f"timestamp is {timestamp!r}: give seconds")
    try:
        time = float(timestamp)
    except OverflowError:
        time = math.inf
    if not math.isfinite(time):
        raise InputError(f"timestamp is {time}: give finite seconds")
    if last is not None and time <= last:
        raise InputError(f"timestamp is {time:g} s, and that of the image before {last:g} s: times must rise")
    return time


class ImagesReader(Reader):
    """Images, uint8 [H, W, 3], or pairs of seconds and image, of an iterable, which is asked for one at a time."""

    def __init__(self, images: Iterable[object]) -> None:
        """Raises InputError: there is none, or the first one is not valid."""
        super().__init__(NAME, NOMINAL_FPS, len(images) if isinstance(images, Sized) else None)
        self._steps = self._read(images)
        self._ahead = next(self._steps, None)
        if self._ahead is None:
            raise InputError("there are no images")

    def grab(self) -> tuple[int, float] | None:
        step, self._ahead = self._ahead or next(self._steps, None), None
        if step is None:
            return None
        index, timestamp, self._rgb = step
        return index, timestamp

    def retrieve(self) -> NDArray[np.uint8]:
        return self._rgb.copy()  # whoever made it may write the next one into it

    def close(self) -> None:
        """The program's own iterable stays as it is."""

    @staticmethod
    def _read(images: Iterable[object]) -> Iterator[tuple[int, float, NDArray[np.uint8]]]:
        last: float | None = None
        for index, item in enumerate(images):
            timestamp, rgb = item if isinstance(item, tuple | list) and len(item) == 2 else (None, item)
            last = checked_time(timestamp, last)
            if last < 0:
                raise InputError(f"timestamp is {last:g}: give seconds from 0 on")
            yield index, last, checked_image(rgb)


def open_images(images: Iterable[object], choice: FrameChoice) -> Source:
    """Chosen frames of images that a program gives; see `ImagesReader`.

    Raises InputError: see there; ConfigError: the choice does not fit images, or takes both ``stride`` and ``fps``.
    """
    return source_of(ImagesReader(images), choice)
