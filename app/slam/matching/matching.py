"""Matching of two keyframes by descriptors, and verification of the matches by epipolar geometry."""

from collections.abc import Iterator

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.slam.matching.features import Features

RATIO = 0.8
"""Lowe's ratio test of unguided matches, at his threshold."""
GUIDED_RATIO = 0.85
"""Ratio test of guided matches, which have fewer rivals."""
MIN_COSINE = 0.6
"""Least cosine of the descriptors of a match; wrong matches are mostly below."""
EPIPOLAR_PX = 1.5
"""Inlier distance of the fundamental matrix: the noise of SIFT positions."""
MIN_GUIDED = 15
"""Least number of inliers of a guided pair; more are needed where poses do not confirm the pair."""
MIN_UNGUIDED = 30
"""Least number of inliers of an unguided pair; fewer can agree by chance."""
CELL_PX = 48
"""Cell size that measures how much of the image matches cover."""
_ITERATIONS = 1000
"""RANSAC iterations: enough for a sample of 7 inliers where half of the matches are inliers (99.9 %)."""

Matches = NDArray[np.int32]
"""[M, 2]: indices of features in the first and second keyframe."""
NO_MATCHES: Matches = np.zeros((0, 2), np.int32)


def match(
    first: Features, second: Features, predicted: NDArray[np.floating] | None = None, radius: float = 0.0
) -> Matches:
    """Mutual nearest neighbours that pass the ratio test.

    Args:
        predicted: [N, 2], positions of the first's features in the second image, NaN where unknown; None: unguided.
        radius: of the search around them, in pixels along each axis.
    """
    if len(first) < 2 or len(second) < 2:
        return NO_MATCHES
    ratio, expected = (RATIO, None) if predicted is None else (GUIDED_RATIO, np.asarray(predicted, np.float32))
    best, top, runner_up = np.zeros(len(first), np.intp), *np.full((2, len(first)), -1, np.float32)
    rivals = np.full(len(second), -1, np.float32)
    for rows, columns in _blocks(first, second, expected, radius):
        cosine = first.descriptors[rows] @ second.descriptors[columns].T
        if expected is not None:
            far = np.abs(expected[rows, :1] - second.uv[columns, 0]) > radius
            far |= np.abs(expected[rows, 1:] - second.uv[columns, 1]) > radius
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
    """Rows and columns of the table of cosines to compute; each row occurs at most once."""
    if predicted is None:
        yield slice(None), slice(None)
        return
    axis = int(np.argmax(second.uv.max(axis=0)))
    side, along, there = 2 * radius, predicted[:, axis], second.uv[:, axis]
    with np.errstate(invalid="ignore"):
        strip = np.where((along >= -radius) & (along <= there.max() + radius), along // side, np.nan)
    for number in np.unique(strip[np.isfinite(strip)]):
        # One pixel more, for rounding at the border.
        near = (there > number * side - radius - 1) & (there < (number + 1) * side + radius + 1)
        if near.any():
            yield np.flatnonzero(strip == number), np.flatnonzero(near)


def verify(first: Features, second: Features, matches: Matches, least: int = MIN_GUIDED) -> Matches:
    """Matches that one fundamental matrix explains (MAGSAC++, Barath et al., CVPR 2020); none if below ``least``.

    A moving object may have more texture than the static scene. Where the inliers cover the smaller part of the image,
    a second fundamental matrix is estimated from the outliers, and the one that covers more is taken.
    """
    kept = _inliers(first, second, matches, matches, least)
    rest = matches[~np.isin(matches[:, 0], kept[:, 0])]
    if len(kept) and len(rest) >= max(least, len(kept) // 8):
        # Near a plane the first matrix takes some of the other motion's matches by chance, so all are tested again.
        other = _inliers(first, second, rest, matches, least)
        if _covered_cells(first, other) > _covered_cells(first, kept):
            return other
    return kept


def _inliers(first: Features, second: Features, sample: Matches, matches: Matches, least: int) -> Matches:
    """Those of ``matches`` that the fundamental matrix of ``sample`` explains."""
    if len(sample) < max(least, 8):
        return NO_MATCHES
    F, inliers = _fundamental(first.uv[sample[:, 0]], second.uv[sample[:, 1]])
    if F is None:
        return NO_MATCHES
    good = inliers
    if sample is not matches:
        good = _sampson_px(F, first.uv[matches[:, 0]], second.uv[matches[:, 1]]) < EPIPOLAR_PX
    kept = matches[good]
    return kept if len(kept) >= least else NO_MATCHES


def _fundamental(
    a: NDArray[np.float32], b: NDArray[np.float32]
) -> tuple[NDArray[np.float64] | None, NDArray[np.bool_]]:
    """Fundamental matrix of matched points [N, 2], None if there is none; and its inliers [N]."""
    for order in (slice(None), slice(None, None, -1)):
        # OpenCV samples deterministically, and raises where a degenerate sample is to be refined (points of a plane,
        # chance matches). The reversed order gives other samples.
        try:
            F, inliers = cv2.findFundamentalMat(a[order], b[order], cv2.USAC_MAGSAC, EPIPOLAR_PX, 0.999, _ITERATIONS)
        except cv2.error:
            continue
        if F is not None and inliers is not None:
            return np.asarray(F, np.float64), inliers[order, 0] > 0
    return None, np.zeros(len(a), bool)


def _sampson_px(F: NDArray[np.float64], a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.float64]:
    """Sampson distances [N] of matches from ``F`` (Hartley and Zisserman, 11.4.3)."""
    x, y = (np.column_stack([p, np.ones(len(p))]) for p in (a, b))
    there, back = x @ F.T, y @ F
    size = np.square(there[:, :2]).sum(axis=1) + np.square(back[:, :2]).sum(axis=1)
    return np.asarray(np.abs((y * there).sum(axis=1)) / np.sqrt(np.maximum(size, 1e-12)))


def _covered_cells(features: Features, matches: Matches) -> int:
    """Number of image cells that the matches lie in."""
    return len(np.unique(features.uv[matches[:, 0]] // CELL_PX, axis=0))
