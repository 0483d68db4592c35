"""Whether an alignment of two results is the only one, and not contradicted: places that look alike are kept apart.

Two different places may have a part that looks the same. Laid onto one another there, they contradict each other: the
views beside that part should show one place, but do not match, and one place has surfaces where the other one's are
seen through.
"""

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from stream_recon.app.core.transforms import Similarity
from stream_recon.app.localization.config import DEFAULT_LOCALIZATION, PlausibilityConfig
from stream_recon.app.localization.localize import LocalizationMap
from stream_recon.app.slam.frame_data import project_world


def missed_views(
    first: LocalizationMap,
    second: LocalizationMap,
    S: Similarity,
    tried: Sequence[int],
    matched: Collection[int],
    config: PlausibilityConfig = DEFAULT_LOCALIZATION.plausibility,
) -> int:
    """Number of successive keyframes that contradict an alignment; 0 where that can be chance.

    Args:
        S: takes the second result's world to the first's.
        tried: keyframes of the second result that were matched with the first.
        matched: those of them whose matches lie where ``S`` has them.
    """
    expected = [row for row in tried if row in matched or _shows_the_same(first, second, S, row, config)]
    hit = np.array([row in matched for row in expected], bool)
    longest, begin = 0, 0
    for k in range(len(hit) + 1):
        if k == len(hit) or hit[k]:
            longest, begin = max(longest, k - begin), k + 1
    if longest < config.min_missed:
        return 0
    # By the rule of succession: few views do not make the rate certain.
    rate = (int(hit.sum()) + 1) / (len(hit) - longest + 2)
    return longest if (1 - rate) ** longest < config.chance else 0


def _shows_the_same(
    first: LocalizationMap, second: LocalizationMap, S: Similarity, row: int, config: PlausibilityConfig
) -> bool:
    """Whether a keyframe of the second result should show what some keyframe of the first does."""
    if second.tracked_count(row) < config.min_tracked:
        return False
    T = S.move_pose(second.poses[row])
    ours = S.apply(second.outline[row])
    own_depth = _median_depth(T, ours)
    for other in np.flatnonzero(first.poses[:, :3, 2] @ T[:3, 2] > np.cos(np.radians(config.max_angle_deg))).tolist():
        if first.tracked_count(other) < config.min_tracked:
            continue
        pose, points = first.poses[other], first.outline[other]
        ratios = _median_depth(T, points) / own_depth, _median_depth(pose, points) / own_depth
        # Points much nearer or further than what this view shows belong to something else: a wall is between.
        if not all(1 / config.max_zoom < ratio < config.max_zoom for ratio in ratios):
            continue
        if min(_inside(first, T, points), _inside(first, pose, ours)) >= config.min_overlap:
            return True
    return False


def _median_depth(T: NDArray[np.float64], points: NDArray[np.float64]) -> float:
    return float(np.nanmedian((points - T[:3, 3]) @ T[:3, 2]))


def _inside(place: LocalizationMap, T: NDArray[np.float64], points: NDArray[np.float64]) -> float:
    """Share of points that lie in the image of a pose."""
    uv = project_world(place.camera_model, T, points)
    with np.errstate(invalid="ignore"):
        return float(((uv > 0) & (uv < place.size)).all(axis=1).mean())


def share_in_front(
    first: LocalizationMap,
    second: LocalizationMap,
    S: Similarity,
    pairs: Sequence[tuple[int, int]],
    config: PlausibilityConfig = DEFAULT_LOCALIZATION.plausibility,
) -> float:
    """Share of one result's points that lie before the surfaces that the other one sees there.

    Args:
        S: takes the second result's world to the first's.
        pairs: keyframes of the first and of the second result that show the same.
    """
    chosen = [pairs[k] for k in np.unique(np.linspace(0, len(pairs) - 1, config.compared_views).astype(np.intp))]
    in_second = np.sum([_depth_counts(first, second, S, row, other, config) for row, other in chosen], axis=0)
    in_first = np.sum([_depth_counts(second, first, S.inverse(), other, row, config) for row, other in chosen], axis=0)
    return max(
        float(count[0] / count.sum()) if count.sum() >= config.min_compared else 0.0 for count in (in_second, in_first)
    )


def _depth_counts(
    place: LocalizationMap, viewer: LocalizationMap, S: Similarity, row: int, view: int, config: PlausibilityConfig
) -> NDArray[np.float64]:
    """Numbers of a keyframe's points before, on and behind the surfaces that a keyframe of another result sees."""
    own, pose = viewer.keyframe(view), S.move_pose(viewer.poses[view])
    tracked = own.tracked
    points = place.keyframe(row).points[place.keyframe(row).tracked]
    if not tracked.any() or not len(points):
        return np.zeros(3)
    surface = (S.apply(own.points[tracked]) - pose[:3, 3]) @ pose[:3, 2]
    uv = project_world(viewer.camera_model, pose, points)
    distance, nearest = cKDTree(own.features.uv[tracked]).query(
        np.nan_to_num(uv, nan=-1e6), distance_upper_bound=config.near_px
    )
    is_near = np.isfinite(distance)
    ratio = ((points - pose[:3, 3]) @ pose[:3, 2])[is_near] / surface[nearest[is_near]]
    on = np.abs(ratio - 1) < config.same_depth
    return np.array([(ratio < config.nearer).sum(), on.sum(), (ratio > 1 / config.nearer).sum()], np.float64)
