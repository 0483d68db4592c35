"""Opening of files, addresses and cameras with OpenCV, and metadata of video containers."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from io import BufferedIOBase
from itertools import pairwise
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.cores import are_limited, usable_cores
from stream_recon.app.sources.containers import film
from stream_recon.configs.errors import InputError

EDIT_TOLERANCE_MS = 2.0
"""Rounding of times in edit lists, which often count milliseconds."""
MAX_PIXEL_ASPECT = 4.0
"""Largest ratio of a pixel's sides that is believed; wide-screen DVDs have 1.46, anamorphic lenses 2."""
MAX_FPS = 1000.0
"""Frame rate from which a container's statement is ignored."""
MAX_PLAUSIBLE_FRAMES = 1e8
"""Frame count above which a hint is ignored: containers without one report nonsense (raw H.264: -1.9e14)."""


def open_capture(spec: Path | BufferedIOBase | str | int, name: str, timeout_s: float = 10.0) -> cv2.VideoCapture:
    """Open a file (a path, or its bytes), an address (text) or a camera number with OpenCV.

    ``timeout_s``: limit for opening and for each read of an address.

    Raises InputError: nothing that can be decoded.
    """
    # Where another program imported OpenCV before this package set its level.
    cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)
    try:
        if isinstance(spec, int):
            capture = cv2.VideoCapture(spec)
            capture.set(cv2.CAP_PROP_BUFFERSIZE, 1)
        elif isinstance(spec, Path | BufferedIOBase):
            with _nameable(spec) if isinstance(spec, Path) else nullcontext(spec) as file:
                threads = [cv2.CAP_PROP_N_THREADS, usable_cores()] if are_limited() else []
                capture = cv2.VideoCapture(file, cv2.CAP_FFMPEG, threads)  # type: ignore[arg-type] # or bytes
        else:
            limit = int(1000 * timeout_s)
            options = [cv2.CAP_PROP_OPEN_TIMEOUT_MSEC, limit, cv2.CAP_PROP_READ_TIMEOUT_MSEC, limit]
            if not _is_utf8(spec):
                raise InputError(f"{name} is not an address: it contains bytes that are not UTF-8")
            capture = cv2.VideoCapture(spec, cv2.CAP_FFMPEG, options)
    except cv2.error as error:
        raise InputError(f"{name} cannot be opened: {str(error).splitlines()[0]}") from error
    if not capture.isOpened():
        if isinstance(spec, int):
            raise InputError(f"camera {spec} cannot be opened: check that it is plugged in and not in use")
        if isinstance(spec, str):
            raise InputError(f"nothing answers at {name}, or it is no video stream: check the address")
        raise InputError(f"{name} is not a video that can be read (or its recording ended without an index)")
    return capture


@contextmanager
def _nameable(path: Path) -> Iterator[str]:
    """Name by which OpenCV can open ``path`` within the block.

    The name is absolute, since FFmpeg reads the part of a relative name before a colon as a protocol. OpenCV converts a
    name that is not UTF-8 to a null pointer and crashes, and FFmpeg takes one with a percent sign for a series of
    files. So such a file is named by its descriptor.
    """
    name = str(path.absolute())
    if _is_utf8(name) and "%" not in name:
        yield name
        return
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    try:
        yield f"/proc/self/fd/{file}"
    finally:
        os.close(file)


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def capture_frame_count(capture: cv2.VideoCapture) -> int | None:
    """Frame count stated by the container, which may be wrong; None if it is implausible."""
    count = capture.get(cv2.CAP_PROP_FRAME_COUNT)
    # Raw streams state a rate of their clock, and count its ticks.
    if not capture.get(cv2.CAP_PROP_FPS) < MAX_FPS:
        return None
    return int(count) if 0 < count < MAX_PLAUSIBLE_FRAMES else None


