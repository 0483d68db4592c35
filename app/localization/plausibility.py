"""Whether an alignment of two results is the only one, and not contradicted: places that look alike are kept apart.

Two placements in a repeated structure explain the same keyframes. And where two different places have a part that
looks the same, the views beside it should show one place, but do not match.
"""

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

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
