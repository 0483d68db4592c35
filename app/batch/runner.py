"""A batch from its scenes to its summary: what is finished is kept, what is not is given to workers."""

import logging
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any, Protocol

from stream_recon.app.batch.chunks import window_units
from stream_recon.app.batch.jobs import (
    Event,
    Job,
    JobProgress,
    Model,
    ModelLoader,
    Outcome,
    Seconds,
    StageTimer,
    longest_first,
    windows_folder,
)
from stream_recon.app.batch.page import write_page
from stream_recon.app.batch.plan import Batch
from stream_recon.app.batch.scene import guarded
from stream_recon.app.batch.stitch import Stitching, Stitchings
from stream_recon.app.batch.summary import Row, Totals, summary_record, write_summary
from stream_recon.app.batch.workers import Pool
from stream_recon.app.pipeline.process import StopRequest, stop_on_signals
from stream_recon.configs.errors import InputError, OutputError

logger = logging.getLogger(__name__)

WRITE_SECONDS = 5.0
"""The summary is renewed no more often than this while the batch runs."""


class Listener(Protocol):
    """Told how a batch goes. ``progress`` may come from another thread."""

    def begin(self, rows: Sequence[Row], frames: int) -> None:
        """Some rows are finished already; the others have about so many frames together."""

    def progress(self, frames: int) -> None:
        """So many of these frames are done."""

    def finished(self, row: Row) -> None: ...


def run_batch(batch: Batch, loader: ModelLoader, pool: Pool, listener: Listener) -> dict[str, Any]:
    """Do what is not done yet, and write summary and page; gives what the summary holds.

    Raises:
        OutputError: another batch writes there; a folder in the way; the disk is full (what is finished is kept).
        StreamReconError: the model cannot be loaded.
    """
    phases = StageTimer("start")
    loader.check()
    with batch.store.lock(), stop_on_signals() as stop, ExitStack() as stack:
        stack.callback(pool.end)
        # Workers are started, and load the model, while its file is hashed and finished results are checked.
        described = stack.enter_context(ThreadPoolExecutor(1, "hash")).submit(loader.describe)
        pool.begin(len(batch.scenes) * batch.split)
        phases.enter("hash the weights")
        model = described.result()
        phases.enter("check what is there")
        run = _BatchRun(batch, model, listener, phases)
        batch.store.clear_work(run.under_way())
        try:
            run.work(pool, stop)
        except BaseException:
            # On a full disk the summary of the scenes so far may not fit either.
            with suppress(OutputError):
                run.write(interrupted=True)
            raise
        finally:
            phases.enter("tidy")
            run.close()
            with suppress(OutputError):
                batch.store.clear_work(run.under_way())
        return run.write(interrupted=stop.requested)


