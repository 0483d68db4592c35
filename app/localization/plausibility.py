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
from stream_recon.app.localization.localize import LocalizationMap
from stream_recon.app.slam.frame_data import project_world

MIN_OVERLAP = 0.6
"""Least share of each view's points that the other one has in its image, of views that show the same."""
MAX_ANGLE_DEG = 25.0
"""Largest angle between the optical axes of such views: SIFT bridges it."""
MAX_ZOOM = 1.4
"""Largest ratio of the distances from which they see their points."""
MIN_TRACKED = 40
"""Least number of triangulated features of such a view: its own video matches it, so it is sharp and textured."""
MIN_MISSED = 4
"""Least number of successive views that should match and do not."""
MAX_IN_FRONT = 0.25
"""Share of points that lie before what is seen there, above which two places differ; 0.01 to 0.07 in true ones."""
NEARER, SAME = 0.85, 0.1
"""Ratio of depths below which a point lies before another one, and its difference from 1 up to which they are one."""
BESIDE_PX = 14.0
"""Distance in the image up to which two points have one depth."""
MIN_COMPARED = 100
"""Least number of compared points."""
COMPARED_VIEWS = 12
"""Pairs of keyframes whose points are compared."""
CHANCE = 1e-3
"""Chance of such a row of misses, by the share of the other views that match, below which the places differ."""


def missed_views(
    first: LocalizationMap, second: LocalizationMap, S: Similarity, tried: Sequence[int], found: Collection[int]
) -> int:
    """Number of successive keyframes that contradict an alignment; 0 where that can be chance.

    Args:
        S: takes the second result's world to the first's.
        tried: keyframes of the second result that were looked for in the first.
        found: those of them that were found where ``S`` has them.
    """
    expected = [row for row in tried if row in found or _shows_the_same(first, second, S, row)]
    hit = np.array([row in found for row in expected], bool)
    longest, begin = 0, 0
    for k in range(len(hit) + 1):
        if k == len(hit) or hit[k]:
            longest, begin = max(longest, k - begin), k + 1
    if longest < MIN_MISSED:
        return 0
    # By the rule of succession: few views do not make the rate certain.
    rate = (int(hit.sum()) + 1) / (len(hit) - longest + 2)
    return longest if (1 - rate) ** longest < CHANCE else 0


def _shows_the_same(first: LocalizationMap, second: LocalizationMap, S: Similarity, row: int) -> bool:
    """Whether a keyframe of the second result should show what some keyframe of the first does."""
    if second.tracked_count(row) < MIN_TRACKED:
        return False
    theirs, poses = first.outline, first.poses
    T = S.move_pose(second.poses[row])
    mine = S.apply(second.outline[row])
    aligned = np.flatnonzero(poses[:, :3, 2] @ T[:3, 2] > np.cos(np.radians(MAX_ANGLE_DEG)))
    own_depth = float(np.nanmedian((mine - T[:3, 3]) @ T[:3, 2]))
    for other in aligned.tolist():
        if first.tracked_count(other) < MIN_TRACKED:
            continue
        pose, points = poses[other], theirs[other]
        depth = float(np.nanmedian((points - pose[:3, 3]) @ pose[:3, 2]))
        from_here = float(np.nanmedian((points - T[:3, 3]) @ T[:3, 2]))
        # Points much nearer or further than what this view shows belong to something else: a wall is between.
        if not all(1 / MAX_ZOOM < ratio < MAX_ZOOM for ratio in (from_here / own_depth, depth / own_depth)):
            continue
        if _inside(first, T, points) >= MIN_OVERLAP and _inside(first, pose, mine) >= MIN_OVERLAP:
            return True
    return False


def _inside(place: LocalizationMap, T: NDArray[np.float64], points: NDArray[np.float64]) -> float:
    """Share of points that lie in the image of a pose."""
    uv = project_world(place.lens, T, points)
    with np.errstate(invalid="ignore"):
        return float(((uv > 0) & (uv < place.size)).all(axis=1).mean())


def share_in_front(
    first: LocalizationMap, second: LocalizationMap, S: Similarity, pairs: Sequence[tuple[int, int]]
) -> float:
    """Share of one result's points that lie before the surfaces that the other one sees there.

    Args:
        S: takes the second result's world to the first's.
        pairs: keyframes of the first and of the second result that show the same.
    """
    chosen = [pairs[k] for k in np.unique(np.linspace(0, len(pairs) - 1, COMPARED_VIEWS).astype(np.intp))]
    there = np.sum([_depths_at(first, second, S, row, other) for row, other in chosen], axis=0)
    back = np.sum([_depths_at(second, first, S.inverse(), other, row) for row, other in chosen], axis=0)
    return max(float(count[0] / count.sum()) if count.sum() >= MIN_COMPARED else 0.0 for count in (there, back))


def _depths_at(
    place: LocalizationMap, viewer: LocalizationMap, S: Similarity, row: int, view: int
) -> NDArray[np.float64]:
    """Numbers of a keyframe's points before, on and behind the surfaces that a keyframe of another result sees."""
    own, pose = viewer.keyframe(view), S.move_pose(viewer.poses[view])
    known = own.tracked
    points = place.keyframe(row).points[place.keyframe(row).tracked]
    if not known.any() or not len(points):
        return np.zeros(3)
    seen = (S.apply(own.points[known]) - pose[:3, 3]) @ pose[:3, 2]
    uv = project_world(viewer.lens, pose, points)
    distance, nearest = cKDTree(own.features.uv[known]).query(
        np.nan_to_num(uv, nan=-1e6), distance_upper_bound=BESIDE_PX
    )
    beside = np.isfinite(distance)
    ratio = ((points - pose[:3, 3]) @ pose[:3, 2])[beside] / seen[nearest[beside]]
    on = np.abs(ratio - 1) < SAME
    return np.array([(ratio < NEARER).sum(), on.sum(), (ratio > 1 / NEARER).sum()], np.float64)
