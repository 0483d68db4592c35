"""Refinement of a finished video: from the network's poses and depth to poses, lens, corrected depth and sparse points.

Keyframes are matched with their neighbours, with what else should see the same, and with what looks alike; the tracks
are adjusted in two passes, the second one matched anew where the first one says; all other frames follow.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Protocol

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.depth_correction import GRID
from stream_recon.app.slam.ba import robust_ba
from stream_recon.app.slam.ba.levenberg import SingularError
from stream_recon.app.slam.ba.problem import CameraModel
from stream_recon.app.slam.ba.robust_ba import BAState
from stream_recon.app.slam.frame_data import DepthOf, FrameData, Scale
from stream_recon.app.slam.matching import covisibility, relative_poses
from stream_recon.app.slam.matching.covisibility import held_out
from stream_recon.app.slam.matching.features import Features, detect
from stream_recon.app.slam.matching.matching import Matches
from stream_recon.app.slam.matching.retrieval import likeness
from stream_recon.app.slam.matching.tracks import build_tracks
from stream_recon.app.slam.offline import (
    depth_correction,
    hierarchical_ba,
    model_selection,
    pose_interpolation,
    segments,
)
from stream_recon.app.slam.offline.depth_correction import depth_scales
from stream_recon.app.slam.offline.initialization import EXPLAINED, InitialCandidate, Initializer
from stream_recon.app.slam.offline.keyframe_selection import choose_keyframes
from stream_recon.app.slam.offline.report import (
    InitialPoses,
    IntermediateState,
    Refinement,
    RefinementReport,
    WarmStart,
)
from stream_recon.app.slam.offline.reprojection import fit_frame, points_of_keyframes

logger = logging.getLogger(__name__)

FloatArray = NDArray[np.float64]
Grey = NDArray[np.uint8]

MIN_KEYFRAMES = 3
ASTRAY = 0.5
"""See `pose_interpolation.Carrier.misfit`: of a motion that is not the camera's."""
DOUBTFUL = 0.8
"""Where less than this share of the observations can be explained from where a stream has left off, the network's own
motion is tried, too."""
MIN_OBSERVATIONS = 100


class Images(Protocol):
    """Where the working images and depth maps come from."""

    def read(self, positions: Sequence[int]) -> Iterator[tuple[int, Grey, DepthOf]]:
        """Those of some frames, by their ascending positions in the result; a frame that cannot be read is left out."""
        ...


Progress = Callable[[float, str], None]
"""Told the share that is done, and what is under way."""


def refine(
    views: Sequence[FrameData],
    images: Images,
    scale: Scale,
    progress: Progress = lambda share, what: None,
    workers: int = 2,
    known: WarmStart | None = None,
    placed: InitialPoses | None = None,
    on_sketch: Callable[[IntermediateState], None] | None = None,
    known_intrinsics: bool = False,
) -> Refinement:
    """Refine a whole result.

    Args:
        views: every frame, in order.
        scale: of the working images.
        known: keyframes with features; None: they are chosen, and looked for.
        placed: the views where a stream has put them, from where the adjustment begins if that is nearer; None: it
            begins from the views' own poses.
        on_sketch: told where everything is after each pass.
        known_lens: the views' focal length is right, and nothing is bent.
    """
    refiner = _Refiner(views, images, scale, progress, workers, known, placed, on_sketch, known_intrinsics)
    try:
        return refiner.run()
    except (SingularError, np.linalg.LinAlgError, cv2.error) as error:
        # A result that is complete must not be lost for want of a better one.
        logger.exception("refinement")
        return refiner.unchanged(f"the refinement failed: {error}")


