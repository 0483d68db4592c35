"""Choice between the map and the network's poses by held-out matches and by agreement of depth.

Held-out matches are not verified by geometry, so that no candidate has selected them. Each part of the image has the
same weight: texture on a moving object counts for the area that it covers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components

from stream_recon.app.core.transforms import invert_pose
from stream_recon.app.slam.ba.problem import CameraModel, FloatArray
from stream_recon.app.slam.ba.robust_ba import BAState
from stream_recon.app.slam.frame_data import DepthGrid, reproject, unproject
from stream_recon.app.slam.matching.covisibility import PairMatches, held_out_mask
from stream_recon.app.slam.matching.features import Features
from stream_recon.app.slam.matching.matching import Matches
from stream_recon.app.slam.offline.depth_correction import depth_errors, keyframe_depth_scales
from stream_recon.app.slam.offline.keyframe_matching import VideoData
from stream_recon.app.slam.offline.report import RefinementReport

Agreement = tuple[FloatArray, FloatArray]
"""`depth_agreement` of the network and the map."""
Explained = Mapping[tuple[int, int], tuple[int, int]]
"""Numbers of matches that the map explains, and of all that it was fitted to, by pair."""

PARTS = 8
"""Parts of the image along its longer side."""
EPIPOLAR_PX = 1.5
"""Distance from the epipolar line with loss 1/2; the loss is bounded by 1."""
REPROJECTION_PX = 8.0
"""Reprojection error with loss 1/2; larger, since it contains the error of depth."""
MIN_CELLS = 20
"""Least number of common cells of two depth maps; with fewer, agreement is not significant."""
MIN_MATCHES = 5
"""Least number of matches of a pair; blurred keyframes have one or two by chance."""
CLOSE = (5.5, 11)
"""Depths agree if they differ by less than these multiples (mean over both) of the median difference under the network.
Smaller ones would favour the network: its poses and depth come from one estimate, in which depth is fused over time."""
COST = 0.1
"""Relative loss of depth agreement that is allowed per relative gain of held-out error."""
REST_COST = 0.05
"""The same, for the rest of a video whose other segments fall back to the network."""
SPOILT = 0.3
"""Difference of the map's and the network's error from which a part of the image is spoilt."""
MAX_SPOILT = 0.05
"""Largest spoilt share of the image. Correct maps had at most 0.035, those that followed a moving patch at least 0.055
in nine of eleven cases."""
REASON = "held-out matches agree better with the network"
MARGIN = 0.02
"""Difference of held-out errors from which the network is preferred at a keyframe."""
CHANCE = 0.1
"""Relative loss of depth agreement of a few keyframes that is not significant."""
BROKEN = 0.15
"""Difference of held-out errors of neighbours from which the map is broken between them."""
BROKEN_DEPTH = 0.5
"""Ratio of depth agreement to the network's below which the map is broken between keyframes matched across."""
TIED = 0.8
"""Ratio of explained matches to the usual share, from which parts on both sides of a break belong together; by chance a
pair can explain half."""
MIN_TIES = 30
"""Least number of explained matches that tie two parts."""
SHORTEST = 3
"""Least number of keyframes that fall back to the network together."""


@dataclass(frozen=True)
class PoseCandidate:
    """Poses, intrinsics and depth scales to test."""

    T_world_camera: FloatArray  # [N, 4, 4]
    lens: CameraModel
    depth_scale: FloatArray  # [N]


