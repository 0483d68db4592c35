"""Held-out test of a refinement: the error of solutions by matches of held-out features, and where to fall back."""

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.slam.ba.problem import CameraModel
from stream_recon.app.slam.ba.robust_ba import BAState
from stream_recon.app.slam.matching.covisibility import PairMatches, held_out_mask
from stream_recon.app.slam.matching.matching import Matches
from stream_recon.app.slam.offline.depth_correction import keyframe_depth_scales
from stream_recon.app.slam.offline.keyframe_matching import VideoData
from stream_recon.app.slam.offline.model_selection import (
    HeldOutError,
    PoseCandidate,
    depth_agreement,
    fallback_segments,
)
from stream_recon.app.slam.offline.report import RefinementReport


class HeldOutTest:
    """Test of solutions for the keyframes of a video against the network's poses."""

    def __init__(self, data: VideoData, lens: CameraModel, found: PairMatches) -> None:
        self._data, self._lens, self._found = data, lens, found

    @cached_property
    def training_matches(self) -> dict[tuple[int, int], Matches]:
        """Matches without held-out features."""
        masks = [held_out_mask(features) for features in self._data.features]
        return {(i, j): m[~(masks[i][m[:, 0]] | masks[j][m[:, 1]])] for (i, j), m in self._found.matches.items()}

    def error(self, fit: BAState | None) -> HeldOutError:
        """Held-out error of a solution; None: of the network."""
        return HeldOutError.measure(self._candidate(fit), self._data.features, self._found.held_out)

    def fallback(self, fit: BAState, report: RefinementReport) -> NDArray[np.bool_]:
        """Mask [K] of keyframes that fall back to the network; the report gets the figures."""
        network, mapped = self.error(None), self.error(fit)
        grids = [view.grid for view in self._data.keyframe_views]
        agreement = depth_agreement(self._candidate(None), self._candidate(fit), grids)
        # Between segments the network's relative pose is a guess: no evidence for either.
        borders = np.diff(self._data.keyframe_segment) != 0
        agreement[1][borders] = agreement[0][borders]
        report.disagreement_before, report.disagreement = network.mean, mapped.mean
        report.depth_agreement_before, report.depth_agreement = (float(share.mean()) for share in agreement)
        return fallback_segments(mapped, network, agreement, self._explained(fit))

    def _candidate(self, fit: BAState | None) -> PoseCandidate:
        count = len(self._data.keyframes)
        if fit is None:
            return PoseCandidate(self._data.T_keyframes, self._lens, np.ones(count))
        return PoseCandidate(fit.scene.T_world_camera, fit.scene.lens, keyframe_depth_scales(fit, count))

    def _explained(self, fit: BAState) -> dict[tuple[int, int], tuple[int, int]]:
        """Numbers of training matches that the solution explains, and of all, by pair."""
        starts = np.cumsum([0, *(len(features) for features in self._data.features)])
        point = np.full(starts[-1], -1)
        point[starts[fit.observations.camera] + fit.feature] = fit.observations.point
        counts = {}
        for (i, j), m in self.training_matches.items():
            a, b = point[starts[i] + m[:, 0]], point[starts[j] + m[:, 1]]
            counts[i, j] = int(((a == b) & (a >= 0)).sum()), len(m)
        return counts