class _Refiner:
    def __init__(
        self,
        views: Sequence[FrameData],
        images: Images,
        scale: Scale,
        progress: Progress,
        workers: int,
        known: WarmStart | None,
        placed: InitialPoses | None,
        on_sketch: Callable[[IntermediateState], None] | None,
        known_intrinsics: bool,
    ) -> None:
        self._views: Sequence[FrameData] = segments.numbered(views)
        self._images, self._scale, self._workers = images, scale, workers
        self._known, self._on_sketch, self._known_intrinsics = known, on_sketch, known_intrinsics
        # Where there are several stretches the network's are laid anew.
        self._placed = placed if self._views[-1].segment == 0 else None
        self._progress = progress
        self._report = RefinementReport()
        self._keyframes: list[int] = []
        focal = float(np.median([view.focal for view in views]))
        self._lens = CameraModel(focal, scale.size[0] / 2, scale.size[1] / 2)
        self._T_given = self._T_network = np.array([view.T_world_camera for view in views])
        self._unit = np.ones(len(views))
        """Of each frame, where its stretch was laid onto another one: of the network's lengths."""
        self._across: dict[tuple[int, int], Matches] = {}
        """Between stretches that see the same."""
        self._report.focal_before = focal / scale.factor

    def run(self) -> Refinement:
        with self._back_end("keyframes"):
            known = self._known
            self._keyframes = known.keyframes if known else choose_keyframes(self._views, self._scale.size)
        with self._back_end("features"):
            self._features = known.features if known else self._detected()
        self._take()
        report = self._report
        report.keyframes, report.features = len(self._keyframes), sum(len(f) for f in self._features)
        if len(self._keyframes) < MIN_KEYFRAMES:
            return self.unchanged("too few keyframes")
        with self._back_end("matches"):
            self._place_segments()
            first = self._matched(self._kept, self._features, self._lens)
        with self._back_end("adjustment"):
            attempt = self._first_pass(first)
        if attempt is None:
            return self.unchanged("too few matches")
        attempt = replace(attempt, fit=self._in_place(attempt.fit))
        self._sketch(attempt.fit, first)
        with self._back_end("judgement"):
            left = self._judged(attempt, first)
        if left.all():
            return self.unchanged(model_selection.WHY)
        with self._back_end("adjustment again"):
            fitted = self._in_place(self._second_pass(attempt, first, left), left)
        self._sketch(fitted, first, left)
        with self._back_end("frames between"):
            return self._completed(fitted, first, left)

    def _take(self) -> None:
        """Note what the views say."""
        self._kept = [self._views[k] for k in self._keyframes]
        self._T_network = np.array([view.T_world_camera for view in self._views])
        self._T_keyframes = self._T_network[self._keyframes]
        self._segment = np.array([view.segment for view in self._views])

    def _place_segments(self) -> None:
        """Lay stretches onto one another where matches say how; from here on these are one."""
        segment = self._segment[self._keyframes]
        self._report.segments = len(np.unique(segment))
        if self._report.segments < 2:
            return
        wanted = covisibility.cross_segment_pairs(self._kept, likeness(self._features))
        found = covisibility.match_pairs(self._kept, self._features, self._lens, wanted, self._workers).matches
        edges = relative_poses.estimate_relative_poses(self._features, self._lens, found)
        depths = np.array([_usual_depth(view) for view in self._kept])
        ties = segments.laid(self._T_keyframes, segment, depths, edges, found)
        self._report.segments = len({root for root, _ in ties.values()})
        self._unit = np.array([ties[view.segment][1].scale for view in self._views])
        self._views = [segments.relaid(view, ties[view.segment]) for view in self._views]
        units = self._unit[self._keyframes].tolist()
        self._features = [f.scaled(unit) for f, unit in zip(self._features, units, strict=True)]
        self._take()
        segment = self._segment[self._keyframes]
        self._across = {(i, j): found[i, j] for i, j in edges if segment[i] == segment[j]}

    def _in_place(self, fitted: BAState, left: NDArray[np.bool_] | None = None) -> BAState:
        """With stretches that nothing ties to one another where the network has them."""
        return segments.kept_in_place(fitted, self._segment[self._keyframes], self._T_keyframes, left)

    @contextmanager
    def _back_end(self, name: str) -> Iterator[None]:
        begun = time.monotonic()
        self._progress(STAGES[name], name)
        yield
        self._report.seconds[name] = round(time.monotonic() - begun, 3)

    def _detected(self) -> list[Features]:
        empty = Features(np.zeros((0, 2), np.float32), np.zeros((0, 128), np.float32), np.zeros(0, np.float32))
        place = {position: k for k, position in enumerate(self._keyframes)}
        found = [empty] * len(self._keyframes)
        with ThreadPoolExecutor(self._workers) as pool:
            waiting = []
            for position, grey, depth in self._images.read(self._keyframes):
                waiting.append((place[position], pool.submit(_features_of, grey, depth)))
                # Decoding must not run ahead: images are large.
                while len(waiting) > 2 * self._workers:
                    k, future = waiting.pop(0)
                    found[k] = future.result()
                    self._progress(_between("features", k / len(found)), "features")
            for k, future in waiting:
                found[k] = future.result()
        return found

    def _matched(
        self, views: Sequence[FrameData], features: Sequence[Features], lens: CameraModel
    ) -> covisibility.PairMatches:
        wanted = covisibility.candidates(views, lens, likeness(features))
        found = covisibility.match_pairs(
            views, features, lens, wanted, self._workers, self._counter("matches", len(wanted))
        )
        found.matches.update(self._across)
        found.loops |= self._across.keys()
        far = {pair: found.matches[pair] for pair in found.loops}
        edges = relative_poses.estimate_relative_poses(features, lens, far)
        wrong = (far.keys() - edges.keys()) | relative_poses.implausible_edges(self._T_keyframes, edges)
        near = {pair: m for pair, m in found.matches.items() if pair not in found.loops}
        wrong |= relative_poses.inconsistent_edges(views, features, lens, near)
        for pair in wrong:
            del found.matches[pair]
        found.loops -= wrong
        self._report.pairs_tried, self._report.pairs_accepted = found.tried, len(found.matches)
        self._report.loops = len(found.loops)
        return found

    def _counter(self, back_end: str, total: int) -> Callable[[], None]:
        done = 0

        def advance() -> None:
            nonlocal done
            done += 1
            self._progress(_between(back_end, done / max(total, 1)), back_end)

        return advance

    def _first_pass(self, found: covisibility.PairMatches) -> InitialCandidate | None:
        """The best of the starts, by evidence that none was fitted to."""
        fitted = self._fitted_to(found)
        tracks = build_tracks([len(f) for f in self._features], fitted)
        if len(tracks.track) < MIN_OBSERVATIONS:
            return None
        starts = Initializer(
            self._T_keyframes,
            self._lens,
            self._features,
            tracks,
            {pair: fitted[pair] for pair in found.loops},
            self._known_intrinsics,
            self._segment[self._keyframes].tolist(),
            self._placed.beside(self._T_keyframes[0], self._keyframes) if self._placed else None,
        )
        best = starts.network()
        self._report.reprojection_px_before = starts.before_px
        if starts.from_stream and best.share < DOUBTFUL:
            alone = replace(starts, placed=None)
            other = alone.network()
            if self._evidence(other.fit, found).mean < self._evidence(best.fit, found).mean:
                best, starts = other, alone
        bent = starts.bent(best)
        best = bent or best
        if best.share < EXPLAINED:
            other = starts.matches(found.matches, np.array([_usual_depth(view) for view in self._kept]))
            if self._evidence(other.fit, found).mean < self._evidence(best.fit, found).mean:
                best = other
        self._report.start = best.start
        return best

    def _fitted_to(self, found: covisibility.PairMatches) -> dict[tuple[int, int], Matches]:
        """The matches without features that are kept for the judgement."""
        return {
            (i, j): m[~(held_out(self._features[i])[m[:, 0]] | held_out(self._features[j])[m[:, 1]])]
            for (i, j), m in found.matches.items()
        }

    def _side(self, fitted: BAState | None) -> model_selection.PoseCandidate:
        """A fit as the judgement sees it; None: the network."""
        if fitted is None:
            return model_selection.PoseCandidate(self._T_keyframes, self._lens, np.ones(len(self._keyframes)))
        return model_selection.PoseCandidate(fitted.scene.T_world_camera, fitted.scene.lens, self._scales(fitted))

    def _evidence(self, fitted: BAState | None, found: covisibility.PairMatches) -> model_selection.HeldOutError:
        return model_selection.HeldOutError.of(self._side(fitted), self._features, found.held_out)

    def _judged(self, attempt: InitialCandidate, found: covisibility.PairMatches) -> NDArray[np.bool_]:
        """[keyframes] those that are left to the network."""
        network, mapped = self._evidence(None, found), self._evidence(attempt.fit, found)
        grids = [view.grid for view in self._kept]
        agreement = model_selection.depth_agreement(self._side(None), self._side(attempt.fit), grids)
        # Where two stretches lie beside one another neither side knows.
        apart = np.diff(self._segment[self._keyframes]) != 0
        agreement[1][apart] = agreement[0][apart]
        before, after = (float(share.mean()) for share in agreement)
        report = self._report
        report.disagreement_before, report.disagreement = network.mean, mapped.mean
        report.depth_agreement_before, report.depth_agreement = before, after
        return model_selection.fallback_segments(mapped, network, agreement, self._explained(attempt.fit, found))

    def _explained(self, fitted: BAState, found: covisibility.PairMatches) -> dict[tuple[int, int], tuple[int, int]]:
        """Of each pair how many matches are in the robust_ba, and of how many that it could be of."""
        starts = np.cumsum([0, *(len(features) for features in self._features)])
        point = np.full(starts[-1], -1)
        point[starts[fitted.observations.camera] + fitted.feature] = fitted.observations.point
        counts = {}
        for (i, j), m in self._fitted_to(found).items():
            a, b = point[starts[i] + m[:, 0]], point[starts[j] + m[:, 1]]
            counts[i, j] = int(((a == b) & (a >= 0)).sum()), len(m)
        return counts

    def _scales(self, fitted: BAState) -> FloatArray:
        positions = range(len(self._keyframes))
        scales = depth_scales(fitted, len(self._keyframes))
        fallback = fitted.scene.log_depth_scale
        if fallback is not None:
            scales = np.where(np.isfinite(scales), scales, np.exp(fallback))
        return pose_interpolation.interpolated(positions, scales, len(self._keyframes))

    def _second_pass(
        self, first: InitialCandidate, found: covisibility.PairMatches, left: NDArray[np.bool_]
    ) -> BAState:
        """With the features that were held out, without keyframes that are left to the network."""
        usable = {pair: m for pair, m in found.matches.items() if not left[list(pair)].any()}
        tracks = build_tracks([len(f) for f in self._features], usable)
        scene = first.fit.scene
        start = robust_ba.start(scene.T_world_camera, scene.lens, self._features, tracks, scene.log_depth_scale)
        start = robust_ba.triangulated(start)
        priors = robust_ba.last_priors(first.priors, first.fit)
        return hierarchical_ba.narrow(start, first.steps, robust_ba.LAST, priors, free_focal=first.free_focal)

    def _completed(self, fitted: BAState, found: covisibility.PairMatches, left: NDArray[np.bool_]) -> Refinement:
        """Frames between keyframes, and every frame's depth scale."""
        T, depth_scale = self._carried(fitted, left)
        count, positions = len(self._views), self._keyframes
        if len(self._keyframes) < count:
            self._follow(fitted, T)
        report, lens = self._report, fitted.scene.lens
        for begin, end in model_selection.runs(left):
            ends = positions[begin], positions[end - 1]
            self._leave(*ends, model_selection.WHY)
        report.tracks, report.observations = len(fitted.scene.points), len(fitted.observations)
        report.reprojection_px = float(np.median(fitted.errors)) if len(fitted.errors) else None
        report.focal, report.k1 = lens.focal / self._scale.factor, lens.k1
        loops = sorted(found.loops)
        fields = self._depth_fields(fitted, left)
        return Refinement(
            T, depth_scale * self._unit, lens, self._scale, self._keyframes, fitted, loops, report, fields
        )

    def _depth_fields(self, fitted: BAState, left: NDArray[np.bool_]) -> NDArray[np.float16]:
        """Of all frames [N, GRID, GRID]."""
        found = depth_correction.judged(fitted, self._scales(fitted), self._kept, self._scale.size)
        found.nodes[left] = 0
        report = self._report
        report.depth_fields = int(found.nodes.any(axis=(1, 2)).sum())
        report.depth_error_before, report.depth_error = found.error_before, found.error
        return depth_correction.of_all(found.nodes, self._keyframes, self._segment)

    def _carried(self, fitted: BAState, left: NDArray[np.bool_]) -> tuple[FloatArray, FloatArray]:
        """Poses [N, 4, 4] and depth scales [N] of all frames, those that are no keyframes of the map carried along."""
        scales, kept = self._scales(fitted), np.flatnonzero(~left)
        positions, count = np.array(self._keyframes)[kept], len(self._views)
        T_kept, grown = fitted.scene.T_world_camera[kept], scales[kept]
        carrier = pose_interpolation.PoseInterpolator(positions, self._T_network, T_kept, grown, self._segment)
        T = np.array([carrier.pose(frame) for frame in range(count)])
        if self._placed is not None:
            # What cannot be followed, as in a blurred stretch, led the stream astray as well, and keyframes beside it
            # lie near to where the stream had put them: it is asked where the network is plainly wrong.
            by, unit = self._placed.T_world_camera, self._placed.depth_scale[positions]
            other = pose_interpolation.PoseInterpolator(positions, by, T_kept, grown / unit, self._segment)
            for frame in range(count):
                if carrier.misfit(frame) > max(ASTRAY, other.misfit(frame)):
                    T[frame] = other.pose(frame)
        return T, pose_interpolation.interpolated(positions.tolist(), scales[kept], count)

    def _sketch(self, fitted: BAState, found: covisibility.PairMatches, left: NDArray[np.bool_] | None = None) -> None:
        if self._on_sketch is not None:
            loops = [(self._keyframes[i], self._keyframes[j]) for i, j in sorted(found.loops)]
            scene, none = fitted.scene, np.zeros(len(self._keyframes), bool)
            T, depth_scale = self._carried(fitted, none if left is None else left)
            self._on_sketch(IntermediateState(T, depth_scale * self._unit, scene.lens, scene.points, loops))

    def _follow(self, fitted: BAState, T: FloatArray) -> None:
        """Fit each frame between to the points of the keyframes on either side; changes ``T``."""
        points = points_of_keyframes(fitted, self._features, len(self._keyframes))
        place = {position: k for k, position in enumerate(self._keyframes)}
        waiting: list[tuple[int, Grey]] = []
        left: tuple[int, Grey] | None = None
        count = len(self._views)
        with ThreadPoolExecutor(self._workers) as pool:
            under_way: list[Future[None]] = []
            for position, grey, _ in self._images.read(range(count)):
                self._progress(_between("frames between", position / count), "frames between")
                if position not in place:
                    waiting.append((position, grey))
                    continue
                right = (place[position], grey)
                sides = [points[k] + (g,) for k, g in ((left, right) if left else (right,))]
                # Images wait for no more than what lies between two keyframes.
                _finished(under_way)
                under_way = [pool.submit(fit_frame, fitted, frame, image, sides, T) for frame, image in waiting]
                left, waiting = right, []
            _finished(under_way)

    def _leave(self, first: int, last: int, why: str) -> None:
        segment = {"first": self._views[first].index, "last": self._views[last].index, "why": why}
        self._report.fallback_segments.append(segment)

    def unchanged(self, why: str) -> Refinement:
        """Everything as the network has it."""
        count = len(self._views)
        self._leave(0, -1, why)
        return Refinement(
            *(self._T_given, np.ones(count), self._lens, self._scale, self._keyframes, None, [], self._report),
            depth_fields=np.zeros((count, GRID, GRID), np.float16),
        )


def _finished(under_way: Sequence[Future[None]]) -> None:
    for future in under_way:
        future.result()


def _features_of(grey: Grey, depth: DepthOf) -> Features:
    return detect(grey, depth())


STAGES = {
    "keyframes": 0.0,
    "features": 0.02,
    "matches": 0.3,
    "adjustment": 0.5,
    "judgement": 0.68,
    "adjustment again": 0.7,
    "frames between": 0.85,
}
"""Which share of the time is usually over when a stage begins."""


def _between(back_end: str, share: float) -> float:
    names = list(STAGES)
    begin = STAGES[back_end]
    after = names.index(back_end) + 1
    end = STAGES[names[after]] if after < len(names) else 1.0
    return begin + share * (end - begin)


def _usual_depth(view: FrameData) -> float:
    _, z = view.grid.pixels()
    return float(np.median(z)) if len(z) else 1.0
