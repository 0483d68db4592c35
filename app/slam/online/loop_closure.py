"""Loop closure: recognized places become loop constraints, and a pose graph over keyframes corrects the map.

Keyframes at some spacing are entered into the keyframe database and compared with similar, earlier ones. Two whose
matches agree on one motion, by depth and in both directions, give a loop constraint. Constraints that confirm each
other close a loop, by a Sim(3) pose graph. This runs in the background. For a file, results are applied a fixed number
of keyframes later, so that they do not depend on speed.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core import so3
from stream_recon.app.core.camera_model import CameraModel
from stream_recon.app.core.transforms import rotation_angle_deg
from stream_recon.app.core.worker import BackgroundWorker, Task
from stream_recon.app.slam.ba.levenberg import SingularError
from stream_recon.app.slam.ba.pose_graph import Edges
from stream_recon.app.slam.ba.problem import FloatArray
from stream_recon.app.slam.matching.features import NO_FEATURES
from stream_recon.app.slam.matching.matching import NO_MATCHES, Matches
from stream_recon.app.slam.online.config import DEFAULT_ONLINE, LoopConfig, OnlineConfig
from stream_recon.app.slam.online.keyframe import Keyframe
from stream_recon.app.slam.online.keyframe_features import KeyframeImages, PlaceDescriptor
from stream_recon.app.slam.online.place_recognition import PlaceQuery, QueryResult

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Loop:
    """Loop constraint between two keyframes that show the same place."""

    first: PlaceDescriptor
    second: PlaceDescriptor
    matches: Matches
    S_first_second: FloatArray  # [4, 4], similarity between the axes and network scales of both
    inliers: int

    def without_features(self) -> "Loop":
        """The constraint without features, once both ends have common tracks."""
        first, second = (replace(end, features=NO_FEATURES, tracks={}) for end in (self.first, self.second))
        return replace(self, first=first, second=second, matches=NO_MATCHES)

    @property
    def ends(self) -> tuple[int, int]:
        """Numbers of both keyframes."""
        return self.first.keyframe.number, self.second.keyframe.number

    def correction(self) -> FloatArray:
        """Similarity [4, 4] of the world that takes the second keyframe to where the first one sees it."""
        first, second = self.first.keyframe, self.second.keyframe
        return np.asarray(_node(first) @ self.S_first_second @ np.linalg.inv(_node(second)))

    def gap(self) -> float:
        """Translation of the second keyframe by the correction, as a share of the depth."""
        camera = self.second.keyframe
        corrected = self.correction() @ np.append(camera.T_world_camera[:3, 3], 1.0)
        return float(np.linalg.norm(corrected[:3] - camera.T_world_camera[:3, 3])) / camera.median_depth

    def agrees(self, other: "Loop", config: LoopConfig = DEFAULT_ONLINE.loops) -> bool:
        """Whether the correction of another constraint is about the same."""
        if self.ends == other.ends:
            return False
        centre = self.second.keyframe.T_world_camera[:3, 3]
        ours, theirs = self.correction(), other.correction()
        scale = float(np.cbrt(np.linalg.det(theirs[:3, :3]) / np.linalg.det(ours[:3, :3])))
        distance = np.linalg.norm((ours[:3, :3] - theirs[:3, :3]) @ centre + ours[:3, 3] - theirs[:3, 3])
        return bool(
            rotation_angle_deg(_rotation(ours[:3, :3].T @ theirs[:3, :3])) < config.same_deg
            and 1 / config.same_scale < scale < config.same_scale
            and distance < config.same_share * self.second.keyframe.median_depth
        )


@dataclass(frozen=True)
class LoopCorrection:
    """Correction of the map that closes loops, at some keyframes."""

    numbers: NDArray[np.intp]  # [N] keyframes, ascending
    S_after_before: FloatArray  # [N, 4, 4], similarities of the world at these keyframes
    loops: Sequence[Loop]
    """New loops that it closes."""
    gap: float
    """Largest gap of these loops, as a share of the depth."""

    def interpolate(self, numbers: Sequence[int]) -> FloatArray:
        """Similarities [K, 4, 4] at any keyframes; constant beyond the last known one."""
        known, S = self.numbers, self.S_after_before
        number = np.clip(np.asarray(numbers, np.float64), known[0], known[-1])
        right = np.clip(np.searchsorted(known, number, side="right"), 1, len(known) - 1)
        share = (number - known[right - 1]) / (known[right] - known[right - 1])
        log_scale, R = np.log(np.cbrt(np.linalg.det(S[:, :3, :3]))), _rotation(S[:, :3, :3])
        step = so3.log(R[right - 1].transpose(0, 2, 1) @ R[right])
        interpolated = np.tile(np.eye(4), (len(number), 1, 1))
        scale = np.exp(np.interp(number, known, log_scale))
        interpolated[:, :3, :3] = R[right - 1] @ so3.exp(share[:, None] * step) * scale[:, None, None]
        for axis in range(3):
            interpolated[:, axis, 3] = np.interp(number, known, S[:, axis, 3])
        return interpolated


@dataclass(frozen=True)
class _PendingCorrection:
    """Correction that is being computed."""

    started: int
    """Number of the map's last keyframe at its start."""
    task: Task
    numbers: NDArray[np.intp]
    loops: Sequence[Loop]
    gap: float

    def result(self) -> LoopCorrection | None:
        """The correction, after waiting for it; None if it failed."""
        S = _task_result(self.task)
        return None if S is None or not np.isfinite(S).all() else LoopCorrection(self.numbers, S, self.loops, self.gap)


