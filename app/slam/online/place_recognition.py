"""Place recognition: the keyframe database, which finds revisits by image similarity and verifies them by geometry."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.camera_model import CameraModel
from stream_recon.app.core.worker import StopTest
from stream_recon.app.slam.ba.pose_graph import Edges, solve_pose_graph
from stream_recon.app.slam.ba.problem import FloatArray
from stream_recon.app.slam.frame_data import DepthReader
from stream_recon.app.slam.matching.covisibility import MAX_SIMILAR, MIN_SIMILARITY, non_maximum_suppression
from stream_recon.app.slam.matching.features import Features, cosine_similarities, detect, learn_vocabulary, vlad
from stream_recon.app.slam.matching.matching import MIN_UNGUIDED, Matches, match, verify
from stream_recon.app.slam.matching.relative_poses import estimate_relative_poses
from stream_recon.app.slam.online.keyframe_features import DESCRIBED

LEAST_GAP = 8
"""Keyframes between a query and its candidates; nearer ones share tracks anyway."""
MAX_ENTRIES = 150
"""Entries with features, which bounds memory; beyond it, those with the nearest neighbours are removed."""
FIRST_VOCABULARY = 5
"""Entries from which the vocabulary is learned first; it is learned again whenever their number doubles."""
LAST_VOCABULARY = 80
"""Entries up to which the vocabulary is learned again; more change it little."""
SPACING = 2
"""Least spacing of candidates in entries, since neighbours give nearly the same matches."""


@dataclass(frozen=True)
class PlaceQuery:
    """Keyframe to look up and add, with features or else with image and depth."""

    number: int
    """Number of the keyframe."""
    detected: Features | None
    image: NDArray[np.uint8] | None
    reader: DepthReader | None

    def features(self) -> Features:
        if self.detected is not None:
            return self.detected
        assert self.image is not None and self.reader is not None
        return detect(self.image, self.reader, DESCRIBED)


@dataclass(frozen=True)
class Revisit:
    """Earlier keyframe that shows the same place."""

    number: int
    """Number of the earlier keyframe."""
    matches: Matches
    S_first_second: FloatArray  # [4, 4], see `loop_closure.Loop`
    inliers: int


@dataclass(frozen=True)
class QueryResult:
    """Features of a new entry and the revisits that it shows."""

    features: Features
    removed: int | None
    """Number of a keyframe that was removed from the database."""
    revisits: Sequence[Revisit]


class KeyframeDatabase:
    """Keyframes with their features and global descriptors; target of the background worker, see `LoopCloser`."""

    def __init__(self) -> None:
        self._entries: list[tuple[int, Features]] = []
        """By keyframe number, ascending."""
        self._words: NDArray[np.float32] | None = None
        self._vectors: list[NDArray[np.float32]] = []
        self._learn_at = FIRST_VOCABULARY

    def clear(self, _: StopTest) -> None:
        """Remove all entries: a new map begins."""
        self._entries, self._words, self._vectors, self._learn_at = [], None, [], FIRST_VOCABULARY

    def query(self, _: StopTest, query: PlaceQuery, lens: CameraModel) -> QueryResult:
        """Add a keyframe and return its revisits."""
        features = query.features()
        removed = self._add(query.number, features)
        found = []
        for number, old in self._similar(query.number):
            matches = verify(old, features, match(old, features), MIN_UNGUIDED)
            if not len(matches):
                continue
            edge = estimate_relative_poses([old, features], lens, {(0, 1): matches}).get((0, 1))
            if edge is not None:
                found.append(Revisit(number, matches, edge.S_first_second, edge.inliers))
        return QueryResult(features, removed, found)

    def loop_correction(self, _: StopTest, nodes: FloatArray, edges: Edges) -> FloatArray:
        """Similarities [N, 4, 4] of the world that take nodes to their poses in the solved pose graph."""
        solved = solve_pose_graph(nodes, edges, loss_scales=(100.0, 10.0, 3.0)).S_world_node
        return np.asarray(solved @ np.linalg.inv(nodes))

    def _add(self, number: int, features: Features) -> int | None:
        entries, removed = [*self._entries, (number, features)], None
        if len(entries) > MAX_ENTRIES:
            # The entry with the nearest neighbours, so that the others cover the trajectory.
            numbers = np.array([each for each, _ in entries])
            drop = 1 + int(np.argmin((numbers[2:] - numbers[:-2])[:-1]))
            removed = entries[drop][0]
            del entries[drop], self._vectors[drop]
        self._entries = entries
        if len(entries) == self._learn_at and len(entries) <= LAST_VOCABULARY:
            self._words = learn_vocabulary([each for _, each in entries])
            self._learn_at *= 2
            if self._words is not None:
                self._vectors = [vlad(each, self._words) for _, each in entries]
        elif self._words is not None:
            self._vectors.append(vlad(features, self._words))
        return removed

    def _similar(self, number: int) -> list[tuple[int, Features]]:
        """Entries most similar to the last one, with enough distance to it and to each other."""
        if self._words is None:
            return []
        similarity = cosine_similarities(np.stack(self._vectors))[-1]
        gap = number - np.array([each for each, _ in self._entries])
        old = np.flatnonzero(gap >= LEAST_GAP)
        chosen = non_maximum_suppression(old, similarity[old], MIN_SIMILARITY, MAX_SIMILAR, SPACING)
        return [self._entries[index] for index in chosen]
