"""Refinement of a finished video, from the network's poses and depth to poses, intrinsics, depth and sparse points.

Keyframes are matched with neighbours, covisible and similar ones. Tracks are adjusted in two passes: the first one
without held-out features, which then decide where the result falls back to the network, the second one with all.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.camera_model import CameraModel
from stream_recon.app.core.depth_correction import GRID
from stream_recon.app.slam.ba import robust_ba
from stream_recon.app.slam.ba.levenberg import SingularError
from stream_recon.app.slam.ba.problem import FloatArray, Priors
from stream_recon.app.slam.ba.robust_ba import BAState, SolveOptions
from stream_recon.app.slam.evidence.depth_scales import keyframe_depth_scales
from stream_recon.app.slam.evidence.model_selection import Selection, runs
from stream_recon.app.slam.frame_data import FrameData, Scale
from stream_recon.app.slam.matching.covisibility import PairMatches
from stream_recon.app.slam.matching.features import COUNT
from stream_recon.app.slam.matching.matching import build_tracks
from stream_recon.app.slam.matching.two_view import rotation_errors_deg
from stream_recon.app.slam.offline import (
    depth_fields,
    hierarchical_ba,
    lens_selection,
    scale_consistency,
    segments,
)
from stream_recon.app.slam.offline.all_frames import interpolate_poses, refine_between
from stream_recon.app.slam.offline.held_out_test import HeldOutTest
from stream_recon.app.slam.offline.incremental_sfm import reconstruct
from stream_recon.app.slam.offline.initialization import EXPLAINED, InitialCandidate, Initializer, initial_state
from stream_recon.app.slam.offline.keyframe_matching import (
    Images,
    VideoData,
    align_segments,
    detect_features,
    match_all_keyframes,
    match_unordered,
)
from stream_recon.app.slam.offline.keyframe_selection import choose_keyframes
from stream_recon.app.slam.offline.network_motions import with_network_motions
from stream_recon.app.slam.offline.path_error import path_error
from stream_recon.app.slam.offline.report import (
    InitialPoses,
    IntermediateState,
    Refinement,
    RefinementReport,
    WarmStart,
)

logger = logging.getLogger(__name__)


MIN_KEYFRAMES = 3
"""Least number of keyframes; fewer give no points in three views."""
DOUBTFUL = 0.8
"""Share of observations explained from the online poses, below which the network's poses are tried, too."""
WRONG_TURN_DEG = 1.5
"""Median error of the rotations between neighbours, by two-view geometry, from which the network's poses are wrong."""
MOST_UNORDERED = 600
"""Most keyframes that are reconstructed from images alone: time grows with their number times that of all."""
PHOTOGRAPH_FEATURES = (COUNT, 3 * COUNT)
"""Fewest and most features of a photograph."""
ALL_FEATURES = 60 * COUNT
"""Features of all photographs together, as far as these limits allow; bounds the time of matching."""
TIED_NEIGHBOURS = 0.5
"""Share of neighbours with matches, below which keyframes are in no order."""
TESTED_TURNS = 60
"""Neighbours whose rotation is tested; bounds the time."""
CLEAR = 0.1
"""Evidence for the map, as a share of the image, from which its path is surely more accurate than the network's."""
MIN_OBSERVATIONS = 100
"""Least number of observations of an adjustment."""

Progress = Callable[[float, str], None]
"""Called with the share that is done and the name of the stage."""

STAGES = {
    "keyframes": 0.0,
    "features": 0.02,
    "matches": 0.3,
    "adjustment": 0.5,
    "judgement": 0.68,
    "adjustment again": 0.7,
    "frames between": 0.85,
}
"""Share of the total time at which each stage usually starts."""


@dataclass(frozen=True)
class RefineOptions:
    """Optional input of a refinement, and its callbacks."""

    workers: int = 2
    """Threads for features and matches."""
    known: WarmStart | None = None
    """Keyframes with features; None: they are chosen and detected."""
    initial_poses: InitialPoses | None = None
    """Online poses of all frames, from which the adjustment starts if their error is smaller; None: the network's."""
    unordered: bool = False
    """The frames are photographs in no order."""
    known_intrinsics: bool = False
    """The frames' focal length is exact, and there is no distortion."""
    refined_before: bool = False
    """The frames' poses and depth are those of refined parts, which are adjusted together."""
    progress: Progress = lambda share, what: None
    on_state: Callable[[IntermediateState], None] | None = None
    """Called after each pass."""


