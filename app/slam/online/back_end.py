"""The stage between engine and listeners: each result gets a causal pose, earlier ones are revised."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.types import FrameResult, FrameRevision, Intrinsics, NetworkEstimate, PreparedFrame, Revision
from stream_recon.app.slam.frame_data import Scale
from stream_recon.app.slam.mode import MapState
from stream_recon.app.slam.online.global_ba import FIRST, THOROUGH, Background, GlobalBA
from stream_recon.app.slam.online.loop_closure import URGENT, LoopCloser
from stream_recon.app.slam.online.place_recognition import KeyframeDatabase
from stream_recon.app.slam.online.tracker import Tracker, TrackerCounts
from stream_recon.app.slam.online.worker import ThreadWorker, Worker

Item = FrameResult | Revision

LATE = 0.5
"""Seconds."""


@dataclass(frozen=True)
class Sparse:
    """What the map stands on."""

    points: NDArray[np.float32]  # [N, 3], in the world
    loops: NDArray[np.int32]  # [L, 2], source frames between which loops were closed


class OnlineBackEnd:
    """`run.listeners.BackEnd`: geometry while the stream runs.

    Args:
        together: so many first results are given out together: as many as the network itself makes at once.
        live: the source does not wait: neither does this. While results come more than `LATE` seconds later than they
            once did, keyframes are not adjusted with those before them; what is left out is counted.
        known_lens: the results' focal length is right.
        departure: the end of the map that this one goes on with.
        beside: have a `GlobalBA` and a `KeyframeDatabase`; None: threads of this process.
    """

    def __init__(
        self,
        *,
        together: int = 1,
        live: bool = False,
        known_intrinsics: bool = False,
        clock: Callable[[], float] = time.monotonic,
        map_state: MapState | None = None,
        beside: tuple[Worker, Worker] | None = None,
    ) -> None:
        self._map_state = map_state
        self._together = together
        self._front: Tracker | None = None
        self._waiting: dict[int, FrameResult] = {}
        """By their numbers: placed, and not given out yet."""
        self._segment = 0
        self._waits = not live
        whole, self._memory = beside or (ThreadWorker(GlobalBA(), "mapping"), ThreadWorker(KeyframeDatabase(), "loops"))
        self._background = Background(whole, waits=not live, known_intrinsics=known_intrinsics)
        self._loops = LoopCloser(self._memory, waits=not live)
        self.sparse = Sparse(np.zeros((0, 3), np.float32), np.zeros((0, 2), np.int32))
        """As of the last adjustment of all. Replaced, never changed."""
        self._loops_before = self.sparse.loops
        self._counts = TrackerCounts()
        self._clock = clock
        self._best_delay = np.inf

    @property
    def wants_grey(self) -> bool:
        return True

    @property
    def status_line(self) -> str:
        """Figures for the user: tracks, their error, loops, what was left to the network, what was skipped."""
        counts, parts = self._counts, []
        if counts.error_px is not None:
            parts.append(f"{counts.tracks} tracks off by {counts.error_px:.2f} px")
        for count, name in (
            (len(self.sparse.loops), "loops"),
            (counts.fallback_segments, "stretches left to the network"),
            (self._skipped, "adjustments skipped"),
        ):
            if count:
                parts.append(f"{count} {name}")
        return ", ".join(parts)

    @property
    def figures(self) -> dict[str, Any]:
        """For ``run.json``."""
        counts = self._counts
        return {
            "keyframes": counts.keyframes,
            "tracks": counts.tracks,
            "reprojection_px": None if counts.error_px is None else round(counts.error_px, 4),
            "loops": len(self.sparse.loops),
            "fallback_segments": counts.fallback_segments,
            "adjustments_skipped": self._skipped,
        }

    @property
    def _skipped(self) -> int:
        return self._counts.skipped + self._background.skipped + self._loops.skipped

    def push(self, result: FrameResult, frame: PreparedFrame) -> Sequence[Item]:
        """Place a result; gives it, and what became of those before."""
        assert frame.grey is not None, "the stage needs grey images"
        items: list[Item] = []
        if self._front is None or result.segment != self._segment:
            items += self._ended()
            self._front, self._segment = self._begun(result, frame.grey), result.segment
            self._background.restart()
            self._counts.skipped += self._loops.skipped
            self._loops_before = self.sparse.loops
            self._loops = LoopCloser(self._memory, waits=self._waits)
        front = self._front
        known, left = len(front.keyframes), self._counts.fallback_segments
        front.add(result, frame.grey, hurried=self._is_late(frame))
        self._waiting[result.index] = result
        if len(front.keyframes) > known:
            self._loops.offer(front.newest, front.lens)
            self._background.offer(front.active, front.lens, lambda: front.held)
        if self._counts.fallback_segments > left:
            self._background.again(front.active, front.lens, front.held)
        self._take_in(front)
        # What is being adjusted is not bent meanwhile: loops wait for it.
        if len(front.keyframes) > known and not self._background.busy and self._close_loops(front):
            self._background.begin(front.active, front.lens, front.held)
        self._together -= 1
        if self._together == 0:
            front.place_again(front.keyframes)
        return items if self._together > 0 else items + self._given_out(front)

    def finish(self) -> Sequence[Item]:
        """What is known when the last frame is in."""
        items = self._ended()
        self._background.close()
        self._memory.close()
        return items

    def _is_late(self, frame: PreparedFrame) -> bool:
        """Whether a live source has got ahead."""
        if self._waits:
            return False
        delay = self._clock() - frame.timestamp
        self._best_delay = min(self._best_delay, delay)
        return delay > self._best_delay + LATE

    def _begun(self, result: FrameResult, image: NDArray[np.uint8]) -> Tracker:
        """A map for a stretch: it goes on where the last one ended, as the network's world does."""
        size = image.shape[1], image.shape[0]
        scale = Scale(size[0] / result.transform.source_size[0], size)
        map_state, self._map_state = self._map_state, None
        if map_state is not None:
            front = Tracker(scale, result, self._counts, map_state.T_world_camera, float(np.log(map_state.scale)))
            if map_state.segment == result.segment:
                front.follow(map_state.T_network, map_state.focal)
            return front
        if self._front is None:
            return Tracker(scale, result, self._counts)
        # The network begins where the camera was last: so does the map, in its own world.
        return Tracker(scale, result, self._counts, self._front.newest_pose(), self._front.log_scale)

    def _ended(self) -> list[Item]:
        """The last word on the map so far."""
        front = self._front
        if front is None:
            return []
        self._background.drop()
        self._close_loops(front, wait=True)
        if len(front.keyframes) >= FIRST:
            self._background.begin(front.active, front.lens, front.held, THOROUGH)
            self._take_in(front, wait=True)
            front.place_again(front.active)
        return self._given_out(front)

    def _take_in(self, front: Tracker, *, wait: bool = False) -> None:
        found = self._background.collect(front.keyframes[-1].number, wait=wait)
        if found is not None:
            front.settle(*found)
            self.sparse = replace(self.sparse, points=front.points())

    def _close_loops(self, front: Tracker, *, wait: bool = False) -> bool:
        """Whether any were closed that were open by much."""
        bend = self._loops.take_in(front.keyframes, wait=wait)
        if bend is None:
            return False
        front.close(bend)
        ends = [[front.keyframes[end].members[0].index for end in loop.ends] for loop in self._loops.closed]
        self.sparse = Sparse(front.points(), np.concatenate([self._loops_before, np.array(ends, np.int32)]))
        return bend.off > URGENT

    def _given_out(self, front: Tracker) -> list[Item]:
        """The results that waited, then a revision of what moved meanwhile."""
        given: list[Item] = []
        revised: list[FrameRevision] = []
        lens = front.intrinsics
        for number in sorted(front.changed | front.joined):
            keyframe = front.keyframes[number]
            scale = float(np.exp(keyframe.log_scale))
            for member in keyframe.members:
                T, result = keyframe.pose_of(member), self._waiting.pop(member.index, None)
                if result is not None:
                    given.append(_placed(result, T, scale, lens))
                    member.given_scale = scale
                    if member is keyframe.members[0]:
                        keyframe.given = T.copy()
                elif member.given_scale is not None and keyframe.number in front.changed:
                    revised.append(FrameRevision(member.index, T, scale / member.given_scale, lens))
        front.changed, front.joined = set(), set()
        return given + ([Revision(tuple(revised))] if revised else [])


def _placed(result: FrameResult, T_world_camera: NDArray[np.float64], scale: float, lens: Intrinsics) -> FrameResult:
    """A result as the map has it, with what the network said of it."""
    said = NetworkEstimate(result.T_world_camera, result.intrinsics, 1 / scale)
    depth = given_depth(result, said)
    return replace(result, T_world_camera=T_world_camera, intrinsics=lens, depth=depth, network=said)


def given_depth(result: FrameResult, said: NetworkEstimate) -> NDArray[np.float32]:
    """The depth of a network's result as it is given out."""
    return np.asarray(result.depth * np.float32(1 / said.depth_scale), np.float32)
