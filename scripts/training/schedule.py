"""Shapes of each step's clips and the learning rate, drawn from one random generator that all workers share."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from stream_recon.configs.schema import StreamConfig

MAX_TIME = 2000
"""Largest gap between scale frames and streamed frames, in cached frames."""
MAX_MATCH_LAG = 8
"""Frames back that the keyframe matcher is trained on."""


@dataclass(frozen=True)
class ClipShape:
    """Shape of a clip, in frames and patches."""

    frames: int
    rows: int
    """Of patches."""
    columns: int


@dataclass(frozen=True)
class Visibility:
    """The cache's extent: the fields of `StreamConfig` that training varies."""

    scale_frames: int
    window: int
    camera_window: int


@dataclass(frozen=True)
class StepPlan:
    """Clips and cache extent of one step."""

    shape: ClipShape
    clips: int
    visibility: Visibility


Mix = tuple[tuple[float, int, int, int], ...]
"""Shapes to draw from: weight, frames, rows, columns each."""


@dataclass(frozen=True)
class ScheduleConfig:
    """Distribution of steps. Each (length, grid) pair costs a compilation, so there are few."""

    frames_per_step: int = 384
    early: Mix = (
        (0.17, 2, 12, 16),
        (0.22, 8, 12, 16),
        (0.28, 16, 12, 16),
        (0.09, 24, 16, 12),
        (0.10, 16, 10, 18),
        (0.08, 24, 18, 10),
        (0.06, 8, 8, 26),
    )
    late: Mix = (
        (0.04, 2, 12, 16),
        (0.05, 8, 12, 16),
        (0.20, 16, 12, 16),
        (0.21, 32, 12, 16),
        (0.10, 64, 12, 16),
        (0.07, 128, 12, 16),
        (0.10, 24, 16, 12),
        (0.10, 16, 10, 18),
        (0.08, 24, 18, 10),
        (0.05, 8, 8, 26),
    )
    late_from: float = 0.6
    """Progress from which the late mix is drawn; 0: from the start."""
    own_visibility: float = 0.5
    """Share of steps with the preset's own cache extent."""
    scale_frames: tuple[int, ...] = (1, 2, 4, 6, 8)
    windows: tuple[int, ...] = (4, 8, 16)
    camera_windows: tuple[int, ...] = (16, 64)

    def shapes(self) -> list[ClipShape]:
        """All shapes that can occur, the early ones first."""
        mixes = [self._usable(mix) for mix in ((self.early, self.late) if self.late_from > 0 else (self.late,))]
        return list(dict.fromkeys(shape for mix in mixes for _, shape in mix))

    def mix(self, progress: float) -> list[tuple[float, ClipShape]]:
        """Weights (adding up to 1) and shapes to draw from at this progress in [0, 1]."""
        usable = self._usable(self.late if progress >= self.late_from else self.early)
        total = sum(weight for weight, _ in usable)
        return [(weight / total, shape) for weight, shape in usable]

    def _usable(self, mix: Mix) -> list[tuple[float, ClipShape]]:
        usable = [(m[0], ClipShape(*m[1:])) for m in mix if m[1] <= self.frames_per_step]
        assert usable, "frames_per_step is below the shortest clip"
        return usable


class Schedule:
    """Draws step plans; equal seeds and equal progress give equal plans."""

    def __init__(self, config: ScheduleConfig, stream: StreamConfig, seed: int) -> None:
        self.config = config
        self._own = Visibility(stream.scale_frames, stream.window, stream.camera_window)
        self._rng = np.random.default_rng([seed, 1])

    def draw(self, progress: float) -> StepPlan:
        """The next step at this progress in [0, 1]."""
        weights, shapes = zip(*self.config.mix(progress), strict=True)
        shape = shapes[int(self._rng.choice(len(shapes), p=weights))]
        return self.plan(shape, self._draw_visibility())

    def plan(self, shape: ClipShape, visibility: Visibility | None = None) -> StepPlan:
        """A step of this shape with as many clips as the budget holds; the preset's visibility if none is given."""
        visibility = visibility or self._own
        fitting = Visibility(min(visibility.scale_frames, shape.frames), visibility.window, visibility.camera_window)
        return StepPlan(shape, max(1, self.config.frames_per_step // shape.frames), fitting)

    def _draw_visibility(self) -> Visibility:
        config, rng = self.config, self._rng
        own = rng.random() < config.own_visibility
        drawn = Visibility(
            int(rng.choice(config.scale_frames)),
            int(rng.choice(config.windows)),
            int(rng.choice(config.camera_windows)),
        )
        return self._own if own else drawn


def draw_times(rng: np.random.Generator, clips: int, frames: int, scale_frames: int) -> Tensor:
    """Time coordinates int64 [clips, frames], increasing from 0.

    Half of the clips have no gaps. In a long stream the scale frames are far back, and keyframes have gaps. So
    the others have a jump after the scale frames, small gaps, or both.
    """
    times = np.broadcast_to(np.arange(frames), (clips, frames)).copy()
    for clip in np.flatnonzero(rng.random(clips) >= 0.5):
        kind = rng.integers(3)
        if kind != 0 and scale_frames < frames:
            times[clip, scale_frames:] += int(math.exp(rng.uniform(0, math.log(MAX_TIME)))) - 1
        if kind != 1:
            gaps = rng.integers(0, 4, frames) * (rng.random(frames) < 0.3)
            gaps[:scale_frames] = 0
            times[clip] += np.cumsum(gaps)
    return torch.from_numpy(times)


def draw_dense_frames(rng: np.random.Generator, frames: int) -> Tensor:
    """Frames whose depth is trained in a step, int64 [ceil(frames / 2)], ascending: one of each pair of neighbours.

    Full-resolution maps cost a third of the network, and neighbours are nearly equal.
    """
    count = (frames + 1) // 2
    chosen = 2 * np.arange(count) + rng.integers(0, 2, count)
    return torch.from_numpy(np.minimum(chosen, frames - 1))


def draw_others(rng: np.random.Generator, frames: Tensor, count: int) -> Tensor:
    """A frame to match each of the ``frames`` int64 [D] of ``count`` with, int64 [D].

    It is up to `MAX_MATCH_LAG` frames before it or, where there is none, after it.
    """
    gap = rng.integers(1, max(2, min(MAX_MATCH_LAG, count - 1) + 1), len(frames))
    frame = frames.numpy()
    others = np.where(frame >= gap, frame - gap, np.minimum(frame + gap, count - 1))
    return torch.from_numpy(others)


@dataclass(frozen=True)
class RateConfig:
    """Learning rate: warm-up, plateau and half a cosine within one run."""

    peak: float = 1e-3
    warmup_steps: int = 200
    hold_until: float = 0.25
    """Progress up to which the rate stays at its peak."""
    final: float = 0.02
    """Share of the peak at the end."""


def learning_rate(config: RateConfig, step: int, progress: float) -> float:
    """The rate of ``step`` (from 0) of a run at ``progress`` in [0, 1]."""
    warmup = min(1.0, (step + 1) / config.warmup_steps)
    past = min(1.0, max(0.0, (progress - config.hold_until) / (1 - config.hold_until)))
    cosine = (1 + math.cos(math.pi * past)) / 2
    return config.peak * warmup * (config.final + (1 - config.final) * cosine)
