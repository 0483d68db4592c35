"""Stretches of one video. After a cut or a gap the network begins a new stream, and where that is beside what came
before is a guess. Stretches that see the same are laid onto one another by their matches; the others each stay where
the network has them, whatever becomes of their inside.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.transforms import FloatArray, Similarity, align_poses, invert_pose, rotation_angle_deg
from stream_recon.app.slam.ba.robust_ba import BAState, measured
from stream_recon.app.slam.frame_data import FrameData
from stream_recon.app.slam.matching.relative_poses import Edge
from stream_recon.app.slam.offline.depth_correction import GOOD_PX

Labels = NDArray[np.intp]

AGREEING = 2
"""Pairs of keyframes that have to say the same of how two stretches lie: one may be of two things that look alike."""
TURN_DEG, SHIFT, UNIT = 10.0, 0.2, 1.25
"""By so much they may differ: in rotation, in place as a share of the depth there, in scale."""


def numbered(views: Sequence[FrameData]) -> list[FrameData]:
    """With a number of its own for each run of frames: joined windows count theirs each from 0."""
    found, number = [], 0
    for k, view in enumerate(views):
        number += k > 0 and view.segment != views[k - 1].segment
        found.append(view if view.segment == number else replace(view, segment=number))
    return found


def laid(
    T_world_camera: FloatArray,
    segment: Labels,
    depths: FloatArray,
    edges: Mapping[tuple[int, int], Edge],
    matched: Collection[tuple[int, int]] = (),
) -> dict[int, tuple[int, Similarity]]:
    """For each stretch the first one that it is tied to, and the similarity from where the network has it to there.

    Where matches say that two stretches see the same, but depth is too poor to say how they lie, they lie as the
    network guesses: that may be near enough for an adjustment.

    Args:
        T_world_camera: [N, 4, 4], the network's poses of the keyframes.
        stretch: [N] of each keyframe.
        depths: [N] usual depth of each keyframe.
        edges: of keyframes in different stretches, by matches.
        matched: all pairs of keyframes in different stretches that have verified matches.
    """
    found = {int(number): (int(number), Similarity.identity()) for number in np.unique(segment)}
    known: set[int] = set()
    for root in sorted(found):
        if root in known:
            continue
        known.add(root)
        group = {root}
        while True:
            said = {
                n: _agreed(T_world_camera, segment, depths, edges, found, group, n) for n in found if n not in known
            }
            best = max(said, key=lambda n: said[n][0], default=None)
            if best is None:
                break
            if said[best][0] >= AGREEING:
                found[best] = (root, said[best][1])
            else:
                seen = {n: [there for there, here in _between(segment, matched, group) if here == n] for n in said}
                best = max(seen, key=lambda n: len(seen[n]))
                if len(seen[best]) < AGREEING:
                    break
                found[best] = (root, found[seen[best][0]][1])
            group.add(best)
            known.add(best)
    return found


def _between(segment: Labels, pairs: Collection[tuple[int, int]], group: set[int]) -> list[tuple[int, int]]:
    """The stretches of pairs of which one is in the group, that one first."""
    both = [(int(segment[i]), int(segment[j])) for i, j in pairs]
    return [(a, b) if a in group else (b, a) for a, b in both if (a in group) != (b in group)]


def _agreed(
    T: FloatArray,
    segment: Labels,
    depths: FloatArray,
    edges: Mapping[tuple[int, int], Edge],
    found: Mapping[int, tuple[int, Similarity]],
    group: set[int],
    number: int,
) -> tuple[int, Similarity]:
    """How many edges agree on where a stretch lies beside a group that is in place, and the similarity to there."""
    said: list[tuple[int, FloatArray]] = []
    for (i, j), edge in edges.items():
        there, here = int(segment[i]), int(segment[j])
        S = edge.S_first_second
        if there == number and here in group:
            i, j, there, S = j, i, here, np.asarray(np.linalg.inv(S), np.float64)
        elif here != number or there not in group:
            continue
        said.append((j, found[there][1].matrix @ T[i] @ S))
    best: tuple[int, Similarity] = (0, found[number][1])
    for j, target in said:
        candidate = Similarity.of_matrix(target @ np.linalg.inv(T[j]))
        agree = sum(_is_near(candidate.matrix @ T[k], other, depths[k]) for k, other in said)
        if agree > best[0]:
            best = agree, candidate
    return best


def _is_near(mine: FloatArray, theirs: FloatArray, depth: float) -> bool:
    a, b = Similarity.of_matrix(mine), Similarity.of_matrix(theirs)
    shift = float(np.linalg.norm(a.translation - b.translation)) / (b.scale * depth)
    unit = max(a.scale / b.scale, b.scale / a.scale)
    return bool(rotation_angle_deg(a.rotation.T @ b.rotation) < TURN_DEG and shift < SHIFT and unit < UNIT)


def relaid(view: FrameData, tie: tuple[int, Similarity]) -> FrameData:
    """A view where its stretch lies beside the one that it is tied to, as a view of that one."""
    segment, similarity = tie
    pose, grid = similarity.move_pose(view.T_world_camera), view.grid.scaled(similarity.scale)
    return replace(view, T_world_camera=pose, grid=grid, segment=segment)


def kept_in_place(
    fit: BAState, segment: Labels, T_network: FloatArray, left: NDArray[np.bool_] | None = None
) -> BAState:
    """Each stretch as the map has it, as a whole beside the one before as the network's poses [N, 4, 4] of their
    keyframes have where that ends and this begins, of those not ``left`` to the network. No point is seen from two of
    them.

    What the network guesses is that the camera stood still meanwhile: that stays, not where its own drift has put the
    rest of a stretch. The first one is laid onto the network's poses. The unit of a stretch stays that of its depth
    maps: these are alike from stretch to stretch, as one network made them, while the lengths of its motion are what
    the map puts right.
    """
    if len(np.unique(segment)) < 2:
        return fit
    scene, seen = fit.scene, fit.observations
    assert scene.log_depth_scale is not None and seen.depth is not None
    T, points, log_scale = scene.T_world_camera.copy(), scene.points.copy(), scene.log_depth_scale.copy()
    sure = (seen.depth > 0) & (fit.depth > 0) & (fit.errors < GOOD_PX)
    kept = np.ones(len(T), bool) if left is None else ~left
    placed = np.zeros(len(T), bool)
    # In the order in which they begin.
    for number in segment[np.sort(np.unique(segment, return_index=True)[1])]:
        mine = segment == number
        rows, stays = mine[seen.camera], mine & kept
        if not stays.any():
            continue
        said = rows & sure
        grown = np.log(fit.depth[said] / seen.depth[said]) if said.any() else log_scale[stays]
        unit = float(np.exp(-np.median(grown)))
        begins = int(np.flatnonzero(stays)[0])
        before = np.flatnonzero(placed[:begins])
        if len(before):
            last = int(before[-1])
            beside = T[last] @ invert_pose(T_network[last]) @ T_network[begins]
            similarity = align_poses(T[[begins]], beside[None], unit)
        else:
            similarity = align_poses(T[stays], T_network[stays], unit)
        T[mine] = similarity.move_pose(T[mine])
        placed |= stays
        own = np.unique(seen.point[rows])
        points[own] = similarity.apply(points[own])
        log_scale[mine] += np.log(similarity.scale)
    return measured(replace(scene, T_world_camera=T, points=points, log_depth_scale=log_scale), seen, fit.feature)
