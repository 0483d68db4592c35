"""How one result lies in the world of another: a similarity from features that both maps share."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.camera_model import CameraModel
from stream_recon.app.core.transforms import Similarity, align, invert_pose
from stream_recon.app.localization.localize import FOCAL_SIGMA, MIN_SHARE, LocalizationMap
from stream_recon.app.localization.plausibility import MAX_IN_FRONT, missed_views, share_in_front
from stream_recon.app.localization.pose import Correspondences, fit_pose, ransac_pose
from stream_recon.app.localization.similarity_fit import SharedPixels, fit_pixels

FIRST_TRIED = 24
"""Keyframes that are tried first, spread over the result: without a match among them few others have one."""
MAX_TRIED = 120
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
LOOSE = 3.0
"""Times `MAX_ERROR` up to which a keyframe was found where an alignment has it: results drift away from each other."""
RIVAL = 0.5
"""Share of the features of a keyframe's best pose with which another pose of it counts."""
ELSEWHERE = 0.5
"""Distance between two placements, as a share of the points' distance from the camera, from which they differ."""
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
    distance: float = 1.0
    """Median distance of the points from the cameras, in the first result's unit."""
    focal: float = 1.0
    """Focal length with which the second result's images fit into the first one's world, as a multiple of its own."""


@dataclass(frozen=True)
class NotAligned:
    """Two results that are not laid onto one another."""

    reason: str
    """Of the second result, after "it"."""
    looks_alike: bool = False
    """Whether they share views that do not tell where the second result lies."""


NOTHING = NotAligned("shows nothing of that place, or too little")


@dataclass(frozen=True)
class _Shared:
    """Matched points of one keyframe of the second result."""

    row: int
    near: int
    """Keyframe of the first result with the most matches."""
    matches: Correspondences
    """Its features, with points of the first result."""
    second: NDArray[np.float64]  # [M, 3], points of the features in the second's world
    distance: NDArray[np.float64]  # [M], from the camera in the first's
    focal: float = 1.0
    """Focal length by the first's points, as a multiple of the first's own one."""
    focal_sigma: float = 0.0
    """Standard deviation of its logarithm."""
    is_rival: bool = False
    """Whether a pose elsewhere explains more of the keyframe's matches."""

    @property
    def first(self) -> NDArray[np.float64]:
        """Points [M, 3] in the first result's world."""
        return self.matches.points


def align_results(first: LocalizationMap, second: LocalizationMap) -> Alignment | NotAligned:
    """The alignment of two results, or why there is none."""
    tried = _spread(len(second), FIRST_TRIED)
    shared = _shared(first, second, tried)
    if not shared:
        return NOTHING
    rest = [row for row in _spread(len(second), MAX_TRIED) if row not in tried]
    shared += _shared(first, second, rest)
    found = fit_similarity(shared)
    if isinstance(found, NotAligned):
        return found
    S = _by_pixels(first, second, shared, found)
    found = replace(found, S_first_second=S, focal=found.focal * first.lens.focal / second.lens.focal)
    here = {each.row for each in shared if _agrees(S, each, LOOSE * MAX_ERROR)}
    missed = missed_views(first, second, S, sorted([*tried, *rest]), here)
    if missed:
        return NotAligned(
            f"looks like that place in part, but {missed} views beside that part show something else", True
        )
    pairs = [(each.near, each.row) for each in shared if _agrees(S, each)]
    share = share_in_front(first, second, S, pairs)
    if share > MAX_IN_FRONT:
        return NotAligned(f"looks like that place in part, but stands in its free space ({share:.0%} of it)", True)
    return found


_Part = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]
"""Points, spread, poses and pixels of one keyframe, as in `SharedPixels`."""


def _by_pixels(
    first: LocalizationMap, second: LocalizationMap, shared: Sequence[_Shared], found: Alignment
) -> Similarity:
    """The similarity fitted to the pixels of all matched features where the keyframes agree with it."""
    chosen = [each for each in shared if _agrees(found.S_first_second, each)]
    T_first, T_second = invert_pose(first.poses), invert_pose(second.poses)
    one, two = first.lens, replace(second.lens, focal=found.focal * first.lens.focal)
    there: list[_Part] = []
    back: list[_Part] = []
    for each in chosen:
        own, matches = second.keyframe(each.row), each.matches
        T = np.broadcast_to(T_second[each.row], (len(matches), 4, 4))
        there.append((matches.points, matches.spread, T, matches.uv))
        T = T_first[matches.row]
        local = np.einsum("nij,nj->ni", T[:, :3, :3], each.first) + T[:, :3, 3]
        uv = one.pixels(local[:, :2] / local[:, 2:])  # a keyframe's points lie on its features' rays
        back.append((each.second, own.spread[matches.feature], T, uv))
    pixels = [_joined(parts, lens) for parts, lens in ((there, two), (back, one))]
    S = fit_pixels(found.S_first_second, pixels[0], pixels[1], found.distance)
    stays = sum(_agrees(S, each, LOOSE * MAX_ERROR) for each in chosen) > len(chosen) / 2
    return S if stays else found.S_first_second


