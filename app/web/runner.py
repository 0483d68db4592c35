"""Runs the queue: each job is a process of the command line program, which ends with the server.

A job that the server's end interrupts is queued again at the next start and goes on with ``--resume``.
"""

import asyncio
import logging
import os
import shutil
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from stream_recon.app.core.output_file import new_file
from stream_recon.app.core.platform import END, INTERRUPT, KILL, child_options
from stream_recon.app.core.progress_file import VARIABLE, read_progress
from stream_recon.app.export.target import pack
from stream_recon.app.result.lock import LOCK_NAME, FolderLock
from stream_recon.app.web.commands import arguments, checked_store, export_file, export_target, is_live, is_stored
from stream_recon.app.web.data_folder import DataFolder
from stream_recon.app.web.jobs import LANES, JobStore, WebJob
from stream_recon.app.web.limits import USER, ConflictError
from stream_recon.app.web.threads import LONG_SECONDS, in_thread
from stream_recon.app.web.transfer import TRANSFER
from stream_recon.app.web.uploads import MAX_BYTES, StoredUpload
from stream_recon.configs.errors import OutputError, StreamReconError

PROGRAM = (sys.executable, "-m", "stream_recon")
"""The command line program."""
NICENESS = 5
"""Lower priority of jobs, so that pages and scans stay quick."""
STOP_SECONDS = 60.0
"""Time that a stopped job gets to finish its files before it is killed."""
LOCK_SECONDS = 120.0
"""Time to wait for a result that another process still writes to."""
MAX_ERROR = 600
"""Characters of an error line."""
DONE, BAD_INPUT, INTERRUPTED = 0, 2, 130
"""Exit codes of the program."""

log = logging.getLogger(__name__)


