"""Removal of masked pixels and sky from results: their depth and confidence become zero."""

from dataclasses import replace

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.depth_points import UNSURE
from stream_recon.app.core.types import Frame, FrameResult, ImageTransform

MAX_COVERED = 0.1
"""Share of a network pixel that a mask may cover before the pixel counts as masked."""
MIN_SKY = 0.005
"""Share of the image that a region of sky has; smaller regions have low confidence for other reasons."""


class Masking:
    """Keeps masks of frames that enter the engine and applies them to results; the two may be different threads."""

    def __init__(self, sky: bool) -> None:
        self._sky = sky
        self._masks: dict[int, NDArray[np.bool_]] = {}

    def note(self, frame: Frame, transform: ImageTransform) -> None:
        """Keep a frame's mask at the network's size until its result comes."""
        if frame.mask is not None:
            self._masks[frame.index] = small_mask(frame.mask, transform)

    def apply(self, result: FrameResult) -> FrameResult:
        """The result with masked pixels removed."""
        mask = self._masks.pop(result.index, None)
        for index in [index for index in tuple(self._masks) if index < result.index]:
            self._masks.pop(index, None)  # frames without a result
        if self._sky:
            sky = unsure_sky(result.confidence)
            mask = sky if mask is None else mask | sky
        if mask is None or not mask.any():
            return result
        nothing = np.float32(0)
        return replace(
            result, depth=np.where(mask, nothing, result.depth), confidence=np.where(mask, nothing, result.confidence)
        )


def small_mask(mask: NDArray[np.bool_], transform: ImageTransform) -> NDArray[np.bool_]:
    """Mask [h, w] at the network's size from one [H, W] at the source's size."""
    left, top, width, height = (round(value) for value in transform.crop)
    used = mask[top : top + height, left : left + width].astype(np.float32)
    return np.asarray(cv2.resize(used, transform.network_size, interpolation=cv2.INTER_AREA) > MAX_COVERED)


def unsure_sky(confidence: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Sky [h, w]: large regions of almost no confidence at the image border."""
    unsure = (confidence < UNSURE * np.median(confidence)).astype(np.uint8)
    unsure = cv2.morphologyEx(unsure, cv2.MORPH_OPEN, np.ones((3, 3), np.uint8))
    _, labels, figures, _ = cv2.connectedComponentsWithStats(unsure, connectivity=4)
    height, width = confidence.shape
    left, top = figures[:, cv2.CC_STAT_LEFT], figures[:, cv2.CC_STAT_TOP]
    right, bottom = left + figures[:, cv2.CC_STAT_WIDTH], top + figures[:, cv2.CC_STAT_HEIGHT]
    at_border = (left == 0) | (top == 0) | (right == width) | (bottom == height)
    chosen = at_border & (figures[:, cv2.CC_STAT_AREA] >= MIN_SKY * height * width)
    chosen[0] = False  # label 0: the confident rest
    return np.asarray(chosen[labels])
