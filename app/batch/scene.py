"""Reconstruction of one job: source to result folder, with resume, refinement, metric scale and evaluation.

`run_job` is the boundary of a scene: its errors become the outcome and stop no other scene.
"""

import dataclasses
import errno
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from stream_recon.app.batch.chunks import FrameMismatchError, has_readable_frame, open_job
from stream_recon.app.batch.jobs import Job, Outcome, StageTimer
from stream_recon.app.batch.manifest import DepthChecksums, remove_result
from stream_recon.app.batch.store import Store
from stream_recon.app.core.cancel import Cancelled
from stream_recon.app.core.types import FrameEngine
from stream_recon.app.evaluation.evaluator import Evaluator
from stream_recon.app.result.cameras import revision_since_causal
from stream_recon.app.result.files import replace_json
from stream_recon.app.result.folder import ResultFolder, causal_result, read_result, read_run
from stream_recon.app.result.lock import FolderLock
from stream_recon.app.result.resume import PartialResult, read_partial_result
from stream_recon.app.result.run_record import REFINEMENT, RUN_NAME, VERDICT, RunInfo, RunSummary
from stream_recon.app.result.writer import CloudTime
from stream_recon.app.run.listeners import RunObserver
from stream_recon.app.run.options import RunOptions
from stream_recon.app.run.session import Output, Session
from stream_recon.app.sources.source import Source
from stream_recon.app.stages.chain import RunPlan, run_stages
from stream_recon.app.stages.place import ScaleStage
from stream_recon.app.stages.stage import StageContext
from stream_recon.configs.errors import InputError, StreamReconError

logger = logging.getLogger(__name__)

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
"""Errors of a full disk and of a full quota."""


def run_job(
    engine: FrameEngine, job: Job, store: Store, on_frames: Callable[[int], None], timer: StageTimer | None = None
) -> Outcome:
    """Reconstruct a job into the store. Any error becomes the reason of the outcome.

    Args:
        on_frames: called with the number of frames written, from another thread.
        timer: has the time before the job that counts for it, such as loading the model.
    """
    return run_guarded(job.name, lambda: _reconstruct(engine, job, store, on_frames, timer or StageTimer("open")))


def run_guarded(name: str, work: Callable[[], dict[str, Any]]) -> Outcome:
    """Outcome of ``work``, which returns the record for the manifest or raises any exception."""
    try:
        return Outcome(name, "done", work())
    except Cancelled:
        return Outcome(name, "interrupted", reason="interrupted")
    except FrameMismatchError as error:
        return Outcome(name, "failed", reason=str(error), frames_mismatch=True)
    except (StreamReconError, OSError) as error:
        return Outcome(name, "disk full" if _is_disk_full(error) else "failed", reason=str(error))
    except Exception as error:
        logger.exception("scene %s", name)
        return Outcome(name, "failed", reason=f"{type(error).__name__}: {error}")


def _is_disk_full(error: BaseException | None) -> bool:
    """Whether an error, or a cause of it, is a full disk."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in DISK_FULL:
            return True
        error = error.__cause__
    return False


def _reconstruct(
    engine: FrameEngine, job: Job, store: Store, on_frames: Callable[[int], None], phases: StageTimer
) -> dict[str, Any]:
    """Reconstruct, refine, scale and publish. Returns the manifest's record, with the time of the last stage added.

    Raises:
        Cancelled: Ctrl-C was pressed.
        StreamReconError: no frame can be read, or nothing written.
    """
    counted = False

    def count(frames: int) -> None:
        nonlocal counted
        if not counted:
            counted = True
            phases.enter("frames")
        on_frames(frames)

    phases.enter("open")
    store.check_target(job.name)
    # Chunks of a split scene are evaluated once they are stitched.
    truth = job.scene.truth() if job.chunk is None else None
    begun = time.monotonic()
    with store.job_workspace(job.name, job.key) as lock:
        engine.reset()
        with open_job(job) as source:
            info = RunInfo.from_engine(engine, source.name, {"source": str(job.scene.path), **job.key["options"]})
            previous = read_partial_scene(lock.folder, info, lambda: Evaluator(truth, count))
            phases.enter("first frames")
            depth = DepthChecksums(lock.folder)
            try:
                # Nobody looks at a scene before it is complete, and a refinement writes the cloud again.
                cloud: CloudTime = "never" if _options(job).mapping == "full" else "end"
                output = Output(lock.folder, info, lock=lock, partial=previous.unfinished, cloud=cloud)
                listeners: list[Evaluator | DepthChecksums] = [previous.evaluator, depth]
                summary = previous.summary() if previous.complete else _run(engine, job, source, output, listeners)
            except InputError:
                if job.chunk is None or has_readable_frame(job):
                    raise
                # The video ends, or breaks off, before this chunk: the chunks before it are a result all the same.
                return {"frames": 0}
        if summary.interrupted:
            raise Cancelled
        staged = run_scene_stages(job, lock, previous.evaluator, phases)
        phases.enter("publish")
        replace_json(lock.folder / RUN_NAME, {**read_run(lock.folder), "phases": phases.seconds})
        lock.release()
        result = manifest_record(summary, previous.evaluator, time.monotonic() - begun, engine.device)
        result |= {**staged, "phases": phases.seconds}
        store.publish(lock.folder, job.name, job.key, result, depth.checksums)
    return {**result, "phases": phases.seconds}


def _options(job: Job) -> RunOptions:
    """The job's options; of a chunk those for the frames alone, since the stages follow once it is stitched."""
    return job.options if job.chunk is None else replace(job.options, mapping="off", scale_from=None, mesh=False)


