"""Cameras and streams: a thread takes every frame as it comes and keeps the newest one."""

import threading
import time

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.video.captures import capture_rate
from stream_recon.app.video.readers import Reader
from stream_recon.configs.errors import InputError

FIRST_FRAME_SECONDS = 15.0


class LiveReader(Reader):
    """The newest frame of a camera or stream.

    Drop rule: one frame is kept. When the next one arrives before it was taken, the older one is dropped and
    counted, so what is processed is never older than one frame. Indices count every frame that arrived;
    timestamps are seconds since the first one, by this machine's clock.
    """

    live = True

    def __init__(self, capture: cv2.VideoCapture, name: str) -> None:
        """
        Raises:
            InputError: no frame arrives.
        """
        super().__init__(name, capture_rate(capture))
        self._capture = capture
        self._changed = threading.Condition()
        self._newest: tuple[int, float, NDArray[np.uint8]] | None = None
        self._taken: NDArray[np.uint8] | None = None
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
            index, seconds, bgr = self._newest
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

    def _receive(self) -> None:
        try:
            self._receive_until_closed()
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()
            # Released by the thread that reads: another one would pull the capture away in mid-read.
            self._capture.release()

    def _receive_until_closed(self) -> None:
        start = time.monotonic()
        index = 0
        while not self._closed:
            ok, bgr = self._capture.read()
            now = time.monotonic()
            if not ok:
                break
            start = start if index else now
            with self._changed:
                if self._newest is not None:
                    self.dropped += 1
                if not self._closed:
                    self._newest = (index, now - start, bgr)
                self._changed.notify_all()
            index += 1
        if not self._closed:
            self.warnings.append(f"{self.name} ended after {time.monotonic() - start:.1f} s")
