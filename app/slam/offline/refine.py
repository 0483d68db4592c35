"""Refinement of a finished video, from the network's poses and depth to poses, intrinsics, depth and sparse points.

Keyframes are matched with neighbours, covisible and similar ones. Tracks are adjusted in two passes: the first one
without held-out features, which then decide where the result falls back to the network, the second one with all. Each
stage takes the findings of those before it, and adds its own.
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
from stream_recon.app.slam.ba.levenberg import SingularError
from stream_recon.app.slam.ba.robust_ba import BAState
from stream_recon.app.slam.evidence.judgement import Selection
from stream_recon.app.slam.frame_data import FrameData, Scale
from stream_recon.app.slam.matching.covisibility import PairMatches
from stream_recon.app.slam.offline import segments
from stream_recon.app.slam.offline.all_frames import interpolate_poses, refine_between
from stream_recon.app.slam.offline.attempts import Attempt, AttemptSource, choose
from stream_recon.app.slam.offline.config import REFINE, RefineConfig
from stream_recon.app.slam.offline.findings import Findings, RefinedFrames, report_on
from stream_recon.app.slam.offline.keyframe_matching import (
    GetMatcher,
    Images,
    VideoData,
    align_rig,
    align_segments,
    detect_features,
    has_weak_neighbours,
    match_all_keyframes,
    with_learned_features,
)
from stream_recon.app.slam.offline.keyframe_selection import choose_keyframes, choose_rig_keyframes
from stream_recon.app.slam.offline.report import GivenPoses, InitialPoses, IntermediateState, Refinement, WarmStart
from stream_recon.app.slam.offline.second_pass import agreeing_depth_scales, corrected_depth, scale_jumps, second_pass
from stream_recon.app.slam.rig_poses import RigFrames

logger = logging.getLogger(__name__)

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
    rig: RigFrames | None = None
    """Frames are views of a rig, each in a world of its own; None: one camera."""
    refined_before: bool = False
    """The frames' poses and depth are those of refined parts, which are adjusted together."""
    given: GivenPoses | None = None
    """The frames' poses are known ones; None: the network's."""
    learned: GetMatcher = lambda: None
    """Asked where SIFT hardly ties neighbours."""
    progress: Progress = lambda share, what: None
    on_state: Callable[[IntermediateState], None] | None = None
    """Called after each pass."""

    @property
    def keeps_poses(self) -> bool:
        """Whether the poses are given and stay as they are."""
        return self.given is not None and self.given.fixed


def refine(
    views: Sequence[FrameData],
    images: Images,
    scale: Scale,
    options: RefineOptions | None = None,
    config: RefineConfig = REFINE,
) -> Refinement:
    """Refinement of all frames ``views``, in order; ``scale``: of the working images."""
    options = options or RefineOptions()
    views = segments.numbered(views)
    camera_model = CameraModel(float(np.median([view.focal for view in views])), scale.size[0] / 2, scale.size[1] / 2)
    data = VideoData(views, [], [], np.ones(len(views)))
    if options.rig is not None:
        data, online = align_rig(data, options.rig, options.initial_poses)
        options, config = replace(options, initial_poses=online), config.for_rig()
    # With several segments, online poses do not share one world with the aligned segments.
    is_one_world = data.views[-1].segment == 0 and not options.keeps_poses
    online = options.initial_poses if is_one_world else None
    unordered = options.unordered and len(views) <= config.max_unordered
    progress = _StageProgress(options.progress)
    stages = _Stages(images, scale, camera_model, online, unordered, options, config, progress)
    findings = Findings(data, online=options.initial_poses)
    if options.given is not None:
        findings = replace(findings, is_given=True, online=online if options.keeps_poses else options.initial_poses)
    try:
        for stage in stages.every():
            findings = stage(findings)
            if findings.unchanged:
                break
    except (SingularError, np.linalg.LinAlgError, cv2.error) as error:
        # A numerical failure must not cost the complete, unrefined result.
        logger.exception("refinement failed")
        findings = replace(findings, unchanged=f"the refinement failed: {error}")
    max_focal_error = config.start.distortion.max_focal_error
    report = report_on(findings, camera_model, scale, progress.seconds, max_focal_error)
    return findings.refinement(data, camera_model, scale, report)


