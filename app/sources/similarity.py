"""How much two frames of a video have in common, and whether a frame shows anything at all."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.types import PreparedFrame

THUMBNAIL = (64, 48)
MIDDLE = (slice(10, 38), slice(14, 50))
"""Of a thumbnail: rows and columns that are looked for in the other one."""
FEATURE_PIXELS = 224 * 168
"""Of the image that features are taken from."""
FEATURES = 500
ALIKE = 0.8
"""Correlation above which thumbnails show one place: of pairs from different videos none has more."""
IN_COMMON = 18
"""Features that agree, at the least."""
SURE = 60
"""Features that frames have in common where the camera does not move much between them."""
LEVELS = 32
"""Of a channel's histogram."""
DARK = 16.0
"""Mean brightness, of 255, below which a picture without contrast is dark, not covered."""
PLAIN = 4.0
"""Standard deviation of brightness below which there is nothing to see."""
LEAST_KEYPOINTS = 20


@dataclass
class ImageSignature:
    """A frame with what it is compared by."""

    frame: PreparedFrame
    grey: NDArray[np.uint8] = field(init=False)

    def __post_init__(self) -> None:
        grey = cv2.cvtColor(self.frame.rgb, cv2.COLOR_RGB2GRAY)
        height, width = grey.shape
        scale = (FEATURE_PIXELS / (height * width)) ** 0.5
        size = (max(1, round(width * scale)), max(1, round(height * scale)))
        self.grey = cv2.resize(grey, size, interpolation=cv2.INTER_AREA)

    @cached_property
    def thumbnail(self) -> NDArray[np.float32]:
        small = cv2.resize(self.grey, THUMBNAIL, interpolation=cv2.INTER_AREA)
        return np.asarray(small, np.float32)

    @cached_property
    def features(self) -> tuple[NDArray[np.float32], NDArray[np.uint8] | None]:
        """Positions [N, 2] and descriptors [N, 32]."""
        orb: Any = cv2.ORB_create(  # type: ignore[attr-defined]
            FEATURES, scaleFactor=1.3, nlevels=4, edgeThreshold=12, patchSize=21, fastThreshold=7
        )
        keypoints, descriptors = orb.detectAndCompute(self.grey, None)
        return np.array([k.pt for k in keypoints], np.float32).reshape(-1, 2), descriptors

    @cached_property
    def colours(self) -> NDArray[np.float32]:
        """Shares of pixels up to each level, for each channel [3, LEVELS]."""
        small = cv2.resize(self.frame.rgb, THUMBNAIL, interpolation=cv2.INTER_AREA)
        levels = small.reshape(-1, 3) // (256 // LEVELS)
        counts = [np.bincount(levels[:, channel], minlength=LEVELS) for channel in range(3)]
        shares: NDArray[np.float32] = (np.cumsum(np.stack(counts), axis=1) / len(levels)).astype(np.float32)
        return shares

    @cached_property
    def contrast(self) -> float:
        """Standard deviation of brightness, of 255."""
        return float(self.thumbnail.std())

    @property
    def shows_nothing(self) -> str | None:
        """Why there is nothing to see, if so."""
        if self.contrast >= PLAIN:
            return None
        return "dark" if self.thumbnail.mean() < DARK else "covered"

    def correlation(self, other: "ImageSignature") -> float:
        middle = self.thumbnail[MIDDLE]
        if middle.std() < 1:
            return 0.0
        found: NDArray[np.float32] = cv2.matchTemplate(other.thumbnail, middle, cv2.TM_CCOEFF_NORMED)
        return float(found.max())

    def in_common(self, other: "ImageSignature") -> int:
        """Features of both that agree on one homography."""
        (here, ours), (there, theirs) = self.features, other.features
        if ours is None or theirs is None or min(len(here), len(there)) < LEAST_KEYPOINTS:
            return 0
        pairs = cv2.BFMatcher(cv2.NORM_HAMMING).knnMatch(ours, theirs, k=2)
        good = [p[0] for p in pairs if len(p) == 2 and p[0].distance < 0.8 * p[1].distance]
        if len(good) < 8:
            return 0
        source = here[[match.queryIdx for match in good]]
        target = there[[match.trainIdx for match in good]]
        _, agree = cv2.findHomography(source, target, cv2.RANSAC, 4.0)
        return 0 if agree is None else int(agree.sum())

    def tie(self, other: "ImageSignature") -> int:
        """How surely both show one place: features in common, and enough where the correlation tells already."""
        return SURE if self.correlation(other) >= ALIKE else self.in_common(other)

    def recoloured(self, other: "ImageSignature") -> float:
        """By how many levels, of 256, colours differ, wherever in the picture they are (the earth mover's distance)."""
        return float(np.abs(self.colours - other.colours).sum(axis=1).mean()) * 256 / LEVELS
