"""Cameras and streams: a thread receives every frame, keeps only the newest, and reopens a lost source."""

import threading
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.sources.capture import PixelShape, capture_rate
from stream_recon.app.sources.readers import FrameRange, Reader
from stream_recon.configs.errors import InputError

RECONNECT_SECONDS = 120.0
"""Default time to wait for a lost source: enough for a camera or router to restart."""
READ_ATTEMPTS = 4
"""Failed reads in a row after which the source counts as lost; a damaged packet fails only once."""
SAME_FRAMES = 30
"""Equal frames at the start after which a source is doubted: a camera's noise changes each."""


@dataclass(frozen=True)
class LiveLimits:
    """Time limits of cameras, streams and topics in seconds, besides that of a reconnection."""

    address_s: float = 10.0
    """For opening and for reading an address; a slow network answers within seconds."""
    first_frame_s: float = 15.0
    """For the first frame; an RTSP stream may wait for a keyframe first."""
    pause_s: float = 2.0
    """Gap after which a new segment begins: the camera may have moved to another place."""
    retry_s: float = 1.0
    """Pause between two attempts to reopen a source."""
    close_s: float = 1.0
    """For the current read when a reader is closed, which most sources end with their next frame."""


LIVE_LIMITS = LiveLimits()


class NewestReader(Reader):
    """Newest picture of a source that another thread receives.

    Drop rule: one picture is stored. If the next one arrives before `grab` took it, the stored one is dropped and
    counted. Indices count every received one.
    """

    live = True

    def __init__(self, name: str, rate: float, limits: LiveLimits) -> None:
        super().__init__(name, rate)
        self._limits = limits
        self._changed = threading.Condition()
        self._newest: tuple[int, float, int, Any] | None = None
        self._grabbed: Any = None
        self._count = 0
        self._ended = False

    def grab(self) -> tuple[int, float] | None:
        with self._changed:
            while self._newest is None and not self._ended:
                self._wait()
            if self._newest is None:
                return None
            index, seconds, self.segment, self._grabbed = self._newest
            self._newest = None
        return index, seconds

    def _wait(self) -> None:
        """Wait for a picture or the end. The caller holds the lock."""
        self._changed.wait()

    def _put(self, seconds: float, picture: Any) -> None:
        with self._changed:
            self.dropped += self._newest is not None
            if not self._ended:
                self._newest = self._count, seconds, len(self.segments), picture
            self._count += 1
            self._changed.notify_all()

    def _stop(self) -> None:
        """End a ``grab`` that waits in another thread."""
        with self._changed:
            self._ended, self._newest = True, None
            self._changed.notify_all()

    def _begin_segment(self, before: float, seconds: float) -> None:
        """``before``: time of the last picture."""
        reason = f"no frames from {before:.1f} s to {seconds:.1f} s"
        self.segments.append(FrameRange(self._count, max(seconds, before), reason))
        self.warnings.append(f"{self.name}: {reason}; a new segment begins")

    def _tell_end(self, seconds: float, waited_s: float = 0.0) -> None:
        """``waited_s``: time within which a lost source did not come back; 0: it was not waited for."""
        self.lost = waited_s > 0
        line = f"was lost after {seconds:.1f} s and did not come back within {waited_s:g} s"
        self.warnings.append(f"{self.name} {line if self.lost else f'ended after {seconds:.1f} s'}")


