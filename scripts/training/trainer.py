"""The training loop: draw a step, take its clips and update the weights, on the device, without waiting on the host."""

import dataclasses
import logging
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stream_recon.configs.errors import ResourceError
from stream_recon.configs.schema import Preset
from training.checkpoint import save_weights
from training.clips import GROUP_STEPS, ClipSupply
from training.clock import LAG, DistributedTimer
from training.distributed import Workers
from training.flat import AveragedWeights, FlatParameters
from training.losses import Criterion, Losses, LossWeights, draw_pairs
from training.metrics_file import MetricsFile
from training.model import MatchPairs, TrainingModel, TrainingOutput, compile_for_training
from training.optimizer import Optimizer, OptimizerConfig, group_parameters
from training.report import StepReport, readable
from training.schedule import (
    ClipShape,
    RateConfig,
    Schedule,
    ScheduleConfig,
    StepPlan,
    draw_dense_frames,
    draw_others,
    draw_times,
    learning_rate,
)
from training.synthetic import SceneGenerator, SceneShares
from training.targets import build_targets, match_targets, perturb_motion
from training.validator import Validator

logger = logging.getLogger(__name__)

EARLY_STEPS = 10
"""First steps that are logged individually: these show how long compiling takes."""
MAX_COMPILED_ERROR = 0.2
"""Largest mean difference of log depth between compiled and plain network; rounding causes a tenth of it."""


@dataclass(frozen=True)
class TrainingConfig:
    """Settings of a run."""

    minutes: float
    seed: int = 0
    max_steps: int | None = None
    average_decay: float = 0.999
    validate_clips: int = 96
    """Held-out clips; rounded up to whole steps of every worker. 0: no validation."""
    validation_shape: ClipShape = field(default_factory=lambda: ClipShape(16, 12, 16))
    save_seconds: float = 60.0
    validate_seconds: float = 300.0
    metrics_steps: int = 50
    compile: bool = False
    tiles: Path | None = None
    """Photo tiles for the scenes' textures."""
    shares: SceneShares = field(default_factory=SceneShares)
    """Composition of the training clips; validation has its own."""
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    rate: RateConfig = field(default_factory=RateConfig)
    losses: LossWeights = field(default_factory=LossWeights)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)


