"""Matches of two keyframes by their descriptors, and which of them one motion explains."""

from collections.abc import Iterator

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.slam.matching.features import Features

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
    ratio, place = (RATIO, None) if predicted is None else (GUIDED_RATIO, np.asarray(predicted, np.float32))
    best, top, runner_up = np.zeros(len(first), np.intp), *np.full((2, len(first)), -1, np.float32)
    rivals = np.full(len(second), -1, np.float32)
    for rows, columns in _blocks(first, second, place, radius):
        cosine = first.descriptors[rows] @ second.descriptors[columns].T
        if place is not None:
            far = np.abs(place[rows, :1] - second.uv[columns, 0]) > radius
            far |= np.abs(place[rows, 1:] - second.uv[columns, 1]) > radius
            np.copyto(cosine, np.float32(-1), where=far)
        rivals[columns] = np.maximum(rivals[columns], cosine.max(axis=0))
        nearest = cosine.argmax(axis=1)
        each = np.arange(len(nearest))
        best[rows], top[rows] = np.arange(len(second))[columns][nearest], cosine[each, nearest]
        cosine[each, nearest] = -1
        runner_up[rows] = cosine.max(axis=1)
    distance, next_distance = (np.sqrt(np.maximum(2 - 2 * c, 0)) for c in (top, runner_up))
    good = np.flatnonzero((top >= rivals[best]) & (top > MIN_COSINE) & (distance < ratio * next_distance))
    return np.stack([good, best[good]], axis=1).astype(np.int32)


def _blocks(
    first: Features, second: Features, predicted: NDArray[np.float32] | None, radius: float
) -> Iterator[tuple[NDArray[np.intp] | slice, NDArray[np.intp] | slice]]:
    """Rows and columns of the table of cosines that have to be filled in: each row comes at most once."""
    if predicted is None:
        yield slice(None), slice(None)
        return
    axis = int(np.argmax(second.uv.max(axis=0)))
    side, along, there = 2 * radius, predicted[:, axis], second.uv[:, axis]
    with np.errstate(invalid="ignore"):
        strip = np.where((along >= -radius) & (along <= there.max() + radius), along // side, np.nan)
    for number in np.unique(strip[np.isfinite(strip)]):
        # A little more, for what rounding does at the border.
        near = (there > number * side - radius - 1) & (there < (number + 1) * side + radius + 1)
        if near.any():
            yield np.flatnonzero(strip == number), np.flatnonzero(near)


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
    F, inliers = _fundamental(first.uv[asked[:, 0]], second.uv[asked[:, 1]])
    if F is None:
        return NONE
    good = inliers
    if asked is not every:
        good = _sampson_px(F, first.uv[every[:, 0]], second.uv[every[:, 1]]) < EPIPOLAR_PX
    kept = every[good]
    return kept if len(kept) >= least else NONE


def _fundamental(
    a: NDArray[np.float32], b: NDArray[np.float32]
) -> tuple[NDArray[np.float64] | None, NDArray[np.bool_]]:
    """The fundamental matrix of matched points [N, 2], None where there is none; and which of them it explains."""
    for order in (slice(None), slice(None, None, -1)):
        # OpenCV's samples are always the same ones, and where one that gives no model is to be improved it raises, on
        # points of a plane as well as on chance matches: then others are drawn.
        try:
            F, inliers = cv2.findFundamentalMat(a[order], b[order], cv2.USAC_MAGSAC, EPIPOLAR_PX, 0.999, _ITERATIONS)
        except cv2.error:
            continue
        if F is not None and inliers is not None:
            return np.asarray(F, np.float64), inliers[order, 0] > 0
    return None, np.zeros(len(a), bool)


def _sampson_px(F: NDArray[np.float64], a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.float64]:
    """Distances [N] of matches from what ``F`` allows, to first order (Hartley and Zisserman, 11.4.3)."""
    x, y = (np.column_stack([p, np.ones(len(p))]) for p in (a, b))
    there, back = x @ F.T, y @ F
    size = np.square(there[:, :2]).sum(axis=1) + np.square(back[:, :2]).sum(axis=1)
    return np.asarray(np.abs((y * there).sum(axis=1)) / np.sqrt(np.maximum(size, 1e-12)))


def _cells(features: Features, matches: Matches) -> int:
    """How many parts of the image the matches lie in."""
    return len(np.unique(features.uv[matches[:, 0]] // CELL_PX, axis=0))
