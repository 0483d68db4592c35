"""Report of a run: metrics lines and the final summary."""

import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from training.losses import Losses
from training.schedule import StepPlan


class StepReport:
    """Aggregates steps into metrics lines; waits for the device once a line."""

    def __init__(self, workers: int, every: int) -> None:
        self._workers, self._every = workers, every
        self._start = time.monotonic()
        self._total_frames = 0
        self._skipped = 0
        self.restart()

    def restart(self) -> None:
        """Start a new line, so that a pause does not count as slowness."""
        self._begin = time.monotonic()
        self._frames = 0
        self._parts: list[dict[str, Tensor]] = []
        self._norms: list[Tensor] = []

    def add(self, plan: StepPlan, losses: Losses, norm: Tensor) -> dict[str, Any] | None:
        """A line's values after every ``every`` steps, else None."""
        frames = plan.clips * plan.shape.frames * self._workers
        self._frames += frames
        self._total_frames += frames
        self._parts.append(losses.parts | {"loss": losses.total.detach()})
        self._norms.append(norm)
        if len(self._parts) < self._every:
            return None
        norms = torch.stack(self._norms)
        usable = norms.isfinite()
        self._skipped += int((~usable).sum())
        means = {name: float(torch.stack([p[name] for p in self._parts])[usable].mean()) for name in self._parts[0]}
        line = {
            **means,
            "gradient_norm": float(norms[usable].mean()),
            "frames": self._total_frames,
            "skipped_steps": self._skipped,
            "frames_per_s": self._frames / (time.monotonic() - self._begin),
            "peak_gb": torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else 0.0,
        }
        self.restart()
        return line

    def summary(self, steps: int, now: float) -> dict[str, Any]:
        """For the model card."""
        seconds = now - self._start
        return {
            "steps": steps,
            "frames": self._total_frames,
            "hours": seconds / 3600,
            "mean_frames_per_s": self._total_frames / seconds,
            "skipped_steps": self._skipped,
            "peak_gb": torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else 0.0,
        }


def readable(values: Mapping[str, float]) -> str:
    """Figures in one line, three digits each."""
    return "  ".join(
        f"{name} {value:.3g}" if abs(value) < 100 else f"{name} {value:.0f}" for name, value in values.items()
    )
