"""Views of a rig, read one after the other, each as a film of its own: so the network sees what it was trained on."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.rig import VIEW_STRIDE, Rig
from stream_recon.app.core.types import Frame
from stream_recon.app.sources.calibration import Calibration
from stream_recon.app.sources.readers import Reader
from stream_recon.app.sources.source import Source
from stream_recon.configs.errors import InputError

NEAR, APART = 0.5, 0.1
"""Largest difference in time of two images of one moment, and that which is told, in intervals of view 0."""


class RigReader(Reader):
    """Reads the chosen frames of view 0, then their partners in each other view's source; each view is a segment.

    Images of one moment have one frame number, by their files' names, else by their times. Frames of view 0 without
    partner in another view are counted.
    """

    def __init__(self, rig: Rig, name: str, parts: Sequence[Callable[[], Source]]) -> None:
        """``parts``: open the source of each view with the choice of frames. Raises InputError."""
        self._parts = dict(zip(rig.names, parts, strict=True))
        self._source = parts[0]()
        hint = self._source.frame_hint
        super().__init__(name, 1.0, None if hint is None else hint * len(rig))
        self.rig, self.origin_ns = rig, self._source.origin_ns
        self._frame = next(self._source)
        self._names: dict[str, int] = {}
        """Frame numbers of view 0 by the files' names."""
        self._times, self._numbers = list[float](), list[int]()
        """Times of view 0, ascending, and their frame numbers."""
        self._interval = 1 / self._source.rate
        self._pending = self._frames(self._frame)
        self.calibration = self.view_camera(self._frame.rgb)

    def view_camera(self, rgb: NDArray[np.uint8]) -> Calibration:
        """The pinhole camera of all views, from the first frame of view 0. Raises InputError."""
        raise NotImplementedError

    def cut(self, rgb: NDArray[np.uint8], view: int) -> NDArray[np.uint8]:
        """A view's picture by that camera. Raises InputError."""
        raise NotImplementedError

    def _frames(self, first: Frame) -> Iterator[tuple[int, Frame]]:
        for view, (name, open_part) in enumerate(self._parts.items()):
            self._source = open_part() if view else self._source
            with self._source as source:
                for number, frame in self._partners(source, name) if view else self._of_first(source, first):
                    self._frame = frame
                    yield view * VIEW_STRIDE + number, frame
                self.damaged += source.damaged
                self.warnings += [line for line in source.warnings if line not in self.warnings]

    def _of_first(self, source: Source, first: Frame) -> Iterator[tuple[int, Frame]]:
        for frame in chain([first], source):
            self._times.append(frame.timestamp)
            self._numbers.append(frame.index)
            if source.image_names is not None:
                self._names[Path(source.image_names[frame.index]).stem] = frame.index
            yield frame.index, frame

    def _partners(self, source: Source, name: str) -> Iterator[tuple[int, Frame]]:
        """Numbers of frames of view 0, and those of another view that are nearest to them. Raises InputError: none."""
        names = source.image_names if self._names else None
        later = 1e-9 * ((source.origin_ns or 0) - (self.origin_ns or 0))
        number, apart, nearest = -1, dict[int, float](), None

        def is_nearer(index: int, time: float) -> bool | None:
            nonlocal number
            if names is None and time + later > self._times[-1] + NEAR * self._interval:
                return None
            found, off = (self._names.get(Path(names[index]).stem), 0.0) if names else self._moment(time + later)
            if found is None or found < number or off >= apart.get(found, np.inf):
                return False
            number, apart[found] = found, off
            return True

        for frame in source.frames_where(is_nearer):
            if nearest is not None and nearest[0] < number:
                yield nearest
            nearest = number, replace(frame, timestamp=frame.timestamp + later)
        first = next(iter(self._parts))
        if nearest is None:
            raise InputError(f"no image of {name} is of a moment of {first}")
        yield nearest
        if alone := len(self._times) - len(apart):
            self.warnings.append(f"{alone} images of {first} have no partner in {name}")
        if (off := float(np.median([*apart.values()]))) > APART * self._interval:
            said = f"images of {name} are {off:.3f} s from those of {first}"
            self.warnings.append(f"{said}: what moves in between counts as distance of the cameras")

    def _moment(self, time: float) -> tuple[int | None, float]:
        """Number of the frame of view 0 nearest to a time, and the seconds between; None: it is of another moment."""
        after = bisect_left(self._times, time)
        around = range(max(after - 1, 0), min(after + 1, len(self._times)))
        off, nearest = min((abs(self._times[k] - time), k) for k in around)
        return (self._numbers[nearest] if off <= NEAR * self._interval + 1e-9 else None), off

    def grab(self) -> tuple[int, float] | None:
        step = next(self._pending, None)
        if step is None:
            return None
        index, self._frame = step
        self.segment = index // VIEW_STRIDE
        return index, self._frame.timestamp

    def retrieve(self) -> NDArray[np.uint8] | None:
        return self.cut(self._frame.rgb, self.segment)

    def close(self) -> None:
        self._source.close()
