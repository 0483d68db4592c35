"""Units over this process, or over several: one model loaded in each worker."""

import logging
import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any, Protocol

from stream_recon.app.batch.jobs import (
    MAX_ATTEMPTS,
    Event,
    Job,
    JobProgress,
    ModelLoader,
    Outcome,
    StageTimer,
    WorkQueue,
)
from stream_recon.app.batch.scene import run_unit
from stream_recon.app.batch.store import Store
from stream_recon.app.pipeline.cpu_threads import initial_threads, usable_cores
from stream_recon.app.pipeline.process import StopRequest, exit_with_parent, memory_errors
from stream_recon.configs.errors import ResourceError, StreamReconError

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.2
HASHED_ELSEWHERE = "hashed by another process"
"""Instead of a digest of the weights, which a worker need not work out."""
STOP_SECONDS = 20.0
"""Workers that have not stopped by then are killed."""
PROGRESS_SECONDS = 0.25


class Pool(Protocol):
    """Gets units done."""

    def begin(self, units: int) -> None:
        """Start what takes its time and needs no unit, where so many at most are to come: `run` follows, or `end`.

        What goes wrong with it is said by `run`.
        """

    def end(self) -> None:
        """Stop what was begun and not used, and wait for what ends by itself after `run`."""

    def run(self, units: Sequence[Job], on_event: Callable[[Event], None], stop: StopRequest) -> None:
        """Take the units in their order; each but those never begun ends in one `Outcome`.

        No more are begun after ``stop`` was requested or the disk was full.

        Raises:
            StreamReconError: no worker could load the model.
        """


class SerialPool:
    """One unit after the other in this process."""

    def __init__(self, loader: ModelLoader, store: Store) -> None:
        self._loader = loader
        self._store = store

    def begin(self, units: int) -> None:
        """Nothing: the model is loaded when there is a unit."""

    def end(self) -> None:
        """Nothing was begun."""

    def run(self, units: Sequence[Job], on_event: Callable[[Event], None], stop: StopRequest) -> None:
        """See `Pool`."""
        phases: StageTimer | None = StageTimer("load")
        with memory_errors():
            engine = self._loader.load(units[0].weights_sha256)
        todo = WorkQueue(units, on_event)
        while todo and not stop.requested:
            unit = todo.take()
            outcome = run_unit(engine, unit, self._store, _reporter(unit, todo.tell), phases)
            phases = None
            stop.requested |= outcome.status == "interrupted"
            todo.tell(outcome)


def _reporter(unit: Job, on_event: Callable[[Event], None]) -> Callable[[int], None]:
    last = 0.0

    def report(frames: int) -> None:
        nonlocal last
        if time.monotonic() - last > PROGRESS_SECONDS:
            last = time.monotonic()
            on_event(JobProgress(unit.name, frames))

    return report


