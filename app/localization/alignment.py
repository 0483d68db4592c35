"""How one result lies in the world of another: a similarity from features that both maps share."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.camera_model import CameraModel
from stream_recon.app.core.transforms import Similarity, align, invert_pose, transform_each
from stream_recon.app.localization.config import DEFAULT_LOCALIZATION, AlignmentConfig
from stream_recon.app.localization.localize import LocalizationMap
from stream_recon.app.localization.plausibility import missed_views, share_in_front
from stream_recon.app.localization.pose import Correspondences, fit_pose, ransac_pose
from stream_recon.app.localization.similarity_fit import SharedPixels, fit_pixels


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

    @property
    def first(self) -> NDArray[np.float64]:
        """Points [M, 3] in the first result's world."""
        return self.matches.points

    def errors(self, S: Similarity) -> NDArray[np.float64]:
        """Distances [M] of the points under a similarity, as shares of their distance from the camera."""
        return _errors(S, self.second, self.first, self.distance)


def align_results(first: LocalizationMap, second: LocalizationMap) -> Alignment | NotAligned:
    """The alignment of two results, or why there is none."""
    config, plausibility = first.config.alignment, first.config.plausibility
    rows = _spread(len(second), config.first_tried)
    shared = _shared(first, second, rows)
    if not shared:
        return NOTHING
    more = [row for row in _spread(len(second), config.max_tried) if row not in rows]
    shared += _shared(first, second, more)
    alignment = fit_similarity(shared, config)
    if isinstance(alignment, NotAligned):
        return alignment
    S = _by_pixels(first, second, shared, alignment)
    focal = alignment.focal * first.camera_model.focal / second.camera_model.focal
    agreeing = {each.row for each in shared if _agrees(S, each, config.loose * config.max_error)}
    missed = missed_views(first, second, S, sorted([*rows, *more]), agreeing, plausibility)
    if missed:
        return NotAligned(
            f"looks like that place in part, but {missed} views beside that part show something else", True
        )
    pairs = [(each.near, each.row) for each in shared if _agrees(S, each, config.max_error)]
    share = share_in_front(first, second, S, pairs, plausibility)
    if share > plausibility.max_in_front:
        return NotAligned(f"looks like that place in part, but stands in its free space ({share:.0%} of it)", True)
    return replace(alignment, S_first_second=S, focal=focal)


_Part = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]
"""Points, spread, poses and pixels of one keyframe, as in `SharedPixels`."""


def _by_pixels(
    first: LocalizationMap, second: LocalizationMap, shared: Sequence[_Shared], alignment: Alignment
) -> Similarity:
    """The similarity fitted to the pixels of all matched features where the keyframes agree with it."""
    config, start = first.config.alignment, alignment.S_first_second
    chosen = [each for each in shared if _agrees(start, each, config.max_error)]
    T_first, T_second = invert_pose(first.poses), invert_pose(second.poses)
    camera_first = first.camera_model
    camera_second = replace(second.camera_model, focal=alignment.focal * camera_first.focal)
    in_second: list[_Part] = []
    in_first: list[_Part] = []
    for each in chosen:
        own, matches = second.keyframe(each.row), each.matches
        T = np.broadcast_to(T_second[each.row], (len(matches), 4, 4))
        in_second.append((matches.points, matches.spread, T, matches.uv))
        T = T_first[matches.row]
        local = transform_each(T, each.first)
        uv = camera_first.pixels(local[:, :2] / local[:, 2:])  # a keyframe's points lie on its features' rays
        in_first.append((each.second, own.spread[matches.feature], T, uv))
    pixels = _joined(in_second, camera_second), _joined(in_first, camera_first)
    S = fit_pixels(start, *pixels, alignment.distance, first.config.pose)
    stays = sum(_agrees(S, each, config.loose * config.max_error) for each in chosen) > len(chosen) / 2
    return S if stays else start


def _joined(parts: Sequence[_Part], camera_model: CameraModel) -> SharedPixels:
    points, spread, T_camera_world, uv = (np.concatenate(part) for part in zip(*parts, strict=True))
    return SharedPixels(points, spread, T_camera_world, uv, camera_model)


def _spread(count: int, limit: int) -> list[int]:
    return sorted(set(np.linspace(0, count - 1, min(count, limit)).round().astype(int).tolist()))


def _shared(first: LocalizationMap, second: LocalizationMap, rows: Sequence[int]) -> list[_Shared]:
    """Of each keyframe what `_poses_of` gives."""
    return [each for row in rows if len(second.keyframe(row).features) for each in _poses_of(first, second, row)]


