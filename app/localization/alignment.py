"""How one result lies in the world of another: a similarity from features that both maps share."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.transforms import Similarity, align
from stream_recon.app.localization.localize import FOCAL_SIGMA, MIN_SHARE, LocalizationMap
from stream_recon.app.localization.pose import Correspondences, fit_pose, ransac_pose

FIRST_TRIED = 24
"""Keyframes that are tried first, spread over the result: without a match among them few others have one."""
MOST_TRIED = 120
"""Keyframes that are tried in all."""
MIN_SUPPORT = 15
"""Least number of features of a keyframe that agree with one pose."""
MIN_KEYFRAMES = 3
"""Least number of such keyframes that agree with one similarity: single ones may show a repeated structure."""
MAX_ERROR = 0.08
"""Distance of matched points, as a share of their distance from the camera, up to which they agree."""
SAME_FOCAL = 0.015
"""Relative difference of focal lengths up to which two results have one camera."""
CORRELATED = 5
"""Keyframes whose focal lengths count as one measurement."""
SURE = 2.0
"""Standard deviations by which focal lengths of two cameras differ."""
ROUNDS = 5
"""Fits of the similarity to the points that agree."""


@dataclass(frozen=True)
class Alignment:
    """Similarity between the worlds of two results."""

    S_first_second: Similarity
    """Takes points of the second result's world to the first's."""
    keyframes: int
    """Keyframes of the second result that agree."""
    points: int
    """Matched points that agree."""
    is_same_camera: bool = False
    """Whether the second result's images fit into the first one's world with the first one's focal length."""


@dataclass(frozen=True)
class _Shared:
    """Matched points of one keyframe of the second result."""

    first: NDArray[np.float64]  # [M, 3], in the first result's world
    second: NDArray[np.float64]  # [M, 3], in the second's
    distance: NDArray[np.float64]  # [M], from the camera in the first's
    focal: float = 1.0
    """Focal length by the first's points, as a multiple of the first's own one."""
    focal_sigma: float = 0.0
    """Standard deviation of its logarithm."""


def align_results(first: LocalizationMap, second: LocalizationMap) -> Alignment | None:
    """The alignment of two results; None where they share nothing, or too little."""
    tried = _spread(len(second), FIRST_TRIED)
    shared = _shared(first, second, tried)
    if not shared:
        return None
    rest = [row for row in _spread(len(second), MOST_TRIED) if row not in tried]
    shared += _shared(first, second, rest)
    return fit_similarity(shared)


def _spread(count: int, most: int) -> list[int]:
    return sorted(set(np.linspace(0, count - 1, min(count, most)).round().astype(int).tolist()))


def _shared(first: LocalizationMap, second: LocalizationMap, rows: Sequence[int]) -> list[_Shared]:
    found = []
    for row in rows:
        own = second.keyframe(row)
        if not len(own.features):
            continue
        matched: Correspondences = first.match(own.features)
        start = ransac_pose(matched, [second.lens])
        if start is None:
            continue
        agreeing = matched.take(start.inliers)
        support = len(np.unique(agreeing.feature))
        if support < max(MIN_SUPPORT, MIN_SHARE * len(np.unique(matched.feature))):
            continue
        distance = np.linalg.norm(agreeing.points - start.T_world_camera[:3, 3], axis=1)
        fit = fit_pose(agreeing, start.T_world_camera, start.lens, FOCAL_SIGMA)
        focal = fit.lens.focal / first.lens.focal
        found.append(_Shared(agreeing.points, own.points[agreeing.feature], distance, focal, fit.focal_sigma))
    return found


def fit_similarity(shared: Sequence[_Shared]) -> Alignment | None:
    """The similarity that most keyframes agree with; None with too few."""
    best: tuple[int, Similarity] | None = None
    for each in shared:
        if len(each.first) < MIN_SUPPORT:
            continue
        S = _robust(each.second, each.first, each.distance)
        if S is None:
            continue
        count = sum(_agrees(S, other) for other in shared)
        if best is None or count > best[0]:
            best = (count, S)
    if best is None or best[0] < MIN_KEYFRAMES:
        return None
    S = best[1]
    chosen = [each for each in shared if _agrees(S, each)]
    first = np.concatenate([each.first for each in chosen])
    second = np.concatenate([each.second for each in chosen])
    distance = np.concatenate([each.distance for each in chosen])
    final = _robust(second, first, distance, S)
    if final is None:
        return None
    good = [each for each in shared if _agrees(final, each)]
    agreeing = int((_errors(final, second, first, distance) < MAX_ERROR).sum())
    return Alignment(final, len(good), agreeing, _has_one_focal(good)) if len(good) >= MIN_KEYFRAMES else None


def _has_one_focal(shared: Sequence[_Shared]) -> bool:
    """Whether the focal length by the first's points is the first's own one, as far as it can be known."""
    ratio = np.log([each.focal for each in shared])
    weight = 1 / np.maximum([each.focal_sigma for each in shared], 1e-3) ** 2
    mean = float((weight * ratio).sum() / weight.sum())
    # The points' errors are common to neighbouring keyframes.
    error = float(np.sqrt(CORRELATED / weight.sum()))
    return abs(mean) < max(SAME_FOCAL, SURE * error)


def _errors(
    S: Similarity, source: NDArray[np.float64], target: NDArray[np.float64], distance: NDArray[np.float64]
) -> NDArray[np.float64]:
    return np.asarray(np.linalg.norm(S.apply(source) - target, axis=1) / distance)


def _agrees(S: Similarity, shared: _Shared) -> bool:
    """Whether most of a keyframe's matched points agree with a similarity."""
    return bool(np.median(_errors(S, shared.second, shared.first, shared.distance)) < MAX_ERROR)


def _robust(
    source: NDArray[np.float64],
    target: NDArray[np.float64],
    distance: NDArray[np.float64],
    start: Similarity | None = None,
) -> Similarity | None:
    """Similarity from points [N, 3] to points [N, 3], by weights that fall with the error."""
    S = start or align(source, target, 1 / distance**2)
    for _ in range(ROUNDS):
        error = _errors(S, source, target, distance)
        scale = max(1.48 * float(np.median(error)), 1e-6)
        weights = 1 / (distance**2 * (1 + (error / scale) ** 2))
        S = align(source, target, weights)
        if not 1e-6 < S.scale < 1e6:
            return None
    return S