def _run(
    engine: FrameEngine, job: Job, source: Source, output: Output, listeners: Sequence[Evaluator | DepthChecksums]
) -> RunSummary:
    """Reconstruct all frames of the job, or those that a previous batch has not reconstructed."""
    open_again = partial(open_job, job, resumed=True)
    with (
        open_again() if output.partial is not None else nullcontext(source) as begun,
        Session(engine, begun, open_again, _options(job), output) as session,
    ):
        return session.reconstruct(listeners)


def run_scene_stages(job: Job, lock: FolderLock, evaluator: Evaluator, observer: RunObserver) -> dict[str, Any]:
    """Run the stages of a scene that its result lacks, and judge it, before it is published.

    Returns for the manifest the verdict, and ``metric_scale``, where one was asked for: ``scale`` and ``error`` as in
    ``run.json``, or ``reason`` where the scene shows no source of scale and keeps its arbitrary scale. Raises
    StreamReconError, Cancelled.
    """
    frames = job.options.frames
    open_again = partial(job.scene.open, frames.stride, frames.max_frames)
    context = StageContext(lock.folder, open_again, observer, [evaluator], lock=lock)
    end = run_stages(RunPlan.of(_options(job)), context)
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


@dataclass(frozen=True)
class PartialScene:
    """Result of an interrupted batch in a working folder. At most one of ``unfinished`` and ``complete`` is set."""

    evaluator: Evaluator
    """Has received the frames of that result."""
    unfinished: PartialResult | None = None
    complete: ResultFolder | None = None
    """Result of all frames, to be refined or published."""

    @property
    def is_refined(self) -> bool:
        return self.complete is not None and REFINEMENT in self.complete.run

    def summary(self) -> RunSummary:
        """The part of the complete run's summary that a batch needs, from its ``run.json``."""
        assert self.complete is not None
        counts = self.complete.run["frames"]
        return RunSummary(
            interrupted=False,
            frames_read=counts["read"],
            frames_reconstructed=counts["reconstructed"],
            keyframes=counts["keyframes"],
            frames_damaged=counts["damaged"],
            warnings=tuple(self.complete.run["warnings"]),
        )


def read_partial_scene(work: Path, info: RunInfo, new_evaluator: Callable[[], Evaluator]) -> PartialScene:
    """Read the result in a working folder; what cannot be resumed is removed. Raises OutputError."""
    try:
        scene = _read_result(work, info, new_evaluator())
    except StreamReconError as error:
        logger.info("%s: starting from the first frame", error)
        scene = None
    if scene is None:
        remove_result(work, keep_folder=True)
        return PartialScene(new_evaluator())
    return scene


def _read_result(work: Path, info: RunInfo, evaluator: Evaluator) -> PartialScene | None:
    if not (work / RUN_NAME).exists():
        return None
    result = read_partial_result(work) if read_run(work)["interrupted"] else read_result(work)
    if result is None or (isinstance(result, PartialResult) and result.is_torn):
        return None  # a scene of a batch is cheap to begin anew
    for camera in result.cameras:
        evaluator.add(causal_result(work, camera))
    if isinstance(result, PartialResult):
        result.check(info)
        return PartialScene(evaluator, unfinished=result)
    scene = PartialScene(evaluator, complete=result)
    if scene.is_refined:
        evaluator.revise(revision_since_causal(result.cameras))
    return scene
