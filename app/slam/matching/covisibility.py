"""Which keyframes are matched with which, and how: neighbours and those that should see the same, where the poses
say so; and those that look alike, wherever the poses put them."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from stream_recon.app.core.transforms import invert_pose
from stream_recon.app.slam.ba.problem import CameraModel
from stream_recon.app.slam.frame_data import DepthGrid, FrameData, project_points, reproject, unproject
from stream_recon.app.slam.matching.features import Features
from stream_recon.app.slam.matching.matching import MIN_GUIDED, MIN_UNGUIDED, Matches, match, verify

NEIGHBOURS = 4
COVISIBLE = 8
MIN_OVERLAP = 0.25
SPACING = 3
"""Covisible keyframes and loops are taken so many keyframes apart from one another: neighbours of one say the same."""
NEAREST = 300
"""Keyframes, by their places, among which covisible ones are looked for."""
FAR = 60
"""Frames; the poses of keyframes further apart are not trusted to guide."""
ALIKE = 3
"""Candidates of each keyframe by looks alone."""
MIN_LIKENESS = 0.12
HELD_OUT = 8
"""One feature in so many is in no track of the first pass, and judges it."""
RADIUS = 0.12
"""Of the longer side: how far from its predicted place a match may be."""

Kind = Literal["near", "covisible", "loop"]


@dataclass(frozen=True)
class Candidate:
    """Two keyframes, by their positions among the keyframes, the earlier one first."""

    first: int
    second: int
    kind: Kind
    guided: bool


@dataclass
class PairMatches:
    """What matching gave."""

    matches: dict[tuple[int, int], Matches] = field(default_factory=dict)
    """Of the accepted pairs."""
    held_out: dict[tuple[int, int], Matches] = field(default_factory=dict)
    """Of features that the first pass does not see, near in time: not verified by anything."""
    loops: set[tuple[int, int]] = field(default_factory=set)
    tried: int = 0
    tried_far: int = 0


def held_out(features: Features) -> NDArray[np.bool_]:
    """[N] the features that are kept for the judgement."""
    return np.asarray(np.arange(len(features)) % HELD_OUT == HELD_OUT - 1)


def candidates(views: Sequence[FrameData], lens: CameraModel, alike: NDArray[np.float32]) -> list[Candidate]:
    """Pairs worth matching, each once.

    Args:
        views: the keyframes.
        alike: [N, N], see `likeness`.
    """
    found: dict[tuple[int, int], Candidate] = {}
    shared = overlaps(views, lens)
    segment = np.array([view.segment for view in views])
    for second in range(len(views)):
        for first in range(max(0, second - NEIGHBOURS), second):
            if segment[first] == segment[second]:
                found[first, second] = Candidate(first, second, "near", guided=True)
        earlier = np.flatnonzero(segment[: max(0, second - NEIGHBOURS)] == segment[second])
        for other in non_maximum_suppression(earlier, shared[second, earlier], MIN_OVERLAP, COVISIBLE):
            guided = views[second].index - views[other].index <= FAR
            found[other, second] = Candidate(other, second, "covisible", guided)
        known = [(i, second) in found or second - i <= 2 * NEIGHBOURS for i in earlier.tolist()]
        remote = earlier[~np.array(known, bool)]
        for other in non_maximum_suppression(remote, alike[second, remote], MIN_LIKENESS, ALIKE):
            found[other, second] = Candidate(other, second, "loop", guided=False)
    return sorted(found.values(), key=lambda c: (c.first, c.second))


def cross_segment_pairs(views: Sequence[FrameData], alike: NDArray[np.float32]) -> list[Candidate]:
    """Pairs of keyframes of different stretches: the nearest in time, and those that look alike. For `candidates` see
    there."""
    segment = np.array([view.segment for view in views])
    found = []
    for second in range(len(views)):
        earlier = np.flatnonzero(segment[:second] != segment[second])
        near = earlier[earlier >= second - NEIGHBOURS]
        chosen = {*near.tolist(), *non_maximum_suppression(earlier, alike[second, earlier], MIN_LIKENESS, ALIKE)}
        found += [Candidate(first, second, "loop", guided=False) for first in sorted(chosen)]
    return found


def non_maximum_suppression(
    positions: NDArray[np.intp], score: NDArray[np.floating], least: float, count: int, spacing: int = SPACING
) -> list[int]:
    """Those positions [N], at most ``count``, whose scores [N] are best and not below ``least``, the best one first;
    none is nearer than ``spacing`` to a better one."""
    chosen: list[int] = []
    for at in np.argsort(-score, kind="stable"):
        if score[at] < least or len(chosen) == count:
            break
        if all(abs(int(positions[at]) - other) >= spacing for other in chosen):
            chosen.append(int(positions[at]))
    return chosen


def overlaps(views: Sequence[FrameData], lens: CameraModel) -> NDArray[np.float32]:
    """[N, N] share of a view's (row's) points that an earlier one (column) sees, of the `NEAREST` ones; else 0."""
    count = len(views)
    shared = np.zeros((count, count), np.float32)
    T = np.array([view.T_world_camera for view in views])
    inverse, forward = invert_pose(T), T[:, :3, 2]
    every = _SharedGrid.of(views)
    _, near = cKDTree(T[:, :3, 3]).query(T[:, :3, 3], min(NEAREST, count))
    for i, view in enumerate(views):
        uv, z = view.grid.pixels()
        uv, z = uv[::2], z[::2]
        others = np.sort(near[i])
        # Cameras that look apart by more than 75 degrees share nothing that could be matched.
        others = others[(others < i) & (forward[others] @ forward[i] > 0.25)]
        if not len(uv) or not len(others):
            continue
        xyz = (unproject(lens, uv) * z[:, None]) @ T[i, :3, :3].T + T[i, :3, 3]
        local = xyz @ inverse[others, :3, :3].transpose(0, 2, 1) + inverse[others, None, :3, 3]
        seen = every.at(np.repeat(others, len(uv)), project_points(lens, local.reshape(-1, 3))).reshape(len(others), -1)
        depth = local[..., 2]
        shared[i, others] = np.mean((seen > 0) & (depth < 1.35 * seen) & (depth > 0.65 * seen), axis=1)
    return shared


@dataclass(frozen=True)
class _SharedGrid:
    """The depths of all views on the first one's grid: looked up for many views at once."""

    grid: DepthGrid
    z: NDArray[np.float32]  # [N, rows, columns]

    @classmethod
    def of(cls, views: Sequence[FrameData]) -> "_SharedGrid":
        grid = views[0].grid
        u, v = np.meshgrid(grid.u, grid.v)
        cells = np.stack([u.reshape(-1), v.reshape(-1)], axis=1)
        # Frames of one video have one grid; photographs may have others.
        z = [w.grid.z if w.grid.z.shape == u.shape else w.grid.at(cells).reshape(u.shape) for w in views]
        return cls(grid, np.array(z))

    def at(self, view: NDArray[np.intp], uv: NDArray[np.float64]) -> NDArray[np.float32]:
        """Depths [M] of views [M] at pixels [M, 2]; 0 outside and where pixels are NaN."""
        row, column, inside = self.grid.cells(uv)
        return np.where(inside, self.z[view, row, column], np.float32(0))


