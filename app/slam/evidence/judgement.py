"""Choice between the map and the network's poses by held-out evidence.

The evidence at a keyframe is the share of the image that the map explains and the network does not, less the opposite:
by held-out matches, and by depth maps of neighbours; see `held_out_error`.

The mean over the video decides, by a paired test: what the map explains more must be more than chance. Runs of
keyframes that contradict it by several standard errors fall back to the network. A map that follows a moving object
explains that object exactly, but loses what the network explains elsewhere; so beside the mean, what is lost must be
little.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components

from stream_recon.app.core.transforms import invert_pose
from stream_recon.app.core.types import FallbackCause
from stream_recon.app.slam.ba.problem import FloatArray
from stream_recon.app.slam.evidence.held_out_error import HELD_OUT, Agreement, HeldOutConfig, HeldOutError, Pairs

Explained = Mapping[tuple[int, int], tuple[int, int]]
"""Numbers of matches that the map explains, and of all that it was fitted to, by pair."""


@dataclass(frozen=True)
class JudgeConfig:
    """When the map is taken, and when the network's poses."""

    decisive: float = 0.3
    """Difference of losses from which a part of the image is explained by one side only."""
    max_lost_same: float = 0.12
    """Share of the matched image that a map may lose which moves as the network does: it follows the same scene, and
    errors of depth, in pixels of a large picture, cost it up to 0.07."""
    max_lost_while: float = 0.15
    """The same, of `correlated` keyframes, from which a map follows an object for a while: it lost 0.14 to 0.35, and a
    right one 0.12 in a blurred turn."""
    max_lost: float = 0.053
    """Largest share of the matched image that a correct map loses, to mismatches and noise: up to 0.038 in walks and
    drone photographs, 0.051 beside a moving object; maps that followed one lost 0.055 to 0.4."""
    second_motion: float = 0.03
    """Least share of the matched image that only one of two solutions explains, where they follow two motions: 0.037
    and more where one follows a moving object, at most 0.013 in static scenes."""
    better: float = 2.0
    """Standard errors by which the evidence for a map must be above 0: with few or noisy matches, maps worse than the
    network by a factor of ten have up to 1.9, maps that are better have 2.8 and more."""
    sure: float = 3.0
    """Standard errors by which a run of keyframes must agree better with the network to fall back."""
    margin: float = 0.1
    """Share of the image; smaller differences are not worth the seams of a run that falls back: at 0.05 a run of three
    keyframes tripled the error of a walk."""
    as_good: float = 0.02
    """Share of the image by which a joint adjustment of refined parts may be worse than these: each part alone fits its
    own matches a little better, by 0.0005 to 0.0015 in real halves, and by 0.011 where neither measured its focal
    length: there the joint one took four fifths of the seam between the parts away."""
    majority: float = 0.5
    """Least share of the keyframes that a map must keep; the seams of less are worse than the network alone."""
    one_sided: float = 0.03
    """Largest ratio of what only the network explains by epipolar lines to what only the map explains, from which
    matches alone decide: 0.02 on turntables, 0.05 beside a moving object."""
    same_direction_deg: float = 10.0
    """Median angle between the map's and the network's motions up to which both follow the same scene: 4 to 5 degrees
    on turntables, 18 and more where the map follows a moving object."""
    correlated: int = 5
    """Keyframes whose evidence counts as one sample, since they share pairs."""
    broken: float = 0.15
    """Difference of held-out errors of neighbours from which the map is broken between them."""
    explains: float = 0.5
    """Held-out error of neighbours below which the network explains them: it is no evidence beyond, as in a blurred
    turn, where most matches are wrong."""
    broken_depth: float = 0.5
    """Ratio of depth agreement to the network's below which the map is broken between keyframes matched across; where
    few matches tie them, least agreement."""
    close_by: int = 3
    """Intervals of keyframes that count as close."""
    loose: float = 0.25
    """Ratio of explained matches across a step to the usual number below which the step may be wrong; and less than
    `min_ties`."""
    tied: float = 0.8
    """Ratio of explained matches to the usual share, from which parts on both sides of a break belong together; by
    chance a pair can explain half."""
    min_ties: int = 30
    """Least number of explained matches that tie two parts."""
    min_run: int = 3
    """Least number of keyframes that fall back to the network together."""
    errors: HeldOutConfig = HELD_OUT


