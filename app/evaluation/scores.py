"""Errors of the engine on a sequence with truth, beside those of the baselines."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.datasets.sequence import TruthSequence
from stream_recon.app.evaluation import baselines
from stream_recon.app.evaluation.metrics import (
    DepthErrors,
    PoseErrors,
    depth_errors,
    field_of_view_error_deg,
    pose_errors,
)
from stream_recon.app.results import Frame, FrameResult
from stream_recon.app.transforms import FloatArray

TRIVIAL = ("constant_depth", "ramp", "straight_line", "constant_velocity", "static")
"""Baselines that do not look at the images."""


class StreamEngine(Protocol):
    """What is needed of `stream_recon.app.engine.engine.Engine`."""

    weights_sha256: str

    def reset(self) -> None: ...

    def stream(self, frames: Iterable[Frame]) -> Iterator[FrameResult]: ...


@dataclass(frozen=True)
class Errors:
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
    ) -> "Errors":
        parts = dataclasses.asdict(pose or PoseErrors()) | dataclasses.asdict(depth or DepthErrors())
        return cls(frames=frames, fov_error_deg=fov, **parts)


@dataclass(frozen=True)
class Evaluation:
    """One sequence: the product's errors and those of each baseline."""

    name: str
    stride: int
    posed: int
    """Frames whose true pose is known; the others are left out of the pose errors."""
    ours: Errors
    baselines: Mapping[str, Errors]

    def to_json(self) -> dict[str, Any]:
        rows = {name: dataclasses.asdict(errors) for name, errors in self.baselines.items()}
        return {**dataclasses.asdict(self.ours), "baselines": rows}


@dataclass
class _Gathered:
    """What is kept of each result: no images and no whole depth maps, so long sequences fit."""

    poses: dict[int, FloatArray] = field(default_factory=dict)
    fov_errors: list[float] = field(default_factory=list)
    true_depth: list[FloatArray] = field(default_factory=list)
    depth: list[FloatArray] = field(default_factory=list)
    ramp: list[FloatArray] = field(default_factory=list)

    def add(self, result: FrameResult, sequence: TruthSequence) -> None:
        self.poses[result.index] = result.T_world_camera
        if sequence.intrinsics is not None:
            error = field_of_view_error_deg(result.intrinsics, sequence.intrinsics, sequence.source_size)
            self.fov_errors.append(error)
        truth = sequence.depth(result.index)
        if truth is not None:
            matched = truth.at_network(result.transform)
            self.true_depth.append(matched.z)
            self.depth.append(result.depth[matched.rows, matched.columns].astype(np.float64))
            self.ramp.append(baselines.ramp_depth(result.depth.shape[0])[matched.rows])

    def depth_errors(self) -> dict[str, DepthErrors]:
        """Of the product (``ours``) and of the baselines that guess depth."""
        if not self.true_depth:
            return {}
        truth = np.concatenate(self.true_depth)
        return {
            "ours": depth_errors(np.concatenate(self.depth), truth),
            "constant_depth": depth_errors(np.ones_like(truth), truth),
            "ramp": depth_errors(np.concatenate(self.ramp), truth),
        }


@dataclass(frozen=True)
class _TruePoses:
    """The true trajectory over the frames in use."""

    rows: NDArray[np.intp]
    """Which of the frames in use have a true pose."""
    poses: FloatArray  # [len(rows), 4, 4]

    @classmethod
    def of(cls, sequence: TruthSequence, used: list[int]) -> "_TruePoses":
        rows = [row for row, position in enumerate(used) if position in sequence.poses]
        poses = [sequence.poses[used[row]] for row in rows]
        return cls(np.array(rows, dtype=np.intp), np.array(poses, dtype=np.float64).reshape(-1, 4, 4))

    @property
    def adjacent(self) -> NDArray[np.bool_]:
        adjacent: NDArray[np.bool_] = np.diff(self.rows) == 1
        return adjacent

    def errors(self, predicted: FloatArray) -> PoseErrors:
        """``predicted`` [N, 4, 4] for all frames in use."""
        return pose_errors(predicted[self.rows], self.poses, self.adjacent)

    def first_step(self) -> FloatArray | None:
        """The first known motion from one frame to the next."""
        starts = np.flatnonzero(self.adjacent)
        if not len(starts):
            return None
        step: FloatArray = np.linalg.inv(self.poses[starts[0]]) @ self.poses[starts[0] + 1]
        return step


def evaluate_sequence(engine: StreamEngine, sequence: TruthSequence, stride: int, limit: int | None) -> Evaluation:
    """Stream every ``stride``-th image, at most ``limit``, through the engine and compare with the truth.

    Raises:
        ConfigError: stride or limit below 1.
        InputError: an image or a truth file that cannot be read.
    """
    used = sequence.used(stride, limit)
    gathered = _Gathered()
    engine.reset()
    for result in engine.stream(sequence.frame(position) for position in used):
        gathered.add(result, sequence)
    assert list(gathered.poses) == used, "the engine answers every frame, in order"
    truth, depth = _TruePoses.of(sequence, used), gathered.depth_errors()
    fov = float(np.mean(gathered.fov_errors)) if gathered.fov_errors else None
    ours = Errors.of(len(used), truth.errors(np.stack(list(gathered.poses.values()))), depth.get("ours"), fov)
    poses = _baseline_poses(sequence, used, truth)
    rows = {name: Errors.of(len(used), depth=depth.get(name)) for name in ("constant_depth", "ramp")}
    rows |= {name: Errors.of(len(used), truth.errors(p) if p is not None else None) for name, p in poses.items()}
    return Evaluation(sequence.name, stride, len(truth.rows), ours, rows)


def _baseline_poses(sequence: TruthSequence, used: list[int], truth: _TruePoses) -> dict[str, FloatArray | None]:
    """Trajectories [N, 4, 4] of the baselines; None for one that lacks what it is to be given."""
    count, step, intrinsics = len(used), truth.first_step(), sequence.intrinsics
    two_view = None
    if intrinsics is not None and len(truth.rows):
        two_view = baselines.two_view(map(sequence.frame, used), intrinsics, sequence.source_size)
    return {
        "straight_line": baselines.straight_line(count),
        "constant_velocity": None if step is None else baselines.constant_velocity(count, step),
        "static": baselines.static(count),
        "two_view": two_view,
    }


@dataclass(frozen=True)
class Summary:
    """Means over the sequences with truth of one figure: ours, and the best trivial baseline of each sequence."""

    sequences: int
    ours: float
    best_trivial: float


def summarise(evaluations: list[Evaluation], figure: str) -> Summary | None:
    """``figure`` names an error of `Errors`; None if no sequence has truth for it."""
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
    return Summary(len(pairs), float(ours), float(best))
