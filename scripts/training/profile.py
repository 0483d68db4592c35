"""Profile of a training step."""

import torch

from training.clips import GROUP_STEPS
from training.schedule import ClipShape, StepPlan
from training.trainer import Trainer

SHAPE = ClipShape(16, 12, 16)
WARMUP_STEPS = 8


def profile_steps(trainer: Trainer, steps: int = 20, shape: ClipShape = SHAPE, kernel_rows: int = 30) -> str:
    """Train a few steps of one shape; a table of milliseconds for each part, then the slowest kernels.

    "clips" is the time that a step waits for its clips. On a GPU these are rendered in parallel with the other parts,
    and slow them down.
    """
    plan = trainer.schedule.plan(shape)
    frames = plan.clips * shape.frames
    _train(trainer, plan, WARMUP_STEPS)
    trainer.timer.totals()
    _train(trainer, plan, steps)
    totals = trainer.timer.totals()
    total = sum(totals.values())
    lines = [f"{plan.clips} clips of {shape.frames} frames, {shape.rows} x {shape.columns} patches, {steps} steps"]
    lines.append(f"{'part':<12}{'ms a step':>12}{'share':>8}{'frames/s':>12}")
    for part, seconds in [*totals.items(), ("all", total)]:
        lines.append(
            f"{part:<12}{1000 * seconds / steps:>12.2f}{seconds / total:>8.1%}{frames * steps / seconds:>12.0f}"
        )
    if torch.cuda.is_available():
        lines.append(f"peak memory {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB")
    return "\n".join([*lines, _kernels(trainer, plan_steps=4, shape=shape, rows=kernel_rows)])


def _train(trainer: Trainer, plan: StepPlan, steps: int) -> None:
    for step in range(steps):
        if step % GROUP_STEPS == 0:
            trainer.clips.begin(plan, plan)
        trainer.step(plan, 1e-5, step)


def _kernels(trainer: Trainer, plan_steps: int, shape: ClipShape, rows: int) -> str:
    """torch.profiler's table of a few steps, by device time (host time where there is no device)."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    key = "self_cpu_time_total"
    if torch.cuda.is_available():
        activities.append(torch.profiler.ProfilerActivity.CUDA)
        key = "self_cuda_time_total"
    plan = trainer.schedule.plan(shape)
    with torch.profiler.profile(activities=activities) as profiler:
        _train(trainer, plan, plan_steps)
        trainer.timer.totals()
    return str(profiler.key_averages().table(sort_by=key, row_limit=rows, max_name_column_width=90))
