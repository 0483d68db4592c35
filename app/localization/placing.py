"""Placing of many results in the world of the first one: similar results are aligned, each with few others.

Results are compared by the image vectors of some of their keyframes, so that the number of alignments grows with that
of the results, and not with its square. Only a few maps are open at a time.
"""

import heapq
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.transforms import Similarity
from stream_recon.app.localization.alignment import NotAligned, align_results
from stream_recon.app.localization.localize import LocalizationMap
from stream_recon.app.slam.matching.features import WORDS, Features, learn_vocabulary, vlad

OPEN_MAPS = 6
"""Maps that stay in memory."""
COMPARED = 12
"""Keyframes of a result that it is compared by."""
BEST = 3
"""Pairs of keyframes whose mean similarity is that of two results."""
PARTNERS = 8
"""Most similar results that each one is aligned with."""
DIMENSIONS = 256
"""Length of a projected image vector."""
SAMPLED = 300
"""Descriptors of a result from which the common vocabulary is learned."""

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


def place_results(
    opens: Sequence[Callable[[], LocalizationMap]],
    on_placed: Callable[[int, PlacedResult], None],
    on_alike: Callable[[int, int, str], None] = lambda number, known, reason: None,
) -> dict[int, PlacedResult]:
    """Results that are tied to the first one, by number.

    Args:
        opens: open the map of each.
        on_alike: gets a result that looks like a known one and is not laid onto it, that one, and the reason.
    """
    opened = lru_cache(OPEN_MAPS)(lambda number: opens[number]())
    similarity = _similarities(opened, len(opens))
    partners = _partners(similarity)
    placed = {0: PlacedResult(Similarity.identity(), True)}
    waiting = [(-float(similarity[0, k]), 0, k) for k in partners[0]]
    heapq.heapify(waiting)
    while waiting:
        _, known, other = heapq.heappop(waiting)
        if other in placed:
            continue
        found = align_results(opened(known), opened(other))
        if isinstance(found, NotAligned):
            if found.looks_alike:
                on_alike(other, known, found.reason)
            continue
        before = placed[known]
        same = found.is_same_camera and before.is_same_camera
        placed[other] = PlacedResult(before.S_first_own @ found.S_first_second, same, known, found.keyframes)
        on_placed(other, placed[other])
        for partner in partners[other]:
            if partner not in placed:
                heapq.heappush(waiting, (-float(similarity[other, partner]), other, partner))
    return placed


def _partners(similarity: FloatArray) -> list[list[int]]:
    """The results to align each with: its most similar ones, and those that have it among theirs."""
    count = len(similarity)
    if count <= PARTNERS + 1:
        return [[k for k in range(count) if k != number] for number in range(count)]
    nearest = np.argsort(-similarity, axis=1, kind="stable")[:, :PARTNERS].tolist()
    found: list[set[int]] = [set(each) for each in nearest]
    for number, each in enumerate(nearest):
        for partner in each:
            found[partner].add(number)
    return [sorted(each) for each in found]


def _compared(place: LocalizationMap) -> Iterator[Features]:
    """Features of some keyframes of a result."""
    for row in np.unique(np.linspace(0, len(place) - 1, min(COMPARED, len(place))).round().astype(int)).tolist():
        yield place.keyframe(row).features


def _sample(place: LocalizationMap) -> Features:
    """Some descriptors of a result."""
    found = np.concatenate([f.descriptors for f in _compared(place)])
    few = found[np.linspace(0, len(found) - 1, min(SAMPLED, len(found))).astype(int)]
    return Features(np.zeros((len(few), 2), np.float32), few, np.zeros(len(few), np.float32))


def _similarities(opened: Callable[[int], LocalizationMap], count: int) -> FloatArray:
    """Similarities [N, N] of results, -1 with itself; 0 where they are too few to be compared."""
    similarity = np.where(np.eye(count, dtype=bool), np.float32(-1), np.float32(0))
    words = None if count <= PARTNERS + 1 else learn_vocabulary([_sample(opened(k)) for k in range(count)])
    if words is None:
        return similarity
    random = np.random.default_rng(0)
    projection = random.normal(size=(WORDS * 128, DIMENSIONS)).astype(np.float32)
    vectors, starts = [], [0]
    for number in range(count):
        vectors += [vlad(features, words) @ projection for features in _compared(opened(number))]
        starts.append(len(vectors))
    table = np.stack(vectors)
    table -= table.mean(axis=0)
    table /= np.maximum(np.linalg.norm(table, axis=1, keepdims=True), 1e-9)
    for k, (begin, end) in enumerate(itertools.pairwise(starts)):
        nearest = np.maximum.reduceat(table[begin:end] @ table.T, starts[:-1], axis=1)
        similarity[k] = np.sort(nearest, axis=0)[-BEST:].mean(axis=0)
        similarity[k, k] = -1
    return similarity
