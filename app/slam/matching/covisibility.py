"""Selection and matching of keyframe pairs: neighbours, covisible keyframes by the poses, and similar images."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.camera_model import CameraModel
from stream_recon.app.core.transforms import invert_pose
from stream_recon.app.slam.frame_data import FrameData, reproject
from stream_recon.app.slam.matching.config import DEFAULT_MATCHING, MatchingConfig, PairConfig
from stream_recon.app.slam.matching.features import Features
from stream_recon.app.slam.matching.learned import LearnedPairs, coverage
from stream_recon.app.slam.matching.matching import Matches, match, verify

Kind = Literal["near", "covisible", "loop"]


@dataclass(frozen=True)
class CandidatePair:
    """Pair of keyframes to match, by their indices among the keyframes, the earlier one first."""

    first: int
    second: int
    kind: Kind
    guided: bool
    least: int = DEFAULT_MATCHING.descriptors.min_unguided
    """Least number of inliers of an unguided pair."""
    overlap: float = 1.0
    """Share of the second one's points that the first one sees, by the poses; 1 where it is not known."""


@dataclass
class PairMatches:
    """Matches of keyframe pairs."""

    matches: dict[tuple[int, int], Matches] = field(default_factory=dict)
    """Verified matches of the accepted pairs."""
    held_out: dict[tuple[int, int], Matches] = field(default_factory=dict)
    """Unverified matches of held-out features, between neighbours."""
    loops: set[tuple[int, int]] = field(default_factory=set)
    """Accepted pairs that were matched without guidance."""
    tried: int = 0
    ordered: bool = True
    """Consecutive keyframes see the same, as in a film; False: only matches say which do."""


def held_out_mask(features: Features, config: PairConfig = DEFAULT_MATCHING.pairs) -> NDArray[np.bool_]:
    """Mask [N] of the features that are excluded from the first pass."""
    return np.asarray(np.arange(len(features)) % config.held_out_every == config.held_out_every - 1)


def candidate_pairs(
    views: Sequence[FrameData],
    camera_model: CameraModel,
    similarity: NDArray[np.float32],
    config: PairConfig = DEFAULT_MATCHING.pairs,
) -> list[CandidatePair]:
    """Pairs of keyframes to match within segments, each once; ``similarity`` [N, N]: see `similarity_matrix`."""
    pairs: dict[tuple[int, int], CandidatePair] = {}
    shared = overlaps(views, camera_model, config.max_near)
    segment = np.array([view.segment for view in views])
    for second in range(len(views)):
        for first in range(max(0, second - config.neighbours), second):
            if segment[first] == segment[second]:
                pairs[first, second] = CandidatePair(first, second, "near", guided=True)
        earlier = np.flatnonzero(segment[: max(0, second - config.neighbours)] == segment[second])
        score = shared[second, earlier]
        for other in non_maximum_suppression(earlier, score, config.min_overlap, config.max_covisible, config.spacing):
            guided = views[second].index - views[other].index <= config.max_guided_interval
            pairs[other, second] = CandidatePair(
                other, second, "covisible", guided, overlap=float(shared[second, other])
            )
        known = [(i, second) in pairs or second - i <= 2 * config.neighbours for i in earlier.tolist()]
        remote = earlier[~np.array(known, bool)]
        for other in _similar(remote, similarity[second], config):
            pairs[other, second] = CandidatePair(other, second, "loop", guided=False)
    return sorted(pairs.values(), key=lambda c: (c.first, c.second))


def _similar(earlier: NDArray[np.intp], similarity: NDArray[np.float32], config: PairConfig) -> list[int]:
    """Candidates among earlier keyframes by a keyframe's similarities [N]."""
    score = similarity[earlier]
    return non_maximum_suppression(earlier, score, config.min_similarity, config.max_similar, config.spacing)


