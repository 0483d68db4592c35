"""Loops while the stream runs: a place seen before is known again, and the way between is bent until its ends meet.

Some keyframes are places, of which features are kept. Each new one is compared with those before it that look alike;
two places whose matches agree on one motion, by depth and in both directions, are joined by an edge. Edges that say the
same close a loop, by a graph of similarities over the places. All this happens in a thread of its own; what it finds is
taken in so many keyframes later, which for a file does not depend on how fast anything was.
"""

import logging
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeVar

import cv2
import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation, Slerp

from stream_recon.app.mapping.features import Features, detect
from stream_recon.app.mapping.graph import MOST_DRIFT, SLACK, match_edges
from stream_recon.app.mapping.levenberg import SingularError
from stream_recon.app.mapping.matching import MIN_UNGUIDED, NONE, Matches, match, verify
from stream_recon.app.mapping.pairs import ALIKE, MIN_LIKENESS, best_apart
from stream_recon.app.mapping.pose_graph import Edges, solve_pose_graph
from stream_recon.app.mapping.problem import Lens
from stream_recon.app.mapping.retrieval import cosines, described, learn_words
from stream_recon.app.mapping.stream.finding import DESCRIBED, Place, Sight
from stream_recon.app.mapping.stream.keyframe import Keyframe

logger = logging.getLogger(__name__)

FloatArray = NDArray[np.float64]
_T = TypeVar("_T")

APART = 0.15
"""Displacement of the image from one place to the next, as a share of its longer side."""
LEAST_GAP = 15
"""Keyframes between two places that are compared: nearer ones share tracks."""
LATER = 6
"""Keyframes after which a file's stream takes in what was begun."""
MOST_PLACES = 150
"""Whose features are kept; beyond that those nearest to their neighbours are given up, one by one."""
FIRST_WORDS, MOST_WORDS = 5, 80
"""Places from which words are learnt first, anew at each doubling, and for the last time."""
SPACING = 2
"""Places; candidates nearer to one another say the same."""
SAME_DEG, SAME_SCALE, SAME_SHARE = 5.0, 1.25, 0.3
"""Two edges say the same if they put the camera there by so much, the last one a share of the depth."""
WAITING = 8
"""Places for which an edge waits for another one that says the same."""
MOST_EDGES = 200
URGENT = 0.05
"""Of the depth: what is further off is put right at once, else when the map has grown by `GROWTH`."""
GROWTH = 1.1
REST = 10
"""Keyframes between two closings, at least."""
MOST_BEHIND = 2
"""Places that wait to be looked at before a live stream leaves out more."""
ROTATION_SIGMA, TRANSLATION_SIGMA, STILL_SIGMA, LOG_SCALE_SIGMA = np.radians(0.2), 0.05, 0.005, 0.02
"""Of the map from keyframe to keyframe, growing with the square root of their number: rad, shares of the way and of the
depth, and of the unit."""
NOTHING = Features(np.zeros((0, 2), np.float32), np.zeros((0, 128), np.float32), np.zeros(0, np.float32))
LOOP_ROTATION_SIGMA, LOOP_TRANSLATION_SIGMA = np.radians(1.0), 0.05
"""Of an edge by 100 matches: rad, share of the depth and of the unit."""


