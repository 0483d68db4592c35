"""Views of a rig, read one after the other, each as a film of its own: so the network sees what it was trained on."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.rig import VIEW_STRIDE, Rig
from stream_recon.app.core.types import Frame
from stream_recon.app.sources.calibration import Calibration
from stream_recon.app.sources.readers import Reader
from stream_recon.app.sources.source import Source

NEAR = 0.5
"""Largest difference in time of two images of one moment, in intervals of view 0."""


class RigReader(Reader):
    """Reads the chosen frames of each view's source in turn; each view is a segment.

    Images of one moment have one frame number, by their files' names, else by their times. An image without partner in
    view 0 is left out and counted.
    """

    def __init__(self, rig: Rig, name: str, parts: Sequence[Callable[[], Source]]) -> None:
        """``parts``: open the source of each view with the choice of frames. Raises InputError."""
        self._parts = list(parts)
        self._source = self._parts[0]()
        hint = self._source.frame_hint
        super().__init__(name, 1.0, None if hint is None else hint * len(rig))
        self.rig, self.origin_ns = rig, self._source.origin_ns
        self._frame = next(self._source)
        self._names: dict[str, int] = {}
        """Frame numbers of view 0 by the files' names."""
        self._times, self._numbers = list[float](), list[int]()
        """Times of view 0, ascending, and their frame numbers."""
        self._interval = 0.0
        self._pending = self._frames(self._frame)
        self.calibration = self.view_camera(self._frame.rgb)

    def view_camera(self, rgb: NDArray[np.uint8]) -> Calibration:
        """The pinhole camera of all views, from the first frame of view 0. Raises InputError."""
        raise NotImplementedError

    def cut(self, rgb: NDArray[np.uint8], view: int) -> NDArray[np.uint8]:
        """A view's picture by that camera. Raises InputError."""
        raise NotImplementedError

    def _frames(self, first: Frame) -> Iterator[tuple[int, Frame]]:
        first_name = self._source.name
        for view, open_part in enumerate(self._parts):
            if view:
                self._source = open_part()
                self._interval = float(np.median(np.diff(self._times))) if len(self._times) > 1 else 0.0
            alone, last = 0, -1
            with self._source as source:
                for frame in chain([] if view else [first], source):
                    number = self._number(view, frame, source.image_names)
                    if number is None or number <= last:
                        alone += 1
                        continue
                    self._frame, last = frame, number
                    yield view * VIEW_STRIDE + number, frame
                self.damaged += source.damaged
                self.warnings += [line for line in source.warnings if line not in self.warnings]
            if alone:
                self.warnings.append(f"{alone} images of {source.name} without partner in {first_name} are left out")

    def _number(self, view: int, frame: Frame, names: list[str] | None) -> int | None:
        """Number of the frame whose moment an image shows; None: view 0 has none of it."""
        stem = None if names is None else Path(names[frame.index]).stem
        if not view:
            self._times.append(frame.timestamp)
            self._numbers.append(frame.index)
            if stem is not None:
                self._names[stem] = frame.index
            return frame.index
        if stem is not None and self._names:
            return self._names.get(stem)
        after = bisect_left(self._times, frame.timestamp)
        around = range(max(after - 1, 0), min(after + 1, len(self._times)))
        nearest = min(around, key=lambda k: abs(self._times[k] - frame.timestamp))
        is_near = abs(self._times[nearest] - frame.timestamp) <= NEAR * self._interval + 1e-9
        return self._numbers[nearest] if is_near else None

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
