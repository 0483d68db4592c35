"""Ways to begin: from the network's motion, or a stream's, through a bent lens, or from matches alone; each
one adjusted.

Which one is nearest to what the images show is for `judgement` to say.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.slam.ba import robust_ba
from stream_recon.app.slam.ba.adjustment import lens_information
from stream_recon.app.slam.ba.problem import BAScene, CameraModel, Priors, Problem, RelativePoses
from stream_recon.app.slam.ba.robust_ba import BAState
from stream_recon.app.slam.matching import relative_poses
from stream_recon.app.slam.matching.features import Features
from stream_recon.app.slam.matching.matching import Matches
from stream_recon.app.slam.matching.tracks import Tracks
from stream_recon.app.slam.offline import hierarchical_ba
from stream_recon.app.slam.offline.report import InitialPoses

FloatArray = NDArray[np.float64]

EXPLAINED = 0.7
"""Where less than this share of the observations can be explained from the network's motion, matches are asked."""
LEAST_K1 = 0.05
"""Many lenses are bent a little, which the focal length makes up for, and few are bent much."""
SURE_K1 = 20.0
"""Sigmas by which the radial term has to differ from 0: small ones, as errors of observations are not independent."""
SLACK = 0.02
"""Of the share that is explained: no more than chance."""
CLOSED_PX, OPEN_PX = 12.0, 40.0
"""A loop is closed where the stream's poses and depth miss its matches by less than the first, since depth alone is off
by some pixels; it is plainly open where they miss by more than the second."""
FEW_OPEN = 0.25
"""Share of the loops that may be a little open."""
STILL = 0.003
"""Of the scene's depth: keyframes that are nearer to one another show next to no parallax, and the network knows better
than their tracks how they lie."""
PROBED = 30
"""Keyframes that are looked at for it."""
LOOSE_K1_SIGMA = 0.1
DEPTH_SCALE_SIGMA = 0.1
FREE_DEPTH_SCALE_SIGMA = 0.5
"""After a start from matches: each keyframe's depth map may have a unit of its own."""

Start = Literal["network", "stream", "radial distortion", "matches"]


@dataclass(frozen=True)
class InitialCandidate:
    """One way to begin, adjusted."""

    start: Start
    fit: BAState
    priors: Priors
    steps: RelativePoses | None
    """The network's, where they were believed."""
    free_focal: bool
    share: float
    """Of the observations that the fit explains."""


