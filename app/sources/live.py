"""Cameras and streams: a thread takes every frame as it comes and keeps the newest one, and reopens what was lost."""

import threading
import time
from collections.abc import Callable

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.sources.capture import capture_rate
from stream_recon.app.sources.readers import FrameRange, Reader
from stream_recon.configs.errors import InputError

FIRST_FRAME_SECONDS = 15.0
RECONNECT_SECONDS = 120.0
READ_ATTEMPTS = 4
"""A packet that cannot be decoded costs a frame, not the stream."""
RETRY_SECONDS = 1.0
"""Between two attempts to open a source again."""
LEAVING_SECONDS = 1.0
"""That `LiveReader.close` waits for a read under way, which most sources end with their next frame."""
LONGEST_PAUSE_SECONDS = 2.0
"""Frames that come after a longer time may be of another place: they begin a new stretch."""


class LiveReader(Reader):
    """The newest frame of a camera or stream.

    Drop rule: one frame is kept. When the next one arrives before it was taken, the older one is dropped and
    counted, so what is processed is never older than one frame. Indices count every frame that arrived;
    timestamps are seconds since the first one, by this machine's clock.

    A source that breaks off is opened again until it comes back, or is given up as `lost` after ``reconnect``
    seconds. What it sends then begins a new stretch, at the size of the first frame.
    """

    live = True

    def __init__(
        self,
        capture: cv2.VideoCapture,
        name: str,
        reopen: Callable[[], cv2.VideoCapture] | None = None,
        reconnect: float = RECONNECT_SECONDS,
    ) -> None:
        """
        Args:
            reopen: opens the source once more, or raises InputError; None: its end is its end.
            reconnect: seconds; 0: its end is its end.

        Raises:
            InputError: no frame arrives.
        """
        super().__init__(name, capture_rate(capture))
        self._capture: cv2.VideoCapture | None = capture
        self._reopen = reopen if reconnect > 0 else None
        self._reconnect = reconnect
        self._changed = threading.Condition()
        self._newest: tuple[int, float, int, NDArray[np.uint8]] | None = None
        self._taken: NDArray[np.uint8] | None = None
        self._count = 0
        self._opened_after = 0
        """Frames that had come when the source was last opened: if none has since, it did not come back."""
        self._size: tuple[int, int] | None = None
        self._ended = False
        self._closed = False
        self._thread = threading.Thread(target=self._receive, name=f"read {name}", daemon=True)
        self._thread.start()
        with self._changed:
            self._changed.wait_for(lambda: self._newest is not None or self._ended, FIRST_FRAME_SECONDS)
            if self._newest is None:
                self._closed = True
                raise InputError(f"{name} is open but sends no frame that can be decoded")

    def grab(self) -> tuple[int, float] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._newest is not None or self._ended)
            if self._newest is None:
                return None
            index, seconds, self.segment, bgr = self._newest
            self._newest = None
        self._taken = bgr
        return index, seconds

    def retrieve(self) -> NDArray[np.uint8] | None:
        assert self._taken is not None, "retrieve comes after grab"
        rgb: NDArray[np.uint8] = cv2.cvtColor(self._taken, cv2.COLOR_BGR2RGB)
        return rgb

    def close(self) -> None:
        """Stop receiving; a ``grab`` waiting in another thread returns None."""
        with self._changed:
            self._closed = self._ended = True
            self._newest = None
            self._changed.notify_all()
        # Where the program ends while OpenCV reads, Python takes the thread down in the midst of it: that aborts.
        self._thread.join(LEAVING_SECONDS)

    def _receive(self) -> None:
        try:
            self._begun = self._last = time.monotonic()
            while self._read_frames() and self._come_back():
                pass
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()
            # Released by the thread that reads: another one would pull the capture away in mid-read.
            if self._capture is not None:
                self._capture.release()

    def _read_frames(self) -> bool:
        """Frames until the source breaks off; False if it was closed here."""
        failures = 0
        while not self._closed and failures < READ_ATTEMPTS:
            assert self._capture is not None
            asked = time.monotonic()
            ok, bgr = self._capture.read()
            if ok:
                self._keep(bgr)
                failures = 0
            else:
                failures += 1
                self.damaged += self._count > 0
                # A source that has ended says so at once, and will say it again.
                if time.monotonic() - asked > LONGEST_PAUSE_SECONDS:
                    break
        return not self._closed

    def _keep(self, bgr: NDArray[np.uint8]) -> None:
        now = time.monotonic()
        if not self._count:
            self._begun = now
        elif now - self._last > LONGEST_PAUSE_SECONDS:
            self._begin_segment(now)
        self._last = now
        bgr = self._at_first_size(bgr, now)
        with self._changed:
            if self._newest is not None:
                self.dropped += 1
            if not self._closed:
                self._newest = (self._count, now - self._begun, len(self.segments), bgr)
            self._changed.notify_all()
        self._count += 1

    def _begin_segment(self, now: float) -> None:
        silent = f"no frames from {self._last - self._begun:.1f} s to {now - self._begun:.1f} s"
        self.segments.append(FrameRange(self._count, now - self._begun, silent))
        self.warnings.append(f"{self.name}: {silent}; what follows is a new stretch")

    def _at_first_size(self, bgr: NDArray[np.uint8], now: float) -> NDArray[np.uint8]:
        """The image, if need be cut to the first one's shape and resized: all frames of a run have one size."""
        size = (bgr.shape[1], bgr.shape[0])
        self._size = self._size or size
        if size == self._size:
            return bgr
        width, height = self._size
        said = f"{self.name} sends {size[0]}x{size[1]} instead of {width}x{height}: cut and resized"
        if said not in self.warnings:
            self.warnings.append(said)
        scale = max(width / size[0], height / size[1])
        used_width, used_height = max(1, round(width / scale)), max(1, round(height / scale))
        left, top = (size[0] - used_width) // 2, (size[1] - used_height) // 2
        used = np.ascontiguousarray(bgr[top : top + used_height, left : left + used_width])
        resized: NDArray[np.uint8] = cv2.resize(used, self._size, interpolation=cv2.INTER_AREA)
        return resized

    def _come_back(self) -> bool:
        """Open the source again; False if it was closed here, has no second life, or did not come back in time."""
        assert self._capture is not None
        self._capture.release()
        self._capture = None
        # A source that never sent a frame is refused, not waited for.
        if self._reopen is None or not self._count:
            self.warnings.append(f"{self.name} ended after {self._last - self._begun:.1f} s")
            return False
        tried = self._opened_after == self._count
        while not self._closed:
            left = self._last + self._reconnect - time.monotonic()
            if tried and left <= 0:
                break
            if tried:
                with self._changed:
                    self._changed.wait_for(lambda: self._closed, min(left, RETRY_SECONDS))
            try:
                self._capture = self._reopen()
            except InputError:
                tried = True
            else:
                self._opened_after = self._count
                return True
        if not self._closed:
            self.lost = True
            self.warnings.append(
                f"{self.name} was lost after {self._last - self._begun:.1f} s and did not come back within "
                f"{self._reconnect:g} s"
            )
        return False
