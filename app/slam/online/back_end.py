"""SLAM back end between engine and listeners: causal poses for new results, and revisions of earlier ones."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.types import FrameResult, FrameRevision, Intrinsics, NetworkEstimate, PreparedFrame, Revision
from stream_recon.app.core.worker import BackgroundWorker, ThreadWorker
from stream_recon.app.slam.frame_data import Scale
from stream_recon.app.slam.online.config import DEFAULT_ONLINE, OnlineConfig
from stream_recon.app.slam.online.global_ba import GlobalBA, GlobalBAScheduler
from stream_recon.app.slam.online.loop_closure import LoopCloser
from stream_recon.app.slam.online.map import Map, MapState
from stream_recon.app.slam.online.place_recognition import KeyframeDatabase
from stream_recon.app.slam.online.tracker import Tracker, TrackerCounts

Item = FrameResult | Revision


@dataclass(frozen=True)
class SparseMap:
    """Map points and loops, for display."""

    points: NDArray[np.float32]  # [N, 3], in the world
    loops: NDArray[np.int32]  # [L, 2], source frames between which loops were closed


class OnlineBackEnd:
    """`run.listeners.BackEnd` that runs while frames come in.

    Args:
        prefill: number of first results to output together, as the network returns them.
        live: the source does not wait, so neither does this: while results are more than ``late_s`` late, local
            adjustments are skipped and counted.
        known_intrinsics: the results' focal length is exact.
        map_state: end of an earlier map that this one continues.
        workers: for a `GlobalBA` and a `KeyframeDatabase`; None: threads of this process.
    """

    def __init__(
        self,
        *,
        prefill: int = 1,
        live: bool = False,
        known_intrinsics: bool = False,
        clock: Callable[[], float] = time.monotonic,
        map_state: MapState | None = None,
        workers: tuple[BackgroundWorker, BackgroundWorker] | None = None,
        config: OnlineConfig = DEFAULT_ONLINE,
    ) -> None:
        self._config = config
        self._map_state = map_state
        self._prefill = prefill
        self._tracker: Tracker | None = None
        self._pending: dict[int, FrameResult] = {}
        """Results that are in the map but not output yet, by number."""
        self._segment = 0
        self._waits = not live
        global_worker, self._database = workers or (
            ThreadWorker(GlobalBA(config), "global-ba"),
            ThreadWorker(KeyframeDatabase(config), "loops"),
        )
        self._global_ba = GlobalBAScheduler(
            global_worker, waits=not live, known_intrinsics=known_intrinsics, config=config
        )
        self._loops = LoopCloser(self._database, waits=not live, config=config)
        self.sparse = SparseMap(np.zeros((0, 3), np.float32), np.zeros((0, 2), np.int32))
        """As of the last global adjustment or loop correction. Replaced, never changed."""
        self._earlier_loops = self.sparse.loops
        self._counts = TrackerCounts()
        self._clock = clock
        self._least_delay = np.inf

    @property
    def wants_grey(self) -> bool:
        return True

    @property
    def map(self) -> Map | None:
        """Map of the present segment; None before the first frame."""
        return None if self._tracker is None else self._tracker.map

    @property
    def status_line(self) -> str:
        """Figures for the user: tracks and their error, loops and skipped adjustments."""
        counts, parts = self._counts, []
        if counts.error_px is not None:
            parts.append(f"{counts.tracks} tracks, error {counts.error_px:.2f} px")
        for count, name in ((len(self.sparse.loops), "loops"), (self._skipped, "adjustments skipped")):
            if count:
                parts.append(f"{count} {name}")
        return ", ".join(parts)

    @property
    def figures(self) -> dict[str, Any]:
        """Figures for ``run.json``."""
        counts = self._counts
        return {
            "keyframes": counts.keyframes,
            "tracks": counts.tracks,
            "reprojection_px": None if counts.error_px is None else round(counts.error_px, 4),
            "loops": len(self.sparse.loops),
            "adjustments_skipped": self._skipped,
        }

    @property
    def _skipped(self) -> int:
        return self._counts.skipped + self._global_ba.skipped + self._loops.skipped

    def push(self, result: FrameResult, frame: PreparedFrame) -> Sequence[Item]:
        """Add a result to the map; returns results with poses and revisions of earlier ones.

        Steps: track, start background work for a new keyframe, apply global adjustment, apply loop correction.
        """
        assert frame.grey is not None, "the back end needs grey images"
        items: list[Item] = []
        if self._tracker is None or result.segment != self._segment:
            items += self._finish_segment()
            self._start_segment(result, frame.grey)
        tracker = self._tracker
        assert tracker is not None
        known = len(tracker.map.keyframes)
        tracker.add(result, frame.grey, hurried=self._is_late(frame))
        self._pending[result.index] = result
        is_keyframe = len(tracker.map.keyframes) > known
        if is_keyframe:
            if tracker.matched is not None:
                self._loops.offer(tracker.matched, tracker.map.camera_model)
            self._global_ba.offer(tracker.map.active, tracker.map.camera_model, lambda: tracker.map.fixed)
        self._apply_global_ba(tracker)
        adjusts = self._config.global_ba.is_enabled
        # A loop correction waits until no global adjustment runs on the same keyframes.
        if is_keyframe and not self._global_ba.busy and self._apply_loop_correction(tracker) and adjusts:
            self._global_ba.start(tracker.map.active, tracker.map.camera_model, tracker.map.fixed)
        self._prefill -= 1
        if self._prefill == 0:
            tracker.map.refine_attached(tracker.map.keyframes)
        return items if self._prefill > 0 else items + self._output(tracker)

    def finish(self) -> Sequence[Item]:
        """Final corrections after the last frame."""
        items = self._finish_segment()
        self.close()
        return items

    def close(self) -> None:
        """End the background work, as `finish` does, without a last correction. It may be called twice."""
        self._global_ba.close()
        self._database.close()

    def _is_late(self, frame: PreparedFrame) -> bool:
        """Whether processing lags behind a live source."""
        if self._waits:
            return False
        delay = self._clock() - frame.timestamp
        self._least_delay = min(self._least_delay, delay)
        return delay > self._least_delay + self._config.late_s

    def _start_segment(self, result: FrameResult, image: NDArray[np.uint8]) -> None:
        """Start the map of a segment where the last one ended, as the network's world does."""
        size = image.shape[1], image.shape[0]
        scale = Scale(size[0] / result.transform.source_size[0], size)
        last, state, self._map_state = self._tracker, self._map_state, None
        new = partial(Tracker, scale, result, self._counts, config=self._config)
        if state is not None:
            tracker = new(state.T_world_camera, float(np.log(state.scale)))
            if state.segment == result.segment:
                tracker.resume(state.T_network, state.focal)
        elif last is None:
            tracker = new()
        else:
            tracker = new(last.map.newest_pose, last.log_scale)
        self._tracker, self._segment = tracker, result.segment
        self._global_ba.reset()
        self._counts.skipped += self._loops.skipped
        self._earlier_loops = self.sparse.loops
        self._loops = LoopCloser(self._database, waits=self._waits, config=self._config)

    def _finish_segment(self) -> list[Item]:
        """Close the last loops, adjust the map a last time and output the rest."""
        tracker = self._tracker
        if tracker is None:
            return []
        self._global_ba.cancel()
        tracker.match_newest()
        self._loops.offer(tracker.newest, tracker.map.camera_model)
        self._apply_loop_correction(tracker, wait=True)
        config = self._config
        if len(tracker.map.keyframes) >= config.global_ba.first_keyframes:
            if config.final_ba.is_enabled:
                rounds = config.final_ba.rounds
                self._global_ba.start(tracker.map.active, tracker.map.camera_model, tracker.map.fixed, rounds)
                self._apply_global_ba(tracker, wait=True)
            tracker.map.refine_attached(tracker.map.active)
        return self._output(tracker)

    def _apply_global_ba(self, tracker: Tracker, *, wait: bool = False) -> None:
        adjustment = self._global_ba.collect(tracker.map.keyframes[-1].number, wait=wait)
        if adjustment is not None:
            tracker.apply_global_ba(*adjustment)
            self.sparse = replace(self.sparse, points=tracker.map.points())

    def _apply_loop_correction(self, tracker: Tracker, *, wait: bool = False) -> bool:
        """Apply a loop correction that is due; True if a gap was large."""
        correction = self._loops.collect(tracker.map.keyframes, wait=wait)
        if correction is None:
            return False
        tracker.apply_loop_correction(correction)
        ends = [[tracker.map.keyframes[end].attached[0].index for end in loop.ends] for loop in self._loops.closed]
        self.sparse = SparseMap(tracker.map.points(), np.concatenate([self._earlier_loops, np.array(ends, np.int32)]))
        return correction.gap > self._config.loops.large_gap

    def _output(self, tracker: Tracker) -> list[Item]:
        """Pending results, then a revision of those that moved since their output."""
        output: list[Item] = []
        revised: list[FrameRevision] = []
        intrinsics, map_ = tracker.intrinsics, tracker.map
        for number in sorted(map_.changed | map_.extended):
            keyframe = map_.keyframes[number]
            scale = float(np.exp(keyframe.log_scale))
            for frame in keyframe.attached:
                T, result = keyframe.pose_of(frame), self._pending.pop(frame.index, None)
                if result is not None:
                    output.append(replace(_with_map_pose(result, T, scale, intrinsics), covariance=frame.covariance))
                    frame.output_scale = scale
                    if frame is keyframe.attached[0]:
                        keyframe.T_output = T.copy()
                elif frame.output_scale is not None and keyframe.number in map_.changed:
                    revised.append(FrameRevision(frame.index, T, scale / frame.output_scale, intrinsics))
        map_.changed, map_.extended = set(), set()
        return output + ([Revision(tuple(revised))] if revised else [])


def _with_map_pose(
    result: FrameResult, T_world_camera: NDArray[np.float64], scale: float, intrinsics: Intrinsics
) -> FrameResult:
    """A result with the map's pose, scale and intrinsics, and the network's estimate."""
    network = NetworkEstimate(result.T_world_camera, result.intrinsics, 1 / scale)
    depth = output_depth(result, network)
    return replace(result, T_world_camera=T_world_camera, intrinsics=intrinsics, depth=depth, network=network)


def output_depth(result: FrameResult, network: NetworkEstimate) -> NDArray[np.float32]:
    """Depth map of a network result in the map's scale."""
    return np.asarray(result.depth * np.float32(network.map_scale), np.float32)
