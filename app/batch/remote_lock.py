"""One batch at a time on an address, where there are no locks: a file that its holder renews.

A batch that finds such a file watches it. If it changes, its writer is alive; if it stays the same for several beats,
its writer was killed. Clocks of different machines are never compared.
"""

import json
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from stream_recon.app.batch.lock import LOCK_NAME
from stream_recon.app.batch.remote_files import RemoteFiles
from stream_recon.configs.errors import OutputError

logger = logging.getLogger(__name__)

BEAT_SECONDS = 5.0
DEAD_BEATS = 4
"""A holder that has not renewed its file for so many beats is taken for dead."""
POLLS = 4
"""Looks at the file in each beat."""


@contextmanager
def remote_lock(files: RemoteFiles, beat: float | None = None) -> Iterator[None]:
    """Hold the address, whose folder is made if need be, renewing the lock every ``beat`` seconds.

    Two that begin in the same moment may both be refused, never both be let in unless one of them stalls for as long
    as it takes to be thought dead.

    Raises:
        OutputError: another batch holds it, or it cannot be written.
    """
    beat = BEAT_SECONDS if beat is None else beat
    files.make()
    _watch(files, beat)
    lock = _Beating(files, beat)
    lock.renew()
    # Whoever wrote last in the same moment wins.
    time.sleep(beat / POLLS)
    lock.check()
    thread = threading.Thread(target=lock.beat, name="lock", daemon=True)
    thread.start()
    try:
        yield
    finally:
        lock.ended.set()
        thread.join()
        with suppress(OutputError):
            if lock.is_ours():
                files.remove([LOCK_NAME])


def _watch(files: RemoteFiles, beat: float) -> None:
    """Wait until a lock left by a killed batch has proved to be dead."""
    found = files.read(LOCK_NAME)
    if found is None:
        return
    logger.warning("a batch was here before: seeing for %g s whether it is still at work", beat * DEAD_BEATS)
    for _ in range(DEAD_BEATS * POLLS):
        time.sleep(beat / POLLS)
        now = files.read(LOCK_NAME)
        if now is None:
            return
        if now != found:
            raise _refusal(files, now)


def _refusal(files: RemoteFiles, content: bytes) -> OutputError:
    try:
        holder = f" ({json.loads(content)['holder']})"
    except (ValueError, KeyError, TypeError):
        holder = ""
    return OutputError(f"another batch is writing to {files.address}{holder}: wait for it, or choose another -o")


class _Beating:
    def __init__(self, files: RemoteFiles, seconds: float) -> None:
        self._files = files
        self._seconds = seconds
        self._token = uuid.uuid4().hex
        self._beats = 0
        self.ended = threading.Event()

    def renew(self) -> None:
        self._beats += 1
        holder = f"process {os.getpid()} on {socket.gethostname()}"
        content = {"holder": holder, "token": self._token, "beats": self._beats}
        self._files.write(LOCK_NAME, json.dumps(content).encode())

    def is_ours(self) -> bool:
        return self._token.encode() in (self._files.read(LOCK_NAME) or b"")

    def check(self) -> None:
        content = self._files.read(LOCK_NAME)
        if content is None or self._token.encode() not in content:
            raise _refusal(self._files, content or b"")

    def beat(self) -> None:
        """Body of a thread."""
        while not self.ended.wait(self._seconds):
            try:
                if not self.is_ours():
                    logger.error("another batch took %s over: this one was thought dead", self._files.address)
                    return
                self.renew()
            except OutputError as error:
                logger.warning("the lock could not be renewed: %s", error)