@dataclass(frozen=True, eq=False)
class Loop:
    """Two places that are one."""

    first: Place
    second: Place
    matches: Matches
    S_first_second: FloatArray  # [4, 4], a similarity between the axes and units of the network's depth
    inliers: int

    def remembered(self) -> "Loop":
        """What is kept once both see the same tracks: no features."""
        first, second = (
            replace(place, features=NOTHING, sigma=NOTHING.z, tracks={}) for place in (self.first, self.second)
        )
        return replace(self, first=first, second=second, matches=NONE)

    @property
    def ends(self) -> tuple[int, int]:
        return self.first.keyframe.number, self.second.keyframe.number

    def correction(self) -> FloatArray:
        """[4, 4] similarity of the world that would take the second place to where the first one sees it."""
        first, second = self.first.keyframe, self.second.keyframe
        return np.asarray(_node(first) @ self.S_first_second @ np.linalg.inv(_node(second)))

    def off(self) -> float:
        """How far it takes the second place, as a share of the depth."""
        camera = self.second.keyframe
        there = self.correction() @ np.append(camera.T_world_camera[:3, 3], 1.0)
        return float(np.linalg.norm(there[:3] - camera.T_world_camera[:3, 3])) / camera.usual_depth

    def agrees(self, other: "Loop") -> bool:
        """Whether both say the same of where the camera is."""
        if self.ends == other.ends:
            return False
        camera = self.second.keyframe.T_world_camera[:3, 3]
        ours, theirs = self.correction(), other.correction()
        between = ours[:3, :3].T @ theirs[:3, :3]
        scale = float(np.cbrt(np.linalg.det(theirs[:3, :3]) / np.linalg.det(ours[:3, :3])))
        turned = np.degrees(Rotation.from_matrix(between / np.cbrt(np.linalg.det(between))).magnitude())
        away = np.linalg.norm((ours[:3, :3] - theirs[:3, :3]) @ camera + ours[:3, 3] - theirs[:3, 3])
        return bool(
            turned < SAME_DEG
            and 1 / SAME_SCALE < scale < SAME_SCALE
            and away < SAME_SHARE * self.second.keyframe.usual_depth
        )


@dataclass(frozen=True)
class Bend:
    """What closing loops makes of the world around some keyframes."""

    numbers: NDArray[np.intp]  # [N] keyframes, ascending
    S_after_before: FloatArray  # [N, 4, 4], similarities of the world there
    loops: Sequence[Loop]
    """Those that it closes."""
    off: float
    """How far one of them was open at most, as a share of the depth."""

    def at(self, numbers: Sequence[int]) -> FloatArray:
        """[K, 4, 4] at any keyframes: blended between those known, the last one's beyond it."""
        at = np.clip(np.asarray(numbers, np.float64), self.numbers[0], self.numbers[-1])
        scale = np.cbrt(np.linalg.det(self.S_after_before[:, :3, :3]))
        turns = Rotation.from_matrix(self.S_after_before[:, :3, :3] / scale[:, None, None])
        S = np.tile(np.eye(4), (len(at), 1, 1))
        grown = np.exp(np.interp(at, self.numbers, np.log(scale)))
        S[:, :3, :3] = Slerp(self.numbers, turns)(at).as_matrix() * grown[:, None, None]
        for axis in range(3):
            S[:, axis, 3] = np.interp(at, self.numbers, self.S_after_before[:, axis, 3])
        return S


