"""Images that a program gives one after the other, as a source."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sized

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.sources.calibration import Calibration
from stream_recon.app.sources.frame_choice import FrameChoice, check_frame_size
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
        way = "; images of a rig's cameras: sr.reconstruct([[image, image], ...], output, rig=FILE)"
        hint = way if isinstance(rgb, list | tuple) else ""
        raise InputError(f"an image is a numpy array, uint8 [H, W, 3], not {type(rgb).__name__}{hint}")
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
    """Images, uint8 [H, W, 3], or pairs of seconds and image, of an iterable, which is asked for one at a time.

    Of a rig, each moment has a list of images, one of each camera; the reader gives those of one camera.
    """

    def __init__(
        self, images: Iterable[object], cameras: Mapping[str, Calibration] | None = None, view: int = 0
    ) -> None:
        """
        Args:
            cameras: those of a rig, by their names; None: there is one image a moment.
            view: number of the rig's camera that is read.

        Raises InputError: there is no image, or the first one is not valid or not the rig's.
        """
        super().__init__(NAME, NOMINAL_FPS, len(images) if isinstance(images, Sized) else None)
        self._cameras, self._view = cameras, view
        self._sizes: list[tuple[int, int]] = []
        """Width and height of each camera's first image."""
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

    def _read(self, images: Iterable[object]) -> Iterator[tuple[int, float, NDArray[np.uint8]]]:
        last: float | None = None
        for index, item in enumerate(images):
            # A list of two images is no time with its image.
            timestamp, shown = (
                item
                if isinstance(item, tuple | list) and len(item) == 2 and not getattr(item[0], "ndim", 0)
                else (None, item)
            )
            last = checked_time(timestamp, last)
            if last < 0:
                raise InputError(f"timestamp is {last:g}: give seconds from 0 on")
            rgb = shown if self._cameras is None else self._of_view(self._cameras, index, shown)
            yield index, last, checked_image(rgb)

    def _of_view(self, cameras: Mapping[str, Calibration], index: int, images: object) -> object:
        """The image of the view, of all those of a moment. Raises InputError: they are not those of the rig."""
        given = images if isinstance(images, list | tuple) else [images]
        if len(given) != len(cameras):
            expected = f"give a list of {len(cameras)}, by {', '.join(cameras)}"
            raise InputError(f"number of images at moment {index}: {len(given)}; {expected}")
        sizes = [(rgb.shape[1], rgb.shape[0]) for rgb in map(checked_image, given)]
        self._sizes = self._sizes or sizes
        for (name, camera), size, first in zip(cameras.items(), sizes, self._sizes, strict=True):
            check_frame_size(f"image {index} of {name}", size, "the first one", first)
            try:
                camera.for_size(size)
            except InputError as error:
                raise InputError(f"image {index} of {name}: {error}") from error
        return given[self._view]


def open_images(images: Iterable[object], choice: FrameChoice) -> Source:
    """Chosen frames of images that a program gives; see `ImagesReader`.

    Raises InputError: see there; ConfigError: the choice does not fit images, or takes both ``stride`` and ``fps``.
    """
    if choice.rig is not None:
        from stream_recon.app.sources.rig_files import open_rig  # it imports this module

        return open_rig(images, choice)
    return source_of(ImagesReader(images), choice)