def _poses_of(first: LocalizationMap, second: LocalizationMap, row: int) -> Iterator[_Shared]:
    """Matches of a keyframe by the pose that most of them agree with, and by a rival where there is one."""
    own, config = second.keyframe(row), first.config
    matches = first.match(own.features)
    min_support = max(config.alignment.min_support, config.image.min_share * len(np.unique(matches.feature)))
    for _ in range(2):
        start = ransac_pose(matches, [second.camera_model], config=config.pose)
        if start is None:
            return
        agreeing = matches.take(start.inliers)
        support = len(np.unique(agreeing.feature))
        if support < min_support:
            return
        distance = np.linalg.norm(agreeing.points - start.T_world_camera[:3, 3], axis=1)
        fit = fit_pose(agreeing, start.T_world_camera, start.camera_model, config.image.focal_sigma, config.pose)
        focal = fit.camera_model.focal / first.camera_model.focal
        near = int(np.bincount(agreeing.row).argmax())
        points = own.points[agreeing.feature]
        yield _Shared(row, near, agreeing, points, distance, focal, fit.focal_sigma)
        matches = matches.take(np.setdiff1d(np.arange(len(matches)), start.inliers))
        min_support = max(config.alignment.min_support, config.alignment.rival * support)


def fit_similarity(
    shared: Sequence[_Shared], config: AlignmentConfig = DEFAULT_LOCALIZATION.alignment
) -> Alignment | NotAligned:
    """The similarity that most keyframes agree with, unless another one has nearly as many."""
    start = _most_agreed(shared, config)
    if start is None:
        return NOTHING
    chosen = [each for each in shared if _agrees(start, each, config.max_error)]
    first, second, distance = (
        np.concatenate([getattr(each, name) for each in chosen]) for name in ("first", "second", "distance")
    )
    S = _robust(second, first, distance, config.rounds, start)
    agreeing = [] if S is None else [each for each in shared if _agrees(S, each, config.max_error)]
    keyframes = {each.row for each in agreeing}
    if S is None or len(keyframes) < config.min_keyframes:
        return NOTHING
    others = _keyframes_elsewhere(shared, S, config)
    is_ambiguous = len(keyframes - others) - len(others - keyframes) < config.min_keyframes
    if len(others) >= config.min_keyframes and is_ambiguous:
        text = f"fits at two places: {len(keyframes)} keyframes agree with one and {len(others)} with the other"
        return NotAligned(text, True)
    points = int((_errors(S, second, first, distance) < config.max_error).sum())
    ratio, is_same_camera = _focal_ratio(agreeing, config)
    return Alignment(S, len(keyframes), points, is_same_camera, float(np.median(distance)), ratio)


def _keyframes_elsewhere(shared: Sequence[_Shared], S: Similarity, config: AlignmentConfig) -> set[int]:
    """Keyframes that agree with the best similarity elsewhere than ``S``; none where there is none."""
    elsewhere = [each for each in shared if np.median(each.errors(S)) > config.elsewhere]
    other = _most_agreed(elsewhere, config)
    return set() if other is None else {each.row for each in elsewhere if _agrees(other, each, config.max_error)}


def _most_agreed(shared: Sequence[_Shared], config: AlignmentConfig) -> Similarity | None:
    """The similarity of one keyframe that most of them agree with; None where less than `min_keyframes` do."""
    best, most = None, config.min_keyframes - 1
    for each in shared:
        if len(each.first) < config.min_support:
            continue
        S = _robust(each.second, each.first, each.distance, config.rounds)
        if S is None:
            continue
        count = len({other.row for other in shared if _agrees(S, other, config.max_error)})
        if count > most:
            best, most = S, count
    return best


def _focal_ratio(shared: Sequence[_Shared], config: AlignmentConfig) -> tuple[float, bool]:
    """Focal length by the first's points, as a multiple of the first's, and whether it is the same as far as known."""
    ratio = np.log([each.focal for each in shared])
    weight = 1 / np.maximum([each.focal_sigma for each in shared], 1e-3) ** 2
    mean = float((weight * ratio).sum() / weight.sum())
    # The points' errors are common to neighbouring keyframes.
    error = float(np.sqrt(config.correlated / weight.sum()))
    return float(np.exp(mean)), abs(mean) < max(config.same_focal, config.sure * error)


def _errors(
    S: Similarity, source: NDArray[np.float64], target: NDArray[np.float64], distance: NDArray[np.float64]
) -> NDArray[np.float64]:
    return np.asarray(np.linalg.norm(S.apply(source) - target, axis=1) / distance)


def _agrees(S: Similarity, shared: _Shared, max_error: float) -> bool:
    """Whether most of a keyframe's matched points agree with a similarity."""
    return bool(np.median(shared.errors(S)) < max_error)


def _robust(
    source: NDArray[np.float64],
    target: NDArray[np.float64],
    distance: NDArray[np.float64],
    rounds: int,
    start: Similarity | None = None,
) -> Similarity | None:
    """Similarity from points [N, 3] to points [N, 3], by weights that fall with the error."""
    S = start or align(source, target, 1 / distance**2)
    for _ in range(rounds):
        error = _errors(S, source, target, distance)
        scale = max(1.48 * float(np.median(error)), 1e-6)
        weights = 1 / (distance**2 * (1 + (error / scale) ** 2))
        S = align(source, target, weights)
        if not 1e-6 < S.scale < 1e6:
            return None
    return S
