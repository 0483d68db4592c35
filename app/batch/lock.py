"""One batch at a time on one output folder."""

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stream_recon.app.output.files import output_errors
from stream_recon.configs.errors import OutputError, ResourceError

LOCK_NAME = ".batch.lock"


@contextmanager
def output_lock(out: Path) -> Iterator[None]:
    """Hold the folder, which is made if need be. The system lets go when the process ends, however it ends.

    Raises:
        OutputError: another batch holds it, or it cannot be made.
        ResourceError: on a system without file locks of this kind.
    """
    if sys.platform == "win32":
        raise ResourceError("batch needs file locks that Windows does not have: run it under WSL")
    import fcntl

    with output_errors(out):
        if out.exists() and not out.is_dir():
            raise OutputError(f"{out} is a file: choose another folder with -o")
        out.mkdir(parents=True, exist_ok=True)
        file = os.open(out / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(file, 200, 0).decode(errors="replace").strip()
            who = f" ({holder})" if holder else ""
            raise OutputError(f"another batch is writing to {out}{who}: wait for it, or choose another -o") from error
        with output_errors(out / LOCK_NAME):
            os.ftruncate(file, 0)
            os.pwrite(file, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        yield
    finally:
        # The file stays: removing it would let a third batch lock a file that nobody else sees.
        os.close(file)
