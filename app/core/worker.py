"""Background execution of an object's methods, one after the other, in a thread or in separate processes.

A thread shares Python's interpreter lock with the caller; a process does not, but all arguments are sent to it.
"""

import multiprocessing
import signal
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import cycle
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from multiprocessing.process import BaseProcess
from threading import Event, Lock
from types import ModuleType
from typing import Any, Protocol, TypeVar

from stream_recon.app.core.cores import limit_cores, usable_cores
from stream_recon.app.core.platform import ignore_interrupts
from stream_recon.configs.errors import ResourceError

PROCESS_DIED = "a process has ended, perhaps out of memory"

T = TypeVar("T")

StopTest = Callable[[], bool]
"""Asked now and then during a task; True: the result is no longer needed."""


@dataclass(frozen=True)
class Task:
    """Submitted call."""

    future: "Future[Any]"
    stop: Callable[[], None]
    """Asks the task to end early."""


class BackgroundWorker(Protocol):
    """Executor of the methods of a target object, whose first argument is a `StopTest`."""

    def submit(self, name: str, *args: Any) -> Task:
        """Call the target's method ``name`` after all earlier tasks."""
        ...

    def close(self) -> None:
        """End the worker after its last task."""
        ...


class ThreadWorker:
    """`BackgroundWorker` in a thread."""

    def __init__(self, target: object, name: str) -> None:
        self._target = target
        self._pool = ThreadPoolExecutor(1, name)

    def submit(self, name: str, *args: Any) -> Task:
        stop = Event()
        return Task(self._pool.submit(getattr(self._target, name), stop.is_set, *args), stop.set)

    def close(self) -> None:
        self._pool.shutdown()


def may_start_processes() -> bool:
    """Whether this process may start others: one that ends with its parent may not."""
    return not multiprocessing.current_process().daemon


def start_process(name: str, main: Callable[..., None], *args: Any) -> tuple[SpawnProcess, Connection]:
    """Start a process that runs ``main(connection, *args)``, and ends with this one; returns it and our connection."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_run_child, args=(main, theirs, *args), name=name, daemon=True)
    # Ctrl-C reaches all processes of a terminal, but only the main one handles it. The child inherits the blocked
    # signal, so that it is blocked during its imports, too.
    blocks = hasattr(signal, "pthread_sigmask")
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,)) if blocks else ()
    try:
        with _no_main_module():
            process.start()
    finally:
        if blocks:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    # With no other copy open, reading ends when the process does.
    theirs.close()
    return process, ours


@contextmanager
def _no_main_module() -> Iterator[None]:
    """Processes that start meanwhile do not import the program's main module, which may be a script without a guard."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _run_child(main: Callable[..., None], *args: Any) -> None:
    """Body of a process. Where signals cannot be blocked, Ctrl-C is ignored from here on."""
    ignore_interrupts()
    main(*args)


class ProcessWorker:
    """`BackgroundWorker` whose target is in the process that runs `serve`. Raises ResourceError if it has died."""

    def __init__(self, connection: Connection, name: str, died: str = PROCESS_DIED) -> None:
        self._connection, self._died = connection, died
        # This thread pickles, sends and waits, so that the caller does not.
        self._pool = ThreadPoolExecutor(1, name)
        self._sending = Lock()
        self._submitted = 0

    def submit(self, name: str, *args: Any) -> Task:
        self._submitted += 1
        number = self._submitted
        future = self._pool.submit(self._call, number, name, args)

        def stop() -> None:
            if not future.cancel() and not future.done():
                self._send(number)

        return Task(future, stop)

    def close(self) -> None:
        self._pool.shutdown()
        self._connection.close()

    def _call(self, number: int, name: str, args: tuple[Any, ...]) -> Any:
        self._send((number, name, args))
        return receive(self._connection, self._died)

    def _send(self, message: object) -> None:
        # A dead process is reported where its reply is awaited.
        with self._sending, suppress(OSError):
            self._connection.send(message)


class ProcessGroup:
    """Processes of one core each, with equal targets, for tasks that are too short for threads."""

    def __init__(self, name: str, count: int, make_target: Callable[[], object], died: str = PROCESS_DIED) -> None:
        started = [start_process(f"{name}-{n}", _serve_on_one_core, make_target) for n in range(count)]
        self._processes = [process for process, _ in started]
        self._workers = [ProcessWorker(connection, process.name, died) for process, connection in started]
        weakref.finalize(self, terminate, self._processes)

    def map(self, name: str, tasks: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Results of the target's method ``name`` for these arguments. Raises ResourceError if a process has died."""
        submitted = [worker.submit(name, *task) for worker, task in zip(cycle(self._workers), tasks, strict=False)]
        return [task.future.result() for task in submitted]

    def close(self) -> None:
        """End the processes at once."""
        terminate(self._processes)
        for worker in self._workers:
            worker.close()


class Companion(ProcessGroup):
    """Another process for calls beside this one's work, if ``is_wanted``, a core is left, and it may start."""

    def __init__(self, name: str, *, is_wanted: bool = True) -> None:
        super().__init__(name, int(is_wanted and usable_cores() > 1 and may_start_processes()), _Calls)

    def call(self, function: Callable[[], T], meanwhile: Iterable[object] = ()) -> T:
        """The result of a function, which has to be one that can be pickled where there is another process.

        ``meanwhile``: work that is done here until the result is there; none without another process.
        """
        for worker in self._workers:
            task: Future[T] = worker.submit("call", function).future
            for _ in meanwhile:
                if task.done():
                    break
            with suppress(ResourceError):  # it has died
                return task.result()
        return function()


class _Calls:
    def call(self, _: StopTest, function: Callable[[], T]) -> T:
        return function()


def terminate(processes: Sequence[BaseProcess]) -> None:
    """End processes at once."""
    for process in processes:
        process.terminate()


def _serve_on_one_core(connection: Connection, make_target: Callable[[], object]) -> None:
    limit_cores(1)
    serve(connection, make_target)


def receive(connection: Connection, died: str = PROCESS_DIED) -> Any:
    """Reply of a process; raises the exception that it sent. Raises ResourceError ``died`` if the process has died."""
    try:
        reply = connection.recv()
    except (EOFError, OSError) as error:
        raise ResourceError(died) from error
    if isinstance(reply, Exception):
        raise reply
    return reply


def serve(connection: Connection, make_target: Callable[[], object]) -> None:
    """Main function of a process: runs the tasks of a `ProcessWorker` until the connection is closed."""
    target = make_target()
    with suppress(EOFError, OSError):
        while True:
            message = connection.recv()
            # A single number stops a task, which has ended by now.
            if not isinstance(message, int):
                connection.send(_run(target, connection, *message))


def _run(target: object, connection: Connection, number: int, name: str, args: tuple[Any, ...]) -> Any:
    stopped = False

    def should_stop() -> bool:
        nonlocal stopped
        while not stopped and connection.poll():
            stopped = connection.recv() == number
        return stopped

    try:
        return getattr(target, name)(should_stop, *args)
    except Exception as error:  # noqa: BLE001  raised again by `receive`
        return error
