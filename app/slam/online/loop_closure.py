"""Loops while the stream runs: a place seen before is known again, and the way between is bent until its ends meet.

Some keyframes are places, of which features are kept. Each new one is compared with those before it that look alike;
two places whose matches agree on one motion, by depth and in both directions, are joined by an edge. Edges that say the
same close a loop, by a graph of similarities over the places. All this happens beside the stream, in `places.py`; what
is found there is taken in so many keyframes later, which for a file does not depend on how fast anything was.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation, Slerp

from stream_recon.app.slam.ba.levenberg import SingularError
from stream_recon.app.slam.ba.pose_graph import Edges
from stream_recon.app.slam.ba.problem import CameraModel
from stream_recon.app.slam.matching.features import Features
from stream_recon.app.slam.matching.matching import NONE, Matches
from stream_recon.app.slam.matching.relative_poses import MOST_DRIFT, SLACK
from stream_recon.app.slam.online.keyframe import Keyframe
from stream_recon.app.slam.online.keyframe_features import KeyframeImages, PlaceDescriptor
from stream_recon.app.slam.online.place_recognition import LEAST_GAP, MOST_PLACES, Look, Recognised
from stream_recon.app.slam.online.worker import Asked, Worker

logger = logging.getLogger(__name__)

FloatArray = NDArray[np.float64]

APART = 0.15
"""Displacement of the image from one place to the next, as a share of its longer side."""
LATER = 6
"""Keyframes after which a file's stream takes in what was begun."""
SAME_DEG, SAME_SCALE, SAME_SHARE = 5.0, 1.25, 0.3
"""Two edges say the same if they put the camera there by so much, the last one a share of the depth."""
WAITING = 15
"""Places for which an edge waits for another one that says the same."""
MOST_EDGES = 200
"""That the map is bent by; and loops that wait until it is, whose features are kept meanwhile."""
MOST_STEPS = 400
"""That a way is measured by."""
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

    first: PlaceDescriptor
    second: PlaceDescriptor
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
class LoopCorrection:
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


@dataclass(frozen=True)
class _Bending:
    """A `LoopCorrection` to come."""

    begun: int
    """Number of the map's last keyframe then."""
    asked: Asked
    numbers: NDArray[np.intp]
    loops: Sequence[Loop]
    off: float

    def bend(self) -> LoopCorrection | None:
        """Waits for it; None where there is none."""
        S = _result(self.asked)
        return None if S is None or not np.isfinite(S).all() else LoopCorrection(self.numbers, S, self.loops, self.off)


