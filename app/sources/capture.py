"""Opening of files, addresses and cameras with OpenCV, and metadata of video containers."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import cv2

from stream_recon.configs.errors import InputError

ADDRESS_TIMEOUT_SECONDS = 10.0
"""Time limit for opening and for reading an address; a slow network answers within seconds."""
MAX_PLAUSIBLE_FRAMES = 1e8
"""Frame count above which a hint is ignored: containers without one report nonsense (raw H.264: -1.9e14)."""


def open_capture(spec: Path | str | int, name: str) -> cv2.VideoCapture:
    """Open a file (a path), an address (text) or a camera number with OpenCV.

    Raises InputError: nothing that can be decoded.
    """
    # The decoder may print thousands of lines to stderr; the InputError says more.
    os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")
    cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)
    try:
        if isinstance(spec, int):
            capture = cv2.VideoCapture(spec)
            capture.set(cv2.CAP_PROP_BUFFERSIZE, 1)
        elif isinstance(spec, Path):
            with _nameable(spec) as file_name:
                capture = cv2.VideoCapture(file_name, cv2.CAP_FFMPEG)
        else:
            limit = int(1000 * ADDRESS_TIMEOUT_SECONDS)
            options = [cv2.CAP_PROP_OPEN_TIMEOUT_MSEC, limit, cv2.CAP_PROP_READ_TIMEOUT_MSEC, limit]
            capture = cv2.VideoCapture(_text(spec, name), cv2.CAP_FFMPEG, options)
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
    name that is not UTF-8 to a null pointer and crashes, so such a file is named by its descriptor.
    """
    name = str(path.absolute())
    try:
        name.encode()
    except UnicodeEncodeError:
        try:
            file = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror}") from error
        try:
            yield f"/proc/self/fd/{file}"
        finally:
            os.close(file)
    else:
        yield name


def _text(address: str, name: str) -> str:
    try:
        address.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{name} is not an address: it contains bytes that are not UTF-8") from error
    return address


def capture_frame_count(capture: cv2.VideoCapture) -> int | None:
    """Frame count stated by the container, which may be wrong; None if it is implausible."""
    count = capture.get(cv2.CAP_PROP_FRAME_COUNT)
    return int(count) if 0 < count < MAX_PLAUSIBLE_FRAMES else None


def capture_rate(capture: cv2.VideoCapture) -> float:
    """Nominal frames per second; 30 if the container does not state them."""
    rate = capture.get(cv2.CAP_PROP_FPS)
    return float(rate) if 0 < rate < 1000 else 30.0


def frame_times(path: Path, name: str) -> list[float] | None:
    """Times in milliseconds of all packets of a video file, ascending; None if they do not identify frames.

    Nothing is decoded: an hour of video takes less than a second. Packets that cannot be decoded are included. Raises
    InputError: see `open_capture`.
    """
    capture = open_capture(path, name)
    try:
        if not capture.set(cv2.CAP_PROP_FORMAT, -1):  # raw packets, in decoding order
            return None
        times = []
        while capture.grab():
            times.append(float(capture.get(cv2.CAP_PROP_POS_MSEC)))
    finally:
        capture.release()
    times.sort()
    return times if all(earlier < later for earlier, later in pairwise(times)) else None
