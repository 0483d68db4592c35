"""Many scenes at once through one network: workers that decode, write and refine, and a process a GPU that runs it.

Processes that do a parent's work end with it, and leave Ctrl-C to it.
"""

import os
import tempfile
from dataclasses import dataclass
from multiprocessing.context import SpawnProcess
from pathlib import Path

from stream_recon.app.batch.jobs import Model, ModelLoader
from stream_recon.app.batch.store import Store
from stream_recon.app.batch.workers import HASHED_ELSEWHERE, ProcessPool, Worker
from stream_recon.app.core.protocols import FrameEngine
from stream_recon.app.engine.model_choice import ModelChoice
from stream_recon.app.pipeline.process import exit_with_parent, memory_errors
from stream_recon.configs.errors import ResourceError, StreamReconError

BY_ITSELF = 16
"""Streams at once on a GPU where nobody says how many."""
ANSWER_SECONDS = 600.0
"""A network of gigabytes may come over a network."""


@dataclass(frozen=True)
class RemoteLoader:
    """Loads an engine in each worker that has its steps done by the `StreamServer` of its GPU."""

    local: ModelLoader
    folder: Path
    """Where the servers' sockets are."""
    has_gpu: bool = False
    """A worker is told of the one whose server it goes to; else there is a single server."""

    @property
    def choice(self) -> None:
        """See `ModelLoader`."""
        return None

    @property
    def uses_gpu(self) -> bool:
        """See `ModelLoader`."""
        return self.local.uses_gpu

    def check(self) -> None:
        """See `ModelLoader`."""
        self.local.check()

    def describe(self) -> Model:
        """See `ModelLoader`."""
        return self.local.describe()

    def gpus(self) -> list[str]:
        """See `ModelLoader`."""
        return self.local.gpus()

    def prepare(self) -> None:
        """See `ModelLoader`."""
        self.local.prepare()

    def load(self, weights_sha256: str | None = None) -> FrameEngine:
        """See `ModelLoader`."""
        from stream_recon.app.engine.client import connect

        gpu = os.environ["CUDA_VISIBLE_DEVICES"] if self.has_gpu else None
        engine = connect(socket_of(self.folder, gpu), ANSWER_SECONDS)
        engine.weights_sha256 = weights_sha256 or engine.weights_sha256
        return engine


class SharedNetworkPool(ProcessPool):
    """A `ProcessPool` whose workers share one network on each GPU, as many as there are to be streams at once."""

    def __init__(self, loader: ModelLoader, store: Store, streams: int) -> None:
        """``streams``: at once, on each GPU."""
        self._local = loader
        self._streams = streams
        self._folder = tempfile.TemporaryDirectory(prefix="stream-recon-")
        self._servers: list[SpawnProcess] = []
        super().__init__(loader, store, streams)

    def begin(self, units: int) -> None:
        """Start a process for each GPU, which loads the model, and the workers."""
        if not self._servers:
            gpus: list[str | None] = [*self._local.gpus()] or [None]
            self._count = self._streams * len(gpus)
            self._loader = RemoteLoader(self._local, Path(self._folder.name), has_gpu=gpus != [None])
            self._servers = [self._start_server(gpu) for gpu in gpus[:units]]
        super().begin(units)

    def end(self) -> None:
        """See `Pool`."""
        super().end()
        servers, self._servers = self._servers, []
        for server in servers:
            server.kill()  # it holds nothing but memory
            server.join()

    def _attend(self, worker: Worker) -> Worker:
        for server in self._servers:
            if server.exitcode is not None:
                raise ResourceError(f"the process that runs the network ended with exit code {server.exitcode}")
        return super()._attend(worker)

    def _start_server(self, gpu: str | None) -> SpawnProcess:
        socket = socket_of(Path(self._folder.name), gpu)
        socket.unlink(missing_ok=True)
        arguments = (self._local.choice, gpu, socket, self._streams)
        process = self._context.Process(target=_serve, args=arguments, name=f"network-{gpu or 'cpu'}", daemon=True)
        process.start()
        return process


def socket_of(folder: Path, gpu: str | None) -> Path:
    """Where the process with that GPU's network listens."""
    return folder / f"network-{gpu or 'cpu'}"


def check_streams(loader: ModelLoader) -> None:
    """Raises ResourceError where scenes cannot share a network."""
    choice = loader.choice
    if choice is None or not hasattr(os, "memfd_create"):
        raise ResourceError("--streams needs Linux; use --workers")
    if choice.cache != "full":
        raise ResourceError(f"--streams needs --cache full, not {choice.cache}; use --workers")
    if choice.attention not in ("auto", "triton"):
        raise ResourceError(f"--streams has its own attention kernel: use --attention auto, not {choice.attention}")


def shares_by_itself(loader: ModelLoader) -> bool:
    """Whether scenes share a network without being told to: where its step leaves most of a GPU idle, as the embedded
    one's does."""
    choice = loader.choice
    try:
        check_streams(loader)
    except ResourceError:
        return False
    assert choice is not None
    return choice.load_preset().network == ModelChoice().load_preset().network and bool(loader.gpus())


def _serve(choice: ModelChoice, gpu: str | None, socket: Path, streams: int) -> None:
    """Body of a process with a network."""
    exit_with_parent()
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    from stream_recon.app.engine.server import StreamServer, open_listener, serve_error

    listener = open_listener(socket, streams)
    try:
        with memory_errors():
            # Each unit says the result.
            model = choice.load_model(HASHED_ELSEWHERE)
    except StreamReconError as error:
        serve_error(listener, error)
        return
    StreamServer(listener, model, streams).serve()