@dataclass(frozen=True)
class HeldOutError:
    """Held-out errors of a candidate."""

    parts: Mapping[tuple[int, int], FloatArray]
    """For each pair, losses [P, 2] of the image's parts: by epipolar lines, and by depth and pose."""

    @cached_property
    def pairs(self) -> Mapping[tuple[int, int], FloatArray]:
        """For each pair, the means [2] over the parts."""
        return {pair: parts.mean(axis=0) for pair, parts in self.parts.items()}

    @property
    def mean(self) -> float:
        """Mean over pairs and both kinds; 1 without pairs."""
        return float(np.mean([share.mean() for share in self.pairs.values()])) if self.pairs else 1.0

    def among(self, keyframes: NDArray[np.bool_]) -> "HeldOutError":
        """Errors of pairs of keyframes in a mask [N]."""
        return HeldOutError({(i, j): parts for (i, j), parts in self.parts.items() if keyframes[i] and keyframes[j]})

    @classmethod
    def measure(
        cls, side: PoseCandidate, features: Sequence[Features], held_out: Mapping[tuple[int, int], Matches]
    ) -> "HeldOutError":
        """Errors of a candidate by held-out matches."""
        found = {}
        for (i, j), matches in held_out.items():
            a, b = features[i], features[j]
            T = invert_pose(side.T_world_camera[j]) @ side.T_world_camera[i]
            uv_a, uv_b = a.uv[matches[:, 0]], b.uv[matches[:, 1]]
            z = a.z[matches[:, 0]].astype(np.float64) * side.depth_scale[i]
            there, _ = reproject(side.lens, uv_a, np.where(z > 0, z, np.nan), T)
            error = np.linalg.norm(there - uv_b, axis=1)
            lines = epipolar_px(side.lens, uv_a, uv_b, T)
            part = np.unique(uv_a // (2 * max(side.lens.cx, side.lens.cy) / PARTS), axis=0, return_inverse=True)[1]
            part = np.asarray(part).reshape(-1)
            errors = np.stack([lines / EPIPOLAR_PX, np.nan_to_num(error, nan=1e3) / REPROJECTION_PX])
            if len(matches) >= MIN_MATCHES:
                medians = np.stack([medians_by(part, row) for row in errors], axis=1)
                found[i, j] = medians**2 / (1 + medians**2)
        return cls(found)


def medians_by(part: NDArray[np.integer], values: FloatArray) -> FloatArray:
    """Medians [P] of values [N] by part; ``part`` [N] contains all numbers from 0 to P - 1."""
    order = np.lexsort((values, part))
    count = np.bincount(part)
    first = np.cumsum(count) - count
    sorted_values = values[order]
    return np.asarray(0.5 * (sorted_values[first + (count - 1) // 2] + sorted_values[first + count // 2]))


def depth_agreement(network: PoseCandidate, mapped: PoseCandidate, grids: Sequence[DepthGrid]) -> Agreement:
    """Shares of the image on whose depth consecutive keyframes agree, [N - 1] for each candidate; see `CLOSE`.

    Unlike matches, they cover parts without texture.
    """
    errors = []
    pairs = [((i, i + 1), (i + 1, i)) for i in range(len(grids) - 1)]
    for side in (network, mapped):
        known = side.lens, side.T_world_camera, grids, side.depth_scale
        errors.append([[depth_errors(*known, a, b) for a, b in both] for both in pairs])
    differences = np.concatenate([one for both in errors[0] for one in both]) if len(grids) > 1 else np.zeros(0)
    close = np.array(CLOSE) * (float(np.median(differences)) if len(differences) else 0.0)

    def share(difference: FloatArray) -> float:
        return float(np.mean(difference <= close[:, None])) if len(difference) >= MIN_CELLS else 0.0

    before, after = (np.array([np.mean([share(one) for one in both]) for both in side]) for side in errors)
    return before, after


def spoilt_share(network: HeldOutError, mapped: HeldOutError) -> float:
    """Share of the image's parts that the network explains and the map does not."""
    if not mapped.parts:
        return 0.0
    worse = [ours[:, 1] - network.parts[pair][:, 1] > SPOILT for pair, ours in mapped.parts.items()]
    return float(np.concatenate(worse).mean())


def is_better(held_out: tuple[float, float], agreement: tuple[float, float], cost: float = COST) -> bool:
    """Whether the map is more accurate than the network, by `HeldOutError.mean` and mean `depth_agreement` of both.

    Matches need texture, of which a moving object may have most; depth covers the rest of the image. ``cost``: see
    `COST`.
    """
    gain = 1 - held_out[1] / max(held_out[0], 1e-9)
    loss = 1 - agreement[1] / max(agreement[0], 1e-9)
    return gain >= 0 and loss <= cost * gain


def fallback_segments(
    mapped: HeldOutError, network: HeldOutError, agreement: Agreement, explained: Explained
) -> NDArray[np.bool_]:
    """Mask [N] of keyframes that fall back to the network: none, some, or all.

    With some, stricter rules hold for the rest: a map that follows a moving object spoils other parts as well.
    """
    count = len(agreement[0]) + 1
    every = np.ones(count, bool)
    if not is_better((network.mean, mapped.mean), _means(agreement, every)):
        return every
    worse = worse_keyframes(mapped, network, agreement, explained)
    rest = network.among(~worse), mapped.among(~worse)
    fine = is_better((rest[0].mean, rest[1].mean), _means(agreement, ~worse), REST_COST)
    return worse if fine and spoilt_share(*rest) <= MAX_SPOILT else every


def _means(agreement: Agreement, among: NDArray[np.bool_]) -> tuple[float, float]:
    steps = among[:-1] & among[1:]
    before, after = (float(side[steps].mean()) if steps.any() else 0.0 for side in agreement)
    return before, after


def epipolar_px(
    lens: CameraModel, uv_first: NDArray[np.floating], uv_second: NDArray[np.floating], T_second_first: FloatArray
) -> FloatArray:
    """Distances [N] of points from their epipolar lines in the second image, in pixels."""
    x, y = unproject(lens, uv_first), unproject(lens, uv_second)
    t = T_second_first[:3, 3]
    length = np.linalg.norm(t)
    rotated = x @ T_second_first[:3, :3].T
    if length < 1e-9:
        return np.asarray(np.linalg.norm(rotated[:, :2] / rotated[:, 2:] - y[:, :2], axis=1) * lens.focal)
    line = np.cross(t / length, rotated)
    return np.asarray(
        np.abs((line * y).sum(axis=1)) / np.maximum(np.linalg.norm(line[:, :2], axis=1), 1e-12) * lens.focal
    )


def worse_keyframes(
    mapped: HeldOutError, network: HeldOutError, agreement: Agreement, explained: Explained
) -> NDArray[np.bool_]:
    """Mask [N] of keyframes where the map is worse than the network, in runs of at least `SHORTEST`."""
    before, after = agreement
    count = len(before) + 1
    held, weight = np.zeros((2, count)), np.zeros(count)
    for (i, j), error in mapped.pairs.items():
        for k in (i, j):
            held[:, k] += np.array([network.pairs[i, j].mean(), error.mean()]) / (j - i)
            weight[k] += 1 / (j - i)
    # Smoothed over neighbours, since a single pair is noisy.
    kernel = np.ones(min(SHORTEST, count))
    total = np.maximum(np.convolve(weight, kernel, "same"), 1e-9)
    theirs, ours = (np.convolve(side, kernel, "same") / total for side in held)
    agreed, agree = (np.convolve(np.append(side, side[-1:]), kernel, "same") for side in (before, after))
    gain, loss = 1 - ours / np.maximum(theirs, 1e-9), 1 - agree / np.maximum(agreed, 1e-9)
    worse = (ours - theirs > MARGIN) | (loss > COST * np.maximum(gain, 0) + CHANCE)
    for start, end in runs(worse):
        if end - start < min(SHORTEST, count):
            worse[start:end] = False
    return np.asarray(worse | _cut_off(mapped, network, agreement, explained))


def _cut_off(
    mapped: HeldOutError, network: HeldOutError, agreement: Agreement, explained: Explained
) -> NDArray[np.bool_]:
    """Mask [N] of keyframes beyond breaks of the map: all but the largest part and parts tied to it.

    A moving object may agree with the map all along; it shows where it appears and disappears. The parts before and
    after it may show the same scene.
    """
    before, after = agreement
    across = np.zeros(len(after) + 1, np.int64)
    for i, j in explained:
        across[i] += 1
        across[j] -= 1
    breaks = (np.cumsum(across)[:-1] > 0) & (after < BROKEN_DEPTH * before)
    for k in range(len(after)):
        if (k, k + 1) in mapped.pairs:
            breaks[k] |= mapped.pairs[k, k + 1].mean() - network.pairs[k, k + 1].mean() > BROKEN
    part = np.concatenate([[0], np.cumsum(breaks)])
    # By kind of pair, since fewer matches are explained between distant keyframes than between neighbours.
    near = max((j - i for i, j in mapped.pairs), default=1)
    fits, of = np.zeros((2, 2, part[-1] + 1, part[-1] + 1))
    for (i, j), (kept, every) in explained.items():
        kind = int(j - i <= near)
        fits[kind, part[i], part[j]] += kept
        of[kind, part[i], part[j]] += every
    found, usual = fits.sum(axis=0), fits.sum() / max(of.sum(), 1.0)
    expected = sum(_usual(kept, every, usual) * every for kept, every in zip(fits, of, strict=True))
    tied = (found >= MIN_TIES) & (found >= TIED * expected)
    _, label = connected_components(tied, directed=False)
    group = label[part]
    return np.asarray(group != np.bincount(group).argmax())


def _usual(kept: FloatArray, every: FloatArray, otherwise: float) -> float:
    """Share of explained matches within parts, from tables [P, P]; ``otherwise``: with too few matches."""
    inside = float(np.trace(every))
    return float(np.trace(kept)) / inside if inside >= MIN_TIES else otherwise


def runs(mask: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Intervals where a mask is true, as (first, last + 1)."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], mask.astype(np.int8), [0]])))
    return [(int(a), int(b)) for a, b in edges.reshape(-1, 2)]


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

    def _explained(self, fit: BAState) -> Explained:
        """Numbers of training matches that the solution explains, and of all, by pair."""
        starts = np.cumsum([0, *(len(features) for features in self._data.features)])
        point = np.full(starts[-1], -1)
        point[starts[fit.observations.camera] + fit.feature] = fit.observations.point
        counts = {}
        for (i, j), m in self.training_matches.items():
            a, b = point[starts[i] + m[:, 0]], point[starts[j] + m[:, 1]]
            counts[i, j] = int(((a == b) & (a >= 0)).sum()), len(m)
        return counts