def cross_segment_pairs(
    views: Sequence[FrameData], similarity: NDArray[np.float32], config: PairConfig = DEFAULT_MATCHING.pairs
) -> list[CandidatePair]:
    """Pairs to match between segments: the nearest in time and similar ones; arguments as of `candidate_pairs`."""
    segment = np.array([view.segment for view in views])
    pairs = []
    for second in range(len(views)):
        earlier = np.flatnonzero(segment[:second] != segment[second])
        near = earlier[earlier >= second - config.neighbours]
        similar = _similar(earlier, similarity[second], config)
        pairs += [CandidatePair(first, second, "loop", guided=False) for first in sorted({*near.tolist(), *similar})]
    return pairs


def unordered_pairs(
    similarity: NDArray[np.float32], config: PairConfig = DEFAULT_MATCHING.pairs
) -> list[CandidatePair]:
    """Pairs of keyframes to match where neither order nor poses say what they share: all, or the similar ones.

    ``similarity`` [N, N]: see `similarity_matrix`.
    """
    count = len(similarity)
    chosen = {(first, second) for second in range(count) for first in range(max(0, second - config.neighbours), second)}
    if count <= config.max_exhaustive:
        chosen = {(first, second) for second in range(count) for first in range(second)}
    else:
        others = similarity - 2 * np.eye(count, dtype=np.float32)
        for k, row in enumerate(others):
            chosen |= {(min(k, other), max(k, other)) for other in np.argsort(-row)[: config.retrieved].tolist()}
    return [CandidatePair(first, second, "near", False, config.min_unordered) for first, second in sorted(chosen)]


def non_maximum_suppression(
    positions: NDArray[np.intp], score: NDArray[np.floating], least: float, count: int, spacing: int
) -> list[int]:
    """Positions [N] with the best scores [N], the best one first: at most ``count``, at least ``spacing`` apart.

    Scores below ``least`` are left out.
    """
    chosen: list[int] = []
    for index in np.argsort(-score, kind="stable"):
        if score[index] < least or len(chosen) == count:
            break
        if all(abs(int(positions[index]) - other) >= spacing for other in chosen):
            chosen.append(int(positions[index]))
    return chosen


def overlaps(
    views: Sequence[FrameData], camera_model: CameraModel, max_near: int = DEFAULT_MATCHING.pairs.max_near
) -> NDArray[np.float32]:
    """Shares [N, N] of a keyframe's (row's) points that an earlier one (column) sees; 0 beyond ``max_near``."""
    # Imported here, since it takes a tenth of a second, which a run has no use for before its end.
    from scipy.spatial import cKDTree

    count = len(views)
    shared = np.zeros((count, count), np.float32)
    T = np.array([view.T_world_camera for view in views])
    inverse, forward = invert_pose(T), T[:, :3, 2]
    grid = views[0].grid
    u, v = np.meshgrid(grid.u, grid.v)
    cells = np.stack([u.reshape(-1), v.reshape(-1)], axis=1)
    # Frames of a video have the same grid; photographs may have different ones.
    grids = [w.grid.z if w.grid.z.shape == u.shape else w.grid.sample(cells).reshape(u.shape) for w in views]
    stacked = np.array(grids)
    _, near = cKDTree(T[:, :3, 3]).query(T[:, :3, 3], min(max_near, count))
    for i, view in enumerate(views):
        uv, z = view.grid.pixels()
        uv, z = uv[::2], z[::2]
        others = np.sort(near[i])
        # SIFT does not match views more than 75 degrees apart.
        others = others[(others < i) & (forward[others] @ forward[i] > 0.25)]
        if not len(uv) or not len(others):
            continue
        xyz = (camera_model.unproject(uv) * z[:, None]) @ T[i, :3, :3].T + T[i, :3, 3]
        local = xyz @ inverse[others, :3, :3].transpose(0, 2, 1) + inverse[others, None, :3, 3]
        pixels = camera_model.project(local.reshape(-1, 3))
        row, column, inside = grid.cells(pixels)
        surface = np.where(inside, stacked[np.repeat(others, len(uv)), row, column], np.float32(0))
        surface = surface.reshape(len(others), -1)
        depth = local[..., 2]
        shared[i, others] = np.mean((surface > 0) & (depth < 1.35 * surface) & (depth > 0.65 * surface), axis=1)
    return shared