def match_pairs(
    views: Sequence[FrameData],
    features: Sequence[Features],
    lens: CameraModel,
    wanted: Sequence[Candidate],
    workers: int = 2,
    advance: Callable[[], None] | None = None,
) -> PairMatches:
    """Match and verify every candidate, several at a time.

    Args:
        advance: called after each pair.
    """
    radius = RADIUS * 2 * max(lens.cx, lens.cy)

    def one(pair: Candidate) -> tuple[Matches, Matches]:
        a, b = features[pair.first], features[pair.second]
        if not pair.guided:
            return _sorted_out(a, b, match(a, b), MIN_UNGUIDED)
        T = invert_pose(views[pair.second].T_world_camera) @ views[pair.first].T_world_camera
        predicted, _ = reproject(lens, a.uv, np.where(a.z > 0, a.z, np.nan), T)
        found = _sorted_out(a, b, match(a, b, predicted, radius), MIN_GUIDED)
        if len(found[0]) >= MIN_UNGUIDED or pair.kind == "covisible":
            return found
        # The network may be wrong there.
        anywhere = _sorted_out(a, b, match(a, b), MIN_UNGUIDED)
        return anywhere if len(anywhere[0]) > len(found[0]) else found

    result = PairMatches()
    with ThreadPoolExecutor(workers) as pool:
        for pair, (found, held) in zip(wanted, pool.map(one, wanted), strict=True):
            result.tried += 1
            result.tried_far += not pair.guided
            if len(found):
                result.matches[pair.first, pair.second] = found
                if not pair.guided:
                    result.loops.add((pair.first, pair.second))
            if pair.kind == "near":
                result.held_out[pair.first, pair.second] = held
            if advance:
                advance()
    return result


def _sorted_out(a: Features, b: Features, matches: Matches, least: int) -> tuple[Matches, Matches]:
    """The verified matches, and of all those that are held out of the first pass."""
    held = held_out(a)[matches[:, 0]] | held_out(b)[matches[:, 1]]
    return verify(a, b, matches, least), matches[held]
