"""Reconstruction of one job: source to published result.

`run_job` is the boundary of a scene: its errors become the outcome and stop no other scene.
"""

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

from stream_recon.app.batch.chunks import FrameMismatchError, has_readable_frame, open_job
from stream_recon.app.batch.jobs import Job, JobResult, StageTimer
from stream_recon.app.batch.manifest import DepthChecksums
from stream_recon.app.batch.partial_scene import read_partial_scene
from stream_recon.app.batch.scene_stages import job_options, manifest_record, run_scene_stages
from stream_recon.app.batch.store import Store
from stream_recon.app.core.cancel import Cancelled
from stream_recon.app.core.output_file import is_disk_full
from stream_recon.app.core.types import FrameEngine
from stream_recon.app.evaluation.evaluator import Evaluator
from stream_recon.app.result.files import replace_json
from stream_recon.app.result.folder import read_run
from stream_recon.app.result.run_record import RUN_NAME, VIEWS, RunInfo, RunSummary
from stream_recon.app.run.session import Output, Session
from stream_recon.app.sources.source import Source
from stream_recon.configs.errors import InputError, StreamReconError

logger = logging.getLogger(__name__)


def run_job(
    engine: FrameEngine, job: Job, store: Store, on_frames: Callable[[int], None], timer: StageTimer | None = None
) -> JobResult:
    """Reconstruct a job into the store. Any error becomes the reason of the outcome.

    Args:
        on_frames: called with the number of frames written, from another thread.
        timer: has the time before the job that counts for it, such as loading the model.
    """
    return run_guarded(job.name, lambda: _reconstruct(engine, job, store, on_frames, timer or StageTimer("open")))


def run_guarded(name: str, work: Callable[[], dict[str, Any]]) -> JobResult:
    """Outcome of ``work``, which returns the record for the manifest or raises any exception."""
    try:
        return JobResult(name, "done", work())
    except Cancelled:
        return JobResult(name, "interrupted", reason="interrupted")
    except FrameMismatchError as error:
        return JobResult(name, "failed", reason=str(error), frames_mismatch=True)
    except (StreamReconError, OSError) as error:
        return JobResult(name, "disk full" if is_disk_full(error) else "failed", reason=str(error))
    except Exception as error:
        logger.exception("scene %s", name)
        return JobResult(name, "failed", reason=f"{type(error).__name__}: {error}")


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
    started_at = time.monotonic()
    with store.job_workspace(job.name, job.key) as lock:
        engine.reset()
        with open_job(job) as source:
            rig = {} if source.rig is None else {VIEWS: source.rig.to_json()}
            options = {"source": str(job.scene.path), **job.key["options"], **rig}
            info = RunInfo.from_engine(engine, source.name, options)
            previous = read_partial_scene(lock.folder, info, lambda: Evaluator(truth, count))
            phases.enter("first frames")
            depth = DepthChecksums(lock.folder)
            try:
                # Nobody looks at a scene before it is complete, and a refinement writes the cloud again.
                output = Output(
                    lock.folder,
                    info,
                    lock=lock,
                    partial=previous.unfinished,
                    cloud="never" if job_options(job).mapping == "full" else "end",
                )
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
        result = manifest_record(summary, previous.evaluator, time.monotonic() - started_at, engine.device)
        result |= {**staged, "phases": phases.seconds}
        store.publish(lock.folder, job.name, job.key, result, depth.checksums)
    return {**result, "phases": phases.seconds}


def _run(
    engine: FrameEngine, job: Job, source: Source, output: Output, listeners: Sequence[Evaluator | DepthChecksums]
) -> RunSummary:
    """Reconstruct all frames of the job, or those that a previous batch has not reconstructed."""
    open_again = partial(open_job, job, resumed=True)
    with (
        open_again() if output.partial is not None else nullcontext(source) as opened,
        Session(engine, opened, open_again, job_options(job), output) as session,
    ):
        return session.reconstruct(listeners)
