"""Attempts at a map of a video's keyframes, and the choice among them.

The first attempt starts from the network's or the online poses. Where matches contradict it, or it is no better than
the network, structure from motion is tried, from images alone.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from stream_recon.app.core.camera_model import CameraModel
from stream_recon.app.core.worker import Companion
from stream_recon.app.slam.ba import robust_ba
from stream_recon.app.slam.matching.covisibility import PairMatches
from stream_recon.app.slam.matching.matching import Tracks, build_tracks
from stream_recon.app.slam.matching.two_view import rotation_errors_deg
from stream_recon.app.slam.offline import segments
from stream_recon.app.slam.offline.config import RefineConfig
from stream_recon.app.slam.offline.held_out_test import HeldOutTest, Judgement
from stream_recon.app.slam.offline.incremental_sfm import reconstruct
from stream_recon.app.slam.offline.initialization import InitialCandidate, Initializer, initial_state
from stream_recon.app.slam.offline.keyframe_matching import VideoData, has_weak_neighbours, match_unordered
from stream_recon.app.slam.offline.known_motions import with_known_motions
from stream_recon.app.slam.offline.motion_errors import with_network_motions
from stream_recon.app.slam.offline.path_error import PathError, path_difference, path_error
from stream_recon.app.slam.offline.report import GivenPoses, InitialPoses


@dataclass(frozen=True)
class Attempt:
    """A map of the keyframes, what it was made from, and the test that judges it."""

    data: VideoData
    """Segments that matches tie are one."""
    test: HeldOutTest
    initializer: Initializer
    candidate: InitialCandidate
    before_px: float
    """Median reprojection error of the network's poses and depth."""
    config: RefineConfig
    from_images: bool = False
    """By structure from motion; there is nothing else to try."""
    turn_error_deg: float | None = None
    """The network's error of a turn between keyframes, where its motions are weighed by their errors."""

    @property
    def fit(self) -> robust_ba.BAState:
        return self.candidate.fit

    @property
    def matches(self) -> PairMatches:
        return self.test.matches

    @cached_property
    def judgement(self) -> Judgement:
        """The map against the network."""
        return self.test.judge(self.fit)

    @property
    def path_difference(self) -> float | None:
        """Between the paths of map and network, as a share of their length."""
        return path_difference(self.fit, self.data.T_keyframes, self.data.keyframe_segment, self.config.path)

    @cached_property
    def is_contradicted(self) -> bool:
        """Whether a map that starts from the network explains few matches, or matches contradict its turns.

        Photographs in no order have few matches between neighbours, or several segments that show one place.
        """
        data, config, candidate = self.data, self.config, self.candidate
        is_possible = not self.from_images and data.rig is None and len(data.keyframes) <= config.max_unordered
        if not is_possible:
            return False
        is_explained = candidate.share >= config.start.min_explained and candidate.start != "matches"
        if not is_explained or len(np.unique(data.keyframe_segment)) > 1:
            return True
        near = {pair: m for pair, m in self.matches.matches.items() if pair[1] == pair[0] + 1}
        if len(near) < config.tied_neighbours * (len(data.keyframes) - 1):
            return True
        step = max(len(data.keyframes) // config.tested_turns, 1)
        near = {pair: m for pair, m in near.items() if pair[0] % step == 0}
        camera_model = self.fit.scene.camera_model
        errors = rotation_errors_deg(self.fit.scene.T_world_camera, data.features, camera_model, near)
        limit_deg = max(config.wrong_turn_deg, float(np.degrees(config.wrong_turn_px / camera_model.focal)))
        return bool(len(errors)) and float(np.median(errors)) > limit_deg

    @property
    def invites_another(self) -> bool:
        """Whether another attempt may be better."""
        if self.is_contradicted:
            return True
        is_many = len(self.data.keyframes) > self.config.max_unordered
        is_final = self.from_images or self.test.refined_before or self.data.rig is not None or is_many
        return not is_final and bool(self.judgement.selection.fallback.all())

    def is_preferred_to(self, other: "Attempt") -> bool:
        """Whether the evidence prefers this attempt clearly to an earlier one."""
        if other.is_contradicted:
            return self.test.is_better(self.fit, other.fit)
        return self.test.is_certain(self.fit)

    def ahead(self) -> Iterator[object]:
        """What is asked of an attempt that stays as it is, computed in parts."""
        yield self.judgement
        if not self.invites_another:
            yield self.path_error
            is_left = self.path_error is not None and self.path_error.is_larger
            if not is_left and not self.judgement.selection.fallback.any():
                yield self.with_network_motions

    def laid_out(self) -> "Attempt":
        """The attempt with separate segments placed relative to each other as by the network."""
        layout = self.data.keyframe_segment, self.data.T_keyframes
        fit = segments.with_network_layout(self.fit, *layout, None, self.config.segments)
        return self if fit is self.fit else replace(self, candidate=replace(self.candidate, fit=fit))

    @cached_property
    def path_error(self) -> PathError | None:
        """Error of the map's path, where the evidence for it is not clear by itself."""
        is_clear = self.judgement.evidence.total.mean() > self.config.clear_evidence
        if self.judgement.selection.fallback.all() or is_clear or self.test.refined_before:
            return None
        start = triangulated(self.fit, self.data, training_tracks(self.test))
        T_network, segment = self.data.T_keyframes, self.data.keyframe_segment
        return path_error(start, self.candidate, T_network, segment, self.config.path)

    def with_known_motions(self, given: GivenPoses) -> "Attempt":
        """The attempt, or one that weighs the motions that the user knows by their errors."""
        is_known = given.is_known[self.data.keyframes]
        return replace(self, candidate=with_known_motions(self.candidate, self.initializer, self.test, is_known))

    @cached_property
    def with_network_motions(self) -> "Attempt":
        """The attempt, or one that weighs the network's motions by their errors."""
        if self.test.refined_before or self.data.rig is not None:
            return self
        candidate, error = with_network_motions(self.candidate, self.initializer, self.test, self.config.motions)
        if candidate is self.candidate:
            return self
        other = replace(self, candidate=candidate, turn_error_deg=error).laid_out()
        # From the network's poses, the adjustment may end elsewhere, with a map in parts.
        return self if other.judgement.selection.fallback.any() else other


@dataclass(frozen=True)
class AttemptSource:
    """What all attempts at a video's map are made from."""

    data: VideoData
    matches: PairMatches
    """By order and the network's poses; none of photographs in no order."""
    camera_model: CameraModel
    """The network's."""
    config: RefineConfig
    online: InitialPoses | None = None
    unordered: bool = False
    known_intrinsics: bool = False
    refined_before: bool = False
    fixed: bool = False
    """The poses stay as they are."""
    workers: int = 2
    advance: Callable[[float], None] = lambda share: None
    with_learned: Callable[[VideoData], VideoData] = lambda data: data
    """Adds learned features to photographs that SIFT hardly ties."""

    def attempts(self) -> Iterator[Attempt]:
        """Attempts, each made when it is asked for."""
        with closing(self._companion):
            if self.fixed:
                given = self.from_fixed(self.test(self.matches))
                yield from [given] if given is not None else []
                return
            first = None if self.unordered else self.from_poses(self.test(self.matches))
            if first is not None:
                yield first
            second = self.from_images(first)
            if second is not None:
                yield second

    @cached_property
    def _companion(self) -> Companion:
        """Chooses lenses."""
        is_wanted = not self.known_intrinsics and len(self.data.views) >= self.config.companion_frames
        return Companion("refinement", is_wanted=is_wanted)

    def test(self, matches: PairMatches, data: VideoData | None = None) -> HeldOutTest:
        """Test of maps by the held-out ones of these matches."""
        judge, scales = self.config.judge, self.config.scales
        return HeldOutTest(data or self.data, self.camera_model, matches, self.refined_before, judge, scales)

    def from_poses(self, test: HeldOutTest) -> Attempt | None:
        """Attempt of least held-out error from the network's or the online poses; None with too few matches."""
        data, tracks, config = test.data, training_tracks(test), self.config
        if len(tracks.track) < config.min_observations:
            return None
        online = self.online.relative_to(data.T_keyframes[0], data.keyframes) if self.online else None
        initializer = Initializer(
            data.T_keyframes,
            self.camera_model,
            data.features,
            tracks,
            {pair: test.training_matches[pair] for pair in test.matches.loops},
            self.known_intrinsics,
            (data.keyframe_segment if data.keyframe_rig is None else data.keyframe_rig.part).tolist(),
            online,
            config=config.start,
            ties=None if data.keyframe_rig is None else data.keyframe_rig.ties(config.start.still),
        )
        before_px, best = initializer.before_px, initializer.from_poses()
        if initializer.from_online and best.share < config.doubtful:
            network_only = replace(initializer, online=None)
            other = network_only.from_poses()
            if _agrees_better(test, other, best):
                best, initializer = other, network_only
        return self._with_camera_model(Attempt(data, test, initializer, best, before_px, config))

    def from_fixed(self, test: HeldOutTest) -> Attempt | None:
        """Attempt that leaves the poses as they are; None with too few matches."""
        data, tracks, config = self.data, training_tracks(test), self.config
        if len(tracks.track) < config.min_observations:
            return None
        initializer = Initializer(
            *(data.T_keyframes, self.camera_model, data.features, tracks, {}, self.known_intrinsics),
            fixed=True,
            config=config.start,
        )
        best, before_px = initializer.from_poses(), initializer.before_px
        return self._with_camera_model(Attempt(data, test, initializer, best, before_px, config, from_images=True))

    def from_images(self, first: Attempt | None) -> Attempt | None:
        """Attempt from structure from motion; None where no pair of images begins it.

        Keyframes that it does not register follow the ``first`` attempt unless the network is better.
        """
        data, known, config = self.data, self.known_intrinsics, self.config
        matches = match_unordered(data, self.camera_model, self.workers, self.advance)
        if self.unordered and has_weak_neighbours(data, matches, self.camera_model):
            data = self.with_learned(data)
            if data.learned:
                matches = match_unordered(data, self.camera_model, self.workers, self.advance)
        test = self.test(matches, data)
        structure = reconstruct(data.features, test.training_matches, self.camera_model, known, config.sfm)
        if structure is None:
            attempt = self.from_poses(test) if self.unordered else None
            return attempt and replace(attempt, from_images=True)
        tracks = training_tracks(test)
        initializer = Initializer(
            data.T_keyframes, self.camera_model, data.features, tracks, {}, known, config=config.start
        )
        is_followed = first is not None and first.is_contradicted
        T_otherwise = first.fit.scene.T_world_camera if first is not None and is_followed else data.T_keyframes
        candidate = initializer.from_reconstruction(structure, test.training_matches, T_otherwise)
        shown = {int(number) for number in data.keyframe_segment[structure.registered]}
        joined = replace(data, views=segments.joined(data.views, shown))
        before_px = initializer.before_px if first is None else first.before_px
        attempt = Attempt(joined, test, initializer, candidate, before_px, config, from_images=True)
        return self._with_camera_model(attempt)

    def _with_camera_model(self, attempt: Attempt) -> Attempt:
        """The attempt, or one with another lens if its held-out error is smaller."""
        if self.known_intrinsics:
            return attempt
        initializer, candidate, test = attempt.initializer, attempt.candidate, attempt.test
        # The lens stays, as a rule: what follows then is computed meanwhile.
        best = self._companion.call(initializer.camera_model_choice(candidate, test.held_out), attempt.ahead())
        other = None if best is None else initializer.with_camera_model(candidate, best)
        if other is None or not _agrees_better(test, other, candidate):
            return attempt
        return replace(attempt, candidate=other)


def choose(attempts: Iterator[Attempt]) -> Attempt | None:
    """The attempt that the evidence prefers; a later one is only asked for where it may be better."""
    best: Attempt | None = None
    for attempt in attempts:
        if best is None or attempt.is_preferred_to(best):
            best = attempt
        if not best.invites_another:
            break
    return best


def training_tracks(test: HeldOutTest) -> Tracks:
    """Tracks without held-out features."""
    return build_tracks([len(features) for features in test.data.features], test.training_matches)


def triangulated(fit: robust_ba.BAState, data: VideoData, tracks: Tracks) -> robust_ba.BAState:
    """A map's poses, lens and depth scales with the points of all tracks, also of those that it does not explain."""
    scene = fit.scene
    start = initial_state(scene.T_world_camera, scene.camera_model, data.features, tracks, scene.log_depth_scale)
    return robust_ba.retriangulated(start)


def _agrees_better(test: HeldOutTest, candidate: InitialCandidate, other: InitialCandidate) -> bool:
    return test.error(candidate.fit).mean < test.error(other.fit).mean
