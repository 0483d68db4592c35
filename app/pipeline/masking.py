"""Pixels that are left out of results: of masks, and of sky. They have neither depth nor confidence, anywhere after."""

from dataclasses import replace

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.depth_points import UNSURE
from stream_recon.app.core.types import Frame, FrameResult, ImageTransform

TOUCHED = 0.1
"""Share of a network's pixel that a mask may cover without its depth being of what was masked."""
LEAST_SKY = 0.005
"""Share of the image: of smaller pieces the network is unsure for other reasons."""


class Masking:
    """Notes masks as frames go in, applies them as results come out; the two may be different threads."""

    def __init__(self, sky: bool) -> None:
        self._sky = sky
        self._masks: dict[int, NDArray[np.bool_]] = {}

    def note(self, frame: Frame, transform: ImageTransform) -> None:
        """Keep a frame's mask at the network's size until its result comes."""
        if frame.mask is not None:
            self._masks[frame.index] = small_mask(frame.mask, transform)

    def apply(self, result: FrameResult) -> FrameResult:
        """The result without what is masked."""
        mask = self._masks.pop(result.index, None)
        for index in [index for index in tuple(self._masks) if index < result.index]:
            self._masks.pop(index, None)  # of frames that were left out
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
    """A mask [H, W] of the source's image as one of the network's [h, w]."""
    left, top, width, height = (round(value) for value in transform.crop)
    used = mask[top : top + height, left : left + width].astype(np.float32)
    return np.asarray(cv2.resize(used, transform.network_size, interpolation=cv2.INTER_AREA) > TOUCHED)


def unsure_sky(confidence: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Where the network sees next to nothing [h, w]: large pieces of next to no confidence at the image's border."""
    unsure = (confidence < UNSURE * np.median(confidence)).astype(np.uint8)
    unsure = cv2.morphologyEx(unsure, cv2.MORPH_OPEN, np.ones((3, 3), np.uint8))
    _, labels, figures, _ = cv2.connectedComponentsWithStats(unsure, connectivity=4)
    height, width = confidence.shape
    left, top = figures[:, cv2.CC_STAT_LEFT], figures[:, cv2.CC_STAT_TOP]
    right, bottom = left + figures[:, cv2.CC_STAT_WIDTH], top + figures[:, cv2.CC_STAT_HEIGHT]
    at_border = (left == 0) | (top == 0) | (right == width) | (bottom == height)
    chosen = at_border & (figures[:, cv2.CC_STAT_AREA] >= LEAST_SKY * height * width)
    chosen[0] = False  # all that is sure
    return np.asarray(chosen[labels])
