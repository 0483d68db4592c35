"""A folder of photographs that grows while a phone scans, and can be read again afterwards.

``000000.jpg`` and so on are the frames. ``frames.jsonl`` has a line for each, written after its file: ``index``,
``time`` in seconds and ``segment``; ``{"end": true}`` is its last line. ``feedback.jsonl`` is written by the run:
messages of the protocol (docs/server.md) with numbers of frames of the folder, and ``taken`` with the ``frame`` after
which the run asks for another one.
"""

import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.sources.image_decoding import read_image
from stream_recon.app.sources.readers import FrameRange, Reader
from stream_recon.configs.errors import InputError

FRAMES_NAME, FEEDBACK_NAME = "frames.jsonl", "feedback.jsonl"
NOMINAL_FPS = 10.0
"""Rate of a scan's frames, about."""
POLL_SECONDS = 0.004
"""Time between two looks for the next frame: short next to a frame, and no load."""
MAX_LINE = 1000


def is_scan(spec: str) -> bool:
    """Whether a source is a folder of this kind."""
    return (Path(spec) / FRAMES_NAME).is_file()


class ScanFeedback:
    """What a run reports to the phone. May be used from several threads."""

    def __init__(self, folder: Path) -> None:
        self.observe: Callable[[float, NDArray[np.uint8]], None] = lambda seconds, rgb: None
        """Called with each frame that arrives, in the reading thread."""
        self._file = os.open(folder / FEEDBACK_NAME, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def tell(self, message: dict[str, Any]) -> None:
        """Write a message."""
        # The phone may miss a line; the run goes on.
        with suppress(OSError):
            os.write(self._file, json.dumps(message).encode() + b"\n")


class ScanReader(Reader):
    """Frames of a scan, in order. `live` until its last line says that it has ended."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder.name, NOMINAL_FPS)
        self._folder = folder
        try:
            self._file = (folder / FRAMES_NAME).open("rb")
        except OSError as error:
            raise InputError(f"{folder} cannot be read: {error.strerror}") from error
        self._incomplete_line = b""
        self._entries: list[dict[str, Any]] = []
        self._ended = self._closed = False
        self._index = -1
        self._size: tuple[int, int] | None = None
        self._read_entries()
        self.live = not self._ended
        self.frame_hint = len(self._entries) if self._ended else None
        self.feedback = ScanFeedback(folder) if self.live else None

    def grab(self) -> tuple[int, float] | None:
        if self.feedback is not None and self._index >= 0:
            # The frame before is on its way through the run: asking for the next one keeps one of them waiting.
            self.feedback.tell({"type": "taken", "frame": self._index})
        self._index += 1
        while self._index >= len(self._entries):
            if self._ended or self._closed:
                self.live = False  # its frames can be read again
                return None
            if not self._read_entries():
                time.sleep(POLL_SECONDS)
        entry = self._entries[self._index]
        if entry["segment"] != self.segment:
            self.segment = entry["segment"]
            before = self._entries[self._index - 1]["time"] if self._index else 0.0
            reason = f"no frames from {before:.1f} s to {entry['time']:.1f} s"
            self.segments.append(FrameRange(self._index, entry["time"], reason))
        return self._index, entry["time"]

    def retrieve(self) -> NDArray[np.uint8] | None:
        rgb = read_image(self._folder / f"{self._index:06d}.jpg", as_stored=True)
        size = None if rgb is None else (rgb.shape[1], rgb.shape[0])
        self._size = self._size or size
        if rgb is None or size != self._size:
            self.damaged += 1
            self.warnings.append(f"frame {self._index} is no readable image of the first one's size: it was skipped")
            return None
        if self.feedback is not None:
            self.feedback.observe(self._entries[self._index]["time"], rgb)
        return rgb

    def seek(self, index: int) -> bool:
        if not 0 <= index < len(self._entries):
            return False
        self._index, self.segment = index - 1, self._entries[index]["segment"]
        return True

    def close(self) -> None:
        self._closed = True

    def _read_entries(self) -> bool:
        """Read the lines that were added; False if there are none. Raises InputError for a damaged file."""
        data = self._file.read()
        if not data:
            return False
        *lines, self._incomplete_line = (self._incomplete_line + data).split(b"\n")
        for line in lines:
            try:
                entry = json.loads(line[:MAX_LINE])
                if entry.get("end") is True:
                    self._ended = True
                    break
                index, seconds, segment = entry["index"], float(entry["time"]), int(entry["segment"])
                if index != len(self._entries):
                    raise ValueError("a frame is missing")
                if not np.isfinite(seconds) or (self._entries and seconds <= self._entries[-1]["time"]):
                    raise ValueError(f"time {seconds:g} of frame {index} is not after that of the frame before")
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise InputError(f"{self._folder / FRAMES_NAME} is damaged: {error}") from error
            self._entries.append({"time": seconds, "segment": segment})
        return True
