"""Which places were seen before: what a `Loops` has beside it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.slam.ba.pose_graph import Edges, solve_pose_graph
from stream_recon.app.slam.ba.problem import CameraModel
from stream_recon.app.slam.frame_data import DepthReader
from stream_recon.app.slam.matching.covisibility import ALIKE, MIN_LIKENESS, non_maximum_suppression
from stream_recon.app.slam.matching.features import Features, detect
from stream_recon.app.slam.matching.matching import MIN_UNGUIDED, Matches, match, verify
from stream_recon.app.slam.matching.relative_poses import estimate_relative_poses
from stream_recon.app.slam.matching.retrieval import cosines, described, learn_words
from stream_recon.app.slam.online.keyframe_features import DESCRIBED
from stream_recon.app.slam.online.worker import StopTest

FloatArray = NDArray[np.float64]

LEAST_GAP = 8
"""Keyframes between two places that are compared: nearer ones share tracks."""
MOST_PLACES = 150
"""Whose features are kept; beyond that those nearest to their neighbours are given up, one by one."""
FIRST_WORDS, MOST_WORDS = 5, 80
"""Places from which words are learnt first, anew at each doubling, and for the last time."""
SPACING = 2
"""Places; candidates nearer to one another say the same."""


@dataclass(frozen=True)
class Look:
    """What there is to know a keyframe by."""

    number: int
    """Of the keyframe."""
    features: Features | None
    """Where they were described before; else of what follows."""
    image: NDArray[np.uint8] | None
    reader: DepthReader | None

    def described(self) -> Features:
        """Its features."""
        if self.features is not None:
            return self.features
        assert self.image is not None and self.reader is not None
        return detect(self.image, self.reader, DESCRIBED)


@dataclass(frozen=True)
class Revisit:
    """An earlier place that a new one shows again."""

    number: int
    """Of its keyframe."""
    matches: Matches
    S_first_second: FloatArray  # [4, 4], see `loops.Loop`
    inliers: int


@dataclass(frozen=True)
class Recognised:
    """What a new place is, and which ones it shows again."""

    features: Features
    given_up: int | None
    """Number of a keyframe that is remembered no more."""
    again: Sequence[Revisit]


class KeyframeDatabase:
    """The places known so far, and how they look."""

    def __init__(self) -> None:
        self._places: list[tuple[int, Features]] = []
        """Numbers of the keyframes, ascending."""
        self._words: NDArray[np.float32] | None = None
        self._looks: list[NDArray[np.float32]] = []
        self._learn_at = FIRST_WORDS

    def forget(self, _: StopTest) -> None:
        """All of them: another map begins."""
        self._places, self._words, self._looks, self._learn_at = [], None, [], FIRST_WORDS

    def recognise(self, _: StopTest, look: Look, lens: CameraModel) -> Recognised:
        """The places before it that a new one shows again; and remember it."""
        features = look.described()
        given_up = self._remember(look.number, features)
        found = []
        for number, old in self._alike(look.number):
            matches = verify(old, features, match(old, features), MIN_UNGUIDED)
            if not len(matches):
                continue
            edge = estimate_relative_poses([old, features], lens, {(0, 1): matches}).get((0, 1))
            if edge is not None:
                found.append(Revisit(number, matches, edge.S_first_second, edge.inliers))
        return Recognised(features, given_up, found)

    def bend(self, _: StopTest, nodes: FloatArray, edges: Edges) -> FloatArray:
        """Similarities [N, 4, 4] of the world that take nodes to where edges agree best."""
        solved = solve_pose_graph(nodes, edges, loss_scales=(100.0, 10.0, 3.0)).S_world_node
        return np.asarray(solved @ np.linalg.inv(nodes))

    def _remember(self, number: int, features: Features) -> int | None:
        places, given_up = [*self._places, (number, features)], None
        if len(places) > MOST_PLACES:
            # The one whose neighbours are nearest: what remains covers the way.
            at = np.array([each for each, _ in places])
            drop = 1 + int(np.argmin((at[2:] - at[:-2])[:-1]))
            given_up = places[drop][0]
            del places[drop], self._looks[drop]
        self._places = places
        if len(places) == self._learn_at and len(places) <= MOST_WORDS:
            self._words = learn_words([each for _, each in places])
            self._learn_at *= 2
            if self._words is not None:
                self._looks = [described(each, self._words) for _, each in places]
        elif self._words is not None:
            self._looks.append(described(features, self._words))
        return given_up

    def _alike(self, number: int) -> list[tuple[int, Features]]:
        """Those that look most like the last one, far enough before it and from one another."""
        if self._words is None:
            return []
        like = cosines(np.stack(self._looks))[-1]
        gap = number - np.array([each for each, _ in self._places])
        before = np.flatnonzero(gap >= LEAST_GAP)
        return [self._places[at] for at in non_maximum_suppression(before, like[before], MIN_LIKENESS, ALIKE, SPACING)]