class LoopCloser:
    """Finds the loops of one map and computes corrections.

    The worker's target is a `KeyframeDatabase`, which is cleared. ``waits``: `collect` waits for results that are due.
    """

    def __init__(self, worker: BackgroundWorker, *, waits: bool, config: OnlineConfig = DEFAULT_ONLINE) -> None:
        self.closed: list[Loop] = []
        """Loops that were closed."""
        self.skipped = 0
        self._worker, self._waits, self._config = worker, waits, config
        worker.submit("clear")
        self._descriptors: dict[int, PlaceDescriptor] = {}
        """Entries of the database, by keyframe number."""
        self._displacement = np.inf
        """Image displacement since the last entry."""
        self._queries: list[tuple[KeyframeImages, Task]] = []
        self._pending: _PendingCorrection | None = None
        self._unconfirmed: list[Loop] = []
        self._confirmed: list[Loop] = []
        self._largest_gap = 0.0
        """Largest gap of the confirmed loops when they were found."""
        self._last_correction = 0
        """Number of the last keyframe at the last correction."""
        self._nodes: list[int] = [0]

    def offer(self, new: KeyframeImages, camera_model: CameraModel) -> None:
        """Query a new keyframe, if the image has moved enough since the last one."""
        self._displacement += min(new.keyframe.displacement, self._config.places.entry_spacing)
        if self._displacement < self._config.places.entry_spacing:
            return
        if not self._waits and len(self._queries) >= self._config.places.max_queued:
            self.skipped += 1
            return
        self._displacement = 0.0
        image, reader = (new.image, new.reader) if new.detected is None else (None, None)
        query = PlaceQuery(new.keyframe.number, new.detected, image, reader)
        self._queries.append((new, self._worker.submit("query", query, camera_model)))

    def collect(self, keyframes: Sequence[Keyframe], *, wait: bool = False) -> LoopCorrection | None:
        """Process results that are due; returns a correction to apply to all keyframes of the map, in order.

        ``wait``: process all results and close all loops, since no more keyframes will come.
        """
        newest = keyframes[-1].number
        while self._queries and self._due(self._queries[0][0].keyframe.number, self._queries[0][1], newest, wait):
            new, task = self._queries.pop(0)
            number = new.keyframe.number
            self._nodes = [
                *(self._nodes if len(self._nodes) < 2 * self._config.places.max_entries else self._nodes[::2]),
                number,
            ]
            self._confirm(self._loops_of(new, _task_result(task)), keyframes)
        correction = None
        if self._pending is None and self._confirmed and (wait or self._correction_due(newest)):
            self._pending = self._start_correction(keyframes)
            if not wait:
                return None
        if self._pending is not None and self._due(self._pending.started, self._pending.task, newest, wait):
            correction, self._pending = self._pending.result(), None
        return correction

    def _due(self, started: int, task: Task, newest: int, wait: bool) -> bool:
        return wait or (newest >= started + self._config.loops.delay if self._waits else task.future.done())

    def _loops_of(self, new: KeyframeImages, result: QueryResult | None) -> list[Loop]:
        """Loop constraints of a new entry."""
        if result is None:
            return []
        second = self._descriptors[new.keyframe.number] = new.descriptor(result.features)
        if result.removed is not None:
            self._descriptors.pop(result.removed, None)
        return [
            Loop(self._descriptors[each.number], second, each.matches, each.S_first_second, each.inliers)
            for each in result.revisits
            if each.number in self._descriptors
        ]

    def _correction_due(self, newest: int) -> bool:
        if newest < self._last_correction + self._config.loops.min_interval:
            return False
        return (
            newest > self._config.loops.growth * self._last_correction
            or self._largest_gap > self._config.loops.large_gap
        )

    def _confirm(self, loops: Sequence[Loop], keyframes: Sequence[Keyframe]) -> None:
        """Accept constraints that agree with another one."""
        config = self._config.loops
        for loop in loops:
            if not _plausible(loop, keyframes, self._config):
                continue
            confirmed = [other for other in self._unconfirmed if other.agrees(loop, config)]
            # Newest first, as these agree most likely.
            known = chain(reversed(self._confirmed), reversed(self.closed))
            if not confirmed and not any(other.agrees(loop, config) for other in known):
                self._unconfirmed.append(loop)
                continue
            self._unconfirmed = [other for other in self._unconfirmed if other not in confirmed]
            self._confirmed = thinned([*self._confirmed, *confirmed, loop], config.max_edges)
            self._largest_gap = max(self._largest_gap, *(each.gap() for each in (*confirmed, loop)))
        if loops:
            newest = loops[-1].second.keyframe.number
            recent = [loop for loop in self._unconfirmed if newest - loop.ends[1] <= config.unconfirmed]
            self._unconfirmed = recent

    def _start_correction(self, keyframes: Sequence[Keyframe]) -> _PendingCorrection:
        new, self._confirmed, self._largest_gap = self._confirmed, [], 0.0
        gap = max(loop.gap() for loop in new)
        closed = [*self.closed, *(loop.without_features() for loop in new)]
        self.closed = thinned(closed, self._config.loops.max_edges)
        newest = self._last_correction = keyframes[-1].number
        numbers = {0, newest, *self._nodes, *(end for loop in self.closed for end in loop.ends)}
        known = np.array(sorted(number for number in numbers if number <= newest), np.intp)
        nodes = np.array([_node(keyframes[number]) for number in known])
        edges = _edges(known, nodes, keyframes, self.closed, self._config.loops)
        return _PendingCorrection(newest, self._worker.submit("loop_correction", nodes, edges), known, new, gap)


