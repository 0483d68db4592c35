"""Processes that do a parent's work end with it, and leave Ctrl-C to it."""

import multiprocessing
import os
import signal
import threading
from multiprocessing.connection import wait


def exit_with_parent() -> None:
    """To be called first in such a process: it must not write on when another batch may have taken over the folder."""
    # The terminal sends Ctrl-C to all; the parent passes it on to those that are busy.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
