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
from stream_recon.app.slam.matching.covisibility import non_maximum_suppression
from stream_recon.app.slam.matching.features import Features, cosine_similarities, detect, learn_vocabulary, vlad
from stream_recon.app.slam.matching.matching import Matches, match, verify
from stream_recon.app.slam.matching.relative_poses import estimate_relative_poses
from stream_recon.app.slam.online.config import DEFAULT_ONLINE, OnlineConfig


@dataclass(frozen=True)
class PlaceQuery:
    """Keyframe to look up and add, with features or else with image and depth."""

    number: int
    """Number of the keyframe."""
    detected: Features | None
    image: NDArray[np.uint8] | None
    reader: DepthReader | None

    def features(self, config: OnlineConfig = DEFAULT_ONLINE) -> Features:
        if self.detected is not None:
            return self.detected
        assert self.image is not None and self.reader is not None
        return detect(self.image, self.reader, config.descriptors.count, config.matching.features)


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

    def __init__(self, config: OnlineConfig = DEFAULT_ONLINE) -> None:
        self._config = config
        self._entries: list[tuple[int, Features]] = []
        """By keyframe number, ascending."""
        self._words: NDArray[np.float32] | None = None
        self._vectors: list[NDArray[np.float32]] = []
        self._learn_at = self._config.places.first_vocabulary

    def clear(self, _: StopTest) -> None:
        """Remove all entries: a new map begins."""
        self._entries, self._words, self._vectors, self._learn_at = [], None, [], self._config.places.first_vocabulary

    def query(self, _: StopTest, query: PlaceQuery, camera_model: CameraModel) -> QueryResult:
        """Add a keyframe and return its revisits."""
        features, matching = query.features(self._config), self._config.matching
        removed = self._add(query.number, features)
        revisits = []
        for number, old in self._similar(query.number) if self._config.loops.is_enabled else ():
            matches = match(old, features, config=matching.descriptors)
            matches = verify(old, features, matches, matching.descriptors.min_unguided, matching.descriptors)
            if not len(matches):
                continue
            pairs = {(0, 1): matches}
            for edge in estimate_relative_poses([old, features], camera_model, pairs, matching.relative_poses).values():
                revisits.append(Revisit(number, matches, edge.S_first_second, edge.inliers))
        return QueryResult(features, removed, revisits)

    def loop_correction(self, _: StopTest, nodes: FloatArray, edges: Edges) -> FloatArray:
        """Similarities [N, 4, 4] of the world that take nodes to their poses in the solved pose graph."""
        solved = solve_pose_graph(nodes, edges, loss_scales=self._config.loops.loss_scales).S_world_node
        return np.asarray(solved @ np.linalg.inv(nodes))

    def _add(self, number: int, features: Features) -> int | None:
        entries, removed = [*self._entries, (number, features)], None
        vocabulary = self._config.matching.vocabulary
        if len(entries) > self._config.places.max_entries:
            # The entry with the nearest neighbours, so that the others cover the trajectory.
            numbers = np.array([each for each, _ in entries])
            drop = 1 + int(np.argmin((numbers[2:] - numbers[:-2])[:-1]))
            removed = entries[drop][0]
            del entries[drop], self._vectors[drop]
        self._entries = entries
        if len(entries) == self._learn_at and len(entries) <= self._config.places.last_vocabulary:
            self._words = learn_vocabulary([each for _, each in entries], config=vocabulary)
            self._learn_at *= 2
            if self._words is not None:
                self._vectors = [vlad(each, self._words, vocabulary) for _, each in entries]
        elif self._words is not None:
            self._vectors.append(vlad(features, self._words, vocabulary))
        return removed

    def _similar(self, number: int) -> list[tuple[int, Features]]:
        """Entries most similar to the last one, with enough distance to it and to each other."""
        if self._words is None:
            return []
        similarity = cosine_similarities(np.stack(self._vectors))[-1]
        gap = number - np.array([each for each, _ in self._entries])
        old = np.flatnonzero(gap >= self._config.places.min_gap)
        pairs, spacing = self._config.matching.pairs, self._config.places.spacing
        chosen = non_maximum_suppression(old, similarity[old], pairs.min_similarity, pairs.max_similar, spacing)
        return [self._entries[index] for index in chosen]