class Trainer:
    """One worker of a run.

    Args:
        model: on the worker's device; its parameters move into one vector here.
        folder: where the first worker writes weights and metrics.
    """

    def __init__(
        self, model: TrainingModel, preset: Preset, config: TrainingConfig, workers: Workers, folder: Path
    ) -> None:
        self.model, self.config, self.workers = model, config, workers
        self._preset = preset
        self._folder = folder
        self._patch = preset.network.patch_size
        self._flex = config.compile and workers.device.type == "cuda"
        self.parameters = FlatParameters(group_parameters(model))
        workers.share_(self.parameters.values)
        self.average = AveragedWeights(self.parameters, config.average_decay)
        self._optimizer = Optimizer(self.parameters, config.optimizer)
        self._criterion = Criterion(config.losses, compile_depth=config.compile)
        self.schedule = Schedule(config.schedule, preset.stream, config.seed)
        own = np.random.SeedSequence([config.seed, workers.rank])
        self._rng = np.random.default_rng(own.spawn(1)[0])
        # Scene seeds are above 2**32, so none is one of validation.
        scene_seed = 2**32 + int(own.generate_state(1)[0])
        generator = SceneGenerator(workers.device, scene_seed, config.tiles, config.compile, shares=config.shares)
        self.clips = ClipSupply(generator, self._patch, workers.device)
        self.ready_at = 0.0
        self._validator: Validator | None = None
        if config.compile:
            prepare_compiler()
            compile_for_training(model.network)

    def run(self) -> dict[str, Any]:
        """Train until the time or the steps are used up; returns the final summary, on all workers."""
        config, workers = self.config, self.workers
        metrics = MetricsFile(self._folder) if workers.leads else None
        if metrics is not None:
            metrics.write("start", **self._description())
        clock = DistributedTimer(workers)
        if config.compile:
            self.compile_shapes()
            # The learning rate follows the remaining time: compiling may take a large part of a short run.
            for _ in range(LAG + 1):
                self.ready_at = clock.now()
        # Before the first step: it gives the figures of the initial weights, and failures come early.
        validation = self.validate(metrics, 0)
        report = StepReport(workers.count, config.metrics_steps)
        step, seconds = 0, 0.0
        saved_at = validated_at = 0.0
        following = self.schedule.draw(0.0)
        while seconds < config.minutes * 60 and step != config.max_steps:
            progress = self.progress(step, seconds)
            if step % GROUP_STEPS == 0:
                # Drawn a group ahead, so that its clips are rendered in the background.
                plan, following = following, self.schedule.draw(progress)
                self.clips.begin(plan, following)
            rate = learning_rate(config.rate, step, progress)
            losses, norm = self.step(plan, rate, step)
            line = report.add(plan, losses, norm)
            if metrics is not None and line is not None:
                metrics.write("step", step=step + 1, progress=progress, learning_rate=rate, **line)
                logger.info("step %d  %.0f %%  %s", step + 1, 100 * progress, readable(line))
            elif workers.leads and step < EARLY_STEPS:
                logger.info("step %d  %s  loss %.3f", step + 1, plan.shape, float(losses.total.detach()))
            step += 1
            seconds = clock.now()
            if seconds - validated_at > config.validate_seconds:
                self.validate(metrics, step, hard=False)
                validated_at = seconds
                report.restart()
            if seconds - saved_at > config.save_seconds:
                self._save(metrics, step)
                saved_at = seconds
        self._save(metrics, step)
        validation = self.validate(metrics, step) or validation
        summary = report.summary(step, time.monotonic()) | {"validation": validation}
        if metrics is not None:
            metrics.write("end", **self._description(), **summary)
        return summary

    def step(self, plan: StepPlan, rate: float, step: int) -> tuple[Losses, Tensor]:
        """One update from new clips; returns the losses and the gradient's norm before clipping, on the device."""
        losses = self.forward_backward(plan)
        self.workers.average_(self.parameters.collect_gradient())
        norm = self._optimizer.step(rate)
        self.average.update(step)
        return losses, norm

    def forward_backward(self, plan: StepPlan) -> Losses:
        """Compute the gradient of new clips into the parameters."""
        device, frames = self.workers.device, plan.shape.frames
        batch = self.clips.take(plan)
        pairs = to_device(draw_pairs(self._rng, frames), device)
        targets = build_targets(batch, plan.visibility.scale_frames, self._patch, pairs)
        times = to_device(draw_times(self._rng, plan.clips, frames, plan.visibility.scale_frames), device)
        dense = draw_dense_frames(self._rng, frames)
        dense_frames, match_pairs, match_truth = to_device(dense, device), None, None
        if self.model.config.keyframe_matcher:
            others = to_device(draw_others(self._rng, dense, frames), device)
            match_truth = match_targets(batch, targets.scale, dense_frames, others, self._patch)
            match_pairs = MatchPairs(others, perturb_motion(match_truth.motion))
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            output = self.model(
                batch.images,
                plan.visibility,
                times,
                flex=self._flex,
                dense_frames=dense_frames,
                match_pairs=match_pairs,
            )
        losses = self._criterion(output, batch, targets, pairs, dense_frames, match_truth)
        losses.total.backward()  # type: ignore[no-untyped-call]
        return losses

    def progress(self, step: int, seconds: float) -> float:
        """Share of the run that is done, in [0, 1]: the larger one of time and steps."""
        by_steps = step / self.config.max_steps if self.config.max_steps else 0.0
        by_time = (seconds - self.ready_at) / max(self.config.minutes * 60 - self.ready_at, 1e-6)
        return min(1.0, max(by_steps, by_time, 0.0))

    def compile_shapes(self) -> None:
        """Run every shape once. Each worker compiles its share first; the others read the results from the disk cache.

        Concurrent runs share that cache too. Each starts at the shape with its seed's number, so a few runs of no steps
        compile for another one.
        """
        begin = time.monotonic()
        shapes, rank, count = self.config.schedule.shapes(), self.workers.rank, self.workers.count
        first = self.config.seed % len(shapes)
        shapes = shapes[first:] + shapes[:first]
        for turn in range(count):
            for shape in shapes[(rank + turn) % count :: count]:
                plan = self.schedule.plan(shape)
                self.forward_backward(plan)
                self.parameters.collect_gradient()
                if turn == 0:
                    self.compare_uncompiled(plan)
            if turn == 0:
                self.workers.wait()
        self.workers.wait()
        if self.workers.leads:
            logger.info("compiled %d shapes in %.0f s", len(shapes), time.monotonic() - begin)

    def compare_uncompiled(self, plan: StepPlan) -> None:
        """Compare the compiled network with the plain one: compilers make errors for single shapes, hidden by training.

        Raises:
            ResourceError: the compiled network gives other depths.
        """
        device, frames = self.workers.device, plan.shape.frames
        images = self.clips.take(plan).images
        times = torch.arange(frames, device=device).expand(plan.clips, -1)
        dense_frames = to_device(draw_dense_frames(np.random.default_rng(0), frames), device)

        def log_depth(clips: int, flex: bool) -> Tensor:
            output: TrainingOutput = self.model(
                images[:clips], plan.visibility, times[:clips], flex=flex, dense_frames=dense_frames
            )
            return output.prediction.head_maps[:1, :, 0].detach()

        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            compiled = log_depth(plan.clips, self._flex)
            with torch.compiler.set_stance("force_eager"):
                # One clip is enough, and fits in memory.
                off = float((log_depth(1, False) - compiled).abs().mean())
        if not off < MAX_COMPILED_ERROR:
            raise ResourceError(
                f"compiled for {plan.shape} the network has an error of {off:.2f} in log depth: train with --no-compile"
            )
        logger.info("compiled for %s: error of log depth %.4f", plan.shape, off)

    def validate(self, metrics: MetricsFile | None, step: int, *, hard: bool = True) -> dict[str, Any]:
        """Figures of the averaged weights; {} without validation. All workers call it.

        ``hard``: also on clips of rare cases, which takes several times as long. The metrics file also gets the figures
        of the weights without averaging.
        """
        if self.config.validate_clips == 0:
            return {}
        begin = time.monotonic()
        self.workers.share_(self.parameters.values)  # equal again, should single bits have diverged
        if self._validator is None:
            self._validator = Validator(
                self.model,
                self.schedule,
                self.workers,
                clips=self.config.validate_clips,
                shape=self.config.validation_shape,
                patch=self._patch,
                tiles=self.config.tiles,
                compile_scenes=self.config.compile,
            )
        with self.average.in_use():
            measure = self._validator.measure if hard else self._validator.measure_usual
            figures = measure(self._flex)
        latest = self._validator.measure_usual(self._flex)
        if metrics is not None:
            took = time.monotonic() - begin
            metrics.write("validation", step=step, took=took, figures=figures, latest=latest)
            logger.info("validation at step %d  not averaged  %s", step, readable(latest["all"]))
            for kind, values in figures.items():
                logger.info("validation at step %d  %s  %s", step, kind, readable(values))
        return figures

    def _save(self, metrics: MetricsFile | None, step: int) -> None:
        if metrics is None:
            return
        save_weights(
            self._folder,
            self.parameters.named(self.model.network, self.average.values),
            self.parameters.named(self.model.auxiliary, self.average.values),
        )
        metrics.write("saved", step=step)

    def _description(self) -> dict[str, Any]:
        device = self.workers.device
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
        return {
            "preset": self._preset.name,
            "workers": self.workers.count,
            "device": name,
            "torch": torch.__version__,
            "parameters": sum(p.numel() for p in self.model.network.parameters()),
            "minutes": self.config.minutes,
            "seed": self.config.seed,
            "learning_rate_peak": self.config.rate.peak,
            "average_decay": self.config.average_decay,
            "shares": dataclasses.asdict(self.config.shares),
            "frames_per_step": self.config.schedule.frames_per_step * self.workers.count,
        }


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a small host tensor without waiting for the device."""
    if device.type != "cuda":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)


def prepare_compiler() -> None:
    """Room for one compilation of each module for each shape.

    TF32 stays off: all heavy matrix work is in bf16 anyway, and poses multiplied in TF32 would be off by
    hundredths of a degree.
    """
    import torch._dynamo

    torch._dynamo.config.recompile_limit = 512
    torch._dynamo.config.accumulated_recompile_limit = 8192