JUDGE = JudgeConfig()

UNTIED = "no matches tie these frames to the others"


@dataclass(frozen=True)
class Evidence:
    """Paired evidence at keyframes, in shares of the image; positive: for the map."""

    matches: FloatArray  # [N]
    """Difference of the losses of held-out matches, over the image's parts."""
    depth: FloatArray  # [N]
    """Difference of depth agreement with the keyframes before and after."""
    lost: FloatArray  # [N]
    """Share of the matched parts that only the network explains."""
    won: FloatArray  # [N]
    """Share of the matched parts that only the map explains."""
    same_motion: bool = False
    """Whether both move in the same directions, which no map does that follows an object; see `same_direction_deg`."""
    lines_only: bool = False
    """Whether all of it is by epipolar lines, see `by_lines`."""
    config: JudgeConfig = JUDGE

    @property
    def total(self) -> FloatArray:
        """Both kinds [N] together."""
        return self.matches + self.depth

    @property
    def sigma(self) -> float:
        """Standard deviation of the total at one keyframe, from differences of neighbours."""
        return float(1.4826 * np.median(np.abs(np.diff(self.total))) / np.sqrt(2)) if len(self.total) > 1 else 0.0

    def standard_error(self, keyframes: int) -> float:
        """Of the mean over consecutive keyframes."""
        return self.sigma * float(np.sqrt(self.config.correlated / max(keyframes, 1)))

    def lost_share(self, among: NDArray[np.bool_] | slice) -> float:
        """Share of the matched image that the map loses at some keyframes."""
        return float(self.lost[among].mean())

    def follows_object(self, among: NDArray[np.bool_] | slice) -> bool:
        """Whether the map may follow a moving object at some keyframes: it loses what the scene shows."""
        return self.lost_share(among) > (self.config.max_lost_same if self.same_motion else self.config.max_lost)

    @property
    def lossy_runs(self) -> NDArray[np.bool_]:
        """Mask [N] of runs in which the map loses what the scene shows, as where it follows an object for a while.

        Where map and network move in other directions all along, or the map clearly wins more, it is no such run.
        """
        width = min(self.config.correlated, len(self.lost))
        lost, total = (np.convolve(each, np.ones(width) / width, "valid") for each in (self.lost, self.total))
        possible = self.same_motion & (total < self.config.margin)
        limits = self.config.max_lost_same, self.config.max_lost_while
        mask, sure = (np.convolve(possible & (lost > limit), np.ones(width)) > 0 for limit in limits)
        for begin, end in runs(mask):
            mask[begin:end] = sure[begin:end].any()
        return mask

    @classmethod
    def compare(
        cls,
        network: HeldOutError,
        mapped: HeldOutError,
        agreement: Agreement,
        pairs: Pairs,
        size: tuple[int, int],
        config: JudgeConfig = JUDGE,
    ) -> "Evidence":
        """Evidence by both candidates' errors, and by their depth agreement in ``pairs``.

        ``size``: number of keyframes, and of the parts of an image, with or without matches.
        """
        matches, lost, won = cls.by_matches(network, mapped, size, False, config)
        depth, count = np.zeros((2, size[0]))
        for pair, step in zip(pairs, agreement[1] - agreement[0], strict=True):
            depth[list(pair)] += step
            count[list(pair)] += 1
        return cls(matches, depth / np.maximum(count, 1), lost, won, config=config)

    @classmethod
    def by_lines(
        cls, network: HeldOutError, mapped: HeldOutError, size: tuple[int, int], config: JudgeConfig = JUDGE
    ) -> "Evidence | None":
        """Evidence by epipolar lines alone where they decide for the map nearly everywhere; None otherwise.

        Depth is no evidence for poses where the network's focal length is far off: its depth fits its own poses alone.
        """
        matches, lost, won = cls.by_matches(network, mapped, size, True, config)
        is_decisive = won.mean() > config.margin and lost.mean() < config.one_sided * won.mean()
        return cls(matches, np.zeros(size[0]), lost, won, True, True, config) if is_decisive else None

    @staticmethod
    def by_matches(
        network: HeldOutError,
        mapped: HeldOutError,
        size: tuple[int, int],
        lines_only: bool,
        config: JudgeConfig = JUDGE,
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """`matches`, `lost` and `won` [N] each, by epipolar lines alone or with depth."""
        count, parts = size
        gain, lost, won, matched = np.zeros((4, count))
        for pair, ours in mapped.parts.items():
            difference = network.parts[pair] - ours
            decisive = difference[:, 0 if lines_only else 1]
            for k in pair:
                gain[k] += (decisive if lines_only else difference.mean(axis=1)).sum() / parts
                lost[k] += (decisive < -config.decisive).mean()
                won[k] += (decisive > config.decisive).mean()
                matched[k] += 1
        matched = np.maximum(matched, 1)
        return gain / matched, lost / matched, won / matched


@dataclass(frozen=True)
class Selection:
    """Keyframes that fall back to the network, and why."""

    fallback: NDArray[np.bool_]  # [N]
    reason: str = ""
    follows_object: bool = False
    """Whether all fall back because the map may follow an object that moves."""
    untied: NDArray[np.bool_] | None = None  # [N]
    """Those that no matches tie to the others."""
    stream: NDArray[np.bool_] | None = None  # [N]
    """Those that fall back to the online poses instead."""

    def cause(self, begin: int, end: int) -> FallbackCause | None:
        """Why a run of keyframes falls back, where it is known."""
        if self.untied is not None and self.untied[begin:end].all():
            return FallbackCause.UNTIED
        return FallbackCause.MOVING if self.follows_object else None

    def keeps_stream(self, begin: int = 0, end: int | None = None) -> bool:
        """Whether a run of keyframes falls back to the online poses."""
        return self.stream is not None and bool(self.stream[begin:end].all())

    def with_untied(self, untied: NDArray[np.bool_] | None) -> "Selection":
        """The selection with keyframes of a mask [N], which no matches tie to the others, left to the network, too."""
        if untied is None or not untied.any():
            return self
        why = f"{self.reason}; {UNTIED}" if self.reason else UNTIED
        return replace(self, fallback=self.fallback | untied, reason=why, untied=untied)


def select(evidence: Evidence, cut_off: NDArray[np.bool_], least: float = 0.0) -> Selection:
    """Keyframes that fall back to the network: none, some, or all.

    Args:
        cut_off: [N], those beyond breaks of the map, see `beyond_breaks`.
        least: mean evidence that a map must exceed.
    """
    count = len(cut_off)
    every = np.ones(count, bool)
    total = evidence.total
    if total.mean() <= least:
        return Selection(every, _against(evidence, every))
    worse = worse_runs(evidence) | cut_off
    remaining = ~worse
    if remaining.mean() < evidence.config.majority:
        return Selection(every, _in_words(evidence, worse))
    if total[remaining].mean() <= least:
        return Selection(every, _against(evidence, remaining))
    lossy = evidence.lossy_runs
    if evidence.follows_object(remaining) or (remaining & ~lossy).mean() < evidence.config.majority:
        return Selection(every, _lost_in_words(evidence, remaining), follows_object=True)
    reasons = [_in_words(evidence, worse)] if worse.any() else []
    reasons += [_lost_in_words(evidence, lossy)] if lossy.any() else []
    return Selection(worse | lossy, "; ".join(reasons))


def _lost_in_words(evidence: Evidence, among: NDArray[np.bool_]) -> str:
    lost, won = evidence.lost_share(among), evidence.won[among].mean()
    why = f"the map loses {lost:.1%} of the matched image that the network explains, and wins {won:.1%}"
    return f"{why}: it may follow a moving object"


def _against(evidence: Evidence, among: NDArray[np.bool_]) -> str:
    """Why the evidence at keyframes in a mask [N] does not suffice for the map."""
    mean = float(evidence.total[among].mean())
    if mean <= 0:
        return _in_words(evidence, among)
    error = evidence.standard_error(int(among.sum()))
    what = f"{mean:.1%} of the image, standard error {error:.1%}"
    return f"held-out matches and depth do not show it better than the network ({what})"


def _in_words(evidence: Evidence, among: NDArray[np.bool_]) -> str:
    """What speaks against the map at keyframes in a mask [N]."""
    matches, depth = float(evidence.matches[among].mean()), float(evidence.depth[among].mean())
    error = evidence.standard_error(int(among.sum()))
    if matches + depth > 0:
        return "the map is broken before and after these frames, and matches do not tie them to the rest"
    kind = "held-out matches agree" if matches < depth else "depth of neighbouring frames agrees"
    return f"{kind} better with the network, by {-matches - depth:.1%} of the image (standard error {error:.1%})"


def worse_runs(evidence: Evidence) -> NDArray[np.bool_]:
    """Mask [N] of runs of at least `min_run` keyframes where the network is significantly better."""
    total, config = evidence.total, evidence.config
    count = len(total)
    shortest = min(config.min_run, count)
    # Smoothed over neighbours, since a single keyframe is noisy.
    kernel = np.ones(shortest)
    smooth = np.convolve(total, kernel, "same") / np.convolve(np.ones(count), kernel, "same")
    worse = np.zeros(count, bool)
    for start, end in runs(smooth < 0):
        run = slice(start, end)
        limit = max(config.margin, config.sure * evidence.standard_error(end - start))
        # The network's depth fits its own wrong poses: alone it is no evidence against matches.
        by_matches = evidence.matches[run][total[run] < 0].sum() <= 0 or evidence.follows_object(run)
        worse[run] = by_matches and end - start >= shortest and total[run].mean() < -limit
    return worse


def beyond_breaks(
    mapped: HeldOutError, network: HeldOutError, agreement: Agreement, explained: Explained, config: JudgeConfig = JUDGE
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
    loose = _loose(explained, len(after), config=config)
    breaks = (np.cumsum(across)[:-1] > 0) & (after < config.broken_depth * np.where(loose, 1.0, before))
    for k in range(len(after)):
        if (k, k + 1) in mapped.pairs:
            ours, theirs = (float(error.pairs[k, k + 1].mean()) for error in (mapped, network))
            breaks[k] |= theirs < config.explains and ours - theirs > config.broken
    part = np.concatenate([[0], np.cumsum(breaks)])
    # By kind of pair, since fewer matches are explained between distant keyframes than between neighbours.
    near = max((j - i for i, j in mapped.pairs), default=1)
    fits, of = np.zeros((2, 2, part[-1] + 1, part[-1] + 1))
    for (i, j), (agreeing, every) in explained.items():
        kind = int(j - i <= near)
        fits[kind, part[i], part[j]] += agreeing
        of[kind, part[i], part[j]] += every
    usual = fits.sum() / max(of.sum(), 1.0)
    expected = np.stack([_usual(*kind, usual, config=config) * kind[1] for kind in zip(fits, of, strict=True)])
    # Either kind: where few matches lead over a step, many of them are wrong.
    tied = ((fits >= config.min_ties) & (fits >= config.tied * expected)).any(axis=0)
    _, label = connected_components(tied, directed=False)
    group = label[part]
    return np.asarray(group != np.bincount(group).argmax())


def _loose(explained: Explained, steps: int, config: JudgeConfig = JUDGE) -> NDArray[np.bool_]:
    """Mask [K - 1] of steps across which few matches of close keyframes are explained, as where an object appears."""
    across = np.zeros(steps)
    for (i, j), (agreeing, _) in explained.items():
        if j - i <= config.close_by:
            across[i:j] += agreeing
    usual = float(np.median(across)) if steps else 0.0
    return np.asarray(across < min(config.loose * usual, config.min_ties))


def _usual(agreeing: FloatArray, every: FloatArray, otherwise: float, config: JudgeConfig = JUDGE) -> float:
    """Share of explained matches within parts, from tables [P, P]; ``otherwise``: with too few matches."""
    inside = float(np.trace(every))
    return float(np.trace(agreeing)) / inside if inside >= config.min_ties else otherwise


def motion_angle_deg(T_first: FloatArray, T_second: FloatArray) -> float:
    """Median angle between the directions of motion of two trajectories [N, 4, 4], in the cameras' axes."""
    first, second = ((invert_pose(T[:-1]) @ T[1:])[:, :3, 3] for T in (T_first, T_second))
    lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    cosine = (first * second).sum(axis=1) / np.maximum(lengths, 1e-12)
    return float(np.degrees(np.median(np.arccos(np.clip(cosine, -1.0, 1.0)))))


def runs(mask: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Intervals where a mask is true, as (first, last + 1)."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], mask.astype(np.int8), [0]])))
    return [(int(a), int(b)) for a, b in edges.reshape(-1, 2)]
