"""Calls that differ between POSIX systems and Windows: no other file of the program needs modules of one system."""

import ctypes
import errno
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

OPEN_FLAGS = getattr(os, "O_BINARY", 0)
"""Flag of `os.open`: bytes stay as they are."""
NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
"""Flag of `os.open` that refuses symbolic links; 0 where the system has none."""
NO_WAIT = getattr(os, "O_NONBLOCK", 0)
"""Flag of `os.open` that does not wait for the writer of a pipe."""
KILL = getattr(signal, "SIGKILL", signal.SIGTERM)
"""Signal that a process cannot refuse."""
INTERRUPT = getattr(signal, "CTRL_BREAK_EVENT", signal.SIGINT)
"""Signal of Ctrl-C to another process."""
INTERRUPTS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGBREAK") if hasattr(signal, name))
"""Signals that Ctrl-C and `INTERRUPT` are where they arrive."""
END = getattr(signal, "CTRL_BREAK_EVENT", signal.SIGTERM)
"""Signal that ends another process after what it has in hand; Windows' SIGTERM would kill it."""
LOCKED_BYTE = 1 << 40
"""Place of Windows' lock in a file, behind all content: there a lock keeps others from reading, too."""
AUTOGROUP = Path("/proc/self/autogroup")
"""Priority of a session (Linux): where the system has it, that of a process counts only inside its session."""
PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
_seek = threading.Lock()


def read_at(file: int, size: int, offset: int) -> bytes:
    """At most ``size`` bytes of a descriptor's file from ``offset`` on; thread-safe. Raises OSError."""
    if hasattr(os, "pread"):
        return os.pread(file, size, offset)
    with _seek, _at(file, offset):
        return os.read(file, size)


def write_at(file: int, data: bytes | memoryview, offset: int) -> None:
    """Write all bytes into a descriptor's file at ``offset``; thread-safe. Raises OSError."""
    view = memoryview(data)
    while view:
        written = _write_at(file, view, offset)
        view, offset = view[written:], offset + written


def _write_at(file: int, data: memoryview, offset: int) -> int:
    if hasattr(os, "pwrite"):
        return os.pwrite(file, data, offset)
    with _seek, _at(file, offset):
        return os.write(file, data)


@contextmanager
def _at(file: int, offset: int) -> Iterator[None]:
    """Another position of a descriptor within the block."""
    position = os.lseek(file, 0, os.SEEK_CUR)
    os.lseek(file, offset, os.SEEK_SET)
    try:
        yield
    finally:
        os.lseek(file, position, os.SEEK_SET)


def lock_file(file: int) -> None:
    """Lock a descriptor's file until it is closed.

    Raises BlockingIOError where another process, or another opening of the file, holds the lock; OSError.
    """
    try:
        import fcntl
    except ImportError:
        import msvcrt

        try:
            with _at(file, LOCKED_BYTE):
                msvcrt.locking(file, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        except OSError as error:
            raise BlockingIOError(errno.EAGAIN, "locked") from error
    else:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def ignore_interrupts() -> None:
    """Leave Ctrl-C, which reaches all processes of a terminal, to the process that started this one."""
    for number in INTERRUPTS:
        signal.signal(number, signal.SIG_IGN)


def lower_priority(niceness: int) -> None:
    """Lower this process's priority, by the measure of ``nice``; nothing where the system refuses it."""
    with suppress(OSError, AttributeError):
        os.nice(niceness)


def child_options(niceness: int) -> dict[str, Any]:
    """Arguments of `subprocess.Popen` for a child of lower priority, which Ctrl-C at the terminal does not reach.

    On Linux it ends with this process, even where that is killed.
    """
    if sys.platform == "win32":
        import subprocess

        below_normal = subprocess.BELOW_NORMAL_PRIORITY_CLASS if niceness else 0
        return {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP | below_normal}
    return {"start_new_session": True, "preexec_fn": partial(_prepare_child, niceness)}


def _prepare_child(niceness: int) -> None:
    if _LIBC is not None:
        _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    # A service manager may have started the server with Ctrl-C ignored, which children inherit.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    lower_priority(niceness)
    with suppress(OSError):
        AUTOGROUP.write_text(str(niceness))
