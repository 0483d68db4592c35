"""Several sources as one: their frames follow each other, each source as a segment of its own, or each of its views.

Where cameras differ, all frames are converted to one pinhole camera.
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby, islice
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.camera_model import CameraModel
from stream_recon.app.core.rig import view_of
from stream_recon.app.core.types import Frame, Intrinsics
from stream_recon.app.sources.readers import FrameRange, Reader
from stream_recon.app.sources.source import Source

MAX_SIDE = 20_000
"""Largest side of an image in pixels."""


@dataclass(frozen=True)
class CameraChange:
    """Conversion of images of one camera to those of a pinhole camera."""

    source: CameraModel
    """In pixels of the source image."""
    target: Intrinsics
    size: tuple[int, int]
    """Width and height of the target image."""

    def to_json(self) -> dict[str, Any]:
        """The change as JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> "CameraChange":
        """The change in a ``run.json``. Raises KeyError, TypeError or ValueError where it is not valid."""
        camera, pinhole = record["source"], record["target"]
        focal, cx, cy, k1, k2 = (float(camera[name]) for name in ("focal", "cx", "cy", "k1", "k2"))
        source = CameraModel(focal, cx, cy, k1, k2, bool(camera["fisheye"]))
        fx, fy, u, v = (float(pinhole[name]) for name in ("fx", "fy", "cx", "cy"))
        target = Intrinsics(fx, fy, u, v)
        width, height = (int(value) for value in record["size"])
        numbers = [*vars(source).values(), *vars(target).values()]
        if not np.isfinite(numbers).all() or min(source.focal, target.fx, target.fy) <= 0:
            raise ValueError("a camera is not valid")
        if not (0 < width <= MAX_SIDE and 0 < height <= MAX_SIDE):
            raise ValueError("an image size is not valid")
        return cls(source, target, (width, height))

    def map(
        self, image: NDArray[np.generic], sides: tuple[float, float], size: tuple[int, int], how: int
    ) -> NDArray[np.generic]:
        """An image or depth map at ``size`` as the target camera sees it; 0 where the source shows nothing.

        Args:
            image: [h, w, ...], covers all of the source image, which has ``sides`` (width, height) in its pixels.
            how: interpolation of OpenCV.
        """
        u = (np.arange(size[0]) + 0.5) * self.size[0] / size[0]
        v = (np.arange(size[1]) + 0.5) * self.size[1] / size[1]
        x = (u[None] - self.target.cx) / self.target.fx
        y = (v[:, None] - self.target.cy) / self.target.fy
        pixels = self.source.pixels(np.stack(np.broadcast_arrays(x, y), axis=-1))
        height, width = image.shape[:2]
        column, row = pixels[..., 0] * width / sides[0] - 0.5, pixels[..., 1] * height / sides[1] - 0.5
        mapped = cv2.remap(
            image, column.astype(np.float32), row.astype(np.float32), how, borderMode=cv2.BORDER_CONSTANT
        )
        return np.asarray(mapped)


@dataclass(frozen=True)
class JoinedPart:
    """One of the joined sources."""

    open: Callable[[], Source]
    first: int
    """Number of its frame 0 in the joined source."""
    start: float
    """Seconds of its time 0 in the joined source."""
    change: CameraChange | None = None


class JoinedReader(Reader):
    """Reads the parts one after the other, of rigs first one view of all. Raises InputError where one cannot be opened,
    when it is reached."""

    def __init__(self, parts: Sequence[JoinedPart], name: str) -> None:
        super().__init__(name, 1.0)
        self._parts = list(parts)
        self._number = -1
        self._frame: Frame | None = None
        self._films = [self._film(number) for number in range(len(parts))]
        self._pending = self._frames()

    def _frames(self) -> Iterator[Frame]:
        views = [groupby(film, lambda frame: view_of(frame.index)) for film in self._films]
        ended = False
        while not ended:
            ended = True
            for self._number, view in enumerate(views):
                for _, frames in islice(view, 1):
                    ended = False
                    yield from frames

    def _film(self, number: int) -> Generator[Frame, None, None]:
        part = self._parts[number]
        with part.open() as source:
            if number:
                self.segments.append(FrameRange(part.first, part.start, f"start of {source.name}"))
            yield from source
            self.damaged += source.damaged

    def grab(self) -> tuple[int, float] | None:
        self._frame = next(self._pending, None)
        if self._frame is None:
            return None
        part = self._parts[self._number]
        self.segment = view_of(self._frame.index) * len(self._parts) + self._number
        return part.first + self._frame.index, part.start + self._frame.timestamp

    def retrieve(self) -> NDArray[np.uint8] | None:
        assert self._frame is not None
        rgb, change = self._frame.rgb, self._parts[self._number].change
        self.transparent = mask = self._frame.mask
        if change is None:
            return rgb
        sides = (float(rgb.shape[1]), float(rgb.shape[0]))
        if mask is not None:  # what the source does not show is 0: masked
            shown = change.map(np.where(mask, np.uint8(0), np.uint8(255)), sides, change.size, cv2.INTER_NEAREST)
            self.transparent = np.asarray(shown == 0)
        return np.asarray(change.map(rgb, sides, change.size, cv2.INTER_LINEAR), np.uint8)

    def close(self) -> None:
        for film in self._films:
            film.close()