def match_pairs(
    views: Sequence[FrameData],
    features: Sequence[Features],
    camera_model: CameraModel,
    pairs: Sequence[CandidatePair],
    workers: int = 2,
    advance: Callable[[float], None] | None = None,
    config: MatchingConfig = DEFAULT_MATCHING,
    learned: LearnedPairs | None = None,
) -> PairMatches:
    """Verified matches of all pairs, in ``workers`` threads; ``advance`` is called with the share that is done.

    ``learned``: where SIFT's matches of a pair cover little of the image, learned ones are added.
    """
    descriptors = config.descriptors
    radius = descriptors.guided_radius * camera_model.longer_side

    def checked(a: Features, b: Features, matches: Matches, least: int) -> tuple[Matches, Matches]:
        """Verified matches, and those of held-out features among all matches."""
        is_held_out = held_out_mask(a, config.pairs)[matches[:, 0]] | held_out_mask(b, config.pairs)[matches[:, 1]]
        return verify(a, b, matches, least, descriptors), matches[is_held_out]

    def with_learned(pair: CandidatePair) -> tuple[Matches, Matches]:
        """Matches of a pair, with learned ones where those by SIFT cover little of the image."""
        sift, a, b = match_pair(pair), features[pair.first], features[pair.second]
        if learned is None or coverage(a.uv[sift[0][:, 0]], camera_model, config.learned) >= config.learned.weak:
            return sift
        more = learned.match(pair.first, pair.second)
        # The matcher has left out what one motion does not explain: half of its matches agree at least.
        least = max(pair.least, descriptors.min_unguided, len(more) // 2)
        both, held_out = checked(a, b, np.concatenate([sift[0], more]), least)
        return (both, np.concatenate([sift[1], held_out])) if len(both) > len(sift[0]) else sift

    def match_pair(pair: CandidatePair) -> tuple[Matches, Matches]:
        a, b = features[pair.first].described, features[pair.second].described
        if not pair.guided:
            return checked(a, b, match(a, b, config=descriptors), pair.least)
        T = invert_pose(views[pair.second].T_world_camera) @ views[pair.first].T_world_camera
        predicted, _ = reproject(camera_model, a.uv, np.where(a.z > 0, a.z, np.nan), T)
        guided = checked(a, b, match(a, b, predicted, radius, descriptors), descriptors.min_guided)
        if len(guided[0]) >= descriptors.min_unguided or pair.kind == "covisible":
            return guided
        # The poses may be wrong.
        unguided = checked(a, b, match(a, b, config=descriptors), descriptors.min_unguided)
        return unguided if len(unguided[0]) > len(guided[0]) else guided

    def match_group(group: Sequence[CandidatePair]) -> list[tuple[CandidatePair, Matches, Matches]]:
        done: list[tuple[CandidatePair, Matches, Matches]] = []
        for pair in group:
            failed = sum(not len(verified) for _, verified, _ in done)
            if pair.kind == "covisible" and failed >= config.pairs.max_failed:
                break
            done.append((pair, *with_learned(pair)))
        return done

    result = PairMatches()
    groups = _groups(pairs)
    with ThreadPoolExecutor(workers) as pool:
        for number, group in enumerate(pool.map(match_group, groups), start=1):
            for pair, verified, held_out in group:
                result.tried += 1
                if len(verified):
                    result.matches[pair.first, pair.second] = verified
                    if not pair.guided:
                        result.loops.add((pair.first, pair.second))
                if pair.kind == "near":
                    result.held_out[pair.first, pair.second] = held_out
            if advance:
                advance(number / len(groups))
    return result


def _groups(pairs: Sequence[CandidatePair]) -> list[list[CandidatePair]]:
    """Pairs to match one after the other: covisible ones of one keyframe, those of most overlap first; others alone."""
    groups: list[list[CandidatePair]] = []
    covisible: dict[int, list[CandidatePair]] = {}
    for pair in pairs:
        if pair.kind != "covisible":
            groups.append([pair])
        elif pair.second not in covisible:
            groups.append(covisible.setdefault(pair.second, [pair]))
        else:
            covisible[pair.second].append(pair)
    for group in covisible.values():
        group.sort(key=lambda pair: -pair.overlap)
    return groups
