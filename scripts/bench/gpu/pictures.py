"""Pictures to measure with: the sample's, played forth and back."""

from collections.abc import Sequence

import cv2
import numpy as np
from numpy.typing import NDArray

from bench import SAMPLE

SIZE = (640, 480)
Picture = NDArray[np.uint8]


def sample_frames() -> list[Picture]:
    """The sample's frames at 640x480, RGB."""
    capture = cv2.VideoCapture(str(SAMPLE))
    frames: list[Picture] = []
    while True:
        ok, image = capture.read()
        if not ok:
            return frames
        frames.append(cv2.cvtColor(cv2.resize(image, SIZE), cv2.COLOR_BGR2RGB))


def frame_at(frames: Sequence[Picture], index: int) -> Picture:
    """The sample forth and back, without end."""
    turn = index % (2 * len(frames) - 2)
    return frames[min(turn, 2 * len(frames) - 2 - turn)]