def capture_rate(capture: cv2.VideoCapture) -> float:
    """Nominal frames per second; 30 if the container does not state them."""
    rate = capture.get(cv2.CAP_PROP_FPS)
    return float(rate) if 0 < rate < MAX_FPS else 30.0


def shown_frame_count(capture: cv2.VideoCapture, path: Path) -> int | None:
    """`capture_frame_count` of a file, without the frames that its edit list hides."""
    count, tracks = capture_frame_count(capture), film(path).tracks
    if count is None or len(tracks) != 1 or tracks[0].end is None:
        return count
    return max(1, min(count, round((tracks[0].end - tracks[0].begin) * capture_rate(capture))))


def packet_times(path: Path, name: str) -> list[float]:
    """Times in milliseconds of the packets of a video file that are shown, ascending, from the first one shown on.

    Nothing is decoded: an hour of video takes less than a second. Packets that cannot be decoded are included. Raises
    InputError: see `open_capture`.
    """
    capture = open_capture(path, name)
    times = []
    try:
        if not capture.set(cv2.CAP_PROP_FORMAT, -1):  # raw packets, in decoding order
            return []
        while capture.grab():
            times.append(float(capture.get(cv2.CAP_PROP_POS_MSEC)))
    finally:
        capture.release()
    times.sort()
    tracks = film(path).tracks
    if len(tracks) != 1 or tracks[0].end is None or not times:
        return times
    # OpenCV gives times from the first packet on, whether it is shown or not.
    begin, end = (1000 * at + times[0] - EDIT_TOLERANCE_MS for at in (tracks[0].begin, tracks[0].end))
    shown = [time for time in times if begin <= time < end]
    hidden = bool(shown) and shown[0] != times[0]
    return [time - shown[0] for time in shown] if hidden else shown


def frame_times(path: Path, name: str) -> list[float] | None:
    """`packet_times`; None if they do not identify frames."""
    times = packet_times(path, name)
    tracks = film(path).tracks
    several = len(tracks) > 1 or any(track.edits > 1 for track in tracks)
    ascending = all(earlier < later for earlier, later in pairwise(times))
    return times if times and ascending and not several else None


@dataclass(frozen=True)
class PixelShape:
    """Shape of a video's pixels, which old formats and anamorphic cameras do not make square."""

    aspect: float = 1.0
    """Width over height of a pixel as stored."""

    @classmethod
    def of(cls, capture: cv2.VideoCapture) -> "PixelShape":
        """The shape that the container states; square where it is not plausible."""
        over, under = (capture.get(key) for key in (cv2.CAP_PROP_SAR_NUM, cv2.CAP_PROP_SAR_DEN))
        aspect = over / under if over > 0 and under > 0 else 1.0
        return cls(aspect if 1 / MAX_PIXEL_ASPECT <= aspect <= MAX_PIXEL_ASPECT else 1.0)

    def squared(self, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Image [H, W, 3] with square pixels. The shorter side is enlarged, so that no detail is lost."""
        if self.aspect == 1:
            return image
        return resized(image, (self.aspect, 1.0) if self.aspect > 1 else (1.0, 1 / self.aspect))

    def stored(self, image: NDArray[np.uint8]) -> tuple[int, int] | None:
        """Width and height before `squared`; None where the pixels were square."""
        if self.aspect == 1:
            return None
        height, width = image.shape[:2]
        return (round(width / self.aspect), height) if self.aspect > 1 else (width, round(height * self.aspect))


def resized(image: NDArray[np.uint8], sides: tuple[float, float]) -> NDArray[np.uint8]:
    """Image [H, W, 3] with its width and height multiplied by ``sides``."""
    size = (max(1, round(image.shape[1] * sides[0])), max(1, round(image.shape[0] * sides[1])))
    shrinks = min(sides) < 1
    return np.asarray(cv2.resize(image, size, interpolation=cv2.INTER_AREA if shrinks else cv2.INTER_CUBIC), np.uint8)
