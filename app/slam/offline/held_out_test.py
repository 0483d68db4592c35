"""Test of solutions for the keyframes of a video by held-out matches and depth; see `evidence.judgement`."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from stream_recon.app.core.camera_model import CameraModel
from stream_recon.app.slam.ba.problem import FloatArray
from stream_recon.app.slam.ba.robust_ba import BAState
from stream_recon.app.slam.evidence.depth_scales import keyframe_depth_scales
from stream_recon.app.slam.evidence.held_out_error import (
    Agreement,
    HeldOutError,
    Pairs,
    PoseCandidate,
    depth_agreement,
    image_parts,
)
from stream_recon.app.slam.evidence.judgement import (
    JUDGE,
    Evidence,
    Explained,
    JudgeConfig,
    Selection,
    beyond_breaks,
    motion_angle_deg,
    runs,
    select,
)
from stream_recon.app.slam.matching.covisibility import PairMatches, held_out_mask
from stream_recon.app.slam.matching.matching import Matches
from stream_recon.app.slam.offline.keyframe_matching import VideoData
from stream_recon.app.slam.offline.report import InitialPoses
from stream_recon.app.slam.offline.scale_consistency import SCALES, ScaleConfig, depth_scales

Solution = BAState | InitialPoses | None
"""A map, online poses of the keyframes, or the network's."""


@dataclass(frozen=True)
class Judgement:
    """A solution against the network, by held-out matches and by depth."""

    network: HeldOutError
    mapped: HeldOutError
    agreement: Agreement
    evidence: Evidence
    selection: Selection


