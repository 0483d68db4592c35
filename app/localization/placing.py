"""Placing of many results in the world of the first one: similar results are aligned, each with few others.

Results are compared by the image vectors of some of their keyframes, so that the number of alignments grows with that
of the results, and not with its square. Only a few maps are open at a time. Each result is placed by one alignment;
others between results that are far apart along these close loops, whose errors a pose graph distributes.
"""

import heapq
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.transforms import Similarity
from stream_recon.app.localization.alignment import Alignment, NotAligned, align_results
from stream_recon.app.localization.config import DEFAULT_LOCALIZATION, PlacingConfig
from stream_recon.app.localization.localize import LocalizationMap
from stream_recon.app.slam.ba.pose_graph import Edges, solve_pose_graph
from stream_recon.app.slam.matching.features import Features, learn_vocabulary, vlad

FloatArray = NDArray[np.float32]


@dataclass(frozen=True)
class PlacedResult:
    """One of the results in the world of the first one."""

    S_first_own: Similarity
    is_same_camera: bool
    """Whether its images fit into that world with the first one's focal length."""
    known: int = 0
    """Number of the result that it was aligned with."""
    keyframes: int = 0
    """Keyframes that agree with that."""
    focal: float = 1.0
    """Focal length that fits that world and the first one's camera, as a multiple of its own."""

    def followed_by(self, number: int, alignment: Alignment) -> "PlacedResult":
        """A result that was aligned with this one, of a ``number``."""
        S, is_same = self.S_first_own @ alignment.S_first_second, alignment.is_same_camera and self.is_same_camera
        return PlacedResult(S, is_same, number, alignment.keyframes, self.focal * alignment.focal)


def place_results(
    opens: Sequence[Callable[[], LocalizationMap]],
    on_placed: Callable[[int, PlacedResult], None],
    on_alike: Callable[[int, int, str], None] = lambda number, known, reason: None,
    config: PlacingConfig = DEFAULT_LOCALIZATION.placing,
) -> dict[int, PlacedResult]:
    """Results that are tied to the first one, by number.

    Args:
        opens: open the map of each.
        on_alike: gets a result that looks like a known one and is not laid onto it, that one, and the reason.
    """
    opened = lru_cache(config.open_maps)(lambda number: opens[number]())
    similarity = similarities(opened, len(opens), config)
    partners = _partners(similarity, config)
    edges: list[_Edge] = []
    placed = {0: PlacedResult(Similarity.identity(), True)}
    waiting = [(-float(similarity[0, k]), 0, k) for k in partners[0]]
    heapq.heapify(waiting)
    doubtful: list[tuple[int, int, int, Alignment]] = []
    while waiting or doubtful:
        if waiting:
            _, known, other = heapq.heappop(waiting)
            if other in placed:
                continue
            alignment = align_results(opened(known), opened(other))
            if isinstance(alignment, NotAligned):
                if alignment.looks_alike:
                    on_alike(other, known, alignment.reason)
                continue
            if alignment.keyframes < min(config.sure_keyframes, config.sure_share * len(opened(other))):
                heapq.heappush(doubtful, (-alignment.points, known, other, alignment))
                continue
        else:
            _, known, other, alignment = heapq.heappop(doubtful)
            if other in placed:
                continue
        placed[other] = placed[known].followed_by(known, alignment)
        edges.append(_Edge(known, other, alignment))
        on_placed(other, placed[other])
        for partner in partners[other]:
            if partner not in placed:
                heapq.heappush(waiting, (-float(similarity[other, partner]), other, partner))
    for known, other in _loops(placed, partners, similarity, config):
        more = align_results(opened(known), opened(other))
        if isinstance(more, Alignment):
            edges.append(_Edge(known, other, more, is_loop=True))
    return _without_loop_errors(placed, edges, config)


@dataclass(frozen=True)
class _Edge:
    known: int
    other: int
    alignment: Alignment
    is_loop: bool = False


def _loops(
    placed: Mapping[int, PlacedResult], partners: Sequence[Sequence[int]], similarity: FloatArray, config: PlacingConfig
) -> list[tuple[int, int]]:
    """Pairs of similar results that were placed by many alignments between them."""
    above = {number: _above(placed, number, config.loop_steps) for number in placed}
    pairs: set[tuple[int, int]] = set()
    for number in placed:
        # Where few alignments lie between two results, a common ancestor is in both lists.
        steps_to = {ancestor: steps for steps, ancestor in enumerate(above[number])}
        far = [
            other
            for other in partners[number]
            if other in placed
            and all(steps_to[a] + steps >= config.loop_steps for steps, a in enumerate(above[other]) if a in steps_to)
        ]
        far.sort(key=lambda other: -float(similarity[number, other]))
        pairs |= {(min(number, other), max(number, other)) for other in far[: config.max_loops]}
    return sorted(pairs)


