"""Films to measure with: the sample's frames, played forth and back, and written to files."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from bench import SAMPLE

SIZE = (640, 480)
Picture = NDArray[np.uint8]
"""RGB [h, w, 3]."""


def sample_frames(size: tuple[int, int] | None = SIZE) -> list[Picture]:
    """The sample's frames, resized to ``size``; None: as they are."""
    capture = cv2.VideoCapture(str(SAMPLE))
    frames: list[Picture] = []
    while True:
        ok, image = capture.read()
        if not ok:
            return frames
        image = image if size is None else cv2.resize(image, size)
        frames.append(cv2.cvtColor(image, cv2.COLOR_BGR2RGB))


def frame_at(frames: Sequence[Picture], index: int) -> Picture:
    """The sample forth and back, without end."""
    turn = index % (2 * len(frames) - 2)
    return frames[min(turn, 2 * len(frames) - 2 - turn)]


def write_film(path: Path, frames: Iterable[Picture], codes: Sequence[str] = ("mp4v",)) -> None:
    """Write a video of 30 frames a second with the first codec of ``codes`` that there is."""
    # Missing codecs are tried without messages.
    os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")
    cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)
    writer = None
    for image in frames:
        if writer is None:
            size = image.shape[1], image.shape[0]
            tried = (cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*code), 30, size) for code in codes)
            writer = next((each for each in tried if each.isOpened()), None)
            if writer is None:
                raise SystemExit(f"OpenCV can write none of {', '.join(codes)} here: give a video")
        writer.write(cv2.cvtColor(image, cv2.COLOR_RGB2BGR))
    if writer is not None:
        writer.release()


def describe_film(path: Path) -> str:
    """Codec and size of a video."""
    capture = cv2.VideoCapture(str(path))
    code = int(capture.get(cv2.CAP_PROP_FOURCC)).to_bytes(4, "little").decode("ascii", "replace")
    size = "x".join(str(int(capture.get(key))) for key in (cv2.CAP_PROP_FRAME_WIDTH, cv2.CAP_PROP_FRAME_HEIGHT))
    capture.release()
    return f"{code} {size}"
