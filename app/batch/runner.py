"""Run of a batch, from scenes to summary: keeps what is finished, runs the other jobs, stitches split scenes."""

import errno
import logging
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any, Protocol

from stream_recon.app.batch import jobs as batch_jobs
from stream_recon.app.batch.chunks import chunk_jobs
from stream_recon.app.batch.page import write_page
from stream_recon.app.batch.plan import Batch
from stream_recon.app.batch.scene import run_guarded
from stream_recon.app.batch.stitch import SceneStitcher
from stream_recon.app.batch.summary import Row, Totals, check_summary_files, summary_record, write_summary
from stream_recon.app.batch.workers import Pool
from stream_recon.app.core.cancel import Cancel, cancel_on_signals
from stream_recon.configs.errors import InputError, OutputError

logger = logging.getLogger(__name__)

WRITE_SECONDS = 5.0
"""Shortest time between two writes of the summary while the batch runs: large batches have long summaries."""


class BatchListener(Protocol):
    """Observer of a batch. ``progress`` may be called from another thread."""

    def begin(self, rows: Sequence[Row], frames: int) -> None:
        """Some rows may be done already; ``frames`` is the expected number of frames of the others."""

    def progress(self, frames: int) -> None:
        """Number of these frames that are done."""

    def finished(self, row: Row) -> None: ...


def run_batch(batch: Batch, loader: batch_jobs.ModelLoader, pool: Pool, listener: BatchListener) -> dict[str, Any]:
    """Run all jobs that are not done, and write summary and page. Returns the content of the summary.

    Raises:
        OutputError: another batch writes there; other files are there; the disk is full (finished scenes are kept).
        StreamReconError: the model cannot be loaded.
    """
    timer = batch_jobs.StageTimer("start")
    loader.check()
    with batch.store.lock(), cancel_on_signals() as cancel, ExitStack() as stack:
        check_summary_files(batch.store)
        stack.callback(pool.shutdown)
        # Workers start and load the model while its file is hashed and finished results are checked.
        described = stack.enter_context(ThreadPoolExecutor(1, "hash")).submit(loader.describe)
        pool.start(len(batch.scenes) * batch.split)
        timer.enter("hash the weights")
        model = described.result()
        timer.enter("check what is there")
        run = _BatchRun(batch, model, listener, timer)
        batch.store.clear_workspaces(run.unfinished_jobs())
        try:
            run.work(pool, cancel)
        except BaseException:
            # On a full disk the summary of the scenes so far may not fit either.
            with suppress(OutputError):
                run.write(interrupted=True)
            raise
        finally:
            timer.enter("tidy")
            run.close()
            with suppress(OutputError):
                batch.store.clear_workspaces(run.unfinished_jobs())
        return run.write(interrupted=cancel.requested)


