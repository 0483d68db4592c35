"""Opening files, addresses and cameras with OpenCV, and what their containers say of themselves."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import cv2

from stream_recon.configs.errors import InputError

ADDRESS_TIMEOUT_SECONDS = 10.0
# Containers without a frame count report nonsense (raw H.264: -1.9e14), so a hint beyond this is none.
MAX_PLAUSIBLE_FRAMES = 1e8


def open_capture(spec: Path | str | int, name: str) -> cv2.VideoCapture:
    """Open a file (a path), an address (text) or a camera number with OpenCV.

    Raises:
        InputError: nothing there that can be decoded.
    """
    # The decoder's own lines on stderr say less than our one line, and there may be thousands of them.
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
        raise InputError(f"{name} is not a video that can be read (or it broke off before its index was written)")
    return capture


@contextmanager
def _nameable(path: Path) -> Iterator[str]:
    """A name by which OpenCV opens ``path`` within the block.

    It is absolute: of a relative one FFmpeg takes what is before a colon for a protocol. Names that are not UTF-8
    end the process in OpenCV (which converts them to a null pointer), so such a file is opened here and named by its
    number.
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
        raise InputError(f"{name} is not an address: it holds bytes that are not UTF-8") from error
    return address


def capture_frame_count(capture: cv2.VideoCapture) -> int | None:
    """The container's frame count: a hint, never a promise; None where it is nonsense."""
    count = capture.get(cv2.CAP_PROP_FRAME_COUNT)
    return int(count) if 0 < count < MAX_PLAUSIBLE_FRAMES else None


def capture_rate(capture: cv2.VideoCapture) -> float:
    """Nominal frames a second, 30 where the container does not say."""
    rate = capture.get(cv2.CAP_PROP_FPS)
    return float(rate) if 0 < rate < 1000 else 30.0


def frame_times(path: Path, name: str) -> list[float] | None:
    """Milliseconds of all frames of a video file, ascending, from its packets: nothing is decoded, so an hour takes
    no second. None where they are no key to the frames. Packets that cannot be decoded count, too.

    Raises:
        InputError: see `open_capture`.
    """
    capture = open_capture(path, name)
    try:
        if not capture.set(cv2.CAP_PROP_FORMAT, -1):  # the packets themselves, in the order of decoding
            return None
        times = []
        while capture.grab():
            times.append(float(capture.get(cv2.CAP_PROP_POS_MSEC)))
    finally:
        capture.release()
    times.sort()
    return times if all(earlier < later for earlier, later in pairwise(times)) else None
