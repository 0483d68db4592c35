"""Ctrl-C as a wish to stop, not as an exception in the middle of a frame."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StopRequest:
    """``requested`` turns true on the first Ctrl-C (or SIGTERM)."""

    def __init__(self) -> None:
        # A plain attribute: a signal handler must not take a lock that the interrupted code may hold.
        self.requested = False


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Within the block the first SIGINT or SIGTERM only sets the flag; the second one raises KeyboardInterrupt.

    Outside the main thread, where Python delivers no signals, the flag stays false.
    """
    stop = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def handle(number: int, _frame: FrameType | None) -> None:
        if stop.requested:
            raise KeyboardInterrupt
        stop.requested = True

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