def refine(
    views: Sequence[FrameData], images: Images, scale: Scale, options: RefineOptions | None = None
) -> Refinement:
    """Refinement of all frames ``views``, in order; ``scale``: of the working images."""
    refiner = _Refiner(views, images, scale, options or RefineOptions())
    try:
        return refiner.run()
    except (SingularError, np.linalg.LinAlgError, cv2.error) as error:
        # A numerical failure must not cost the complete, unrefined result.
        logger.exception("refinement failed")
        return refiner.unchanged(f"the refinement failed: {error}")


def photograph_features(photographs: int) -> int:
    """Number of features of each of a set of photographs; few show a place from far apart, and need more."""
    return int(np.clip(ALL_FEATURES // max(photographs, 1), *PHOTOGRAPH_FEATURES))


class _Refiner:
    def __init__(self, views: Sequence[FrameData], images: Images, scale: Scale, options: RefineOptions) -> None:
        numbered = segments.numbered(views)
        self._data = VideoData(numbered, [], [], np.ones(len(views)))
        self._images, self._scale, self._options = images, scale, options
        # With several segments, online poses do not share one world with the aligned segments.
        self._online = options.initial_poses if numbered[-1].segment == 0 else None
        self._report = RefinementReport()
        self._initializer: Initializer | None = None
        self._progress = _StageProgress(options.progress, self._report.seconds)
        focal = float(np.median([view.focal for view in views]))
        self._lens = CameraModel(focal, scale.size[0] / 2, scale.size[1] / 2)
        self._T_input = self._data.T_network
        self._report.focal_before = focal / scale.factor

    def run(self) -> Refinement:
        """All stages of the refinement."""
        stage, report, workers = self._progress.stage, self._report, self._options.workers
        advance = self._progress.advance
        with stage("keyframes"):
            known = self._options.known
            keyframes = known.keyframes if known else self._choose_keyframes()
        with stage("features"):
            count = photograph_features(len(keyframes)) if self._unordered else COUNT
            features = known.features if known else detect_features(self._images, keyframes, workers, advance, count)
        self._data = replace(self._data, keyframes=keyframes, features=features)
        report.keyframes, report.features = len(keyframes), sum(len(f) for f in features)
        if len(keyframes) < MIN_KEYFRAMES:
            return self.unchanged("too few keyframes")
        with stage("matches"):
            found = PairMatches()
            if not self._unordered:
                if self._options.refined_before:  # they are in one world
                    every = {view.segment for view in self._data.views}
                    self._data = replace(self._data, views=segments.joined(self._data.views, every))
                else:
                    self._data = align_segments(self._data, self._lens, workers)
                report.segments = len(np.unique(self._data.keyframe_segment))
                found = match_all_keyframes(self._data, self._lens, workers, advance)
            report.pairs_tried, report.pairs_accepted = found.tried, len(found.matches)
            report.loops = len(found.loops)
        test = HeldOutTest(self._data, self._lens, found)
        with stage("adjustment"):
            candidate = None if self._unordered else self._first_pass(found, test)
            begins_alone = candidate is None or self._network_is_wrong(candidate, found)
            if begins_alone:
                candidate, found, test = self._from_structure(candidate, found, test)
        if candidate is None:
            return self.unchanged("too few matches")
        candidate = replace(candidate, fit=self._with_network_layout(candidate.fit))
        none = np.zeros(len(keyframes), bool)
        self._show(candidate.fit, found, none)
        with stage("judgement"):
            selection = test.select(candidate.fit, report, refined_before=self._options.refined_before)
            is_tried = begins_alone or self._options.refined_before or len(keyframes) > MOST_UNORDERED
            if selection.fallback.all() and not is_tried:
                # Matches of neighbours and loops were not enough: all pairs, and geometry alone, may be.
                other, other_found, other_test = self._from_structure(None, found, test)
                if other is not None and other_test.is_certain(other.fit):
                    candidate, found, test = other, other_found, other_test
                    selection = test.select(candidate.fit, report)
            selection = self._with_path_error(selection, candidate, test)
        if selection.fallback.all():
            return self.unchanged(selection.reason)
        if not selection.fallback.any():
            with stage("adjustment again"):
                candidate = self._with_network_motions(candidate, test)
        selection = selection.with_untied(candidate.untied)
        fallback = selection.fallback
        with stage("adjustment again"):
            fit = self._with_network_layout(self._second_pass(candidate, found, fallback), fallback)
        self._show(fit, found, fallback)
        with stage("frames between"):
            return self._complete(fit, found, selection)

    @property
    def _unordered(self) -> bool:
        return self._options.unordered and len(self._data.views) <= MOST_UNORDERED

    def _choose_keyframes(self) -> list[int]:
        if self._unordered:
            return list(range(len(self._data.views)))
        return choose_keyframes(self._data.views, self._scale.size)

    def unchanged(self, reason: str) -> Refinement:
        """The network's poses and depth, with the reason in the report."""
        count = len(self._data.views)
        self._report_fallback(0, -1, reason)
        return Refinement(
            *(self._T_input, np.ones(count), self._lens, self._scale, self._data.keyframes, None, [], self._report),
            depth_fields=np.zeros((count, GRID, GRID), np.float16),
            features=self._data.features,
        )

    def _first_pass(self, found: PairMatches, test: HeldOutTest) -> InitialCandidate | None:
        """Candidate of least held-out error; None with too few matches."""
        data = self._data
        tracks = build_tracks([len(f) for f in data.features], test.training_matches)
        if len(tracks.track) < MIN_OBSERVATIONS:
            return None
        online = self._online.relative_to(data.T_keyframes[0], data.keyframes) if self._online else None
        initializer = Initializer(
            data.T_keyframes,
            self._lens,
            data.features,
            tracks,
            {pair: test.training_matches[pair] for pair in found.loops},
            self._options.known_intrinsics,
            data.keyframe_segment.tolist(),
            online,
        )
        best = initializer.from_poses()
        self._report.reprojection_px_before = initializer.before_px
        if initializer.from_online and best.share < DOUBTFUL:
            network_only = replace(initializer, online=None)
            other = network_only.from_poses()
            if test.error(other.fit).mean < test.error(best.fit).mean:
                best, initializer = other, network_only
        if best.share < EXPLAINED:
            other = initializer.from_matches(found.matches, data.median_depths)
            if test.error(other.fit).mean < test.error(best.fit).mean:
                best = other
        best = self._with_lens(initializer, best, test)
        self._initializer = initializer
        self._report.start = best.start
        return best

    def _with_lens(self, initializer: Initializer, found: InitialCandidate, test: HeldOutTest) -> InitialCandidate:
        """The candidate, or the one with another lens if its held-out error is smaller."""
        other = initializer.with_lens(found, test.held_out)
        return other if other is not None and test.error(other.fit).mean < test.error(found.fit).mean else found

    def _network_is_wrong(self, candidate: InitialCandidate, found: PairMatches) -> bool:
        """Whether a solution that starts from the network explains few matches, or matches contradict its turns.

        Photographs in no order have few matches between neighbours, or several segments that show one place.
        """
        data = self._data
        if len(data.keyframes) > MOST_UNORDERED:
            return False
        if candidate.share < EXPLAINED or candidate.start == "matches" or len(np.unique(data.keyframe_segment)) > 1:
            return True
        near = {pair: m for pair, m in found.matches.items() if pair[1] == pair[0] + 1}
        if len(near) < TIED_NEIGHBOURS * (len(data.keyframes) - 1):
            return True
        step = max(len(data.keyframes) // TESTED_TURNS, 1)
        near = {pair: m for pair, m in near.items() if pair[0] % step == 0}
        scene = candidate.fit.scene
        errors = rotation_errors_deg(scene.T_world_camera, data.features, scene.lens, near)
        return bool(len(errors)) and float(np.median(errors)) > WRONG_TURN_DEG

    def _from_structure(
        self, candidate: InitialCandidate | None, found: PairMatches, test: HeldOutTest
    ) -> tuple[InitialCandidate | None, PairMatches, HeldOutTest]:
        """The candidate from structure from motion with its matches and test, if these prefer it clearly."""
        data, options, lens = self._data, self._options, self._lens
        unordered = match_unordered(data, lens, options.workers, self._progress.advance)
        own = HeldOutTest(data, lens, unordered)
        structure = reconstruct(data.features, own.training_matches, lens, options.known_intrinsics)
        if structure is None:
            return (self._first_pass(unordered, own), unordered, own) if self._unordered else (candidate, found, test)
        tracks = build_tracks([len(f) for f in data.features], own.training_matches)
        initializer = Initializer(data.T_keyframes, lens, data.features, tracks, {}, options.known_intrinsics)
        T_otherwise = data.T_keyframes if candidate is None else candidate.fit.scene.T_world_camera
        other = initializer.from_reconstruction(structure, own.training_matches, T_otherwise)
        other = self._with_lens(initializer, other, own)
        if candidate is not None and not own.is_better(other.fit, candidate.fit):
            return candidate, found, test
        report, self._initializer = self._report, initializer
        report.start, report.loops = other.start, 0
        report.reprojection_px_before = report.reprojection_px_before or initializer.before_px
        report.pairs_tried, report.pairs_accepted = unordered.tried, len(unordered.matches)
        shown = {int(number) for number in data.keyframe_segment[structure.registered]}
        self._data = replace(data, views=segments.joined(data.views, shown))
        report.segments = len(np.unique(self._data.keyframe_segment))
        return other, unordered, own

    def _with_path_error(self, selection: Selection, candidate: InitialCandidate, test: HeldOutTest) -> Selection:
        """The selection; or all fall back, where the evidence is weak and the map's path is less accurate."""
        data, report, scene = self._data, self._report, candidate.fit.scene
        is_clear = report.evidence is None or report.evidence > CLEAR
        if selection.fallback.all() or is_clear or self._options.refined_before:
            return selection
        tracks = build_tracks([len(f) for f in data.features], test.training_matches)
        start = initial_state(scene.T_world_camera, scene.lens, data.features, tracks, scene.log_depth_scale)
        start = robust_ba.retriangulated(start)
        found = path_error(start, candidate, data.T_keyframes, data.keyframe_segment)
        report.path_error = None if found is None else found.random
        return selection if found is None or not found.is_larger else Selection(selection.fallback | True, found.reason)

    def _with_network_motions(self, kept: InitialCandidate, test: HeldOutTest) -> InitialCandidate:
        """A map that is kept throughout, or one that weighs the network's motions by their errors."""
        if self._initializer is None or self._options.refined_before:
            return kept
        candidate, error = with_network_motions(kept, self._initializer, test)
        if candidate is kept:
            return kept
        candidate = replace(candidate, fit=self._with_network_layout(candidate.fit))
        # From the network's poses, the adjustment may end elsewhere, with a map in parts.
        if test.select(candidate.fit, RefinementReport()).fallback.any():
            return kept
        test.select(candidate.fit, self._report)
        self._report.network_turn_error_deg = error
        return candidate

    def _second_pass(self, first: InitialCandidate, found: PairMatches, fallback: NDArray[np.bool_]) -> BAState:
        """Adjustment with all features, without keyframes that fall back to the network."""
        usable = {pair: m for pair, m in found.matches.items() if not fallback[list(pair)].any()}
        features, scene = self._data.features, first.fit.scene
        tracks = build_tracks([len(f) for f in features], usable)
        start = initial_state(scene.T_world_camera, scene.lens, features, tracks, scene.log_depth_scale)
        start = robust_ba.retriangulated(start)
        priors = robust_ba.second_pass_priors(first.priors, first.fit)
        options, rounds = SolveOptions(free_focal=first.free_focal), robust_ba.SECOND_PASS_ROUNDS
        fit = hierarchical_ba.solve(start, first.motions, rounds, priors, options)
        grids = [view.grid for view in self._data.keyframe_views]
        tie = scale_consistency.tie(fit, grids, self._data.keyframe_segment)
        if tie is None:
            return self._with_focal_error(fit, priors)
        self._report.scale_correction = round(tie.correction, 3)
        priors = replace(priors, log_depth_scale_sigma=scale_consistency.SCALE_SIGMA)
        fit = tie.restored(hierarchical_ba.solve(tie.state, tie.motions(first.motions), rounds, priors, options))
        return self._with_focal_error(fit, priors)

    def _with_focal_error(self, fit: BAState, priors: Priors) -> BAState:
        """The solution; the report gets the error of its focal length."""
        if not priors.known_intrinsics:
            error = self._report.focal_error = lens_selection.focal_error(fit, priors)
            self._report.field_of_view_measured = error is not None and error <= lens_selection.MEASURED
        return fit

    def _complete(self, fit: BAState, found: PairMatches, selection: Selection) -> Refinement:
        """Poses and depth of all frames, and the report."""
        fallback = selection.fallback
        data, report, lens = self._data, self._report, fit.scene.lens
        keyframe_scales, nodes = self._depth_correction(fit, fallback)
        T, depth_scale = interpolate_poses(data, fit, fallback, self._online, keyframe_scales)
        if len(data.keyframes) < len(data.views):
            refine_between(data, fit, T, self._images, self._options.workers, self._progress.advance)
        for begin, end in runs(fallback):
            self._report_fallback(data.keyframes[begin], data.keyframes[end - 1], selection.reason)
        grids = [view.grid for view in data.keyframe_views]
        for k, factor in scale_consistency.jumps(fit, grids, data.keyframe_segment):
            report.scale_jumps.append({"frame": data.views[data.keyframes[k]].index, "factor": round(factor, 3)})
        report.tracks, report.observations = len(fit.scene.points), len(fit.observations)
        report.reprojection_px = float(np.median(fit.errors)) if len(fit.errors) else None
        report.focal, report.k1, report.k2 = lens.focal / self._scale.factor, lens.k1, lens.k2
        report.lens = lens.straightened(self._scale.size).colmap_model
        report.field_of_view_deg = lens.field_of_view_deg(self._scale.size[0])
        depth_scale, loops = depth_scale * data.segment_scale, sorted(found.loops)
        fields = depth_fields.interpolate_fields(nodes, data.keyframes, data.segment)
        return Refinement(T, depth_scale, lens, self._scale, data.keyframes, fit, loops, report, fields, data.features)

    def _depth_correction(self, fit: BAState, fallback: NDArray[np.bool_]) -> tuple[FloatArray, FloatArray]:
        """Depth scales [K] and fields [K, GRID, GRID] of the keyframes.

        A field follows the points, and so does the scale with it; without one, depth maps agree on scales.
        """
        data, report = self._data, self._report
        agreeing = self._depth_scales(fit)
        by_points = keyframe_depth_scales(fit, len(data.keyframes), agreeing)
        found = depth_fields.estimate_fields(fit, by_points, data.keyframe_views, self._scale.size)
        found.nodes[fallback] = 0
        kept = found.nodes.any(axis=(1, 2))
        report.depth_fields = int(kept.sum())
        report.depth_error_before, report.depth_error = found.error_before, found.error
        return np.where(kept, by_points, agreeing), found.nodes

    def _depth_scales(self, fit: BAState) -> FloatArray:
        """Depth scales of the keyframes [K]."""
        grids = [view.grid for view in self._data.keyframe_views]
        return scale_consistency.depth_scales(fit, grids, self._data.keyframe_segment)

    def _with_network_layout(self, fit: BAState, fallback: NDArray[np.bool_] | None = None) -> BAState:
        """The solution with separate segments placed relative to each other as by the network."""
        return segments.with_network_layout(fit, self._data.keyframe_segment, self._data.T_keyframes, fallback)

    def _show(self, fit: BAState, found: PairMatches, fallback: NDArray[np.bool_]) -> None:
        """Pass an intermediate state to the callback."""
        if self._options.on_state is not None:
            data, scene = self._data, fit.scene
            loops = [(data.keyframes[i], data.keyframes[j]) for i, j in sorted(found.loops)]
            T, depth_scale = interpolate_poses(data, fit, fallback, self._online, self._depth_scales(fit))
            state = IntermediateState(T, depth_scale * data.segment_scale, scene.lens, scene.points, loops)
            self._options.on_state(state)

    def _report_fallback(self, first: int, last: int, reason: str) -> None:
        views = self._data.views
        self._report.fallback_segments.append({"first": views[first].index, "last": views[last].index, "why": reason})


class _StageProgress:
    """Reports progress and records the seconds of each stage."""

    def __init__(self, progress: Progress, seconds: dict[str, float]) -> None:
        self._progress, self._seconds = progress, seconds
        self._stage = ""

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Run a stage."""
        started = time.monotonic()
        self._stage = name
        self._progress(STAGES[name], name)
        yield
        self._seconds[name] = round(time.monotonic() - started, 3)

    def advance(self, share: float) -> None:
        """Report the share of the present stage that is done."""
        starts = [*STAGES.values(), 1.0]
        index = list(STAGES).index(self._stage)
        self._progress(starts[index] + share * (starts[index + 1] - starts[index]), self._stage)