class ProcessPool:
    """Several processes, each with its GPU or its share of the CPU. One that dies is replaced, its unit done again."""

    def __init__(self, loader: ModelLoader, store: Store, workers: int) -> None:
        assert workers >= 1
        self._loader = loader
        self._store = store
        self._count = workers
        self._context = multiprocessing.get_context("spawn")
        self._begun: list[Worker] = []
        self._gpus: list[str] = []
        self._ending: list[Worker] = []
        """Told to, while they were idle."""

    def begin(self, units: int) -> None:
        """Start workers, which load the model."""
        # Their memory may be needed.
        self._await_ending()
        new = [self._start(number) for number in range(len(self._begun), min(self._count, units))]
        self._begun += new
        if new:
            # Looked up while the workers import what they need; that takes either side seconds.
            self._gpus = self._loader.gpus()
            for worker in new:
                self._give_gpu(worker)

    def end(self) -> None:
        """See `Pool`."""
        self._let_go()
        self._await_ending()

    def run(self, units: Sequence[Job], on_event: Callable[[Event], None], stop: StopRequest) -> None:
        """See `Pool`."""
        self._todo = WorkQueue(units, on_event)
        try:
            self.begin(len(units))
            while self._todo or any(worker.unit is not None for worker in self._begun):
                if stop.requested:
                    break
                wait([worker.pipe for worker in self._begun], POLL_SECONDS)
                self._begun = [self._attend(worker) for worker in self._begun]
        finally:
            self._let_go()

    def _start(self, number: int) -> "Worker":
        ours, theirs = self._context.Pipe()
        threads = max(1, usable_cores() // self._count)
        arguments = (theirs, self._loader, self._store, threads, time.monotonic())
        process = self._context.Process(target=_work, args=arguments, name=f"worker-{number}", daemon=True)
        process.start()
        theirs.close()
        return Worker(number, process, ours)

    def _give_gpu(self, worker: "Worker") -> None:
        gpu = self._gpus[worker.number % len(self._gpus)] if self._gpus else None
        # Of a worker that is gone `_attend` hears.
        with suppress(OSError):
            worker.pipe.send(gpu)

    def _attend(self, worker: "Worker") -> "Worker":
        """Take what a worker has to say and give it work; the worker, or its successor."""
        try:
            while worker.pipe.poll():
                self._hear(worker, worker.pipe.recv())
        except (EOFError, OSError):
            return self._replace(worker)
        if worker.ready and worker.unit is None and self._todo:
            worker.unit = self._todo.take()
            try:
                worker.pipe.send(worker.unit)
            except OSError:
                return self._replace(worker)
        return worker

    def _hear(self, worker: "Worker", message: Any) -> None:
        if isinstance(message, StreamReconError):
            raise message
        if message is None:
            worker.ready = True
        elif isinstance(message, JobProgress):
            self._todo.tell(message)
        else:
            assert isinstance(message, Outcome) and worker.unit is not None
            unit, worker.unit = worker.unit, None
            if message.status == "interrupted":
                # Somebody told this worker, not us, to stop.
                self._lost(unit, "was stopped")
            else:
                self._todo.tell(message)

    def _replace(self, worker: "Worker") -> "Worker":
        worker.process.join()
        code = worker.process.exitcode or 0
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        logger.warning("%s %s", worker.process.name, how)
        worker.pipe.close()
        if not worker.ready:
            raise ResourceError(f"a worker {how} while it loaded the model: is there memory for so many --workers?")
        if worker.unit is not None:
            self._lost(worker.unit, how)
        successor = self._start(worker.number)
        self._give_gpu(successor)
        return successor

    def _lost(self, unit: Job, how: str) -> None:
        reason = f"its worker {how}, {MAX_ATTEMPTS} times: perhaps there is too little memory for so many --workers"
        self._todo.lost(unit, reason)

    def _let_go(self) -> None:
        """Idle workers end at once, without taking the model down in order, and nobody waits until a GPU is free of
        them; busy ones tidy up, or are made to stop."""
        begun, self._begun = self._begun, []
        for worker in begun:
            worker.process.terminate()
            worker.pipe.close()
        self._ending += [worker for worker in begun if worker.unit is None]
        self._await([worker for worker in begun if worker.unit is not None])

    def _await_ending(self) -> None:
        ending, self._ending = self._ending, []
        self._await(ending)

    def _await(self, workers: "list[Worker]") -> None:
        deadline = time.monotonic() + STOP_SECONDS
        for worker in workers:
            worker.process.join(max(0.0, deadline - time.monotonic()))
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()


class Worker:
    """What the pool knows of one process."""

    def __init__(self, number: int, process: SpawnProcess, pipe: "Connection[Any, Any]") -> None:
        self.number = number
        self.process = process
        self.pipe = pipe
        self.ready = False
        """It has loaded the model."""
        self.unit: Job | None = None


def _work(pipe: "Connection[Any, Any]", loader: ModelLoader, store: Store, threads: int, begun: float) -> None:
    """Body of a worker. Is told its GPU, says None once the model is there, then for each unit progress and outcome.

    ``begun``: when its process was, by `time.monotonic`.
    """
    loading = StageTimer("start", begun)
    exit_with_parent()
    try:
        loading.enter("import")
        loader.prepare()
        loading.enter("wait for a GPU's name")
        gpu = pipe.recv()
        loading.enter("load")
        if gpu is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = gpu
        # Torch is imported here; in a process just spawned it has not been yet.
        with initial_threads(threads), memory_errors():
            # It may be hashed meanwhile: each unit says the result.
            engine = loader.load(weights_sha256=HASHED_ELSEWHERE)
    except StreamReconError as error:
        pipe.send(error)
        return
    pipe.send(None)
    loading.enter("wait for work")
    # For the sake of the first unit.
    phases: StageTimer | None = loading
    try:
        while True:
            unit = pipe.recv()
            engine.weights_sha256 = unit.weights_sha256
            outcome = run_unit(engine, unit, store, _reporter(unit, pipe.send), phases)
            phases = None
            # Where several share a network, others wait for the place of a scene that failed.
            with suppress(ResourceError):
                engine.reset()
            pipe.send(outcome)
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        return
