"""`Evaluation`: metrics of a run on a sequence with ground truth, and of the baselines."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from stream_recon.app.core.transforms import FloatArray
from stream_recon.app.evaluation import baselines
from stream_recon.app.evaluation.dense_depth import DenseDepthErrors
from stream_recon.app.evaluation.evaluator import Evaluator
from stream_recon.app.evaluation.metrics import DepthErrors, Metrics, PoseErrors, depth_errors
from stream_recon.app.evaluation.pixel_sample import PixelSample

SEQUENCE_METRICS = (
    *(field.name for field in dataclasses.fields(PoseErrors)),
    *(field.name for field in dataclasses.fields(DepthErrors)),
    "fov_error_deg",
)
"""Metrics that an evaluation measures and writes, see `Evaluator.metrics`."""


@dataclass(frozen=True)
class Evaluation:
    """Metrics of one sequence: of the product at four stages, and of each baseline."""

    name: str
    stride: int
    frames: int
    posed: int
    """Frames with a true pose; the others do not count in pose metrics."""
    final: Metrics
    """Of the finished result."""
    network: Metrics
    """Of the network's results, before the back end."""
    causal: Metrics
    """Of each frame's result when it was delivered, without knowledge of later frames."""
    online_final: Metrics
    """Of the result at the end of the stream, before refinement."""
    baselines: Mapping[str, Metrics]
    dense: DenseDepthErrors | None = None
    """Of dense depth; None without it, or without true depth."""

    def to_json(self) -> dict[str, Any]:
        """The metrics of the final result, and objects with those of the other stages and baselines."""
        stages = {name: self._row(getattr(self, name)) for name in ("network", "causal", "online_final")}
        rows = {name: self._row(metrics) for name, metrics in self.baselines.items()}
        dense = {} if self.dense is None else {"dense": dataclasses.asdict(self.dense)}
        return {**self._row(self.final), **stages, "baselines": rows, **dense}

    def _row(self, metrics: Metrics) -> dict[str, Any]:
        return {"frames": self.frames, **{name: getattr(metrics, name) for name in SEQUENCE_METRICS}}


def baseline_metrics(evaluator: Evaluator) -> dict[str, Metrics]:
    """Metrics of guesses that do not use the images, on the frames of an evaluator."""
    rows = {name: _metrics(depth) for name, depth in _guessed_depth(evaluator.pixels).items()}
    trajectory = evaluator.true_trajectory()
    for name, poses in _guessed_poses(evaluator).items():
        rows[name] = _metrics(trajectory.errors(poses) if poses is not None else None)
    return rows


def _metrics(errors: PoseErrors | DepthErrors | None) -> Metrics:
    return Metrics(**dataclasses.asdict(errors)) if errors is not None else Metrics()


def _guessed_depth(pixels: PixelSample) -> dict[str, DepthErrors | None]:
    constant = pixels.depths(lambda _, sample: np.ones(len(sample)))
    ramp = pixels.depths(lambda _, sample: baselines.ramp_depth(sample.transform.network_size[1])[sample.rows])
    guesses = {"constant_depth": constant, "ramp": ramp}
    return {name: depth_errors(*z) if z is not None else None for name, z in guesses.items()}


def _guessed_poses(evaluator: Evaluator) -> dict[str, FloatArray | None]:
    """Trajectories [N, 4, 4] of the baselines; None for one whose input is unknown."""
    count, step = evaluator.frames, evaluator.true_trajectory().first_step()
    return {
        "straight_line": baselines.straight_line(count),
        "constant_velocity": None if step is None else baselines.constant_velocity(count, step),
        "static": baselines.static(count),
    }


@dataclass(frozen=True)
class EvaluationSummary:
    """Means of one metric over the sequences with ground truth."""

    sequences: int
    final: float
    """Of the final results."""
    best_trivial: float
    """Of the best trivial baseline of each sequence."""


def summarise(evaluations: list[Evaluation], metric: str) -> EvaluationSummary | None:
    """Means of ``metric``, a name of `Metrics`; None if no sequence has ground truth for it."""
    pairs = []
    for evaluation in evaluations:
        final = getattr(evaluation.final, metric)
        trivial = [getattr(baseline, metric) for baseline in evaluation.baselines.values()]
        known = [value for value in trivial if value is not None]
        if final is not None and known:
            pairs.append((final, min(known)))
    if not pairs:
        return None
    final, best = np.mean(pairs, axis=0)
    return EvaluationSummary(len(pairs), float(final), float(best))
