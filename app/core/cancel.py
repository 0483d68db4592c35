"""Ending work early: the token that signals and pages set, and the exception by which work ends."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from stream_recon.app.core.platform import INTERRUPTS


class Cancelled(Exception):  # noqa: N818 - no error: the user wanted it
    """Work was ended early. What it was to change is unchanged, where its docstring says nothing else."""


class Cancel:
    """Whether work is to end: a function without arguments, for work that polls it. Any thread may request it."""

    def __init__(self) -> None:
        # A plain attribute: a signal handler must not take a lock that the interrupted code may hold.
        self.requested = False

    def __call__(self) -> bool:
        return self.requested

    def request(self) -> None:
        """Ask the work to end."""
        self.requested = True

    def check(self) -> None:
        """Raises Cancelled once the end was requested."""
        if self.requested:
            raise Cancelled

    def checked(self, report: Callable[[int, int], None]) -> Callable[[int, int], None]:
        """The function, which raises Cancelled once the end was requested."""

        def checking(done: int, total: int) -> None:
            self.check()
            report(done, total)

        return checking


@contextmanager
def cancel_on_signals(cancel: Cancel | None = None) -> Iterator[Cancel]:
    """Within the block the first Ctrl-C or SIGTERM only requests the end; the second raises KeyboardInterrupt.

    Outside the main thread, where Python delivers no signals, they request nothing. ``cancel``: None: a new one.
    """
    cancel = cancel or Cancel()
    if threading.current_thread() is not threading.main_thread():
        yield cancel
        return

    def handle(number: int, _frame: FrameType | None) -> None:
        if cancel.requested:
            raise KeyboardInterrupt
        cancel.request()

    previous = {number: signal.signal(number, handle) for number in (*INTERRUPTS, signal.SIGTERM)}
    try:
        yield cancel
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
