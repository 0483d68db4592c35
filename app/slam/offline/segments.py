"""Segments of one video: after a cut or a gap the network guesses the pose of a new one relative to the earlier ones.

Segments that see the same are aligned by their matches. The others keep the network's guess.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.transforms import FloatArray, Similarity, align_poses, invert_pose, rotation_angle_deg
from stream_recon.app.slam.ba.robust_ba import BAState, with_errors
from stream_recon.app.slam.evidence.depth_scales import POINTS, PointConfig
from stream_recon.app.slam.frame_data import FrameData
from stream_recon.app.slam.matching.relative_poses import Edge

Labels = NDArray[np.intp]
Alignments = dict[int, tuple[int, Similarity]]
"""For each segment the first one that it is aligned with, and the similarity from the network's poses to there."""


@dataclass(frozen=True)
class SegmentConfig:
    """When alignments of segments agree."""

    min_agreeing: int = 2
    """Least number of keyframe pairs that agree on an alignment; a single one may be of two things that look alike."""
    same_deg: float = 10.0
    """Largest rotation between agreeing alignments."""
    same_distance: float = 0.2
    """Largest distance between agreeing alignments, as a share of the depth."""
    same_scale: float = 1.25
    """Largest ratio of scales of agreeing alignments."""
    points: PointConfig = POINTS


SEGMENTS = SegmentConfig()


def numbered(views: Sequence[FrameData]) -> list[FrameData]:
    """Views with consecutive segment numbers; stitched parts count theirs from 0 each."""
    renumbered, number = [], 0
    for k, view in enumerate(views):
        number += k > 0 and view.segment != views[k - 1].segment
        renumbered.append(view if view.segment == number else replace(view, segment=number))
    return renumbered


def joined(views: Sequence[FrameData], numbers: Collection[int]) -> list[FrameData]:
    """Views with these segments made one."""
    first = min(numbers, default=0)
    return [replace(view, segment=first) if view.segment in numbers else view for view in views]


def align(
    T_world_camera: FloatArray,
    segment: Labels,
    depths: FloatArray,
    edges: Mapping[tuple[int, int], Edge],
    matched: Collection[tuple[int, int]] = (),
    config: SegmentConfig = SEGMENTS,
) -> Alignments:
    """Alignments of segments by relative poses of their keyframes.

    Where segments have matches but no agreeing relative poses, the network's guess is kept, from which an adjustment
    may converge.

    Args:
        T_world_camera, segment, depths: [N, 4, 4], [N], [N], the keyframes' network poses, segments, median depths.
        edges: relative poses of keyframes in different segments.
        matched: all pairs of keyframes in different segments with verified matches.
    """
    alignments = {int(number): (int(number), Similarity.identity()) for number in np.unique(segment)}
    alignment = _SegmentAlignment(T_world_camera, segment, depths, edges, alignments, config)
    done: set[int] = set()
    for root in sorted(alignments):
        if root in done:
            continue
        done.add(root)
        group = {root}
        while True:
            votes = {n: alignment.best_for(n, group) for n in alignments if n not in done}
            best = max(votes, key=lambda n: votes[n][0], default=None)
            if best is None:
                break
            if votes[best][0] >= config.min_agreeing:
                alignments[best] = (root, votes[best][1])
            else:
                pairs = _pairs_into(segment, matched, group)
                inside_of = {n: [inside for inside, outside in pairs if outside == n] for n in votes}
                best = max(inside_of, key=lambda n: len(inside_of[n]))
                if len(inside_of[best]) < config.min_agreeing:
                    break
                alignments[best] = (root, alignments[inside_of[best][0]][1])
            group.add(best)
            done.add(best)
    return alignments


def _pairs_into(segment: Labels, pairs: Collection[tuple[int, int]], group: set[int]) -> list[tuple[int, int]]:
    """Segments (inside, outside) of pairs of which exactly one keyframe is in the group."""
    both = [(int(segment[i]), int(segment[j])) for i, j in pairs]
    return [(a, b) if a in group else (b, a) for a, b in both if (a in group) != (b in group)]


