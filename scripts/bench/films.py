"""Films to measure with: the sample's frames, played forth and back, and written to files."""

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


def write_film(path: Path, frames: Iterable[Picture], size: tuple[int, int] = SIZE) -> None:
    """Write a video in MPEG-4 of 30 frames a second."""
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"mp4v"), 30, size)
    for image in frames:
        writer.write(cv2.cvtColor(image, cv2.COLOR_RGB2BGR))
    writer.release()
