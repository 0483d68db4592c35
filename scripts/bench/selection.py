"""Whether refinement keeps the better side, map or network, on cases where ground truth says which one it is.

The cases are those of `cases`, rendered or of sequences with ground truth. The network runs once a case. Each jitter
adds noise to the images, from which features, matches and map are made anew. A decision is right if its error is at
most 1.15 times the smaller one of map and network, or if both differ by less than the ground truth's own error.
Where the better side changes with the jitter, no decision can be known to be right: cases whose better side is known
beyond that spread are counted for themselves, see `is_known`.
"""

import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from bench.cases import FAULTS, MOTIONS, SEED, Clip, clip_errors, plane, read_sequence, rendered, written
from stream_recon.app.engine.engine import Engine, load_engine
from stream_recon.app.result.folder import read_result, result_of
from stream_recon.app.result.run_record import RunInfo
from stream_recon.app.run.session import Output, RunOptions, Session
from stream_recon.app.slam.frame_data import DepthOf, FrameData
from stream_recon.app.slam.offline.keyframe_matching import Grey, Images
from stream_recon.app.slam.offline.refine import RefineOptions, refine
from stream_recon.app.slam.offline.report import IntermediateState
from stream_recon.app.stages.refine import images_of

TIE = 1.15
"""Ratio of errors up to which either side is right."""
NOISE = 1.0
"""Grey levels of a jitter."""


@dataclass(frozen=True)
class NoisyImages:
    """Images with noise."""

    images: Images
    seed: int

    def read(self, positions: Sequence[int]) -> Iterator[tuple[int, Grey, DepthOf]]:
        for position, grey, depth in self.images.read(positions):
            noise = np.random.default_rng([self.seed, position]).normal(0, NOISE, grey.shape)
            yield position, (np.clip(grey + noise, 0, 255).astype(np.uint8) if self.seed else grey), depth


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


def decisions(engine: Engine, clip: Clip, jitters: int) -> Iterator[Decision]:
    """Decision for each jitter of a clip; the first one is without noise."""
    with tempfile.TemporaryDirectory() as place:
        scene = written(clip, Path(place) / "sequence")
        engine.reset()
        folder = Path(place) / "result"
        with scene.open() as source:
            output = Output(folder, RunInfo.from_engine(engine, source.name, {}))
            with Session(engine, source, scene.open, RunOptions("off"), output) as session:
                session.reconstruct()
        result = read_result(folder)
        cameras = result.with_depth(result.cameras)
        images = images_of(result, cameras, scene.open)
        views = [FrameData.from_result(result_of(folder, camera), images.scale) for camera in cameras]
        index = np.array([camera.index for camera in cameras])
        network = clip_errors(np.array([view.T_world_camera for view in views]), index, clip)[0]
        for seed in range(jitters):
            states: list[IntermediateState] = []
            found = refine(views, NoisyImages(images, seed), images.scale, RefineOptions(on_state=states.append))
            if states:
                mapped, chosen = (
                    clip_errors(T, index, clip)[0] for T in (states[0].T_world_camera, found.T_world_camera)
                )
                why = "; ".join(sorted({str(each["why"]) for each in found.report.fallback_segments}))
                yield Decision(network, mapped, chosen, why)


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument(
        "sequences", type=Path, nargs="*", metavar="SEQUENCE", help="with ground truth, beside rendered"
    )
    parser.add_argument("--frames", type=int, default=40)
    parser.add_argument("--stride", type=int, default=2, help="of the sequences")
    parser.add_argument("--truth-error", type=float, default=0.0, help="ATE / path of the sequences' ground truth")
    parser.add_argument("--seeds", type=int, default=1, help="number of rendered scenes of each kind")
    parser.add_argument("--jitters", type=int, default=5)


def run(options: Namespace) -> None:
    cases: dict[str, Callable[[], Clip]] = {}
    for path in options.sequences:
        for name, fault in FAULTS.items():
            cases[f"{path.name}, {name}"] = partial(_faulty, path, options.stride, options.frames, fault)
    for seed in range(SEED, SEED + options.seeds):
        for name, fault in FAULTS.items():
            cases[f"walk {seed}, {name}"] = partial(_rendered_faulty, options.frames, seed, fault)
        cases |= {f"{name} {seed}": partial(rendered, name, options.frames, seed) for name in MOTIONS}
    cases |= {"plane": lambda: plane(options.frames, False), "faint floor": lambda: plane(options.frames, True)}
    engine = load_engine()
    every: list[Decision] = []
    known_side: list[Decision] = []
    print("| case | network | map | chosen | wrong | why |\n|---|---|---|---|---|---|")
    for name, make in cases.items():
        known = options.truth_error if any(name.startswith(f"{path.name}, ") for path in options.sequences) else 0.0
        found = [replace(each, truth_error=known) for each in decisions(engine, make(), options.jitters)]
        if not found:
            continue
        every += found
        known_side += found if is_known(found) else []
        network, mapped, chosen = (
            ", ".join(f"{getattr(each, side):.4f}" for each in found) for side in ("network", "mapped", "chosen")
        )
        wrong = sum(each.mistake > TIE for each in found)
        why = next((each.why for each in found if each.why), "")
        print(
            f"| {name} | {network.split(',')[0]} | {mapped} | {chosen} | {wrong} of {len(found)} | {why} |", flush=True
        )
    mistakes = [each.mistake for each in every if each.mistake > TIE]
    print(f"\n{share_right(every)}; largest mistake {max(mistakes, default=1.0):.2f} times")
    print(f"better side known beyond the spread: {share_right(known_side)}")


def _faulty(path: Path, stride: int, frames: int, fault: Callable[[Clip], Clip]) -> Clip:
    return fault(read_sequence(path, stride, frames))


def _rendered_faulty(frames: int, seed: int, fault: Callable[[Clip], Clip]) -> Clip:
    return fault(rendered("walk", frames, seed))
