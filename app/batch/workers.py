"""Worker pools: jobs in this process or in several, with one model loaded in each."""

import logging
import os
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

from stream_recon.app.batch.jobs import Event, Job, JobProgress, JobResult, ModelLoader, StageTimer
from stream_recon.app.batch.scene import run_job
from stream_recon.app.batch.store import Store
from stream_recon.app.core.cancel import Cancel
from stream_recon.app.core.cores import limit_cores, usable_cores
from stream_recon.app.core.cpu_threads import initial_threads
from stream_recon.app.core.process import exit_with_parent, memory_errors
from stream_recon.app.core.worker import start_process
from stream_recon.configs.errors import ResourceError, StreamReconError

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.2
"""Longest wait for workers before Ctrl-C is looked for."""
HASHED_ELSEWHERE = "hashed by another process"
"""Value for a worker's weights hash, which each job brings, so that no worker computes it."""
STOP_SECONDS = 20.0
"""Time for busy workers to stop before they are killed."""
PROGRESS_SECONDS = 0.25
"""Time between progress events of a worker: more would not show on a terminal."""
MAX_ATTEMPTS = 3
"""Attempts at a job whose worker is lost. More are pointless: the scene may be the cause."""


class WorkQueue:
    """Queue of jobs, which also forwards their events. True while there is a job to start."""

    def __init__(self, jobs: Sequence[Job], on_event: Callable[[Event], None]) -> None:
        self._waiting = deque(jobs)
        self._attempts = dict.fromkeys((job.name for job in jobs), 0)
        self._on_event = on_event
        self._disk_full = False

    def __bool__(self) -> bool:
        return bool(self._waiting) and not self._disk_full

    def __len__(self) -> int:
        return len(self._waiting)

    def pop(self) -> Job:
        job = self._waiting.popleft()
        self._attempts[job.name] += 1
        return job

    def retry(self, job: Job, reason: str) -> None:
        """Requeue the job of a lost worker at the front; after `MAX_ATTEMPTS` it fails with ``reason``."""
        if self._attempts[job.name] < MAX_ATTEMPTS:
            self._waiting.appendleft(job)
        else:
            self._on_event(JobResult(job.name, "failed", reason=reason))

    def report(self, event: Event) -> None:
        """Forward a worker's event. After a full disk no further job is started."""
        if isinstance(event, JobResult) and event.status == "disk full":
            self._disk_full = True
        self._on_event(event)


class Pool(ABC):
    """Runs jobs."""

    def start(self, jobs: int) -> None:  # noqa: B027 - a pool may have nothing to start
        """Start what takes time and needs no job, for at most ``jobs`` jobs. `run` or `shutdown` follows.

        Errors are raised by `run`.
        """

    def shutdown(self) -> None:  # noqa: B027
        """Stop unused workers, and wait for those that end after `run`."""

    @abstractmethod
    def run(self, jobs: Sequence[Job], on_event: Callable[[Event], None], cancel: Cancel) -> None:
        """Run the jobs in this order. Each job that is started ends in one `JobResult`.

        None is started after ``cancel`` was requested or the disk was full. Raises StreamReconError where no worker can
        load the model.
        """


class SerialPool(Pool):
    """Runs one job after the other in this process."""

    def __init__(self, loader: ModelLoader, store: Store) -> None:
        self._loader = loader
        self._store = store

    def run(self, jobs: Sequence[Job], on_event: Callable[[Event], None], cancel: Cancel) -> None:
        timer: StageTimer | None = StageTimer("load")
        with memory_errors():
            engine = self._loader.load(jobs[0].weights_sha256)
        queue = WorkQueue(jobs, on_event)
        while queue and not cancel.requested:
            job = queue.pop()
            outcome = run_job(engine, job, self._store, _progress_callback(job, queue.report), timer)
            timer = None
            cancel.requested |= outcome.status == "interrupted"
            queue.report(outcome)


def _progress_callback(job: Job, on_event: Callable[[Event], None]) -> Callable[[int], None]:
    last = 0.0

    def report(frames: int) -> None:
        nonlocal last
        if time.monotonic() - last > PROGRESS_SECONDS:
            last = time.monotonic()
            on_event(JobProgress(job.name, frames))

    return report


@dataclass(eq=False)
class Worker:
    """State of one process in the pool."""

    number: int
    process: SpawnProcess
    pipe: "Connection[Any, Any]"
    ready: bool = False
    """It has loaded the model."""
    job: Job | None = None


