"""Matches of two keyframes by their descriptors, and which of them one motion explains."""

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.mapping.features import Features

GUIDED_RATIO = 0.85
RATIO = 0.8
"""Lowe's; guided matches have fewer rivals, and may be less distinct."""
MIN_COSINE = 0.6
EPIPOLAR_PX = 1.5
MIN_GUIDED = 15
MIN_UNGUIDED = 30
CELL_PX = 48
_ITERATIONS = 1000

Matches = NDArray[np.int32]
"""[M, 2]: positions in the one's features and in the other's."""
NONE: Matches = np.zeros((0, 2), np.int32)


def match(
    first: Features, second: Features, predicted: NDArray[np.floating] | None = None, radius: float = 0.0
) -> Matches:
    """Mutual nearest neighbours that pass the ratio test.

    Args:
        predicted: [N, 2] where the first's features should lie in the second image, NaN where nobody knows; None
            looks everywhere.
        radius: how far from there to look, in pixels along each axis.
    """
    if len(first) < 2 or len(second) < 2:
        return NONE
    cosine = first.descriptors @ second.descriptors.T
    ratio = RATIO
    if predicted is not None:
        place = np.nan_to_num(np.asarray(predicted, np.float32), nan=-1e6)
        # One array for both axes: large ones are what this costs.
        far = np.abs(place[:, :1] - second.uv[None, :, 0]) > radius
        far |= np.abs(place[:, 1:] - second.uv[None, :, 1]) > radius
        cosine[far] = -1
        ratio = GUIDED_RATIO
    rows = np.arange(len(first))
    best = cosine.argmax(axis=1)
    top = cosine[rows, best]
    mutual = top >= cosine.max(axis=0)[best]
    cosine[rows, best] = -1
    runner_up = cosine.max(axis=1)
    nearest, next_nearest = (np.sqrt(np.maximum(2 - 2 * c, 0)) for c in (top, runner_up))
    good = np.flatnonzero(mutual & (top > MIN_COSINE) & (nearest < ratio * next_nearest))
    return np.stack([good, best[good]], axis=1).astype(np.int32)


def verify(first: Features, second: Features, matches: Matches, least: int = MIN_GUIDED) -> Matches:
    """The matches that one fundamental matrix explains (MAGSAC++, Barath et al., CVPR 2020); none if below ``least``.

    Something that moves by itself may have more texture than all else. Where the first answer covers the smaller part
    of the image, what it left is asked, too, and the answer that covers more is taken.
    """
    kept = _explained(first, second, matches, least)
    rest = matches[~np.isin(matches[:, 0], kept[:, 0])]
    if len(kept) and len(rest) >= max(least, len(kept) // 3):
        other = _explained(first, second, rest, least)
        if _cells(first, other) > _cells(first, kept):
            return other
    return kept


def _explained(first: Features, second: Features, matches: Matches, least: int) -> Matches:
    if len(matches) < max(least, 8):
        return NONE
    a, b = first.uv[matches[:, 0]], second.uv[matches[:, 1]]
    _, inliers = cv2.findFundamentalMat(a, b, cv2.USAC_MAGSAC, EPIPOLAR_PX, 0.999, _ITERATIONS)
    if inliers is None:
        return NONE
    kept = matches[inliers[:, 0] > 0]
    return kept if len(kept) >= least else NONE


def _cells(features: Features, matches: Matches) -> int:
    """How many parts of the image the matches lie in."""
    return len(np.unique(features.uv[matches[:, 0]] // CELL_PX, axis=0))
