"""Scenes in parallel through one shared network: a process per GPU runs it, workers decode, write and refine."""

import os
import tempfile
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.context import SpawnProcess
from pathlib import Path

from stream_recon.app.batch.jobs import ModelIdentity, ModelLoader
from stream_recon.app.batch.store import Store
from stream_recon.app.batch.workers import HASHED_ELSEWHERE, ProcessPool, Worker
from stream_recon.app.core.process import exit_with_parent, memory_errors
from stream_recon.app.core.types import FrameEngine
from stream_recon.app.engine.model_choice import ModelChoice
from stream_recon.configs.errors import ResourceError, StreamReconError

DEFAULT_STREAMS = 16
"""Streams per GPU where the user gives no number. More gain little and take more cache memory."""
CONNECT_TIMEOUT_S = 600.0
"""Longest wait for the server, which may load gigabytes of weights from a network drive."""


@dataclass(frozen=True)
class RemoteLoader:
    """A `ModelLoader` that loads in each worker an engine whose steps run in the `StreamServer` of its GPU."""

    local: ModelLoader
    folder: Path
    """Folder of the servers' sockets."""
    has_gpu: bool = False
    """There is a server per GPU, and each worker is given the GPU of its server; else there is one server."""

    @property
    def choice(self) -> None:
        return None

    @property
    def uses_gpu(self) -> bool:
        return self.local.uses_gpu

    def check(self) -> None:
        self.local.check()

    def describe(self) -> ModelIdentity:
        return self.local.describe()

    def gpus(self) -> list[str]:
        return self.local.gpus()

    def prepare(self) -> None:
        # Without torch: it takes each worker seconds, and the network runs elsewhere.
        from stream_recon.app.engine import client  # noqa: F401

    def load(self, weights_sha256: str | None = None) -> FrameEngine:
        from stream_recon.app.engine.client import connect

        gpu = os.environ["CUDA_VISIBLE_DEVICES"] if self.has_gpu else None
        engine = connect(socket_path(self.folder, gpu), CONNECT_TIMEOUT_S)
        engine.weights_sha256 = weights_sha256 or engine.weights_sha256
        return engine


class SharedNetworkPool(ProcessPool):
    """A `ProcessPool` whose workers share one network per GPU, one worker per stream."""

    def __init__(self, loader: ModelLoader, store: Store, streams: int) -> None:
        """``streams``: parallel streams per GPU."""
        super().__init__(loader, store, streams)
        self._local = loader
        self._streams = streams
        self._folder = tempfile.TemporaryDirectory(prefix="stream-recon-")
        self._servers: list[SpawnProcess] = []

    def start(self, jobs: int) -> None:
        """Start a process per GPU, which loads the model, and the workers."""
        if not self._servers:
            gpus: list[str | None] = [*self._local.gpus()] or [None]
            self._count = self._streams * len(gpus)
            self._loader = RemoteLoader(self._local, Path(self._folder.name), has_gpu=gpus != [None])
            self._servers = [self._start_server(gpu) for gpu in gpus[:jobs]]
        super().start(jobs)

    def shutdown(self) -> None:
        super().shutdown()
        servers, self._servers = self._servers, []
        for server in servers:
            server.kill()  # it holds nothing but memory
            server.join()

    def _serve(self, worker: Worker) -> Worker:
        for server in self._servers:
            if server.exitcode is not None:
                raise ResourceError(f"the process that runs the network ended with exit code {server.exitcode}")
        return super()._serve(worker)

    def _start_server(self, gpu: str | None) -> SpawnProcess:
        socket = socket_path(Path(self._folder.name), gpu)
        socket.unlink(missing_ok=True)
        arguments = (self._local.choice, gpu, socket, self._streams)
        name = f"network-{gpu or 'cpu'}"
        process = get_context("spawn").Process(target=_run_server, args=arguments, name=name, daemon=True)
        process.start()
        return process


def socket_path(folder: Path, gpu: str | None) -> Path:
    """Socket of the process that runs the network on that GPU."""
    return folder / f"network-{gpu or 'cpu'}"


def check_streams(loader: ModelLoader) -> None:
    """Raises ResourceError if scenes cannot share this network."""
    choice = loader.choice
    if choice is None or not hasattr(os, "memfd_create"):
        raise ResourceError("--streams needs Linux; use --workers")
    if choice.cache != "full":
        raise ResourceError(f"--streams needs --cache full, not {choice.cache}; use --workers")
    if choice.attention not in ("auto", "triton"):
        raise ResourceError(f"--streams has its own attention kernel: use --attention auto, not {choice.attention}")


def shares_by_default(loader: ModelLoader) -> bool:
    """Whether scenes share the network without ``--streams``: the embedded one leaves most of a GPU idle."""
    choice = loader.choice
    try:
        check_streams(loader)
    except ResourceError:
        return False
    assert choice is not None
    return choice.load_preset().network == ModelChoice().load_preset().network and bool(loader.gpus())


def _run_server(choice: ModelChoice, gpu: str | None, socket: Path, streams: int) -> None:
    """Body of a process that runs a network."""
    exit_with_parent()
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    from stream_recon.app.engine.server import StreamServer, open_listener, serve_error

    listener = open_listener(socket, streams)
    try:
        with memory_errors():
            # Each job brings the hash.
            model = choice.load_model(HASHED_ELSEWHERE)
    except StreamReconError as error:
        serve_error(listener, error)
        return
    StreamServer(listener, model, streams).serve()
