"""Jobs on a Ray cluster: one actor per GPU, or a share of the CPUs each, with the model loaded.

All nodes need the package, and the scenes and the output folder or address under the same path.
"""

import logging
import os
from collections.abc import Callable, Sequence
from typing import Any

from stream_recon.app.batch.jobs import Event, Job, JobProgress, ModelLoader, Outcome
from stream_recon.app.batch.scene import run_job
from stream_recon.app.batch.store import Store
from stream_recon.app.batch.workers import MAX_ATTEMPTS, POLL_SECONDS, Pool, WorkQueue
from stream_recon.app.core.cancel import Cancel
from stream_recon.app.core.cores import limit_cores
from stream_recon.app.core.cpu_threads import initial_threads
from stream_recon.app.core.process import memory_errors
from stream_recon.configs.errors import ResourceError, StreamReconError, missing_library

logger = logging.getLogger(__name__)

LOCAL = "local"
"""Address for a cluster of this machine alone, which ends with the batch."""


class RayPool(Pool):
    """Pool of Ray actors. An actor lost with its node is replaced where there is room."""

    def __init__(self, loader: ModelLoader, store: Store, address: str, actors: int | None) -> None:
        """``actors``: None for one per GPU, or a single one without GPUs. Raises ResourceError without Ray."""
        try:
            import ray
        except ImportError as error:
            raise missing_library("--ray", "ray", "fsspec") from error
        self._ray: Any = ray
        self._loader = loader
        self._store = store
        self._address = address
        self._actors = actors

    def run(self, jobs: Sequence[Job], on_event: Callable[[Event], None], cancel: Cancel) -> None:
        """See `Pool`. Also raises ResourceError where no cluster answers."""
        self._connect()
        try:
            self._run_actors(WorkQueue(jobs, on_event), cancel)
        finally:
            self._ray.shutdown()

    def _connect(self) -> None:
        # Read by Ray when it starts: videos may be private, so nothing is reported.
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        # Only a local cluster accepts options for its parts.
        options: dict[str, Any] = {"include_dashboard": False} if self._address == LOCAL else {}
        try:
            self._ray.init(address=self._address, log_to_driver=False, logging_level=logging.WARNING, **options)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise ResourceError(f"no Ray cluster at {self._address}: {error}") from error

    def _run_actors(self, queue: WorkQueue, cancel: Cancel) -> None:
        start_actor, count = self._actor_factory(len(queue))
        # Actor and its job by pending answer; the job is None while the model is loaded.
        busy: dict[Any, tuple[Any, Job | None]] = {}
        for _ in range(count):
            actor = start_actor()
            busy[actor.load.remote()] = (actor, None)
        requests: dict[Any, Any] = {}
        while (queue or any(job is not None for _, job in busy.values())) and not cancel.requested:
            for answer in self._ray.wait(list(busy), timeout=POLL_SECONDS)[0]:
                actor, job = busy.pop(answer)
                if not self._handle_answer(answer, job, queue):
                    # If it is only unreachable, it must not publish the job that its successor repeats.
                    self._ray.kill(actor)
                    actor = start_actor()
                    busy[actor.load.remote()] = (actor, None)
                elif queue:
                    following = queue.pop()
                    busy[actor.run.remote(following)] = (actor, following)
            self._poll_progress(requests, {job.name: actor for actor, job in busy.values() if job is not None}, queue)
        for actor, _ in busy.values():
            self._ray.kill(actor)

    def _actor_factory(self, jobs: int) -> tuple[Callable[[], Any], int]:
        """A function that starts an actor, and the number of actors that the cluster's resources allow."""
        resources = self._ray.cluster_resources()
        gpus = int(resources.get("GPU", 0)) if self._loader.uses_gpu else 0
        count = min(self._actors or max(gpus, 1), jobs)
        share = 1 if gpus else max(1, int(resources.get("CPU", 1)) // count)
        # A second thread answers `progress` while the first one works.
        needs = {"num_gpus": 1 if gpus else 0, "num_cpus": share, "max_restarts": 0, "max_concurrency": 2}
        kind = self._ray.remote(**needs)(SceneActor)
        return lambda: kind.remote(self._loader, self._store, share), count

    def _handle_answer(self, answer: Any, job: Job | None, queue: WorkQueue) -> bool:
        """Report an actor's outcome; False if the actor is lost."""
        try:
            outcome = self._ray.get(answer)
        except self._ray.exceptions.RayActorError as error:
            if job is None:
                raise ResourceError(f"a Ray actor died while it loaded the model: {_last_line(error)}") from error
            logger.warning("lost a Ray actor, %s is done again: %s", job.name, _last_line(error))
            queue.retry(job, f"its Ray actor was lost {MAX_ATTEMPTS} times")
            return False
        except self._ray.exceptions.RayTaskError as error:
            raise ResourceError(f"a Ray actor cannot load the model: {_last_line(error)}") from error
        if isinstance(outcome, StreamReconError):
            raise outcome
        if outcome is not None:
            queue.report(outcome)
        return True

    def _poll_progress(self, requests: dict[Any, Any], busy: dict[str, Any], queue: WorkQueue) -> None:
        """Report the progress that has arrived, and request it anew.

        ``requests``: actor by pending progress request, updated; ``busy``: actor by the name of its job.
        """
        arrived = self._ray.wait(list(requests), num_returns=len(requests), timeout=0)[0] if requests else []
        for answer in arrived:
            del requests[answer]
            try:
                event = self._ray.get(answer)
            except self._ray.exceptions.RayActorError:
                continue  # `_handle_answer` handles the lost actor
            if event is not None and event.name in busy:
                queue.report(event)
        for actor in busy.values():
            if actor not in requests.values():
                requests[actor.progress.remote()] = actor


def _last_line(error: Exception) -> str:
    """The line of Ray's report that names the error; the others are a traceback."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


class SceneActor:
    """Ray actor that holds the model on some node and runs jobs."""

    def __init__(self, loader: ModelLoader, store: Store, threads: int) -> None:
        self._threads = threads
        self._loader = loader
        self._store = store
        self._progress: JobProgress | None = None

    def load(self) -> StreamReconError | None:
        """Load the model. Returns the error if that fails."""
        try:
            # Torch, imported with the model, reads the number of threads; Ray's is the number of CPUs requested.
            os.environ.pop("OMP_NUM_THREADS", None)
            limit_cores(self._threads)
            with initial_threads(self._threads), memory_errors():
                self._engine = self._loader.load()
        except StreamReconError as error:
            return error
        return None

    def run(self, job: Job) -> Outcome:
        def note_progress(frames: int) -> None:
            self._progress = JobProgress(job.name, frames)

        return run_job(self._engine, job, self._store, note_progress)

    def progress(self) -> JobProgress | None:
        """Progress of the current job; None before the first one."""
        return self._progress
