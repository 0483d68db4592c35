"""Stages of a scene after its frames, and the record of the finished scene."""

import dataclasses
from functools import partial
from typing import Any

from stream_recon.app.batch.jobs import Job
from stream_recon.app.core.cancel import Cancelled
from stream_recon.app.evaluation.evaluator import Evaluator
from stream_recon.app.result.lock import FolderLock
from stream_recon.app.result.run_record import VERDICT, RunSummary
from stream_recon.app.run.listeners import RunObserver
from stream_recon.app.run.options import RunOptions
from stream_recon.app.stages.chain import RunPlan, run_stages
from stream_recon.app.stages.place import ScaleStage
from stream_recon.app.stages.stage import StageContext


def job_options(job: Job) -> RunOptions:
    """The job's options; of a chunk those for the frames alone, since the stages follow once it is stitched."""
    return (
        job.options
        if job.chunk is None
        else dataclasses.replace(job.options, mapping="off", scale_from=None, mesh=False)
    )


def run_scene_stages(job: Job, lock: FolderLock, evaluator: Evaluator, observer: RunObserver) -> dict[str, Any]:
    """Run the stages of a scene that its result lacks, and judge it, before it is published.

    Returns for the manifest the verdict, and ``metric_scale``, where one was asked for: ``scale`` and ``error`` as in
    ``run.json``, or ``reason`` where the scene shows no source of scale and keeps its arbitrary scale. Raises
    StreamReconError, Cancelled.
    """
    frames = job.options.frames
    open_again = partial(job.scene.open, frames.stride, frames.max_frames)
    context = StageContext(lock.folder, open_again, observer, [evaluator], lock=lock)
    end = run_stages(RunPlan.of(job_options(job)), context)
    if not end.is_complete:
        raise Cancelled
    record: dict[str, Any] = {} if end.verdict is None else {VERDICT: end.verdict.to_json()}
    unit = context.result.metric_scale
    if ScaleStage.name in end.failed:
        record["metric_scale"] = {"reason": str(end.failed[ScaleStage.name])}
    elif unit is not None:
        record["metric_scale"] = {"scale": unit.T_metric_own.scale, "error": unit.error}
    return record


def manifest_record(summary: RunSummary, evaluator: Evaluator, seconds: float, device: str) -> dict[str, Any]:
    """Record of a finished scene, for its manifest and the summary."""
    metrics, plot = evaluator.scene_metrics(), evaluator.plot()
    warnings = [*summary.warnings]
    if evaluator.truth_error is not None:
        warnings.append(f"depth was evaluated only up to a damaged file of ground truth: {evaluator.truth_error}")
    return {
        "frames": summary.frames_reconstructed,
        "keyframes": summary.keyframes,
        "damaged": summary.frames_damaged,
        "seconds": round(seconds, 3),
        "device": device,
        "warnings": warnings,
        "metric": evaluator.metric,
        "figures": dataclasses.asdict(metrics) if metrics is not None else None,
        "plot": dataclasses.asdict(plot),
    }
