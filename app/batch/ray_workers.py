"""Units over a Ray cluster: one actor a GPU, or a share of the CPUs, each with the model loaded.

All nodes need the package and the same view of the scenes and of the results' folder or address.
"""

import logging
import os
from collections.abc import Callable, Sequence
from typing import Any

from stream_recon.app.batch.jobs import MAX_ATTEMPTS, Event, Job, JobProgress, ModelLoader, Outcome, WorkQueue
from stream_recon.app.batch.scene import run_unit
from stream_recon.app.batch.store import Store
from stream_recon.app.batch.workers import POLL_SECONDS
from stream_recon.app.pipeline.cpu_threads import initial_threads
from stream_recon.app.pipeline.process import StopRequest, memory_errors
from stream_recon.configs.errors import ResourceError, StreamReconError

logger = logging.getLogger(__name__)

LOCAL = "local"
"""As an address: a cluster of this machine, for the time of the batch."""


class RayPool:
    """See `workers.Pool`. An actor that is lost with its node is replaced wherever there is room."""

    def __init__(self, loader: ModelLoader, store: Store, address: str, actors: int | None) -> None:
        """``actors``: None for one a GPU, or a single one without any.

        Raises:
            ResourceError: Ray is not installed.
        """
        try:
            import ray
        except ImportError as error:
            raise ResourceError("Ray is not installed: pip install 'stream-recon[ray]'") from error
        self._ray: Any = ray
        self._loader = loader
        self._store = store
        self._address = address
        self._actors = actors

    def begin(self, units: int) -> None:
        """Nothing: how many actors there will be depends on the cluster."""

    def end(self) -> None:
        """Nothing was begun."""

    def run(self, units: Sequence[Job], on_event: Callable[[Event], None], stop: StopRequest) -> None:
        """See `Pool`. Also raises ResourceError where no cluster answers."""
        self._connect()
        try:
            self._work(WorkQueue(units, on_event), stop)
        finally:
            self._ray.shutdown()

    def _connect(self) -> None:
        # Read by Ray when it starts; a tool that runs on private videos reports to nobody.
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        # A local cluster alone may be told about its parts.
        own: dict[str, Any] = {"include_dashboard": False} if self._address == LOCAL else {}
        try:
            self._ray.init(address=self._address, log_to_driver=False, logging_level=logging.WARNING, **own)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise ResourceError(f"no Ray cluster at {self._address}: {error}") from error

    def _work(self, todo: WorkQueue, stop: StopRequest) -> None:
        resources = self._ray.cluster_resources()
        gpus = int(resources.get("GPU", 0)) if self._loader.uses_gpu else 0
        count = min(self._actors or max(gpus, 1), len(todo))
        share = 1 if gpus else max(1, int(resources.get("CPU", 1)) // count)
        needs = {"num_gpus": 1 if gpus else 0, "num_cpus": share}
        # A second thread answers how far the first one is.
        kind = self._ray.remote(**needs, max_restarts=0, max_concurrency=2)(SceneActor)
        # What each actor is at: None while it loads the model.
        busy: dict[Any, tuple[Any, Job | None]] = {}

        def begin() -> None:
            actor = kind.remote(self._loader, self._store, share)
            busy[actor.load.remote()] = (actor, None)

        for _ in range(count):
            begin()
        asked: dict[Any, Any] = {}

        def at_work() -> bool:
            return bool(todo) or any(unit is not None for _, unit in busy.values())

        while at_work() and not stop.requested:
            for answer in self._ray.wait(list(busy), timeout=POLL_SECONDS)[0]:
                actor, unit = busy.pop(answer)
                if not self._answered(answer, unit, todo):
                    # One that only cannot be reached must not publish what its successor does again.
                    self._ray.kill(actor)
                    begin()
                    continue
                if todo:
                    following = todo.take()
                    busy[actor.run.remote(following)] = (actor, following)
            self._ask(asked, {unit.name: actor for actor, unit in busy.values() if unit is not None}, todo)
        for actor, _ in busy.values():
            self._ray.kill(actor)

    def _answered(self, answer: Any, unit: Job | None, todo: WorkQueue) -> bool:
        """Take an actor's answer; False if the actor is lost."""
        try:
            outcome = self._ray.get(answer)
        except self._ray.exceptions.RayActorError as error:
            if unit is None:
                raise ResourceError(f"a Ray actor died while it loaded the model: {_last_line(error)}") from error
            logger.warning("lost a Ray actor, %s is done again: %s", unit.name, _last_line(error))
            todo.lost(unit, f"its Ray actor was lost {MAX_ATTEMPTS} times")
            return False
        except self._ray.exceptions.RayTaskError as error:
            raise ResourceError(f"a Ray actor cannot load the model: {_last_line(error)}") from error
        if isinstance(outcome, StreamReconError):
            raise outcome
        if outcome is not None:
            todo.tell(outcome)
        return True

    def _ask(self, asked: dict[Any, Any], busy: dict[str, Any], todo: WorkQueue) -> None:
        """Pass on how far actors are, and ask again those that have told; ``asked``: by answer, ``busy``: by unit."""
        told = self._ray.wait(list(asked), num_returns=len(asked), timeout=0)[0] if asked else []
        for answer in told:
            del asked[answer]
            try:
                event = self._ray.get(answer)
            except self._ray.exceptions.RayActorError:
                # What became of its unit, the answer to that says.
                continue
            if event is not None and event.name in busy:
                todo.tell(event)
        for actor in busy.values():
            if actor not in asked.values():
                asked[actor.progress.remote()] = actor


def _last_line(error: Exception) -> str:
    """Of Ray's reports, which hold whole tracebacks, the line that says what went wrong."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


class SceneActor:
    """Lives on some node, with the model."""

    def __init__(self, loader: ModelLoader, store: Store, threads: int) -> None:
        self._threads = threads
        self._loader = loader
        self._store = store
        self._progress: JobProgress | None = None

    def load(self) -> StreamReconError | None:
        """Load the model, or say why that fails."""
        try:
            # Torch is imported with the model. Ray sets a number of its own, by CPUs asked for.
            os.environ.pop("OMP_NUM_THREADS", None)
            with initial_threads(self._threads), memory_errors():
                self._engine = self._loader.load()
        except StreamReconError as error:
            return error
        return None

    def run(self, unit: Job) -> Outcome:
        """Do a unit."""
        return run_unit(self._engine, unit, self._store, lambda frames: self._note(unit, frames))

    def progress(self) -> JobProgress | None:
        """How far the unit under way is; None before the first one."""
        return self._progress

    def _note(self, unit: Job, frames: int) -> None:
        self._progress = JobProgress(unit.name, frames)