@dataclass(frozen=True)
class _SegmentAlignment:
    """Poses [N, 4, 4] and relative poses of keyframes, and the alignments from them so far."""

    T: FloatArray
    segment: Labels
    depths: FloatArray
    edges: Mapping[tuple[int, int], Edge]
    alignments: Alignments
    config: SegmentConfig

    def best_for(self, number: int, group: set[int]) -> tuple[int, Similarity]:
        """Number of relative poses that agree on a segment's alignment with an aligned group, and that alignment."""
        votes: list[tuple[int, FloatArray]] = []
        for (i, j), edge in self.edges.items():
            first, second = int(self.segment[i]), int(self.segment[j])
            S = edge.S_first_second
            if first == number and second in group:
                i, j, first, S = j, i, second, np.asarray(np.linalg.inv(S), np.float64)
            elif second != number or first not in group:
                continue
            votes.append((j, self.alignments[first][1].matrix @ self.T[i] @ S))
        best: tuple[int, Similarity] = (0, self.alignments[number][1])
        for j, target in votes:
            candidate = Similarity.of_matrix(target @ np.linalg.inv(self.T[j]))
            agree = sum(_agrees(candidate.matrix @ self.T[k], other, self.depths[k], self.config) for k, other in votes)
            if agree > best[0]:
                best = agree, candidate
        return best


def _agrees(first: FloatArray, second: FloatArray, depth: float, config: SegmentConfig) -> bool:
    """Whether two similarities [4, 4] from a camera to the world are nearly equal."""
    a, b = Similarity.of_matrix(first), Similarity.of_matrix(second)
    distance = float(np.linalg.norm(a.translation - b.translation)) / (b.scale * depth)
    ratio = max(a.scale / b.scale, b.scale / a.scale)
    angle_deg = rotation_angle_deg(a.rotation.T @ b.rotation)
    return bool(angle_deg < config.same_deg and distance < config.same_distance and ratio < config.same_scale)


def moved(view: FrameData, alignment: tuple[int, Similarity]) -> FrameData:
    """A view in the world of the segment that its own one is aligned with."""
    segment, similarity = alignment
    return replace(view.moved(similarity.move_pose(view.T_world_camera), similarity.scale), segment=segment)


def with_network_layout(
    fit: BAState,
    segment: Labels,
    T_network: FloatArray,
    fallback: NDArray[np.bool_] | None = None,
    config: SegmentConfig = SEGMENTS,
) -> BAState:
    """The solution with each segment moved so that the motion over the gap before it is the network's.

    The network's guess of that motion is kept, but not the drift of its poses elsewhere. The first segment is aligned
    with the network's poses. A segment keeps the scale of its depth maps, which the network makes alike in all
    segments, unlike the lengths of its motion. No point is seen from two segments.

    ``segment`` [K] and ``T_network`` [K, 4, 4] are the keyframes'; those in the mask ``fallback`` [K] are not used.
    """
    if len(np.unique(segment)) < 2:
        return fit
    scene, observations = fit.scene, fit.observations
    assert scene.log_depth_scale is not None and observations.depth is not None
    T, points, log_scale = scene.T_world_camera.copy(), scene.points.copy(), scene.log_depth_scale.copy()
    sure = (observations.depth > 0) & (fit.depth > 0) & (fit.errors < config.points.good_px)
    mapped = np.ones(len(T), bool) if fallback is None else ~fallback
    done = np.zeros(len(T), bool)
    # In the order of their first keyframes.
    for number in segment[np.sort(np.unique(segment, return_index=True)[1])]:
        own = segment == number
        rows, used = own[observations.camera], own & mapped
        if not used.any():
            continue
        measured = rows & sure
        ratio = np.log(fit.depth[measured] / observations.depth[measured]) if measured.any() else log_scale[used]
        scale = float(np.exp(-np.median(ratio)))
        first = int(np.flatnonzero(used)[0])
        before = np.flatnonzero(done[:first])
        if len(before):
            last = int(before[-1])
            target = T[last] @ invert_pose(T_network[last]) @ T_network[first]
            similarity = align_poses(T[[first]], target[None], scale)
        else:
            similarity = align_poses(T[used], T_network[used], scale)
        T[own] = similarity.move_pose(T[own])
        done |= used
        own_points = np.unique(observations.point[rows])
        points[own_points] = similarity.apply(points[own_points])
        log_scale[own] += np.log(similarity.scale)
    scene = replace(scene, T_world_camera=T, points=points, log_depth_scale=log_scale)
    return with_errors(scene, observations, fit.feature)