def _above(placed: Mapping[int, PlacedResult], number: int, count: int) -> list[int]:
    """A result, the one it was aligned with, and so on."""
    numbers = [number]
    while numbers[-1] and len(numbers) < count:
        numbers.append(placed[numbers[-1]].known)
    return numbers


def _without_loop_errors(
    placed: dict[int, PlacedResult], edges: Sequence[_Edge], config: PlacingConfig
) -> dict[int, PlacedResult]:
    """The results where all alignments agree best, if there are any that close loops."""
    if not any(edge.is_loop for edge in edges):
        return placed
    numbers = sorted(placed)
    row = {number: k for k, number in enumerate(numbers)}
    count = len(edges)
    graph = Edges(
        first=np.array([row[edge.known] for edge in edges]),
        second=np.array([row[edge.other] for edge in edges]),
        S_first_second=np.array([edge.alignment.S_first_second.matrix for edge in edges]),
        rotation_sigma=np.full(count, config.rotation_sigma),
        translation_sigma=np.array([config.translation_sigma * edge.alignment.distance for edge in edges]),
        log_scale_sigma=np.full(count, config.log_scale_sigma),
        robust=np.array([edge.is_loop for edge in edges]),
    )
    solution = solve_pose_graph(np.array([placed[number].S_first_own.matrix for number in numbers]), graph)
    moved = map(Similarity.of_matrix, solution.S_world_node)
    return {number: replace(placed[number], S_first_own=S) for number, S in zip(numbers, moved, strict=True)}


def _partners(similarity: FloatArray, config: PlacingConfig) -> list[list[int]]:
    """The results to align each with: its most similar ones, and those that have it among theirs."""
    count = len(similarity)
    if count <= config.partners + 1:
        return [[k for k in range(count) if k != number] for number in range(count)]
    nearest = np.argsort(-similarity, axis=1, kind="stable")[:, : config.partners].tolist()
    partners: list[set[int]] = [set(each) for each in nearest]
    for number, each in enumerate(nearest):
        for partner in each:
            partners[partner].add(number)
    return [sorted(each) for each in partners]


def _compared(place: LocalizationMap, config: PlacingConfig) -> Iterator[Features]:
    """Features of some keyframes of a result."""
    for row in np.unique(np.linspace(0, len(place) - 1, min(config.compared, len(place))).round().astype(int)).tolist():
        yield place.keyframe(row).features


def _sample(place: LocalizationMap, config: PlacingConfig) -> Features:
    """Some descriptors of a result."""
    descriptors = np.concatenate([f.descriptors for f in _compared(place, config)])
    count = len(descriptors)
    few = descriptors[np.linspace(0, count - 1, min(config.sampled, count)).astype(int)]
    return Features(np.zeros((len(few), 2), np.float32), few, np.zeros(len(few), np.float32))


def similarities(
    opened: Callable[[int], LocalizationMap], count: int, config: PlacingConfig = DEFAULT_LOCALIZATION.placing
) -> FloatArray:
    """Similarities [N, N] of results, -1 with itself; 0 where they are too few to be compared."""
    similarity = np.where(np.eye(count, dtype=bool), np.float32(-1), np.float32(0))
    words = (
        None if count <= config.partners + 1 else learn_vocabulary([_sample(opened(k), config) for k in range(count)])
    )
    if words is None:
        return similarity
    random = np.random.default_rng(0)
    projection = random.normal(size=(words.size, config.dimensions)).astype(np.float32)
    vectors, starts = [], [0]
    for number in range(count):
        vectors += [vlad(features, words) @ projection for features in _compared(opened(number), config)]
        starts.append(len(vectors))
    table = np.stack(vectors)
    table -= table.mean(axis=0)
    table /= np.maximum(np.linalg.norm(table, axis=1, keepdims=True), 1e-9)
    for k, (begin, end) in enumerate(itertools.pairwise(starts)):
        nearest = np.maximum.reduceat(table[begin:end] @ table.T, starts[:-1], axis=1)
        similarity[k] = np.sort(nearest, axis=0)[-config.best_pairs :].mean(axis=0)
        similarity[k, k] = -1
    return similarity