class LoopCloser:
    """Finds and closes the loops of one map.

    Args:
        aside: has a `Memory`, which forgets what it knew of another map.
        waits: whether `take_in` waits for what is due: for files.
    """

    def __init__(self, aside: Worker, *, waits: bool) -> None:
        self.closed: list[Loop] = []
        """Those that the map was bent to."""
        self.skipped = 0
        self._aside, self._waits = aside, waits
        aside.ask("forget")
        self._places: dict[int, PlaceDescriptor] = {}
        """Those that are remembered, by the numbers of their keyframes."""
        self._moved = np.inf
        self._looking: list[tuple[KeyframeImages, Asked]] = []
        self._bending: _Bending | None = None
        self._waiting: list[Loop] = []
        self._new: list[Loop] = []
        self._open = 0.0
        """How far one of these was open at most, when it came, as a share of the depth."""
        self._size = 0
        self._nodes: list[int] = [0]

    def offer(self, sight: KeyframeImages, lens: CameraModel) -> None:
        """Hear of a new keyframe."""
        self._moved += min(sight.keyframe.moved, APART)
        if self._moved < APART:
            return
        if not self._waits and len(self._looking) >= MOST_BEHIND:
            self.skipped += 1
            return
        self._moved = 0.0
        known = sight.described
        image, reader = (sight.image, sight.reader) if known is None else (None, None)
        look = Look(sight.keyframe.number, known, image, reader)
        self._looking.append((sight, self._aside.ask("recognise", look, lens)))

    def take_in(self, keyframes: Sequence[Keyframe], *, wait: bool = False) -> LoopCorrection | None:
        """What is to become of the map by what is due now.

        Args:
            keyframes: all of the map, in order.
            wait: for all that was begun, and close what there is to close: nothing more will come.
        """
        newest = keyframes[-1].number
        while self._looking and self._due(self._looking[0][0].keyframe.number, self._looking[0][1], newest, wait):
            sight, asked = self._looking.pop(0)
            number = sight.keyframe.number
            self._nodes = [*(self._nodes if len(self._nodes) < 2 * MOST_PLACES else self._nodes[::2]), number]
            self._sort(self._recognised(sight, _result(asked)), keyframes)
        bend = None
        if self._bending is None and self._new and (wait or self._is_time(newest)):
            self._bending = self._begun(keyframes)
            if not wait:
                return None
        if self._bending is not None and self._due(self._bending.begun, self._bending.asked, newest, wait):
            bend, self._bending = self._bending.bend(), None
        return bend

    def _due(self, begun: int, asked: Asked, newest: int, wait: bool) -> bool:
        return wait or (newest >= begun + LATER if self._waits else asked.future.done())

    def _recognised(self, sight: KeyframeImages, found: Recognised | None) -> list[Loop]:
        """The loops from a keyframe to those that it shows again."""
        if found is None:
            return []
        new = self._places[sight.keyframe.number] = sight.described_by(found.features)
        if found.given_up is not None:
            self._places.pop(found.given_up, None)
        return [
            Loop(self._places[each.number], new, each.matches, each.S_first_second, each.inliers)
            for each in found.again
            if each.number in self._places
        ]

    def _is_time(self, newest: int) -> bool:
        if newest < self._size + REST:
            return False
        return newest > GROWTH * self._size or self._open > URGENT

    def _sort(self, found: Sequence[Loop], keyframes: Sequence[Keyframe]) -> None:
        """Believe what another one confirms."""
        for loop in found:
            if not _plausible(loop, keyframes):
                continue
            confirmed = [other for other in self._waiting if other.agrees(loop)]
            # Those that came last most likely say the same.
            known = chain(reversed(self._new), reversed(self.closed))
            if not confirmed and not any(other.agrees(loop) for other in known):
                self._waiting.append(loop)
                continue
            self._waiting = [other for other in self._waiting if other not in confirmed]
            self._new = _thinned([*self._new, *confirmed, loop])
            self._open = max(self._open, *(each.off() for each in (*confirmed, loop)))
        if found:
            newest = found[-1].second.keyframe.number
            recent = [loop for loop in self._waiting if newest - loop.ends[1] <= WAITING * LEAST_GAP]
            self._waiting = recent

    def _begun(self, keyframes: Sequence[Keyframe]) -> _Bending:
        new, self._new, self._open = self._new, [], 0.0
        off = max(loop.off() for loop in new)
        self.closed = _thinned([*self.closed, *(loop.remembered() for loop in new)])
        self._size = keyframes[-1].number
        numbers = {0, self._size, *self._nodes, *(end for loop in self.closed for end in loop.ends)}
        known = np.array(sorted(number for number in numbers if number <= self._size), np.intp)
        nodes = np.array([_node(keyframes[number]) for number in known])
        edges = _edges(known, nodes, keyframes, self.closed)
        return _Bending(self._size, self._aside.ask("bend", nodes, edges), known, new, off)


def _node(keyframe: Keyframe) -> FloatArray:
    """A keyframe [4, 4] as a similarity: from its axes and the network's unit there to the world."""
    S = keyframe.T_world_camera.copy()
    S[:3, :3] *= np.exp(keyframe.log_scale)
    return S


def _thinned(loops: list[Loop]) -> list[Loop]:
    """Without every other one of the older half, as long as they are too many."""
    while len(loops) > MOST_EDGES:
        half = len(loops) // 2
        loops = loops[:half:2] + loops[half:]
    return loops


def _plausible(loop: Loop, keyframes: Sequence[Keyframe]) -> bool:
    """Whether the map may have drifted so far: equal doors of a corridor look like one, metres apart."""
    first, second = loop.ends
    step = -(-(second - first) // MOST_STEPS)
    passed = [*keyframes[first:second:step], keyframes[second]]
    centres = np.array([keyframe.T_world_camera[:3, 3] for keyframe in passed])
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


def _result(asked: Asked) -> Any:
    """None where there is none."""
    try:
        return asked.future.result()
    except (SingularError, np.linalg.LinAlgError, cv2.error):
        logger.exception("loops")
        return None
