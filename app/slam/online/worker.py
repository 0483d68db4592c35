"""Work that nobody waits for at once: done one thing after the other, in a thread or in a process of its own.

What is asked for and what comes of it are the same either way. A thread takes time from whoever asks, since Python runs
one of a process's threads at a time; a process does not, but has to be told everything it needs.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from threading import Event, Lock
from typing import Any, Protocol

from stream_recon.configs.errors import ResourceError

GONE = (
    "a process that places the frames is gone, perhaps for want of memory: what was written is whole; "
    "go on with --resume, or without it by --mapping off"
)

StopTest = Callable[[], bool]
"""Asked now and then by what is under way: nobody wants it any more."""


@dataclass(frozen=True)
class Asked:
    """What was asked for."""

    future: "Future[Any]"
    stop: Callable[[], None]
    """Nobody wants it any more."""


class Worker(Protocol):
    """Has a worker: an object whose methods take a `StopTest` first."""

    def ask(self, name: str, *given: Any) -> Asked:
        """Have the worker's method of this name called when all that was asked for before is done."""
        ...

    def close(self) -> None:
        """End it when all is done."""
        ...


class ThreadWorker:
    """`Worker`."""

    def __init__(self, worker: object, name: str) -> None:
        self._worker = worker
        self._pool = ThreadPoolExecutor(1, name)

    def ask(self, name: str, *given: Any) -> Asked:
        stop = Event()
        return Asked(self._pool.submit(getattr(self._worker, name), stop.is_set, *given), stop.set)

    def close(self) -> None:
        self._pool.shutdown()


class ProcessWorker:
    """`Worker`: the worker is where `serve` runs, at the connection's other end. Raises ResourceError: it is gone."""

    def __init__(self, connection: Connection, name: str) -> None:
        self._connection = connection
        # Sends and waits: pickling is then nothing that holds up whoever asks, either.
        self._pool = ThreadPoolExecutor(1, name)
        self._sending = Lock()
        self._asked = 0

    def ask(self, name: str, *given: Any) -> Asked:
        self._asked += 1
        number = self._asked
        future = self._pool.submit(self._answer, number, name, given)

        def stop() -> None:
            if not future.cancel() and not future.done():
                self._send(number)

        return Asked(future, stop)

    def close(self) -> None:
        self._pool.shutdown()
        self._connection.close()

    def _answer(self, number: int, name: str, given: tuple[Any, ...]) -> Any:
        self._send((number, name, given))
        return received(self._connection)

    def _send(self, message: object) -> None:
        # Whether it is gone is seen where an answer is waited for.
        with self._sending, suppress(OSError):
            self._connection.send(message)


def received(connection: Connection) -> Any:
    """What a process answers; an exception is raised here instead. Raises ResourceError: the process is gone."""
    try:
        answer = connection.recv()
    except (EOFError, OSError) as error:
        raise ResourceError(GONE) from error
    if isinstance(answer, Exception):
        raise answer
    return answer


def serve(connection: Connection, make: Callable[[], object]) -> None:
    """Body of a process: do what an `ProcessWorker` asks of the worker that ``make`` gives, until it is closed."""
    worker = make()
    with suppress(EOFError, OSError):
        while True:
            message = connection.recv()
            # A lone number is that of something that nobody wants any more: by now it is done.
            if not isinstance(message, int):
                connection.send(_done(worker, connection, *message))


def _done(worker: object, connection: Connection, number: int, name: str, given: tuple[Any, ...]) -> Any:
    stopped = False

    def should_stop() -> bool:
        nonlocal stopped
        while not stopped and connection.poll():
            stopped = connection.recv() == number
        return stopped

    try:
        return getattr(worker, name)(should_stop, *given)
    except Exception as error:  # noqa: BLE001  it is raised again where it was asked for
        return error
