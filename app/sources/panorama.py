"""Frames that are no pinhole images though nothing marks them: panoramas of 360 degrees, and two views side by side."""

import cv2
import numpy as np
from numpy.typing import NDArray

PANORAMA = (
    "{} is a panorama of 360 degrees, which no pinhole camera shows: cut perspective views from it first, such as with "
    "ffmpeg -vf v360=e:flat:h_fov=90:v_fov=90:yaw=0"
)
"""Refusal of equirectangular images."""
ASPECT = 0.01
"""Relative difference from 2:1 up to which an image may be an equirectangular panorama."""
ROWS = 256
"""Height to which larger images are reduced."""
TEXTURE = 6.0
"""Least standard deviation of an edge in grey levels: a border of one colour fits any other."""
SEAM = 2.0
"""Difference across the seam, as a multiple of that of neighbouring columns at the edges."""
DISTANT = 0.4
"""The same as a share of the difference of columns a quarter of the width apart."""
POLE = 0.35
"""Variation along the first and last row, each a single point, as a share of that along the middle row."""


def is_equirectangular(rgb: NDArray[np.uint8]) -> bool:
    """Whether an image [H, W, 3] is an equirectangular panorama: its left edge continues its right one, and its first
    and last row are almost one colour each."""
    height, width = rgb.shape[:2]
    if height < 64 or abs(width / (2 * height) - 1) > ASPECT:
        return False
    rows = min(ROWS, height)
    small = cv2.resize(rgb, (2 * rows, rows), interpolation=cv2.INTER_AREA)
    grey = np.asarray(cv2.cvtColor(small, cv2.COLOR_RGB2GRAY), np.float32)
    left, right = grey[:, 0], grey[:, -1]
    if min(left.std(), right.std()) < TEXTURE:
        return False
    seam = float(np.abs(left - right).mean())
    neighbours = float((np.abs(grey[:, 1] - left).mean() + np.abs(grey[:, -2] - right).mean()) / 2)
    distant = float(np.abs(grey - np.roll(grey, rows // 2, axis=1)).mean())
    along = [float(np.abs(row - np.roll(row, rows // 2)).mean()) for row in (grey[1], grey[-2])]
    return seam <= SEAM * max(neighbours, 1.0) and seam < DISTANT * distant and max(along) < POLE * distant


HALF_ROWS = 72
"""Height to which the halves of a frame are reduced."""
BLUR = 4.0
"""Standard deviation in pixels of what is subtracted, so that light and shade do not count."""
MAX_SHIFT = 0.12
"""Shift of one half against the other that is tried, as a share of its width: stereo cameras have less."""
MIN_CORRELATION = 0.45
"""Correlation from which halves are two views of one place; of halves of wide pictures it is below 0.25."""
WIDE = 2.2
"""Aspect ratio from which two views may lie side by side."""


def is_side_by_side(rgb: NDArray[np.uint8]) -> bool:
    """Whether the left and right half of a wide frame [H, W, 3] show the same place, as films of stereo cameras do."""
    height, width = rgb.shape[:2]
    if height < 64 or width < WIDE * height:
        return False
    return _largest_correlation(rgb[:, : width // 2], rgb[:, -(width // 2) :]) > MIN_CORRELATION


def _largest_correlation(first: NDArray[np.uint8], second: NDArray[np.uint8]) -> float:
    """Largest correlation of the details of two images of one size, over horizontal shifts."""
    size = (max(32, round(first.shape[1] * HALF_ROWS / first.shape[0])), HALF_ROWS)
    details = []
    for image in (first, second):
        small = cv2.resize(image, size, interpolation=cv2.INTER_AREA)
        grey = np.asarray(cv2.cvtColor(small, cv2.COLOR_RGB2GRAY), np.float32)
        details.append(grey - cv2.GaussianBlur(grey, (0, 0), BLUR))
    best = 0.0
    for shift in range(-round(MAX_SHIFT * size[0]), round(MAX_SHIFT * size[0]) + 1):
        a = details[0][:, max(0, shift) : size[0] + min(0, shift)]
        b = details[1][:, max(0, -shift) : size[0] + min(0, -shift)]
        scale = float(np.sqrt((a**2).mean() * (b**2).mean()))
        best = max(best, float((a * b).mean()) / scale if scale > 1.0 else 0.0)
    return best