@dataclass(frozen=True)
class _Stages:
    """Input of all stages. Each adds to the findings of those before it; none changes them."""

    images: Images
    scale: Scale
    camera_model: CameraModel
    """The network's."""
    online: InitialPoses | None
    unordered: bool
    options: RefineOptions
    config: RefineConfig
    progress: "_StageProgress"

    def every(self) -> tuple[Callable[[Findings], Findings], ...]:
        """All stages, in order; one that leaves the poses unchanged ends the refinement."""
        return self.keyframes, self.matches, self.attempt, self.judgement, self.motions, self.second_pass, self.frames

    def keyframes(self, findings: Findings) -> Findings:
        """Keyframes and their features."""
        data, options, config = findings.data, self.options, self.config
        known, advance = options.known, self.progress.advance
        with self.progress.stage("keyframes"):
            if known is not None:
                keyframes = known.keyframes
            elif data.rig is not None:
                most = config.start.hierarchy.max_at_once
                keyframes = choose_rig_keyframes(data.views, data.rig, self.scale.size, most, config.keyframes)
            elif self.unordered:
                keyframes = list(range(len(data.views)))
            else:
                keyframes = choose_keyframes(data.views, self.scale.size, config.keyframes)
        with self.progress.stage("features"):
            count = config.feature_count(len(keyframes), self.unordered)
            features = (
                known.features if known else detect_features(self.images, keyframes, options.workers, advance, count)
            )
            if data.rig is not None:
                features = [f.scaled(data.segment_scale[k]) for f, k in zip(features, keyframes, strict=True)]
        few = "too few keyframes" if len(keyframes) < config.min_keyframes else ""
        return replace(findings, data=replace(data, keyframes=keyframes, features=features), unchanged=few)

    def matches(self, findings: Findings) -> Findings:
        """Matches by order and poses, in the world of the segments that they tie; none of photographs in no order."""
        data = findings.data
        with self.progress.stage("matches"):
            if self.unordered:
                return replace(findings, matches=PairMatches())
            aligned, matches = self._matched(data)
            if has_weak_neighbours(aligned, matches, self.camera_model):
                data = self._with_learned(data)
                if data.learned:
                    aligned, matches = self._matched(data)
                aligned = replace(aligned, lacks_learned=data.lacks_learned)
        return replace(findings, data=aligned, matches=matches)

    def _with_learned(self, data: VideoData) -> VideoData:
        """The video with learned features if there is a matcher."""
        matcher = self.options.learned()
        return with_learned_features(data, self.images, matcher) if matcher else replace(data, lacks_learned=True)

    def _matched(self, data: VideoData) -> tuple[VideoData, PairMatches]:
        workers = self.options.workers
        if self.options.refined_before or self.options.keeps_poses:  # they are in one world
            data = replace(data, views=segments.joined(data.views, {view.segment for view in data.views}))
        else:
            data = align_segments(data, self.camera_model, workers, self.config.segments)
        return data, match_all_keyframes(data, self.camera_model, workers, self.progress.advance)

    def attempt(self, findings: Findings) -> Findings:
        """The attempt at a map that the evidence prefers."""
        assert findings.matches is not None
        options = self.options
        source = AttemptSource(
            findings.data,
            findings.matches,
            self.camera_model,
            self.config,
            self.online,
            self.unordered,
            options.known_intrinsics,
            options.refined_before,
            options.keeps_poses,
            options.workers,
            self.progress.advance,
            self._with_learned,
        )
        with self.progress.stage("adjustment"):
            attempt = choose(source.attempts())
        if attempt is None:
            lacks = findings.data.lacks_learned or (self.unordered and self.options.learned() is None)
            return replace(findings, data=replace(findings.data, lacks_learned=lacks), unchanged="too few matches")
        attempt = attempt.laid_out()
        self._show(attempt, attempt.fit, np.zeros(len(attempt.data.keyframes), bool))
        return replace(findings, data=attempt.data, attempt=attempt)

    def judgement(self, findings: Findings) -> Findings:
        """Where the map falls back to the network, by its evidence and the error of its path."""
        assert findings.attempt is not None
        if self.options.keeps_poses:
            return replace(findings, selection=Selection(np.zeros(len(findings.data.keyframes), bool)))
        with self.progress.stage("judgement"):
            selection, error = findings.attempt.judgement.selection, findings.attempt.path_error
        if error is not None and error.is_larger:
            selection = Selection(np.ones_like(selection.fallback), error.reason)
        if findings.data.keyframe_rig is not None:
            selection = replace(selection, fallback=findings.data.keyframe_rig.together(selection.fallback))
        selection = self._with_online(findings.attempt, selection)
        reason = selection.reason if selection.fallback.all() else ""
        return replace(findings, selection=selection, path_error=error, unchanged=reason)

    def motions(self, findings: Findings) -> Findings:
        """A map that is kept throughout weighs known motions, or else the network's, by their errors."""
        assert findings.attempt is not None and findings.selection is not None
        attempt, given = findings.attempt, self.options.given
        if not findings.selection.fallback.any() and not self.options.keeps_poses:
            with self.progress.stage("adjustment again"):
                attempt = attempt.with_known_motions(given) if given else attempt.with_network_motions
        selection = findings.selection.with_untied(attempt.candidate.untied)
        return replace(findings, attempt=attempt, selection=self._with_online(attempt, selection))

    def _with_online(self, attempt: Attempt, selection: Selection) -> Selection:
        data = attempt.data
        # Parts of several segments cannot be tied to online poses, all of them can.
        online = self.options.initial_poses if selection.fallback.all() else self.online
        return attempt.test.with_online(selection, online and online.relative_to(data.T_keyframes[0], data.keyframes))

    def second_pass(self, findings: Findings) -> Findings:
        """The map with all features."""
        assert findings.attempt is not None and findings.selection is not None
        with self.progress.stage("adjustment again"):
            second = second_pass(findings.attempt, findings.selection.fallback)
        self._show(findings.attempt, second.fit, findings.selection.fallback)
        return replace(findings, second=second)

    def frames(self, findings: Findings) -> Findings:
        """Poses and depth of all frames."""
        assert findings.selection is not None and findings.second is not None
        data, fit, config, selection = findings.data, findings.second.fit, self.config, findings.selection
        fallback = selection.fallback
        with self.progress.stage("frames between"):
            scales, fields = corrected_depth(data, fit, fallback, self.scale.size, config)
            T, depth_scale = interpolate_poses(
                data, fit, fallback, self.online, scales, config.between, selection.stream
            )
            if self.options.keeps_poses:
                T = data.T_network
            elif len(data.keyframes) < len(data.views):
                workers, advance = self.options.workers, self.progress.advance
                T = refine_between(data, fit, T, self.images, workers, advance, config.between)
            if data.rig is not None:
                T = data.rig.consistent(T)
            jumps = scale_jumps(data, fit, config)
        return replace(findings, frames=RefinedFrames(T, depth_scale * data.segment_scale, fields, jumps))

    def _show(self, attempt: Attempt, fit: BAState, fallback: NDArray[np.bool_]) -> None:
        """Pass an intermediate state to the callback."""
        if self.options.on_state is None:
            return
        data, scene, config = attempt.data, fit.scene, self.config
        loops = [(data.keyframes[i], data.keyframes[j]) for i, j in sorted(attempt.matches.loops)]
        scales = agreeing_depth_scales(data, fit, config)
        T, depth_scale = interpolate_poses(data, fit, fallback, self.online, scales, config.between)
        depth_scale = depth_scale * data.segment_scale
        self.options.on_state(IntermediateState(T, depth_scale, scene.camera_model, scene.points, loops))


class _StageProgress:
    """Reports progress and records the seconds of each stage."""

    def __init__(self, progress: Progress) -> None:
        self.seconds: dict[str, float] = {}
        self._progress, self._stage = progress, ""

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Run a stage, or a part of it."""
        started = time.monotonic()
        self._stage = name
        self._progress(STAGES[name], name)
        yield
        self.seconds[name] = round(self.seconds.get(name, 0.0) + time.monotonic() - started, 3)

    def advance(self, share: float) -> None:
        """Report the share of the present stage that is done."""
        starts = [*STAGES.values(), 1.0]
        index = list(STAGES).index(self._stage)
        self._progress(starts[index] + share * (starts[index + 1] - starts[index]), self._stage)