def _node(keyframe: Keyframe) -> FloatArray:
    """Similarity [4, 4] from a keyframe's axes and the network's scale there to the world."""
    S = keyframe.T_world_camera.copy()
    S[:3, :3] *= np.exp(keyframe.log_scale)
    return S


def _rotation(scaled: FloatArray) -> FloatArray:
    """Rotations [..., 3, 3] of scaled rotations."""
    return np.asarray(scaled / np.cbrt(np.linalg.det(scaled))[..., None, None])


def thinned(loops: list[Loop], count: int) -> list[Loop]:
    """At most ``count`` loops: every other one of the older half is dropped, repeatedly."""
    while len(loops) > count:
        half = len(loops) // 2
        loops = loops[:half:2] + loops[half:]
    return loops


def _plausible(loop: Loop, keyframes: Sequence[Keyframe], config: OnlineConfig) -> bool:
    """Whether the map can have drifted by the loop's gap; repeated structures look alike, metres apart."""
    first, second = loop.ends
    step = -(-(second - first) // config.loops.max_steps)
    passed = [*keyframes[first:second:step], keyframes[second]]
    centres = np.array([keyframe.T_world_camera[:3, 3] for keyframe in passed])
    path = float(np.linalg.norm(np.diff(centres, axis=0), axis=1).sum())
    distance = float(np.linalg.norm(centres[-1] - centres[0]))
    drift = config.matching.relative_poses
    return loop.gap() * loop.second.keyframe.median_depth <= drift.max_drift * path + drift.drift_slack * distance


def _edges(
    known: NDArray[np.intp], nodes: FloatArray, keyframes: Sequence[Keyframe], loops: Sequence[Loop], config: LoopConfig
) -> Edges:
    """Edges between consecutive nodes by the map, and loop constraints."""
    steps = np.diff(known)
    path = np.array(
        [
            sum(
                np.linalg.norm(b.T_world_camera[:3, 3] - a.T_world_camera[:3, 3])
                for a, b in pairwise(keyframes[first : second + 1])
            )
            for first, second in pairwise(known.tolist())
        ]
    )
    scale = np.cbrt(np.linalg.det(nodes[:, :3, :3]))
    depth = np.array([keyframes[number].median_depth for number in known])
    inlier_factor = np.sqrt(100.0 / np.array([loop.inliers for loop in loops]))
    growth = np.sqrt(steps)
    index = {int(number): k for k, number in enumerate(known)}
    first, second = np.array([[index[end] for end in loop.ends] for loop in loops], np.intp).T
    sigma = config.translation_sigma * path / growth + config.still_sigma * depth[:-1] * growth
    return Edges(
        np.concatenate([np.arange(len(steps)), first]),
        np.concatenate([np.arange(len(steps)) + 1, second]),
        np.concatenate([np.linalg.inv(nodes[:-1]) @ nodes[1:], [loop.S_first_second for loop in loops]]),
        np.concatenate([config.rotation_sigma * growth, config.loop_rotation_sigma * inlier_factor]),
        np.concatenate(
            [sigma / scale[:-1], config.loop_translation_sigma * inlier_factor * depth[first] / scale[first]]
        ),
        np.concatenate([config.log_scale_sigma * growth, config.loop_translation_sigma * inlier_factor]),
        np.arange(len(steps) + len(loops)) >= len(steps),
    )


def _task_result(task: Task) -> Any:
    """Result of a task; None if it failed."""
    try:
        return task.future.result()
    except (SingularError, np.linalg.LinAlgError, cv2.error):
        logger.exception("loop closure failed")
        return None