def _joined(parts: Sequence[_Part], lens: CameraModel) -> SharedPixels:
    points, spread, T_camera_world, uv = (np.concatenate(part) for part in zip(*parts, strict=True))
    return SharedPixels(points, spread, T_camera_world, uv, lens)


def _spread(count: int, most: int) -> list[int]:
    return sorted(set(np.linspace(0, count - 1, min(count, most)).round().astype(int).tolist()))


def _shared(first: LocalizationMap, second: LocalizationMap, rows: Sequence[int]) -> list[_Shared]:
    """Of each keyframe the pose that most matches agree with, and a rival where there is one."""
    found = []
    for row in rows:
        own = second.keyframe(row)
        if not len(own.features):
            continue
        matched: Correspondences = first.match(own.features)
        least = max(MIN_SUPPORT, MIN_SHARE * len(np.unique(matched.feature)))
        for is_rival in (False, True):
            start = ransac_pose(matched, [second.lens])
            if start is None:
                break
            agreeing = matched.take(start.inliers)
            support = len(np.unique(agreeing.feature))
            if support < least:
                break
            distance = np.linalg.norm(agreeing.points - start.T_world_camera[:3, 3], axis=1)
            fit = fit_pose(agreeing, start.T_world_camera, start.lens, FOCAL_SIGMA)
            focal = fit.lens.focal / first.lens.focal
            there = own.points[agreeing.feature]
            near = int(np.bincount(agreeing.row).argmax())
            found.append(_Shared(row, near, agreeing, there, distance, focal, fit.focal_sigma, is_rival))
            matched = matched.take(np.setdiff1d(np.arange(len(matched)), start.inliers))
            least = max(MIN_SUPPORT, RIVAL * support)
    return found


def fit_similarity(shared: Sequence[_Shared]) -> Alignment | NotAligned:
    """The similarity that most keyframes agree with, unless another one has nearly as many."""
    best = _most_agreed(shared)
    if best is None:
        return NOTHING
    S = best
    chosen = [each for each in shared if _agrees(S, each)]
    first = np.concatenate([each.first for each in chosen])
    second = np.concatenate([each.second for each in chosen])
    distance = np.concatenate([each.distance for each in chosen])
    final = _robust(second, first, distance, S)
    if final is None:
        return NOTHING
    good = [each for each in shared if _agrees(final, each)]
    here = {each.row for each in good}
    if len(here) < MIN_KEYFRAMES:
        return NOTHING
    other = _most_agreed([each for each in shared if _is_elsewhere(final, each)])
    if other is not None:
        there = {each.row for each in shared if _agrees(other, each) and _is_elsewhere(final, each)}
        if len(there) >= MIN_KEYFRAMES and len(here - there) - len(there - here) < MIN_KEYFRAMES:
            text = f"fits at two places: {len(here)} keyframes agree with one and {len(there)} with the other"
            return NotAligned(text, True)
    agreeing = int((_errors(final, second, first, distance) < MAX_ERROR).sum())
    ratio, is_one = _focal_ratio(good)
    return Alignment(final, len(here), agreeing, is_one, float(np.median(distance)), ratio)


def _most_agreed(shared: Sequence[_Shared]) -> Similarity | None:
    """The similarity of one keyframe that most of them agree with; None where less than `MIN_KEYFRAMES` do."""
    best: tuple[int, Similarity] | None = None
    for each in shared:
        if len(each.first) < MIN_SUPPORT:
            continue
        S = _robust(each.second, each.first, each.distance)
        if S is None:
            continue
        count = len({other.row for other in shared if _agrees(S, other)})
        if best is None or count > best[0]:
            best = (count, S)
    return best[1] if best is not None and best[0] >= MIN_KEYFRAMES else None


def _focal_ratio(shared: Sequence[_Shared]) -> tuple[float, bool]:
    """Focal length by the first's points, as a multiple of the first's, and whether it is the same as far as known."""
    ratio = np.log([each.focal for each in shared])
    weight = 1 / np.maximum([each.focal_sigma for each in shared], 1e-3) ** 2
    mean = float((weight * ratio).sum() / weight.sum())
    # The points' errors are common to neighbouring keyframes.
    error = float(np.sqrt(CORRELATED / weight.sum()))
    return float(np.exp(mean)), abs(mean) < max(SAME_FOCAL, SURE * error)


def _errors(
    S: Similarity, source: NDArray[np.float64], target: NDArray[np.float64], distance: NDArray[np.float64]
) -> NDArray[np.float64]:
    return np.asarray(np.linalg.norm(S.apply(source) - target, axis=1) / distance)


def _agrees(S: Similarity, shared: _Shared, most: float = MAX_ERROR) -> bool:
    """Whether most of a keyframe's matched points agree with a similarity."""
    return bool(np.median(_errors(S, shared.second, shared.first, shared.distance)) < most)


def _is_elsewhere(S: Similarity, shared: _Shared) -> bool:
    """Whether a keyframe's matched points lie elsewhere than a similarity has them."""
    return bool(np.median(_errors(S, shared.second, shared.first, shared.distance)) > ELSEWHERE)


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