class JobRunner:
    """Starts queued jobs. Used from the server's event loop."""

    def __init__(self, store: JobStore, data: DataFolder, runs: int, scans: int, program: Sequence[str]) -> None:
        """``runs``, ``scans``: reconstructions and scans at a time; ``program``: the command that runs them."""
        self._store, self._data, self._program = store, data, program
        self.take: Callable[[Path, str], Awaitable[StoredUpload]]
        """Stores a file that was fetched, by its title; see `Uploads.take`."""
        self._limits = {"work": runs, "export": 1, "scan": scans}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._stopping: dict[int, str] = {}
        """Jobs that are being stopped, with the reason."""
        self._closing = False
        self.on_ended: Callable[[WebJob], None] = lambda job: None
        """Called after each job's end."""

    def start(self) -> None:
        """Start the jobs that wait, as far as the limits allow."""
        for lane, kinds in LANES.items():
            while not self._closing:
                running = sum(1 for number in self._tasks if (job := self._store.get(number)) and job.kind in kinds)
                job = self._store.next_queued(lane) if running < self._limits[lane] else None
                if job is None:
                    break
                self._store.set_state(job.id, "running")
                self._tasks[job.id] = asyncio.create_task(self._run(job), name=f"job {job.id}")

    async def stop(self, number: int, reason: str = "") -> None:
        """Stop a job as Ctrl-C does: it keeps what is finished. A second call kills it.

        ``reason``: one line for the user, where it was not the user.
        """
        job = self._store.get(number)
        if job is None or not job.is_open:
            return
        if job.state == "queued":
            self._store.set_state(number, "stopped", reason)
            return
        process = self._processes.get(number)
        again = number in self._stopping
        if again and reason:
            return
        self._stopping[number] = reason
        if process is not None:
            _send(process, KILL if again else INTERRUPT)
            asyncio.get_running_loop().call_later(STOP_SECONDS, _send, process, KILL)

    def resume(self, number: int) -> None:
        """Queue a stopped or failed job again. Raises ConflictError where its source cannot be read again."""
        job = self._store.get(number)
        if job is None or job.is_open or job.state == "done":
            return
        if job.kind == "reconstruct" and is_live(job.source) and (self._data.path / job.name).exists():
            raise ConflictError("a camera or stream cannot be read again: what was reconstructed is kept")
        is_elsewhere = is_live(job.source) or is_stored(job.source)
        if job.kind == "reconstruct" and not is_elsewhere and not Path(job.source).exists():
            raise ConflictError("its upload is gone: upload it again")
        self._store.set_state(number, "queued")
        self.start()

    def progress(self, number: int) -> dict[str, Any]:
        """Progress of a job's last run; see `ProgressFile`."""
        return read_progress(self._file(number))

    def progress_time(self, number: int) -> float | None:
        """Time of the last progress of a job's present run, in seconds since 1970; None before the first."""
        with suppress(OSError):
            return self._file(number).stat().st_mtime if "step" in self.progress(number) else None
        return None

    def knows(self, name: str) -> bool:
        """Whether a job has, or will have, a result of this name."""
        return bool(self._store.of_result(name))

    def viewer_port(self, name: str) -> int | None:
        """Port of the live viewer of a result's run; None where none is open."""
        for number in self._processes:
            job = self._store.get(number)
            if job is not None and job.name == name and job.kind in ("reconstruct", "scan"):
                port = self.progress(number).get("port")
                return port if isinstance(port, int) else None
        return None

    async def close(self) -> None:
        """Interrupt all jobs, which the next start continues."""
        self._closing = True
        for process in self._processes.values():
            _send(process, END)
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=STOP_SECONDS / 2)
        for process in self._processes.values():
            _send(process, KILL)

    async def _run(self, job: WebJob) -> None:
        USER.set(self._store.users.get(job.id, ""))
        try:
            await self._wait_for_lock(job)
            code = None if job.id in self._stopping else await self._work(job)
            if code == DONE and job.kind == "export":
                await in_thread(_pack, job, self._data, limit_s=LONG_SECONDS)
            if code == DONE and "output" in job.options:
                self._store.add("store", job.name, job.options["output"], {})
            self._note_end(job, code)
        except Exception as error:  # a job that cannot be run ends, whatever the reason
            if not isinstance(error, OSError | StreamReconError):
                log.exception("job %s", job.id)
            self._store.set_state(job.id, "failed", str(error)[:MAX_ERROR] or type(error).__name__)
        finally:
            self._processes.pop(job.id, None)
            self._tasks.pop(job.id, None)
            self._stopping.pop(job.id, None)
            ended = self._store.get(job.id)
            if ended is not None:
                self.on_ended(ended)
            if not self._closing:
                self.start()

    async def _work(self, job: WebJob) -> int:
        """Run a job, whose input is fetched first if it is in a store; gives the exit code."""
        if job.kind == "store":
            words = "put", str(self._data.path / job.name), checked_store(job.source)
            return await self._execute(job, (*TRANSFER, *words))
        if job.kind == "reconstruct" and is_stored(job.source):
            file = self._data.jobs / str(job.id) / "input"
            room = min(MAX_BYTES, await in_thread(self._data.free_bytes, USER.get()))
            code = await self._execute(job, (*TRANSFER, "get", checked_store(job.source), str(file), str(room)))
            if code != DONE:
                return code
            stored = await self.take(file, job.source.rpartition("/")[2])
            job = replace(job, source=str(stored.path))
            self._store.set_source(job.id, job.source)
        return await self._execute(job, (*self._program, *arguments(job, self._data)))

    async def _execute(self, job: WebJob, words: Sequence[str]) -> int:
        folder = self._data.jobs / str(job.id)
        folder.mkdir(mode=0o700, exist_ok=True)
        self._file(job.id).unlink(missing_ok=True)
        if job.kind == "export":
            export_target(job, self._data).parent.mkdir(mode=0o700, exist_ok=True)
        environment = {**os.environ, VARIABLE: str(self._file(job.id)), "COLUMNS": "200"}
        for name in ("out.txt", "err.txt"):
            (folder / name).unlink(missing_ok=True)
        with new_file(folder / "out.txt", 0o600) as out, new_file(folder / "err.txt", 0o600) as err:
            process = await asyncio.create_subprocess_exec(
                *words,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=self._data.path,
                env=environment,
                **child_options(NICENESS if job.kind != "scan" else 0),
            )
        self._processes[job.id] = process
        if job.id in self._stopping:
            _send(process, INTERRUPT)
        return await process.wait()

    def _file(self, number: int) -> Path:
        return self._data.jobs / str(number) / "progress.json"

    def _note_end(self, job: WebJob, code: int | None) -> None:
        if code == DONE:
            self._store.set_state(job.id, "done")
        elif job.id in self._stopping or code is None:
            self._store.set_state(job.id, "stopped", self._stopping.get(job.id, ""))
        elif code == INTERRUPTED or self._closing:
            self._store.set_state(job.id, "queued" if self._closing else "stopped")
        else:
            self._store.set_state(job.id, "failed", _reason(code, self.progress(job.id).get("error")))

    async def _wait_for_lock(self, job: WebJob) -> None:
        """Wait until a process of an earlier server has left the result. Raises OutputError."""
        folder = self._data.path / job.name
        for _ in range(int(LOCK_SECONDS)):
            if job.kind == "export" or not (folder / LOCK_NAME).exists() or job.id in self._stopping:
                return
            try:
                await in_thread(lambda: FolderLock(folder).release())
            except OutputError:
                await asyncio.sleep(1)
        raise OutputError(f"another process writes to {job.name}: wait for it, then resume")


def _send(process: asyncio.subprocess.Process, number: int) -> None:
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.send_signal(number)


def _reason(code: int, message: object) -> str:
    """One line on why a job failed, in the program's words where it gave them."""
    if message:
        return str(message)[:MAX_ERROR]
    if code < 0:
        is_kill = -code == KILL
        ended = "it was killed, maybe for want of memory" if is_kill else f"signal {-code} ended it"
        return f"{ended}: resume it"
    return f"the program ended with code {code}: see the job's err.txt"


def _pack(job: WebJob, data: DataFolder) -> None:
    """Pack an export's folder into the ZIP file that is downloaded."""
    target, file = export_target(job, data), export_file(job, data)
    if target != file:
        pack(target, file)
        shutil.rmtree(target, ignore_errors=True)