class LiveReader(NewestReader):
    """Newest frame of a camera or stream. Timestamps are seconds since the first one, by this machine's clock.

    A source that ends is reopened, or reported as `lost` after ``reconnect`` seconds. Frames after a reconnection form
    a new segment and are resized to the first frame's size.
    """

    def __init__(
        self,
        capture: cv2.VideoCapture,
        name: str,
        reopen: Callable[[], cv2.VideoCapture] | None = None,
        reconnect: float = RECONNECT_SECONDS,
        limits: LiveLimits = LIVE_LIMITS,
    ) -> None:
        """
        Args:
            reopen: opens the source again, or raises InputError; None: no reconnection.
            reconnect: seconds to wait for a lost source; 0: no reconnection.

        Raises InputError: no frame arrives.
        """
        super().__init__(name, capture_rate(capture), limits)
        self._capture: cv2.VideoCapture | None = capture
        self._reopen = reopen if reconnect > 0 else None
        self._reconnect_s = reconnect
        self._same = self._digest = 0
        self._opened_after = 0
        """Number of frames received when the source was last opened."""
        self._size: tuple[int, int] | None = None
        self._pixels = PixelShape.of(capture)
        self._closed = False
        self._thread = threading.Thread(target=self._receive, name=f"read {name}", daemon=True)
        self._thread.start()
        with self._changed:
            self._changed.wait_for(lambda: self._newest is not None or self._ended, limits.first_frame_s)
            if self._newest is None:
                self._closed = True
                raise InputError(f"{name} is open but sends no frame that can be decoded")

    def retrieve(self) -> NDArray[np.uint8] | None:
        assert self._grabbed is not None, "retrieve comes after grab"
        self.stored_size = self._pixels.stored(self._grabbed)
        return np.asarray(cv2.cvtColor(self._grabbed, cv2.COLOR_BGR2RGB), np.uint8)

    def close(self) -> None:
        """Stop receiving; a ``grab`` waiting in another thread returns None."""
        self._closed = True
        self._stop()
        # If Python exits while the thread is inside OpenCV's read, the process aborts.
        self._thread.join(self._limits.close_s)

    def _receive(self) -> None:
        try:
            self._start = self._last_time = time.monotonic()
            while self._read_frames() and self._reopen_source():
                pass
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()
            # Released by the thread that reads: another thread would release the capture during a read.
            if self._capture is not None:
                self._capture.release()

    def _read_frames(self) -> bool:
        """Receive frames until the source ends. Returns False after `close`."""
        failures = 0
        while not self._closed and failures < READ_ATTEMPTS:
            assert self._capture is not None
            asked = time.monotonic()
            ok, bgr = self._capture.read()
            if ok:
                self._store_newest(bgr)
                failures = 0
            else:
                failures += 1
                self.damaged += self._count > 0
                # A slow failure is a timeout: the source is gone. One that has ended fails at once, several times.
                if time.monotonic() - asked > self._limits.pause_s:
                    break
        return not self._closed

    def _store_newest(self, bgr: NDArray[np.uint8]) -> None:
        now = time.monotonic()
        if not self._count:
            self._start, self.origin_ns = now, time.time_ns()
        elif now - self._last_time > self._limits.pause_s:
            self._begin_segment(self._last_time - self._start, now - self._start)
        self._last_time = now
        self._check_changes(bgr)
        bgr = self._at_first_size(self._pixels.squared(bgr), now)
        self._put(now - self._start, bgr)

    def _check_changes(self, bgr: NDArray[np.uint8]) -> None:
        """Warn once where the first frames are equal to the last bit, which no camera sends."""
        if self._count > SAME_FRAMES or self._count != self._same:
            return
        digest = zlib.crc32(np.ascontiguousarray(bgr).data)
        self._digest = digest if not self._count else self._digest
        self._same += digest == self._digest
        if self._same > SAME_FRAMES:
            self.warnings.append(
                f"{self.name} sends the same picture again and again: it is frozen, or interlaced, which OpenCV cannot "
                "decode here; let the camera or a server send progressive video"
            )

    def _at_first_size(self, bgr: NDArray[np.uint8], now: float) -> NDArray[np.uint8]:
        """Image [H, W, 3] cropped and resized to the first frame's size, if its size differs."""
        size = (bgr.shape[1], bgr.shape[0])
        self._size = self._size or size
        if size == self._size:
            return bgr
        width, height = self._size
        warning = f"{self.name} sends {size[0]}x{size[1]} instead of {width}x{height}: cropped and resized"
        if warning not in self.warnings:
            self.warnings.append(warning)
        scale = max(width / size[0], height / size[1])
        used_width, used_height = max(1, round(width / scale)), max(1, round(height / scale))
        left, top = (size[0] - used_width) // 2, (size[1] - used_height) // 2
        used = np.ascontiguousarray(bgr[top : top + used_height, left : left + used_width])
        return np.asarray(cv2.resize(used, self._size, interpolation=cv2.INTER_AREA), np.uint8)

    def _reopen_source(self) -> bool:
        """Reopen the source. Returns False after `close`, without reconnection, and after the time limit."""
        assert self._capture is not None
        self._capture.release()
        self._capture = None
        # A source that never sent a frame is an error of the user's, so nothing waits for it.
        if self._reopen is None or not self._count:
            self._tell_end(self._last_time - self._start)
            return False
        tried = self._opened_after == self._count
        while not self._closed:
            left = self._last_time + self._reconnect_s - time.monotonic()
            if tried and left <= 0:
                break
            if tried:
                with self._changed:
                    self._changed.wait_for(lambda: self._closed, min(left, self._limits.retry_s))
            try:
                self._capture = self._reopen()
            except InputError:
                tried = True
            else:
                self._opened_after = self._count
                self._pixels = PixelShape.of(self._capture)
                return True
        if not self._closed:
            self._tell_end(self._last_time - self._start, self._reconnect_s)
        return False
