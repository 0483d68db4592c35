"""Matching of keyframes by descriptors, verification by epipolar geometry, tracks of several keyframes, and KLT."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from stream_recon.app.slam.matching.config import DEFAULT_MATCHING, DescriptorMatchConfig, KltConfig
from stream_recon.app.slam.matching.features import Features

Matches = NDArray[np.int32]
"""[M, 2]: indices of features in the first and second keyframe."""
NO_MATCHES: Matches = np.zeros((0, 2), np.int32)


def match(
    first: Features,
    second: Features,
    predicted: NDArray[np.floating] | None = None,
    radius: float = 0.0,
    config: DescriptorMatchConfig = DEFAULT_MATCHING.descriptors,
) -> Matches:
    """Mutual nearest neighbours that pass the ratio test.

    Args:
        predicted: [N, 2], positions of the first's features in the second image, NaN where unknown; None: unguided.
        radius: of the search around them, in pixels along each axis.
    """
    if len(first) < 2 or len(second) < 2:
        return NO_MATCHES
    ratio, expected = config.ratio, None
    if predicted is not None:
        ratio, expected = config.guided_ratio, np.asarray(predicted, np.float32)
    best, top, runner_up = np.zeros(len(first), np.intp), *np.full((2, len(first)), -1, np.float32)
    rivals = np.full(len(second), -1, np.float32)
    for rows, columns in _blocks(first, second, expected, radius):
        cosine = first.descriptors[rows] @ second.descriptors[columns].T
        if expected is not None:
            near = np.abs(expected[rows, :1] - second.uv[columns, 0]) <= radius
            near &= np.abs(expected[rows, 1:] - second.uv[columns, 1]) <= radius
            # A cosine of 0 is below that of any match; RootSIFT has none below it.
            cosine *= near
        rivals[columns] = np.maximum(rivals[columns], cosine.max(axis=0))
        nearest = cosine.argmax(axis=1)
        each = np.arange(len(nearest))
        best[rows], top[rows] = np.arange(len(second))[columns][nearest], cosine[each, nearest]
        cosine[each, nearest] = -1
        runner_up[rows] = cosine.max(axis=1)
    distance, next_distance = (np.sqrt(np.maximum(2 - 2 * c, 0)) for c in (top, runner_up))
    good = np.flatnonzero((top >= rivals[best]) & (top > config.min_cosine) & (distance < ratio * next_distance))
    return np.stack([good, best[good]], axis=1).astype(np.int32)


def _blocks(
    first: Features, second: Features, predicted: NDArray[np.float32] | None, radius: float
) -> Iterator[tuple[NDArray[np.intp] | slice, NDArray[np.intp] | slice]]:
    """Rows and columns of the table of cosines to compute; each row occurs at most once."""
    if predicted is None:
        yield slice(None), slice(None)
        return
    axis = int(np.argmax(second.uv.max(axis=0)))
    side, along, position = 2 * radius, predicted[:, axis], second.uv[:, axis]
    with np.errstate(invalid="ignore"):
        strip = np.where((along >= -radius) & (along <= position.max() + radius), along // side, np.nan)
    for number in np.unique(strip[np.isfinite(strip)]):
        # One pixel more, for rounding at the border.
        near = (position > number * side - radius - 1) & (position < (number + 1) * side + radius + 1)
        if near.any():
            yield np.flatnonzero(strip == number), np.flatnonzero(near)


def verify(
    first: Features,
    second: Features,
    matches: Matches,
    least: int,
    config: DescriptorMatchConfig = DEFAULT_MATCHING.descriptors,
) -> Matches:
    """Matches that one fundamental matrix explains (MAGSAC++, Barath et al., CVPR 2020); none if below ``least``.

    A moving object may have more texture than the static scene. Where the outliers cover as much of the image as the
    inliers, a second fundamental matrix is estimated from them, and the one that covers more is taken.
    """
    inliers = _inliers(first, second, matches, matches, least, config)
    outliers = matches[~np.isin(matches[:, 0], inliers[:, 0])]
    if not len(inliers) or len(outliers) < least:
        return inliers
    covered = _covered_cells(first, inliers, config)
    if _covered_cells(first, outliers, config) < covered:
        return inliers
    # Near a plane the first matrix takes some of the other motion's matches by chance, so all are tested again.
    other = _inliers(first, second, outliers, matches, least, config)
    return other if _covered_cells(first, other, config) > covered else inliers


def _inliers(
    first: Features, second: Features, sample: Matches, matches: Matches, least: int, config: DescriptorMatchConfig
) -> Matches:
    """Those of ``matches`` that the fundamental matrix of ``sample`` explains."""
    if len(sample) < max(least, 8):
        return NO_MATCHES
    F, inliers = _fundamental(first.uv[sample[:, 0]], second.uv[sample[:, 1]], config)
    if F is None:
        return NO_MATCHES
    good = inliers
    if sample is not matches:
        good = _sampson_px(F, first.uv[matches[:, 0]], second.uv[matches[:, 1]]) < config.epipolar_px
    agreeing = matches[good]
    return agreeing if len(agreeing) >= least else NO_MATCHES


def _fundamental(
    a: NDArray[np.float32], b: NDArray[np.float32], config: DescriptorMatchConfig
) -> tuple[NDArray[np.float64] | None, NDArray[np.bool_]]:
    """Fundamental matrix of matched points [N, 2], None if there is none; and its inliers [N]."""
    for order in (slice(None), slice(None, None, -1)):
        # OpenCV samples deterministically, and raises where a degenerate sample is to be refined (points of a plane,
        # chance matches). The reversed order gives other samples.
        try:
            F, inliers = cv2.findFundamentalMat(
                a[order], b[order], cv2.USAC_MAGSAC, config.epipolar_px, 0.999, config.iterations
            )
        except cv2.error:
            continue
        if F is not None and inliers is not None:
            return np.asarray(F, np.float64), inliers[order, 0] > 0
    return None, np.zeros(len(a), bool)


def _sampson_px(F: NDArray[np.float64], a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.float64]:
    """Sampson distances [N] of matches from ``F`` (Hartley and Zisserman, 11.4.3)."""
    x, y = (np.column_stack([p, np.ones(len(p))]) for p in (a, b))
    lines_second, lines_first = x @ F.T, y @ F
    size = np.square(lines_second[:, :2]).sum(axis=1) + np.square(lines_first[:, :2]).sum(axis=1)
    return np.asarray(np.abs((y * lines_second).sum(axis=1)) / np.sqrt(np.maximum(size, 1e-12)))


def _covered_cells(features: Features, matches: Matches, config: DescriptorMatchConfig) -> int:
    cell = features.uv[matches[:, 0]] // (features.uv.max() / config.cells)
    return len(np.unique(cell, axis=0))


@dataclass(frozen=True)
class Tracks:
    """Observations sorted by track: track, keyframe, and feature in the keyframe."""

    track: NDArray[np.int64]  # [O], from 0 without gaps
    keyframe: NDArray[np.int64]  # [O]
    feature: NDArray[np.int64]  # [O]

    def __len__(self) -> int:
        return int(self.track[-1]) + 1 if len(self.track) else 0


def build_tracks(counts: Sequence[int], matches: Mapping[tuple[int, int], Matches]) -> Tracks:
    """Connected components of the matches of keyframes with ``counts`` features.

    Features of a keyframe that has several in one track are left out.
    """
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    total = int(starts[-1])
    pairs = [np.asarray(m, np.int64) + starts[[i, j]] for (i, j), m in matches.items() if len(m)]
    if not pairs:
        empty = np.zeros(0, np.int64)
        return Tracks(empty, empty, empty)
    edges = np.concatenate(pairs)
    graph = coo_matrix((np.ones(len(edges), np.int8), (edges[:, 0], edges[:, 1])), (total, total))
    _, label = connected_components(graph, directed=False)
    nodes = np.unique(edges)
    keyframe = np.searchsorted(starts, nodes, side="right") - 1
    track = label[nodes].astype(np.int64)
    _, inverse, features = np.unique(track * len(counts) + keyframe, return_inverse=True, return_counts=True)
    clear = features[inverse] == 1
    nodes, keyframe, track = nodes[clear], keyframe[clear], track[clear]
    _, inverse, length = np.unique(track, return_inverse=True, return_counts=True)
    long = length[inverse] >= 2
    _, dense = np.unique(track[long], return_inverse=True)
    order = np.lexsort((keyframe[long], dense))
    return Tracks(dense[order], keyframe[long][order], (nodes - starts[keyframe])[long][order])


def track_klt(
    source: NDArray[np.uint8],
    target: NDArray[np.uint8],
    uv: NDArray[np.floating],
    predicted: NDArray[np.floating],
    config: KltConfig = DEFAULT_MATCHING.klt,
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Points [N, 2] of one image tracked into another (pyramidal KLT, Bouguet 2001), and a mask of those found.

    ``predicted``: [N, 2], initial positions; NaN: unknown.
    """
    if not len(uv):
        return np.zeros((0, 2), np.float32), np.zeros(0, bool)
    height, width = target.shape
    begin = np.asarray(predicted, np.float32)
    ahead = np.isfinite(begin) & (begin >= 0) & (begin < (width, height))
    inside = np.asarray(ahead.all(axis=1))
    start = np.asarray(uv, np.float32) - np.float32(0.5)
    begin = np.where(inside[:, None], begin - np.float32(0.5), start)
    end, is_tracked = _tracked(source, target, start, begin, config)
    # Back without help from the result: from where the prediction puts it.
    back, is_returned = _tracked(target, source, end, end + (start - begin), config)
    is_consistent = inside & is_tracked & is_returned
    is_consistent &= np.linalg.norm(back - start, axis=1) < config.round_trip_px
    return end + np.float32(0.5), np.asarray(is_consistent)


def _tracked(
    source: NDArray[np.uint8],
    target: NDArray[np.uint8],
    start: NDArray[np.float32],
    begin: NDArray[np.float32],
    config: KltConfig,
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    size, flags = (config.window, config.window), cv2.OPTFLOW_USE_INITIAL_FLOW
    end, status, _ = cv2.calcOpticalFlowPyrLK(
        source, target, start, np.array(begin, np.float32), winSize=size, maxLevel=config.levels, flags=flags
    )
    return np.asarray(end, np.float32), np.asarray(status).reshape(-1) > 0