class _BatchRun:
    """State of all scenes during a run."""

    def __init__(
        self, batch: Batch, model: batch_jobs.ModelIdentity, listener: BatchListener, timer: batch_jobs.StageTimer
    ) -> None:
        self._batch, self._store = batch, batch.store
        self._model = model
        self._listener = listener
        self._disk_full: str | None = None
        """Error of the write that did not fit. No job is started after it."""
        self._timer = timer
        self._chunk_phases: dict[str, batch_jobs.Seconds] = {}
        self._written = 0.0
        self._jobs = {job.name: job for job in batch.jobs(model)}
        self._rows = {name: self._first_row(job) for name, job in self._jobs.items()}
        self._stitchers: dict[str, SceneStitcher] = {}
        """Of split scenes, in order."""
        # One thread for all scenes: stitching one keeps several cores busy.
        self._stitching = ThreadPoolExecutor(1, "stitching")
        self._failed_chunks: dict[str, str] = {}
        self._frames: dict[str, int] = {}

    def _first_row(self, job: batch_jobs.Job) -> Row:
        scene = job.scene
        row = Row(job.name, scene.dataset, job.key["scene"]["path"])
        check = self._store.check(job.name, job.key)
        if check.result is None:
            return replace(row, reason=check.reason)
        return replace(row, status="done", resumed=True, result=check.result, reason="")

    def unfinished_jobs(self) -> list[tuple[str, dict[str, Any]]]:
        """Names and keys of jobs that are neither done nor failed, and whose partial results are worth keeping."""
        jobs = [job for name, job in self._jobs.items() if self._rows[name].status not in ("done", "failed")]
        for job in jobs if self._batch.split > 1 else ():
            with suppress(InputError):
                jobs = [*jobs, *chunk_jobs(job, self._batch.split)]
        return [(job.name, job.key) for job in jobs]

    def work(self, pool: Pool, cancel: Cancel) -> None:
        """Run all jobs that are not done, until ``cancel`` is requested. Raises OutputError: the disk is full."""
        jobs, refused = [], []
        for job in (job for name, job in self._jobs.items() if self._rows[name].status != "done"):
            try:
                jobs += self._split(job)
            except InputError as error:
                refused.append(batch_jobs.JobResult(job.name, "failed", reason=str(error)))
        self._listener.begin(list(self._rows.values()), sum(job.frames or 0 for job in jobs))
        for outcome in refused:
            self._finish_scene(outcome)
        if jobs:
            self._timer.enter("work")
            self._run_jobs(jobs, pool, cancel)
        if self._stitchers:
            self._timer.enter("join")
        for name in list(self._stitchers):
            if cancel.requested:
                return
            self._stitch(name, pool, cancel)
        for name, row in self._rows.items():
            if row.status == "done":
                self._store.remove_results(batch_jobs.chunks_folder(name))

    def _run_jobs(self, jobs: list[batch_jobs.Job], pool: Pool, cancel: Cancel) -> None:
        pool.run(batch_jobs.longest_first(jobs), self._on_event, cancel)
        self._check_disk()

    def _check_disk(self) -> None:
        """Raises OutputError if something did not fit."""
        if self._disk_full is not None:
            reason = f"{self._disk_full}. The disk is full: make room, then run the same command to continue"
            raise OutputError(reason) from OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _split(self, job: batch_jobs.Job) -> list[batch_jobs.Job]:
        """The job itself, or those of its chunks that are not done. Raises InputError if it cannot be split."""
        chunks = [job] if self._batch.split == 1 else chunk_jobs(job, self._batch.split)
        if len(chunks) == 1:
            return [job]
        self._begin_stitching(job.name, chunks)
        done = [chunk.name for chunk in chunks if self._store.check(chunk.name, chunk.key).result is not None]
        for name in done:
            self._add_chunk(name)
        return [chunk for chunk in chunks if chunk.name not in done]

    def _begin_stitching(self, name: str, chunks: Sequence[batch_jobs.Job]) -> None:
        if name in self._stitchers:
            self._stitchers[name].close()
        self._stitchers[name] = SceneStitcher(self._jobs[name], chunks, self._store, self._model)

    def _stitcher_of(self, chunk: str) -> tuple[str, SceneStitcher]:
        """Name of the scene to which the chunk of that name belongs, and its stitcher."""
        return next(each for each in self._stitchers.items() if chunk in [job.name for job in each[1].chunks])

    def _add_chunk(self, chunk: str) -> None:
        """Stitch a finished chunk, in parallel to the workers."""
        _, stitcher = self._stitcher_of(chunk)
        stitcher.added.append(self._stitching.submit(stitcher.add_chunk, chunk))

    def close(self) -> None:
        """Discard scenes that are not finished."""
        self._stitching.shutdown(cancel_futures=True)
        for stitcher in self._stitchers.values():
            stitcher.close()

    def _on_event(self, event: batch_jobs.Event) -> None:
        if isinstance(event, batch_jobs.JobProgress):
            self._report_frames(event.name, event.frames)
            return
        if event.result is not None:
            self._report_frames(event.name, event.result["frames"])
        if event.name in self._jobs:
            self._finish_scene(event)
        else:
            self._finish_chunk(event)

    def _report_frames(self, name: str, frames: int) -> None:
        self._frames[name] = frames
        self._listener.progress(sum(self._frames.values()))

    def _finish_chunk(self, outcome: batch_jobs.JobResult) -> None:
        if outcome.status == "done":
            self._chunk_phases[outcome.name] = (outcome.result or {}).get("phases", {})
            self._stitcher_of(outcome.name)[1].last_end = time.monotonic()
            self._add_chunk(outcome.name)
        elif outcome.status == "disk full":
            self._disk_full = outcome.reason
        elif outcome.status == "failed":
            number = int(outcome.name.rsplit("/", 1)[1]) + 1
            self._failed_chunks.setdefault(self._stitcher_of(outcome.name)[0], f"chunk {number}: {outcome.reason}")

    def _stitch(self, name: str, pool: Pool, cancel: Cancel) -> None:
        """Finish a split scene. Repeats its chunks without seeking if they number frames differently."""
        outcome = self._stitch_outcome(name)
        if outcome.frames_mismatch:
            logger.warning("%s: %s; decoding it from the start", name, outcome.reason)
            self._store.remove_results(batch_jobs.chunks_folder(name))
            chunks = [replace(chunk, read_through=True) for chunk in self._stitchers[name].chunks]
            self._begin_stitching(name, chunks)
            self._run_jobs(chunks, pool, cancel)
            if cancel.requested:
                return
            outcome = self._stitch_outcome(name)
        self._finish_scene(outcome)
        self._check_disk()

    def _stitch_outcome(self, name: str) -> batch_jobs.JobResult:
        failed = self._failed_chunks.get(name)
        if failed is not None:
            return batch_jobs.JobResult(name, "failed", reason=failed)
        outcome = run_guarded(name, lambda: self._stitchers[name].finish())
        if outcome.result is None:
            return outcome
        # Chunks of an earlier batch are left out: their time was another batch's.
        known = [self._chunk_phases.get(chunk.name) for chunk in self._stitchers[name].chunks]
        return replace(outcome, result={**outcome.result, "chunk_phases": [seconds for seconds in known if seconds]})

    def _finish_scene(self, outcome: batch_jobs.JobResult) -> None:
        if outcome.status == "interrupted":
            return
        if outcome.status == "disk full":
            self._disk_full = outcome.reason
            return
        row = replace(self._rows[outcome.name], status=outcome.status, reason=outcome.reason, result=outcome.result)
        self._rows[outcome.name] = row
        self._listener.finished(row)
        if time.monotonic() - self._written > WRITE_SECONDS:
            write_summary(self._batch, self._record(interrupted=True))
            self._written = time.monotonic()

    def write(self, *, interrupted: bool) -> dict[str, Any]:
        """Write summary and page of the current state. Raises OutputError."""
        record = self._record(interrupted=interrupted)
        write_summary(self._batch, record)
        write_page(self._store, record, list(self._rows.values()))
        return record

    def _record(self, *, interrupted: bool) -> dict[str, Any]:
        rows = list(self._rows.values())
        totals = Totals.from_rows(rows, self._timer.seconds)
        return summary_record(self._batch, self._model, rows, totals, interrupted=interrupted)
