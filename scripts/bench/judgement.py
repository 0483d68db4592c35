"""Whether refinement keeps the better side, map or network, on 68 generated videos without a network, 5 times each.

Each video has features of known points, depth maps, and poses of a network that drifts; nothing is rendered. Kinds are
ordinary motions, faults of the network (focal length, scale, turns) and of the images (moving objects, cuts, blur, few
or wrong matches, noise). Each jitter draws features and noise anew. A decision is right if its error is at most 1.15
times the smaller one of map and network, or if both differ by less than 0.1 % of the path. Videos whose better side is
known beyond the spread of their jitters are counted for themselves.
"""

import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from bench.generated import COUNT, Case, Video
from bench.table import header, row
from stream_recon.app.slam.offline.refine import RefineOptions, refine
from stream_recon.app.slam.offline.report import IntermediateState, WarmStart

TIE = 1.15
"""Ratio of errors up to which either side is right."""
SAME = 1e-3
"""Difference of ATE / path up to which two results are equally good."""


USUAL = Case()
GOOD, WORSE, WORST = Case(turn_deg=0.1, move=0.02), Case(turn_deg=0.8, move=0.2), Case(turn_deg=1.5, move=0.3)
EXACT = Case(turn_deg=0.06, move=0.012, focal=1.01, depth_noise=0.01)
"""A network as good as on the best real videos."""
MIDDLE = (COUNT // 3, 2 * COUNT // 3)
BRIEF = Case(object_texture=3, object_frames=MIDDLE)
KINDS: dict[str, list[Case]] = {
    "sideways": [GOOD, USUAL, WORSE, WORST],
    "forward": [replace(case, motion="forward") for case in (GOOD, USUAL, WORSE, WORST)],
    "exact network": [
        replace(EXACT, features=120),
        replace(EXACT, noise_px=2.5),
        replace(EXACT, wrong=0.5),
        replace(EXACT, motion="forward"),
    ],
    "focal length": [Case(focal=ratio) for ratio in (0.6, 0.8, 1.25, 1.6)],
    "scale of the network": [Case(scale_jump=ratio) for ratio in (0.6, 0.8, 1.3, 1.8)],
    "moving object": [Case(object_share=share, object_texture=3) for share in (0.35, 0.5, 0.65, 0.8)],
    "moving object and right network": [
        replace(EXACT, object_share=share, object_texture=texture)
        for share, texture in ((0.4, 1.0), (0.5, 4.0), (0.65, 3.0), (0.8, 2.0))
    ],
    "moving object for a while": [
        replace(EXACT, object_share=0.5, object_texture=3, object_frames=MIDDLE),
        replace(EXACT, object_share=0.8, object_texture=3, object_frames=MIDDLE),
        replace(BRIEF, object_share=0.65),
        replace(WORSE, object_share=0.8, object_texture=3, object_frames=MIDDLE),
    ],
    "cut": [replace(USUAL, cut=7), replace(USUAL, cut=10), replace(EXACT, cut=10), replace(WORSE, cut=13)],
    "blur": [
        replace(USUAL, blurred=MIDDLE),
        replace(EXACT, blurred=MIDDLE),
        replace(USUAL, blurred=(0, COUNT)),
        replace(WORSE, blurred=MIDDLE),
    ],
    "rotation": [replace(case, motion="rotation") for case in (GOOD, USUAL, WORSE, EXACT)],
    "few matches": [*(Case(features=count) for count in (70, 90, 120)), replace(WORSE, features=90)],
    "repeated texture": [*(Case(words=count) for count in (60, 200, 600)), replace(EXACT, words=200)],
    "noise": [Case(noise_px=1.5), Case(noise_px=3.0), replace(WORSE, noise_px=3.0), replace(GOOD, noise_px=2.0)],
    "turns by half a circle": [replace(case, motion="down") for case in (Case(turn_deg=20.0), USUAL, WORSE, EXACT)],
    "pause": [replace(case, motion="pause") for case in (GOOD, USUAL, WORSE, EXACT)],
    "photographs": [replace(case, motion="photographs") for case in (USUAL, WORSE, WORST, EXACT)],
}


@dataclass(frozen=True)
class Decision:
    """Errors of one case and jitter, as ATE / path."""

    network: float
    mapped: float
    chosen: float
    why: str
    truth_error: float = 0.0
    """Of the ground truth."""

    @property
    def mistake(self) -> float:
        """Ratio of the chosen error to the smaller one of network and map; 1 within the error of the ground truth."""
        if self.chosen - min(self.network, self.mapped) < self.truth_error:
            return 1.0
        return self.chosen / max(min(self.network, self.mapped), 1e-9)


def is_known(jitters: Sequence[Decision]) -> bool:
    """Whether the better side of one case is known beyond the spread of its jitters, by a paired test of log errors.

    The mean log ratio must exceed two standard errors and `TIE`, and the mean difference the error of the truth.
    """
    ratio = np.log([max(each.mapped, 1e-9) / max(each.network, 1e-9) for each in jitters])
    difference = np.mean([each.mapped - each.network for each in jitters])
    error = ratio.std(ddof=1) / np.sqrt(len(ratio)) if len(ratio) > 1 else np.inf
    is_apart = abs(ratio.mean()) > max(2 * error, np.log(TIE))
    return bool(is_apart and abs(difference) > max(each.truth_error for each in jitters))


def share_right(decisions: Sequence[Decision]) -> str:
    """Number and share of right decisions, with its standard error."""
    right, count = sum(each.mistake <= TIE for each in decisions), len(decisions)
    share = right / max(count, 1)
    return f"{right} of {count} right, {share:.1%} (standard error {np.sqrt(share * (1 - share) / max(count, 1)):.1%})"


def decide(video: Video) -> Decision | None:
    """The decision on one video; None: there is no map."""
    states: list[IntermediateState] = []
    known = WarmStart([*range(COUNT)], video.features())
    options = RefineOptions(workers=1, known=known, on_state=states.append)
    refined = refine(video.views(), video, video.scale, options)
    if not states:
        return None
    why = "; ".join(sorted({str(each["why"]) for each in refined.report.fallback_segments}))
    network, mapped, chosen = map(video.error, (video.guess, states[0].T_world_camera, refined.T_world_camera))
    return Decision(network, mapped, chosen, why, SAME)


def bench_judgement(kinds: Sequence[str], seeds: Sequence[int], jitters: int) -> None:
    """Print a row for each kind, the wrong decisions and the sum."""
    every: list[Decision] = []
    known: list[Decision] = []
    cases, known_cases = 0, 0
    mistakes: list[tuple[float, str]] = []
    header("kind", "decisions", "map is better", "kept", "right", "worst mistake", "seconds")
    for kind in kinds:
        begin, decisions = time.process_time(), []
        for number, case in enumerate(KINDS[kind]):
            for seed in seeds:
                drawn = [(draw, decide(Video(case, 100 * number + seed, draw))) for draw in range(jitters)]
                own = [each for _, each in drawn if each is not None]
                decisions += own
                cases += bool(own)
                side = "not known"
                if own and is_known(own):
                    side, known, known_cases = "known", known + own, known_cases + 1
                for draw, each in drawn:
                    if each is not None and each.mistake > TIE:
                        errors = f"network {each.network:.4f}, map {each.mapped:.4f}, chosen {each.chosen:.4f}"
                        what = f"{kind} {number + 1}, seed {seed}.{draw}, better side {side}: {errors}; {each.why}"
                        mistakes.append((each.mistake, what))
        every += decisions
        better = sum(each.mapped < each.network for each in decisions)
        kept = sum(each.chosen != each.network for each in decisions)
        right = sum(each.mistake <= TIE for each in decisions)
        worst = max((each.mistake for each in decisions), default=1.0)
        seconds = (time.process_time() - begin) / max(len(decisions), 1)
        row(kind, len(decisions), better, kept, right, f"{worst:.2f}", f"{seconds:.1f}")
    print("\n" + "\n".join(f"{ratio:.2f} times: {text}" for ratio, text in sorted(mistakes, reverse=True)))
    print(share_right(every))
    print(f"the better side is known in {known_cases} of {cases} videos: {share_right(known)}")


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--only", help="kinds, separated by commas")
    parser.add_argument("--seeds", type=int, default=1, help="number of places and paths of each case")
    parser.add_argument("--seed", type=int, default=0, help="of the first one")
    parser.add_argument("--jitters", type=int, default=5, help="number of draws of features and noise")


def run(options: Namespace) -> None:
    kinds = options.only.split(",") if options.only else list(KINDS)
    unknown = set(kinds) - set(KINDS)
    if unknown:
        raise SystemExit(f"no kind is called {', '.join(sorted(unknown))}; there are {', '.join(KINDS)}")
    bench_judgement(kinds, range(options.seed, options.seed + options.seeds), options.jitters)
