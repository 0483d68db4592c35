"""Panoramas of 360 degrees that nothing marks as such: twice as wide as high, and closed around."""

import cv2
import numpy as np
from numpy.typing import NDArray

ASPECT = 0.01
"""Relative difference from 2:1 up to which an image may be an equirectangular panorama."""
ROWS = 256
"""Height to which larger images are reduced."""
TEXTURE = 6.0
"""Least standard deviation of an edge in grey levels: a border of one colour fits any other."""
SEAM = 2.0
"""Difference across the seam, as a multiple of that of neighbouring columns at the edges."""
APART = 0.4
"""The same as a share of the difference of columns a quarter of the width apart."""
POLE = 0.35
"""Variation along the first and last row, each a single point, as a share of that along the middle row."""


def closes_around(rgb: NDArray[np.uint8]) -> bool:
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
    beside = float((np.abs(grey[:, 1] - left).mean() + np.abs(grey[:, -2] - right).mean()) / 2)
    apart = float(np.abs(grey - np.roll(grey, rows // 2, axis=1)).mean())
    along = [float(np.abs(row - np.roll(row, rows // 2)).mean()) for row in (grey[1], grey[-2])]
    return seam <= SEAM * max(beside, 1.0) and seam < APART * apart and max(along) < POLE * apart