class _BatchRun:
    def __init__(self, batch: Batch, model: Model, listener: Listener, phases: StageTimer) -> None:
        self._batch = batch
        self._store = batch.store
        self._model = model
        self._listener = listener
        self._disk_full: str | None = None
        """What could not be written for want of room; nothing is begun after that."""
        self._phases = phases
        self._window_phases: dict[str, Seconds] = {}
        self._written = 0.0
        self._units = {unit.name: unit for unit in batch.units(model)}
        self._rows = {name: self._first_row(unit) for name, unit in self._units.items()}
        self._stitchings = Stitchings()
        self._windows_failed: dict[str, str] = {}
        self._frames: dict[str, int] = {}

    def _first_row(self, unit: Job) -> Row:
        scene = unit.scene
        row = Row(unit.name, scene.dataset, unit.key["scene"]["path"], unit.frames)
        check = self._store.check(unit.name, unit.key)
        if check.result is None:
            return replace(row, reason=check.reason)
        return replace(row, status="done", resumed=True, result=check.result, reason="")

    def under_way(self) -> list[tuple[str, dict[str, Any]]]:
        """Names and keys of units that are neither finished nor given up: what is done of them is worth keeping."""
        units = [unit for name, unit in self._units.items() if self._rows[name].status not in ("done", "failed")]
        for unit in units if self._batch.split > 1 else ():
            with suppress(InputError):
                units = [*units, *window_units(unit, self._batch.split)]
        return [(unit.name, unit.key) for unit in units]

    def work(self, pool: Pool, stop: StopRequest) -> None:
        """Everything that is not done, until ``stop`` is requested.

        Raises:
            OutputError: the disk is full.
        """
        todo = [unit for name, unit in self._units.items() if self._rows[name].status != "done"]
        units, refused = [], []
        for unit in todo:
            try:
                units += self._parts(unit)
            except InputError as error:
                refused.append(Outcome(unit.name, "failed", reason=str(error)))
        self._listener.begin(list(self._rows.values()), sum(unit.frames or 0 for unit in units))
        for outcome in refused:
            self._settle(outcome)
        if units:
            self._phases.enter("work")
            self._share_out(units, pool, stop)
        if self._stitchings.names:
            self._phases.enter("join")
        for name in self._stitchings.names:
            if stop.requested:
                return
            self._join(name, pool, stop)
        for name, row in self._rows.items():
            if row.status == "done":
                self._store.remove(windows_folder(name))

    def _share_out(self, units: list[Job], pool: Pool, stop: StopRequest) -> None:
        pool.run(longest_first(units), self._on_event, stop)
        self._check_room()

    def _check_room(self) -> None:
        """Raises OutputError once something did not fit."""
        if self._disk_full is not None:
            raise OutputError(
                f"{self._disk_full}. The disk is full: make room, then the same command goes on from there"
            )

    def _parts(self, unit: Job) -> list[Job]:
        """The unit itself; or those of its windows that are not done. Raises InputError if it cannot be split."""
        windows = [unit] if self._batch.split == 1 else window_units(unit, self._batch.split)
        if len(windows) == 1:
            return [unit]
        self._begin_stitching(unit.name, windows)
        done = [w.name for w in windows if self._store.check(w.name, w.key).result is not None]
        for name in done:
            self._stitchings.take(name, now=False)
        return [w for w in windows if w.name not in done]

    def _begin_stitching(self, name: str, windows: Sequence[Job]) -> None:
        stitching = Stitching(self._units[name], windows, self._store, self._model)
        self._stitchings.begin(stitching, name, windows)

    def _on_event(self, event: Event) -> None:
        if isinstance(event, JobProgress):
            self._count(event.name, event.frames)
            return
        if event.result is not None:
            self._count(event.name, event.result["frames"])
        if event.name in self._units:
            self._settle(event)
        else:
            self._note_window(event)

    def _count(self, name: str, frames: int) -> None:
        self._frames[name] = frames
        self._listener.progress(sum(self._frames.values()))

    def _note_window(self, outcome: Outcome) -> None:
        if outcome.status == "done":
            self._window_phases[outcome.name] = (outcome.result or {}).get("phases", {})
            self._stitchings.take(outcome.name, now=True)
        elif outcome.status == "disk full":
            self._disk_full = outcome.reason
        elif outcome.status == "failed":
            number = int(outcome.name.rsplit("/", 1)[1]) + 1
            self._windows_failed.setdefault(
                self._stitchings.scene_of(outcome.name), f"window {number}: {outcome.reason}"
            )

    def _join(self, name: str, pool: Pool, stop: StopRequest) -> None:
        outcome = self._joined(name)
        if outcome.misplaced:
            logger.warning("%s: %s; reading it through", name, outcome.reason)
            self._store.remove(windows_folder(name))
            windows = [replace(window, read_through=True) for window in self._stitchings.windows(name)]
            self._begin_stitching(name, windows)
            self._share_out(windows, pool, stop)
            if stop.requested:
                return
            outcome = self._joined(name)
        self._settle(outcome)
        self._check_room()

    def _joined(self, name: str) -> Outcome:
        failed = self._windows_failed.get(name)
        if failed is not None:
            return Outcome(name, "failed", reason=failed)
        outcome = guarded(name, lambda: self._stitchings.finish(name))
        if outcome.result is None:
            return outcome
        # Those of an earlier batch are left out: their time was another one's.
        known = [self._window_phases.get(window.name) for window in self._stitchings.windows(name)]
        return replace(outcome, result={**outcome.result, "window_phases": [seconds for seconds in known if seconds]})

    def close(self) -> None:
        """Let go of what is half stitched."""
        self._stitchings.close()

    def _settle(self, outcome: Outcome) -> None:
        """A scene has come to its end."""
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
        """Summary and page as of now. Raises OutputError."""
        record = self._record(interrupted=interrupted)
        write_summary(self._batch, record)
        write_page(self._store, record, list(self._rows.values()))
        return record

    def _record(self, *, interrupted: bool) -> dict[str, Any]:
        rows = list(self._rows.values())
        totals = Totals.of(rows, self._phases.seconds)
        return summary_record(self._batch, self._model, rows, totals, interrupted=interrupted)