@dataclass(frozen=True)
class HeldOutTest:
    """Test of solutions for the keyframes of a video against the network's poses."""

    data: VideoData
    camera_model: CameraModel
    """The network's."""
    matches: PairMatches
    refined_before: bool = False
    """The network's poses are those of refined parts."""
    config: JudgeConfig = JUDGE
    scales: ScaleConfig = SCALES

    @cached_property
    def training_matches(self) -> dict[tuple[int, int], Matches]:
        """Matches without held-out features."""
        masks = [held_out_mask(features) for features in self.data.features]
        return {(i, j): m[~(masks[i][m[:, 0]] | masks[j][m[:, 1]])] for (i, j), m in self.matches.matches.items()}

    @property
    def held_out(self) -> Mapping[tuple[int, int], Matches]:
        """Unverified matches of held-out features."""
        return self.matches.held_out

    def error(self, fit: Solution) -> HeldOutError:
        return HeldOutError.measure(self._candidate(fit), self.data.features, self.matches.held_out, self.config.errors)

    def judge(self, fit: BAState) -> Judgement:
        """Keyframes at which a solution falls back to the network, and the evidence."""
        network, mapped, agreement = compared = self._compared(None, fit)
        evidence = self._evidence(None, fit, compared)
        beyond = np.zeros(len(evidence.total), bool)
        if self.matches.ordered:
            beyond = beyond_breaks(mapped, network, agreement, self._explained(fit), self.config)
        sure = self.config.better * evidence.standard_error(len(evidence.total))
        selection = select(evidence, beyond, -self.config.as_good if self.refined_before else sure)
        return Judgement(network, mapped, agreement, evidence, selection)

    def with_online(self, selection: Selection, online: InitialPoses | None) -> Selection:
        """The selection with the runs that fall back to the online poses of the keyframes instead of the network's.

        The stream ended with these: the network's are taken only where the evidence prefers them.
        """
        if online is None or not selection.fallback.any():
            return selection
        evidence, stream = self._evidence(None, online, self._compared(None, online)), np.zeros_like(selection.fallback)
        for begin, end in runs(selection.fallback):
            among, chance = slice(begin, end), self.config.sure * evidence.standard_error(end - begin)
            stream[among] = evidence.total[among].mean() > -chance and not evidence.follows_object(among)
        return replace(selection, stream=stream)

    def is_better(self, fit: BAState, other: BAState, errors: float = 1.0, *, by_depth: bool = True) -> bool:
        """Whether a solution is better than another one by more than some standard errors of the same evidence.

        ``by_depth``: the network's depth is evidence, which it is not for a solution that takes the network's motions.
        """
        evidence = self._evidence(other, fit, self._compared(other, fit))
        if not by_depth:
            evidence = replace(evidence, depth=np.zeros_like(evidence.depth))
        return bool(evidence.total.mean() > errors * evidence.standard_error(len(evidence.total)))

    def follow_two_motions(self, fit: BAState, other: BAState) -> bool:
        """Whether each of two solutions explains a part of the image that the other one does not."""
        _, first, second = Evidence.by_matches(self.error(other), self.error(fit), self._size, False, self.config)
        return bool(min(first.mean(), second.mean()) > self.config.second_motion)

    def loses(self, fit: BAState) -> bool:
        """Whether a solution loses more of what the network explains than a right one does."""
        _, lost, _ = Evidence.by_matches(self.error(None), self.error(fit), self._size, False, self.config)
        return bool(lost.mean() > self.config.max_lost)

    def is_certain(self, fit: BAState) -> bool:
        """Whether epipolar lines alone decide for a solution and against the network."""
        return self._by_lines(None, fit, (self.error(None), self.error(fit))) is not None

    def _compared(self, first: Solution, second: Solution) -> tuple[HeldOutError, HeldOutError, Agreement]:
        """Errors and depth agreement of two solutions."""
        agreement = depth_agreement(
            self._candidate(first),
            self._candidate(second),
            self.data.keyframe_grids,
            self._depth_pairs,
            self.config.errors,
        )
        # Between segments the network's relative pose is a guess: no evidence for either.
        segment = self.data.keyframe_segment
        borders = np.array([segment[i] != segment[j] for i, j in self._depth_pairs], bool)
        agreement[1][borders] = agreement[0][borders]
        return self.error(first), self.error(second), agreement

    def _evidence(
        self, first: Solution, second: Solution, compared: tuple[HeldOutError, HeldOutError, Agreement]
    ) -> Evidence:
        """Evidence for the second of two solutions that were `_compared`."""
        before, after, agreement = compared
        by_lines = self._by_lines(first, second, (before, after))
        evidence = Evidence.compare(before, after, agreement, self._depth_pairs, self._size, self.config)
        return by_lines or replace(evidence, same_motion=self._is_same_motion(first, second))

    def _by_lines(
        self, first: Solution, second: Solution, errors: tuple[HeldOutError, HeldOutError]
    ) -> Evidence | None:
        """Evidence by epipolar lines alone, where both solutions follow the same scene and it decides."""
        is_same = self._is_same_motion(first, second)
        return Evidence.by_lines(*errors, self._size, self.config) if is_same else None

    def _is_same_motion(self, first: Solution, second: Solution) -> bool:
        return motion_angle_deg(self._poses(first), self._poses(second)) <= self.config.same_direction_deg

    @property
    def _size(self) -> tuple[int, int]:
        return len(self.data.keyframes), image_parts(self.camera_model, self.config.errors)

    @cached_property
    def _depth_pairs(self) -> Pairs:
        """Pairs of keyframes that see the same: consecutive ones, or without order each with its best matched one."""
        count = len(self.data.keyframes)
        if self.matches.ordered:
            return [(k, k + 1) for k in range(count - 1)]
        best: dict[int, tuple[int, tuple[int, int]]] = {}
        for pair, matches in self.matches.matches.items():
            for k in pair:
                best[k] = max(best.get(k, (0, pair)), (len(matches), pair))
        return sorted({pair for _, pair in best.values()})

    def _poses(self, solution: Solution) -> FloatArray:
        """Poses [K, 4, 4] of the keyframes."""
        if isinstance(solution, BAState):
            return solution.scene.T_world_camera
        return self.data.T_keyframes if solution is None else solution.T_world_camera

    def _candidate(self, fit: Solution) -> PoseCandidate:
        count, T = len(self.data.keyframes), self._poses(fit)
        if fit is None:
            return PoseCandidate(T, self.camera_model, np.ones(count))
        if isinstance(fit, InitialPoses):
            return PoseCandidate(T, replace(self.camera_model, focal=fit.focal), fit.depth_scale)
        # By points where there are enough: scales by which depth maps agree best are no evidence.
        agreeing = depth_scales(fit, self.data.keyframe_grids, self.data.keyframe_segment, self.scales)
        scales = keyframe_depth_scales(fit, count, agreeing, self.scales.points)
        return PoseCandidate(T, fit.scene.camera_model, scales)

    def _explained(self, fit: BAState) -> Explained:
        """Numbers of training matches that the solution explains, and of all, by pair."""
        starts = np.cumsum([0, *(len(features) for features in self.data.features)])
        point = np.full(starts[-1], -1)
        point[starts[fit.observations.camera] + fit.feature] = fit.observations.point
        counts = {}
        for (i, j), m in self.training_matches.items():
            a, b = point[starts[i] + m[:, 0]], point[starts[j] + m[:, 1]]
            counts[i, j] = int(((a == b) & (a >= 0)).sum()), len(m)
        return counts
