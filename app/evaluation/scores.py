"""Errors of a run on a sequence with truth, beside those of the baselines."""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from stream_recon.app.core.transforms import FloatArray
from stream_recon.app.core.types import Frame
from stream_recon.app.evaluation import baselines
from stream_recon.app.evaluation.gather import Evaluator
from stream_recon.app.evaluation.metrics import DepthErrors, PoseErrors, depth_errors
from stream_recon.app.evaluation.pixel_sample import PixelSample

TRIVIAL = ("constant_depth", "ramp", "straight_line", "constant_velocity", "static")
"""Baselines that do not look at the images."""


@dataclass(frozen=True)
class SequenceMetrics:
    """One line of the evaluation; see `PoseErrors` and `DepthErrors`. None where there is no truth or no estimate."""

    frames: int
    path_m: float | None = None
    ate_m: float | None = None
    ate_over_path: float | None = None
    rpe_trans_m: float | None = None
    rot_step_deg: float | None = None
    rot_moved_deg: float | None = None
    tdir_deg: float | None = None
    absrel: float | None = None
    delta1: float | None = None
    fov_error_deg: float | None = None

    @classmethod
    def of(
        cls, frames: int, pose: PoseErrors | None = None, depth: DepthErrors | None = None, fov: float | None = None
    ) -> "SequenceMetrics":
        parts = dataclasses.asdict(pose or PoseErrors()) | dataclasses.asdict(depth or DepthErrors())
        return cls(frames=frames, fov_error_deg=fov, **parts)

    @classmethod
    def gathered(cls, evaluator: Evaluator, *, first: bool = False) -> "SequenceMetrics":
        """Errors over all frames that a gatherer heard of, as ``first`` given out, else as last known."""
        pose, depth = evaluator.pose_errors(first=first), evaluator.depth_errors(first=first)
        return cls.of(evaluator.frames, pose, depth, evaluator.fov_error_deg(first=first))


@dataclass(frozen=True)
class Evaluation:
    """One sequence: the product's errors and those of each baseline."""

    name: str
    stride: int
    posed: int
    """Frames whose true pose is known; the others are left out of the pose errors."""
    ours: SequenceMetrics
    """Errors of the final result."""
    network: SequenceMetrics
    """Errors of the network's own results."""
    first: SequenceMetrics
    """Errors of each frame's result as first given out, when nothing was known yet of later frames."""
    last: SequenceMetrics
    """Errors of what is known at the end of the stream."""
    baselines: Mapping[str, SequenceMetrics]

    def to_json(self) -> dict[str, Any]:
        ours = dataclasses.asdict(self.ours)
        parts = {name: dataclasses.asdict(getattr(self, name)) for name in ("network", "first", "last")}
        return {**ours, **parts, "baselines": {name: dataclasses.asdict(row) for name, row in self.baselines.items()}}


def baseline_errors(evaluator: Evaluator, frames: Iterable[Frame]) -> dict[str, SequenceMetrics]:
    """What trivial guesses and two views get on the frames that a gatherer heard of.

    ``frames``: the same ones, read once more for `baselines.two_view`, if the truth allows for it.
    """
    count = evaluator.frames
    rows = {name: SequenceMetrics.of(count, depth=depth) for name, depth in _guessed_depth(evaluator.pixels).items()}
    path = evaluator.true_path()
    for name, poses in _guessed_poses(evaluator, frames).items():
        rows[name] = SequenceMetrics.of(count, path.errors(poses) if poses is not None else None)
    return rows


def _guessed_depth(pixels: PixelSample) -> dict[str, DepthErrors | None]:
    constant = pixels.depths(lambda _, seen: np.ones(len(seen)))
    ramp = pixels.depths(lambda _, seen: baselines.ramp_depth(seen.transform.network_size[1])[seen.rows])
    guesses = {"constant_depth": constant, "ramp": ramp}
    return {name: depth_errors(*z) if z is not None else None for name, z in guesses.items()}


def _guessed_poses(evaluator: Evaluator, frames: Iterable[Frame]) -> dict[str, FloatArray | None]:
    """Trajectories [N, 4, 4] of the baselines; None for one that lacks what it is to be given."""
    count, path, truth = evaluator.frames, evaluator.true_path(), evaluator.truth
    step, two_view = path.first_step(), None
    if truth is not None and truth.intrinsics is not None and len(path):
        two_view = baselines.two_view(frames, truth.intrinsics, truth.source_size)
    return {
        "straight_line": baselines.straight_line(count),
        "constant_velocity": None if step is None else baselines.constant_velocity(count, step),
        "static": baselines.static(count),
        "two_view": two_view,
    }


@dataclass(frozen=True)
class EvaluationSummary:
    """Means over the sequences with truth of one figure: ours, and the best trivial baseline of each sequence."""

    sequences: int
    ours: float
    best_trivial: float


def summarise(evaluations: list[Evaluation], figure: str) -> EvaluationSummary | None:
    """``figure`` names an error of `SequenceMetrics`; None if no sequence has truth for it."""
    pairs = []
    for evaluation in evaluations:
        ours = getattr(evaluation.ours, figure)
        trivial = [getattr(evaluation.baselines[name], figure) for name in TRIVIAL]
        known = [value for value in trivial if value is not None]
        if ours is not None and known:
            pairs.append((ours, min(known)))
    if not pairs:
        return None
    ours, best = np.mean(pairs, axis=0)
    return EvaluationSummary(len(pairs), float(ours), float(best))