class Loops:
    """Finds and closes the loops of one map.

    Args:
        waits: whether `take_in` waits for what is due: for files.
    """

    def __init__(self, pool: ThreadPoolExecutor, *, waits: bool) -> None:
        self.closed: list[Loop] = []
        """Those that the map was bent to."""
        self.skipped = 0
        self._pool, self._waits = pool, waits
        self._memory = _Memory()
        self._moved = np.inf
        self._looking: list[tuple[int, Future[list[Loop]]]] = []
        self._bending: tuple[int, Future[Bend | None]] | None = None
        self._waiting: list[Loop] = []
        self._new: list[Loop] = []
        self._size = 0
        self._nodes: list[int] = [0]

    def offer(self, sight: Sight, lens: Lens) -> None:
        """Hear of a new keyframe."""
        self._moved += min(sight.keyframe.moved, APART)
        if self._moved < APART:
            return
        if not self._waits and len(self._looking) >= MOST_BEHIND:
            self.skipped += 1
            return
        self._moved = 0.0
        self._looking.append((sight.keyframe.number, self._pool.submit(self._memory.recognise, sight, lens)))

    def take_in(self, keyframes: Sequence[Keyframe], *, wait: bool = False) -> Bend | None:
        """What is to become of the map by what is due now.

        Args:
            keyframes: all of the map, in order.
            wait: for all that was begun, and close what there is to close: nothing more will come.
        """
        newest = keyframes[-1].number
        while self._looking and self._due(*self._looking[0], newest, wait):
            number, future = self._looking.pop(0)
            self._nodes = [*(self._nodes if len(self._nodes) < 2 * MOST_PLACES else self._nodes[::2]), number]
            found = _result(future)
            self._sort(found or [], keyframes)
        bend = None
        if self._bending is not None and self._due(*self._bending, newest, wait):
            bend, self._bending = _result(self._bending[1]), None
        elif self._new and self._bending is None and (wait or self._is_time(newest)):
            self._begin(keyframes)
            if wait and self._bending is not None:
                bend, self._bending = _result(self._bending[1]), None
        return bend

    def _due(self, begun: int, future: "Future[list[Loop]] | Future[Bend | None]", newest: int, wait: bool) -> bool:
        return wait or (newest >= begun + LATER if self._waits else future.done())

    def _is_time(self, newest: int) -> bool:
        if newest < self._size + REST:
            return False
        return newest > GROWTH * self._size or max(loop.off() for loop in self._new) > URGENT

    def _sort(self, found: Sequence[Loop], keyframes: Sequence[Keyframe]) -> None:
        """Believe what another one confirms."""
        for loop in found:
            if not _plausible(loop, keyframes):
                continue
            others = [other for other in (*self._waiting, *self.closed, *self._new) if other.agrees(loop)]
            if not others:
                self._waiting.append(loop)
                continue
            confirmed = [other for other in others if other in self._waiting]
            self._waiting = [other for other in self._waiting if other not in confirmed]
            self._new += [*confirmed, loop]
        if found:
            newest = found[-1].second.keyframe.number
            recent = [loop for loop in self._waiting if newest - loop.ends[1] <= WAITING * LEAST_GAP]
            self._waiting = recent

    def _begin(self, keyframes: Sequence[Keyframe]) -> None:
        new, self._new = self._new, []
        off = max(loop.off() for loop in new)
        self.closed += [loop.remembered() for loop in new]
        if len(self.closed) > MOST_EDGES:
            # Every other one of the older half.
            half = len(self.closed) // 2
            self.closed = self.closed[:half:2] + self.closed[half:]
        self._size = keyframes[-1].number
        numbers = {0, self._size, *self._nodes, *(end for loop in self.closed for end in loop.ends)}
        known = np.array(sorted(number for number in numbers if number <= self._size), np.intp)
        nodes = np.array([_node(keyframes[number]) for number in known])
        edges = _edges(known, nodes, keyframes, self.closed)
        self._bending = self._size, self._pool.submit(_bent, known, nodes, edges, new, off)


class _Memory:
    """The places known so far, and how they look; only the loops' thread knows it."""

    def __init__(self) -> None:
        self._places: list[Place] = []
        self._words: NDArray[np.float32] | None = None
        self._looks: list[NDArray[np.float32]] = []
        self._learn_at = FIRST_WORDS

    def recognise(self, sight: Sight, lens: Lens) -> list[Loop]:
        """The places before it that a new one shows again; and remember it."""
        features = sight.described or detect(sight.image, sight.reader, DESCRIBED)
        new = sight.described_by(features)
        self._remember(new)
        found = []
        for old in self._alike(new):
            matches = verify(old.features, features, match(old.features, features), MIN_UNGUIDED)
            if not len(matches):
                continue
            edge = match_edges([old.features, features], lens, {(0, 1): matches}).get((0, 1))
            if edge is not None:
                found.append(Loop(old, new, matches, edge.S_first_second, edge.inliers))
        return found

    def _remember(self, place: Place) -> None:
        places = [*self._places, place]
        if len(places) > MOST_PLACES:
            # The one whose neighbours are nearest: what remains covers the way.
            at = np.array([each.keyframe.number for each in places])
            drop = 1 + int(np.argmin((at[2:] - at[:-2])[:-1]))
            del places[drop], self._looks[drop]
        self._places = places
        if len(places) == self._learn_at and len(places) <= MOST_WORDS:
            self._words = learn_words([each.features for each in places])
            self._learn_at *= 2
            if self._words is not None:
                self._looks = [described(each.features, self._words) for each in places]
        elif self._words is not None:
            self._looks.append(described(place.features, self._words))

    def _alike(self, new: Place) -> list[Place]:
        """Those that look most like the last one, far enough before it and from one another."""
        if self._words is None:
            return []
        like = cosines(np.stack(self._looks))[-1]
        gap = new.keyframe.number - np.array([place.keyframe.number for place in self._places])
        before = np.flatnonzero(gap >= LEAST_GAP)
        return [self._places[at] for at in best_apart(before, like[before], MIN_LIKENESS, ALIKE, SPACING)]