@dataclass(frozen=True)
class Initializer:
    """What every start has to go on."""

    T_network: FloatArray  # [N, 4, 4], of the keyframes
    lens: CameraModel
    features: Sequence[Features]
    tracks: Tracks
    loops: Mapping[tuple[int, int], Matches]
    """Of keyframes far apart, over which the network may have drifted far."""
    known_intrinsics: bool = False
    segment: Sequence[int] | None = None
    """[N] of each keyframe, where there are several."""
    placed: InitialPoses | None = None
    """The keyframes where a stream has put them, about the network's world and unit."""

    @property
    def before_px(self) -> float:
        """By how much the network's poses and depth miss the observations, in the median."""
        return float(np.median(self._network.errors))

    @property
    def from_stream(self) -> bool:
        """Whether it begins where a stream has left off."""
        return self._begun is not self._network

    def network(self) -> InitialCandidate:
        """From the network's motion, or what a stream has made of it, through a straight lens."""
        priors = robust_ba.first_priors(self.lens.focal, DEPTH_SCALE_SIGMA, self.known_intrinsics)
        name: Start = "stream" if self.from_stream else "network"
        return self._adjusted(name, self._begun, self._steps(), self._rounds, priors)

    def bent(self, straight: InitialCandidate) -> InitialCandidate | None:
        """Where a part of the video, fitted anew with a lens that may bend lines, says that it plainly does.

        Anew, since a straight lens has found an answer of its own, from which no way leads there.
        """
        if self.known_intrinsics:
            return None
        loose = replace(straight.priors, k1_sigma=LOOSE_K1_SIGMA)
        count = len(self.T_network)
        middle = np.arange(max(count - PROBED, 0) // 2, min((count + PROBED) // 2, count))
        some, steps = hierarchical_ba.part(self._begun, middle), hierarchical_ba.joined(self._steps(), middle)
        probe = robust_ba.narrow(some, steps, robust_ba.PROBE, loose, free_focal=straight.free_focal)
        if not self._is_bent(probe, loose, steps):
            return None
        found = self._adjusted("radial distortion", self._start(probe.scene.lens), self._steps(), self._rounds, loose)
        return found if found.share >= straight.share - SLACK and self._is_bent(found.fit, loose, found.steps) else None

    def _is_bent(self, found: BAState, priors: Priors, steps: RelativePoses | None) -> bool:
        k1 = abs(found.scene.lens.k1)
        if k1 < LEAST_K1 or not len(found.observations):
            return False
        information = lens_information(Problem(found.scene, found.observations, steps, priors=priors))
        return bool(k1**2 * information.k1(priors.log_focal_sigma) > SURE_K1**2 * information.variance)

    def matches(self, matches: Mapping[tuple[int, int], Matches], depths: FloatArray) -> InitialCandidate:
        """From relative poses by matches; ``depths`` [N]: what is usual in each keyframe's depth map."""
        edges = relative_poses.estimate_relative_poses(self.features, self.lens, matches)
        T, log_scale = relative_poses.graph_start(self.T_network, edges, depths)
        priors = robust_ba.first_priors(self.lens.focal, FREE_DEPTH_SCALE_SIGMA, self.known_intrinsics)
        begin = robust_ba.start(T, self.lens, self.features, self.tracks, log_scale)
        return self._adjusted("matches", begin, None, robust_ba.WIDE + robust_ba.FINE, priors)

    @property
    def _rounds(self) -> Sequence[robust_ba.BARound]:
        begun = self._begun
        if self.from_stream:
            gaps = np.array(list(self._gaps(begun.scene)))
            if (gaps < CLOSED_PX).all():
                return robust_ba.NEAR + robust_ba.FINE
            if (gaps < OPEN_PX).all() and (gaps >= CLOSED_PX).mean() <= FEW_OPEN:
                return robust_ba.NEARLY + robust_ba.FINE
        return robust_ba.WIDE + robust_ba.FINE if self.loops else robust_ba.NARROWING

    def _gaps(self, scene: BAScene) -> Collection[float]:
        """By how much the loops are open."""
        assert scene.log_depth_scale is not None
        scale = np.exp(scene.log_depth_scale)
        return relative_poses.missed_px(scene.T_world_camera, scale, scene.lens, self.features, self.loops).values()

    @cached_property
    def _network(self) -> BAState:
        return robust_ba.start(self.T_network, self.lens, self.features, self.tracks)

    @cached_property
    def _begun(self) -> BAState:
        """Where the stream has left off, if that is nearer to the matches than the network."""
        placed = self.placed
        if placed is None:
            return self._network
        lens, scale = replace(self.lens, focal=placed.focal), np.log(placed.depth_scale)
        found = robust_ba.start(placed.T_world_camera, lens, self.features, self.tracks, scale)
        return found if np.median(found.errors) < self.before_px else self._network

    def _start(self, lens: CameraModel) -> BAState:
        begun = self._begun.scene
        return robust_ba.start(begun.T_world_camera, lens, self.features, self.tracks, begun.log_depth_scale)

    def _steps(self) -> RelativePoses:
        return replace(robust_ba.network_steps(self.T_network, segment=self.segment), still=STILL)

    def _adjusted(
        self,
        name: Start,
        begin: BAState,
        steps: RelativePoses | None,
        rounds: Sequence[robust_ba.BARound],
        priors: Priors,
    ) -> InitialCandidate:
        found, free = hierarchical_ba.narrow(begin, steps, rounds, priors), True
        if abs(np.log(found.scene.lens.focal / self.lens.focal)) > robust_ba.MOST_FOCAL:
            # What moves by itself, or a motion that says nothing of the lens.
            straight = replace(begin, scene=replace(begin.scene, lens=self.lens))
            found, free = hierarchical_ba.narrow(straight, steps, rounds, priors, free_focal=False), False
        return InitialCandidate(
            name, found, priors, steps, free, len(found.observations) / max(len(self.tracks.track), 1)
        )