class ProcessPool(Pool):
    """Several processes, each with its GPU or its share of the CPU. One that dies is replaced, its job retried."""

    def __init__(self, loader: ModelLoader, store: Store, workers: int) -> None:
        assert workers >= 1
        self._loader = loader
        self._store = store
        self._count = workers
        self._workers: list[Worker] = []
        self._gpus: list[str] = []
        self._sharing = workers
        """Workers between which the cores are divided."""
        self._ending: list[Worker] = []
        """Idle workers that were terminated."""

    def start(self, jobs: int) -> None:
        """Start workers, which load the model."""
        self._join_ending()  # their memory may be needed
        self._sharing = max(min(self._count, jobs), 1)
        new = [self._start_worker(number) for number in range(len(self._workers), min(self._count, jobs))]
        self._workers += new
        if new:
            # Looked up while the workers import their modules; both take seconds.
            self._gpus = self._loader.gpus()
            for worker in new:
                self._send_gpu(worker)

    def shutdown(self) -> None:
        self._stop_workers()
        self._join_ending()

    def run(self, jobs: Sequence[Job], on_event: Callable[[Event], None], cancel: Cancel) -> None:
        self._queue = WorkQueue(jobs, on_event)
        try:
            self.start(len(jobs))
            while self._queue or any(worker.job is not None for worker in self._workers):
                if cancel.requested:
                    break
                wait([worker.pipe for worker in self._workers], POLL_SECONDS)
                self._workers = [self._serve(worker) for worker in self._workers]
        finally:
            self._stop_workers()

    def _start_worker(self, number: int) -> Worker:
        threads = max(1, usable_cores() // self._sharing)
        arguments = (self._loader, self._store, threads, time.monotonic())
        return Worker(number, *start_process(f"worker-{number}", _work, *arguments))

    def _send_gpu(self, worker: Worker) -> None:
        gpu = self._gpus[worker.number % len(self._gpus)] if self._gpus else None
        # `_serve` finds out that a worker is gone.
        with suppress(OSError):
            worker.pipe.send(gpu)

    def _serve(self, worker: Worker) -> Worker:
        """Handle a worker's messages and give it a job. Returns the worker, or its replacement."""
        try:
            while worker.pipe.poll():
                self._handle(worker, worker.pipe.recv())
        except (EOFError, OSError):
            return self._replace(worker)
        if worker.ready and worker.job is None and self._queue:
            worker.job = self._queue.pop()
            try:
                worker.pipe.send(worker.job)
            except OSError:
                return self._replace(worker)
        return worker

    def _handle(self, worker: Worker, message: Any) -> None:
        if isinstance(message, StreamReconError):
            raise message
        if message is None:
            worker.ready = True
        elif isinstance(message, JobProgress):
            self._queue.report(message)
        else:
            assert isinstance(message, JobResult) and worker.job is not None
            job, worker.job = worker.job, None
            if message.status == "interrupted":
                # A signal was sent to this worker, not to this process.
                self._retry(job, "was stopped")
            else:
                self._queue.report(message)

    def _replace(self, worker: Worker) -> Worker:
        worker.process.join()
        code = worker.process.exitcode or 0
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        logger.warning("%s %s", worker.process.name, how)
        worker.pipe.close()
        if not worker.ready:
            raise ResourceError(f"a worker {how} while it loaded the model: is there memory for so many --workers?")
        if worker.job is not None:
            self._retry(worker.job, how)
        successor = self._start_worker(worker.number)
        self._send_gpu(successor)
        return successor

    def _retry(self, job: Job, how: str) -> None:
        reason = f"its worker {how}, {MAX_ATTEMPTS} times: perhaps there is too little memory for so many --workers"
        self._queue.retry(job, reason)

    def _stop_workers(self) -> None:
        """Terminate all workers, and wait for busy ones, which clean up. Idle ones are waited for later.

        Idle workers end without unloading the model in order, which takes seconds on a GPU.
        """
        stopped, self._workers = self._workers, []
        for worker in stopped:
            worker.process.terminate()
            worker.pipe.close()
        self._ending += [worker for worker in stopped if worker.job is None]
        self._join([worker for worker in stopped if worker.job is not None])

    def _join_ending(self) -> None:
        ending, self._ending = self._ending, []
        self._join(ending)

    def _join(self, workers: list[Worker]) -> None:
        deadline = time.monotonic() + STOP_SECONDS
        for worker in workers:
            worker.process.join(max(0.0, deadline - time.monotonic()))
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()


def _work(pipe: "Connection[Any, Any]", loader: ModelLoader, store: Store, threads: int, started_at: float) -> None:
    """Body of a worker. Receives its GPU, sends None once the model is loaded, then for each job progress and outcome.

    ``started_at``: start of the process by `time.monotonic`.
    """
    loading = StageTimer("start", started_at)
    exit_with_parent()
    limit_cores(threads)
    try:
        loading.enter("import")
        loader.prepare()
        loading.enter("wait for a GPU's name")
        gpu = pipe.recv()
        loading.enter("load")
        if gpu is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = gpu
        # Torch reads the number of threads when it is imported, which in a new process is here.
        with initial_threads(threads), memory_errors():
            engine = loader.load(weights_sha256=HASHED_ELSEWHERE)
    except StreamReconError as error:
        pipe.send(error)
        return
    pipe.send(None)
    loading.enter("wait for work")
    # Loading counts for the first job.
    timer: StageTimer | None = loading
    try:
        while True:
            job = pipe.recv()
            engine.weights_sha256 = job.weights_sha256
            outcome = run_job(engine, job, store, _progress_callback(job, pipe.send), timer)
            timer = None
            # With a shared network, other scenes wait for the batch slot of one that failed.
            with suppress(ResourceError):
                engine.reset()
            pipe.send(outcome)
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        return
