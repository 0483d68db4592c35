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
    kept = _explained(first, second, matches, matches, least)
    rest = matches[~np.isin(matches[:, 0], kept[:, 0])]
    if len(kept) and len(rest) >= max(least, len(kept) // 8):
        # Near to one plane an answer takes in some of the others' matches by chance, so all are asked again.
        other = _explained(first, second, rest, matches, least)
        if _cells(first, other) > _cells(first, kept):
            return other
    return kept


def _explained(first: Features, second: Features, asked: Matches, every: Matches, least: int) -> Matches:
    """Those of ``every`` match that the fundamental matrix of those ``asked`` explains."""
    if len(asked) < max(least, 8):
        return NONE
    a, b = first.uv[asked[:, 0]], second.uv[asked[:, 1]]
    try:
        F, inliers = cv2.findFundamentalMat(a, b, cv2.USAC_MAGSAC, EPIPOLAR_PX, 0.999, _ITERATIONS)
    except cv2.error:  # where no sample gives any model
        return NONE
    if F is None or inliers is None:
        return NONE
    good = inliers[:, 0] > 0
    if asked is not every:
        good = _sampson_px(F, first.uv[every[:, 0]], second.uv[every[:, 1]]) < EPIPOLAR_PX
    kept = every[good]
    return kept if len(kept) >= least else NONE


def _sampson_px(F: NDArray[np.float64], a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.float64]:
    """Distances [N] of matches from what ``F`` allows, to first order (Hartley and Zisserman, 11.4.3)."""
    x, y = (np.column_stack([p, np.ones(len(p))]) for p in (a, b))
    there, back = x @ F.T, y @ F
    size = np.square(there[:, :2]).sum(axis=1) + np.square(back[:, :2]).sum(axis=1)
    return np.asarray(np.abs((y * there).sum(axis=1)) / np.sqrt(np.maximum(size, 1e-12)))


def _cells(features: Features, matches: Matches) -> int:
    """How many parts of the image the matches lie in."""
    return len(np.unique(features.uv[matches[:, 0]] // CELL_PX, axis=0))
