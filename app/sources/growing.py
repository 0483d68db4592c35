"""A video file that is still being uploaded: decoded as far as it has come, then the reader waits for the rest.

``NAME.upload`` next to it is its mark, with the size that the complete file has. Who writes the file makes the mark
and removes it when the file is complete; nothing else ends the video. The decoder reads from a pipe, so that it asks
for nothing at the end of the file.
"""

import json
import os
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import cv2

from stream_recon.app.sources.containers import whole_file
from stream_recon.app.sources.readers import VideoReader
from stream_recon.configs.errors import InputError

MARK_SUFFIX = ".upload"
POLL_SECONDS = 0.1
"""Time between two looks for more of the file."""
BLOCK = 2**18
MIN_BYTES = 200_000
"""Bytes after the head of a file with which a decoder finds the first frame."""
_STREAMED = (b"\x1aE\xdf\xa3", b"FLV\x01", b"\x00\x00\x01\xba", b"\x00\x00\x01\xb3")
"""Heads of Matroska, Flash and MPEG program streams, which are read from front to back."""


def mark_of(path: Path) -> Path:
    """Path of a file's mark."""
    return path.with_name(path.name + MARK_SUFFIX)


def is_growing(path: Path) -> bool:
    """Whether the rest of a file is still to come."""
    return mark_of(path).is_file()


def can_begin(path: Path, min_bytes: int = MIN_BYTES) -> bool | None:
    """Whether what has come of a video can be decoded; False: not before all of it is there; None: more has to come.

    MP4 and QuickTime can where their index (``moov``) is in front of the frames (``mdat``).
    """
    try:
        with path.open("rb") as file:
            size, head = os.fstat(file.fileno()).st_size, file.read(600)
            is_transport_stream = len(head) > 576 and head[0] == head[188] == head[376] == 0x47
            if head.startswith(_STREAMED) or is_transport_stream or head[4:5] == head[196:197] == head[388:389] == b"G":
                return True if size >= min_bytes else None
            if head[4:8] not in (b"ftyp", b"moov", b"mdat", b"free", b"wide", b"skip"):
                return False
            at = 0
            for box in whole_file(file).inside(b""):  # those that have come completely
                if box.name == b"moov":
                    return True if size >= box.end + min_bytes else None
                if box.name == b"mdat":
                    return False
                at = box.end
            file.seek(at)
            length, name, long = struct.unpack(">I4sQ", file.read(16).ljust(16, b"\xff"))
            return False if name == b"mdat" or (long if length == 1 else length) < 8 else None
    except OSError:
        pass
    return False


class _Feeder:
    """Copies a file into a pipe while it grows."""

    def __init__(self, path: Path) -> None:
        self._mark = mark_of(path)
        try:
            self._total = int(json.loads(self._mark.read_text(encoding="utf-8"))["size"])
            self._file = path.open("rb")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path.name} is an upload whose mark {self._mark.name} cannot be read") from error
        self._read_end, self._write_end = os.pipe()
        self._stop = threading.Event()
        self.is_complete = False
        """Whether the end of the file was reached."""
        self._thread = threading.Thread(target=self._copy, name=f"feed {path.name}", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """Name by which FFmpeg reads the pipe."""
        return f"pipe:{self._read_end}"

    @property
    def stopped(self) -> bool:
        return self._stop.is_set()

    def stop(self) -> None:
        """End the pipe where it is; from any thread."""
        self._stop.set()

    def close(self) -> None:
        """The decoder must have been released."""
        self._stop.set()
        with suppress(OSError):
            os.close(self._read_end)  # a copy that waits for room ends with an error
        self._thread.join()
        self._file.close()

    def _copy(self) -> None:
        try:
            while not self._stop.is_set():
                was_marked = self._mark.exists()
                data = self._file.read(BLOCK)
                if data:
                    self._write(data)
                elif self._file.tell() >= self._total or not was_marked:
                    self.is_complete = self._file.tell() >= self._total
                    return
                else:
                    self._stop.wait(POLL_SECONDS)
        except OSError:
            pass  # the decoder was released
        finally:
            os.close(self._write_end)

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view and not self._stop.is_set():
            view = view[os.write(self._write_end, view) :]


class GrowingVideoReader(VideoReader):
    """A video of which a part has come. `grab` waits for more; frames and times are those of the complete file."""

    def __init__(self, path: Path) -> None:
        """Raises InputError: nothing in it can be decoded, or it is no upload."""
        self._feeder = _Feeder(path)
        # In a thread, since Ctrl-C does not end a wait for the first frame inside the decoder.
        with ThreadPoolExecutor(1) as pool:
            try:
                pool.submit(self._open, path).result()
            except BaseException:
                self._feeder.stop()
                raise

    def _open(self, path: Path) -> None:
        no_limits = [cv2.CAP_PROP_OPEN_TIMEOUT_MSEC, 0, cv2.CAP_PROP_READ_TIMEOUT_MSEC, 0]
        capture = cv2.VideoCapture(self._feeder.address, cv2.CAP_FFMPEG, no_limits)
        try:
            if not capture.isOpened():
                raise InputError(f"no frame of {path.name} can be decoded while it is uploaded")
            super().__init__(capture, path.name, path)
        except BaseException:
            capture.release()
            self._feeder.close()
            raise

    def grab(self) -> tuple[int, float] | None:
        step = None if self._feeder.stopped else super().grab()
        if self._feeder.stopped:
            return None
        if step is None and not self._feeder.is_complete:
            raise InputError(f"the upload of {self.name} was ended: what came of it was reconstructed")
        return step

    def seek(self, index: int) -> bool:
        """False: a frame is found by reading all before it."""
        return False

    def interrupt(self) -> None:
        self._feeder.stop()

    def _missing(self) -> int:
        return 0 if self._feeder.stopped else super()._missing()

    def close(self) -> None:
        self._feeder.stop()
        super().close()
        self._feeder.close()