def _node(keyframe: Keyframe) -> FloatArray:
    """A keyframe [4, 4] as a similarity: from its axes and the network's unit there to the world."""
    S = keyframe.T_world_camera.copy()
    S[:3, :3] *= np.exp(keyframe.log_scale)
    return S


def _plausible(loop: Loop, keyframes: Sequence[Keyframe]) -> bool:
    """Whether the map may have drifted so far: equal doors of a corridor look like one, metres apart."""
    first, second = loop.ends
    centres = np.array([keyframe.T_world_camera[:3, 3] for keyframe in keyframes[first : second + 1]])
    way = float(np.linalg.norm(np.diff(centres, axis=0), axis=1).sum())
    apart = float(np.linalg.norm(centres[-1] - centres[0]))
    off = loop.off() * loop.second.keyframe.usual_depth
    return off <= MOST_DRIFT * way + SLACK * apart


def _edges(known: NDArray[np.intp], nodes: FloatArray, keyframes: Sequence[Keyframe], loops: Sequence[Loop]) -> Edges:
    """The map's own steps from node to node, and the loops."""
    steps = np.diff(known)
    way = np.array(
        [
            sum(
                np.linalg.norm(b.T_world_camera[:3, 3] - a.T_world_camera[:3, 3])
                for a, b in pairwise(keyframes[first : second + 1])
            )
            for first, second in pairwise(known.tolist())
        ]
    )
    unit = np.cbrt(np.linalg.det(nodes[:, :3, :3]))
    depth = np.array([keyframes[number].usual_depth for number in known])
    firm = np.sqrt(100.0 / np.array([loop.inliers for loop in loops]))
    spread = np.sqrt(steps)
    place = {int(number): k for k, number in enumerate(known)}
    first, second = np.array([[place[end] for end in loop.ends] for loop in loops], np.intp).T
    moved = TRANSLATION_SIGMA * way / spread + STILL_SIGMA * depth[:-1] * spread
    return Edges(
        np.concatenate([np.arange(len(steps)), first]),
        np.concatenate([np.arange(len(steps)) + 1, second]),
        np.concatenate([np.linalg.inv(nodes[:-1]) @ nodes[1:], [loop.S_first_second for loop in loops]]),
        np.concatenate([ROTATION_SIGMA * spread, LOOP_ROTATION_SIGMA * firm]),
        np.concatenate([moved / unit[:-1], LOOP_TRANSLATION_SIGMA * firm * depth[first] / unit[first]]),
        np.concatenate([LOG_SCALE_SIGMA * spread, LOOP_TRANSLATION_SIGMA * firm]),
        np.arange(len(steps) + len(loops)) >= len(steps),
    )


def _bent(known: NDArray[np.intp], nodes: FloatArray, edges: Edges, loops: Sequence[Loop], off: float) -> Bend | None:
    solved = solve_pose_graph(nodes, edges, loss_scales=(100.0, 10.0, 3.0)).S_world_node
    if not np.isfinite(solved).all():
        return None
    return Bend(known, np.asarray(solved @ np.linalg.inv(nodes)), loops, off)


def _result(future: "Future[_T]") -> _T | None:
    try:
        return future.result()
    except (SingularError, np.linalg.LinAlgError, cv2.error):
        logger.exception("loops")
        return None
