"""Store at an address of fsspec, such as ``s3://bucket/folder``.

A job is done in a temporary folder of its worker and uploaded when finished. As in a folder, the manifest is written
last, so uploads of a killed worker do not count.

Object stores have no locks. The lock is a file that its holder renews with every heartbeat. A batch that finds one
watches it: if it changes, its writer is alive; if it stays the same for several heartbeats, its writer was killed.
Clocks of different machines are never compared.
"""

import json
import logging
import os
import re
import socket
import tempfile
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from stream_recon.app.batch.manifest import (
    IDENTITY_FILES,
    MANIFEST_NAME,
    CheckResult,
    Checksum,
    check_files,
    file_names,
    is_own_name,
    is_own_record,
    manifest_bytes,
    stream_digest,
)
from stream_recon.app.batch.store import LOCK_NAME, LocalStore, Store
from stream_recon.app.core.remote_files import RemoteFiles
from stream_recon.app.result.depth import DEPTH_FOLDER
from stream_recon.app.result.files import output_errors
from stream_recon.app.result.lock import FolderLock
from stream_recon.app.result.run_record import RUN_NAME
from stream_recon.configs.errors import OutputError

logger = logging.getLogger(__name__)


HEARTBEAT_SECONDS = 5.0
"""Time between renewals of the lock: a few small writes a minute."""
DEAD_HEARTBEATS = 4
"""Heartbeats without renewal after which the holder is taken for dead: a slow network may delay one or two."""
POLLS = 4
"""Reads of the lock per heartbeat, so that none is missed."""


@contextmanager
def remote_lock(files: RemoteFiles, heartbeat_s: float = HEARTBEAT_SECONDS) -> Iterator[None]:
    """Lock the address, creating its folder if need be, and renew the lock at every heartbeat.

    Two batches that begin in the same moment may both be refused. Both are admitted only if one of them stalls for
    longer than `DEAD_HEARTBEATS`.

    Raises:
        OutputError: another batch holds it, or it cannot be written.
    """
    files.make_folder()
    _await_dead(files, heartbeat_s)
    lock = _Heartbeat(files, heartbeat_s)
    lock.renew()
    # Of several that wrote in the same moment, the last one holds the lock.
    time.sleep(heartbeat_s / POLLS)
    if not lock.is_ours():
        raise _refusal(files, files.read(LOCK_NAME) or b"")
    thread = threading.Thread(target=lock.run, name="lock", daemon=True)
    thread.start()
    try:
        yield
    finally:
        lock.ended.set()
        thread.join()
        with suppress(OutputError):
            if lock.is_ours():
                files.remove([LOCK_NAME])


def _await_dead(files: RemoteFiles, heartbeat_s: float) -> None:
    """Wait until the lock of a killed batch counts as dead. Raises OutputError if its batch is alive."""
    lock = files.read(LOCK_NAME)
    if lock is None:
        return
    logger.warning(
        "found the lock of another batch: watching for %g s whether it is still running", heartbeat_s * DEAD_HEARTBEATS
    )
    for _ in range(DEAD_HEARTBEATS * POLLS):
        time.sleep(heartbeat_s / POLLS)
        now = files.read(LOCK_NAME)
        if now is None:
            return
        if now != lock:
            raise _refusal(files, now)


def _refusal(files: RemoteFiles, content: bytes) -> OutputError:
    try:
        holder = f" ({json.loads(content)['holder']})"
    except (ValueError, KeyError, TypeError):
        holder = ""
    return OutputError(f"another batch is writing to {files.address}{holder}: wait for it, or choose another -o")


class _Heartbeat:
    """Lock file of this batch, renewed by a thread."""

    def __init__(self, files: RemoteFiles, seconds: float) -> None:
        self._files, self._seconds = files, seconds
        self._token, self._renewals = uuid.uuid4().hex, 0
        self.ended = threading.Event()

    def renew(self) -> None:
        self._renewals += 1
        holder = f"process {os.getpid()} on {socket.gethostname()}"
        content = {"holder": holder, "token": self._token, "renewals": self._renewals}
        self._files.write(LOCK_NAME, json.dumps(content).encode())

    def is_ours(self) -> bool:
        return self._token.encode() in (self._files.read(LOCK_NAME) or b"")

    def run(self) -> None:
        """Renew the lock until `ended` is set. Body of a thread."""
        while not self.ended.wait(self._seconds):
            try:
                if not self.is_ours():
                    logger.error("another batch took over %s: this one had not renewed its lock", self._files.address)
                    return
                self.renew()
            except OutputError as error:
                logger.warning("the lock could not be renewed: %s", error)


TEMPORARY_PREFIX = "stream-recon-"
"""Prefix of temporary folders, to recognise those of a killed worker."""


@dataclass(frozen=True)
class RemoteStore:
    """`Store` at an address. Its connection is not pickled for workers."""

    address: str
    heartbeat_s: float = HEARTBEAT_SECONDS
    """Time between renewals of the lock."""

    def __post_init__(self) -> None:
        """Raises what `RemoteFiles` raises."""
        _ = self._files

    @cached_property
    def _files(self) -> RemoteFiles:
        return RemoteFiles(self.address)

    def __getstate__(self) -> dict[str, Any]:
        return {"address": self.address, "heartbeat_s": self.heartbeat_s}

    @property
    def single_process(self) -> bool:
        return self._files.single_process

    def location(self, name: str) -> str:
        return f"{self._files.address}/{name}"

    def lock(self) -> AbstractContextManager[None]:
        return remote_lock(self._files, self.heartbeat_s)

    def check(self, name: str, key: Mapping[str, Any]) -> CheckResult:
        manifest = self._files.read(f"{name}/{MANIFEST_NAME}")
        sizes = self._files.sizes(name)
        if manifest is None:
            return CheckResult(None, "unfinished" if sizes else "not there")
        return check_files(manifest, key, sizes, lambda file: self._digest(f"{name}/{file}", sizes[file]))

    def read(self, name: str) -> bytes | None:
        return self._files.read(name)

    def check_target(self, name: str) -> None:
        if self._files.sizes(name) and not any(
            is_own_record(self._files.read(f"{name}/{file}") or b"") for file in IDENTITY_FILES
        ):
            raise OutputError(f"{self.location(name)} holds other files: move them away, or choose another -o")

    @contextmanager
    def workspace(self) -> Iterator[Path]:
        with output_errors(Path(tempfile.gettempdir())):
            folder = tempfile.TemporaryDirectory(prefix=TEMPORARY_PREFIX, ignore_cleanup_errors=True)
        with folder as path:
            yield Path(path)

    @contextmanager
    def job_workspace(self, name: str, key: Mapping[str, Any]) -> Iterator[FolderLock]:
        # Nothing is kept: no other machine could reach the partial result of a killed worker.
        with self.workspace() as work, FolderLock(work) as lock:
            yield lock

    def publish(
        self,
        work: Path,
        name: str,
        key: Mapping[str, Any],
        result: Mapping[str, Any],
        known: Mapping[str, Checksum] | None = None,
    ) -> None:
        self.check_target(name)
        manifest = manifest_bytes(work, key, result, known)
        # run.json stays until the new one replaces it, so that the folder is identified at any moment.
        old = [file for file in self._files.sizes(name) if is_own_name(file) and file != RUN_NAME]
        self._remove_own(name, old)
        self._files.upload(work, name, [RUN_NAME])
        self._files.upload(work, name, [file for file in file_names(work) if file != RUN_NAME])
        self._files.write(f"{name}/{MANIFEST_NAME}", manifest)

    @contextmanager
    def fetch(self, name: str) -> Iterator[Path | None]:
        files = list(self._files.sizes(name))
        if MANIFEST_NAME not in files:
            yield None
            return
        with self.workspace() as folder:
            self._files.download(name, files, folder / name)
            yield folder / name

    def remove_results(self, name: str) -> None:
        # File names here are RESULT/FILE.
        self._remove_own(name, [file for file in self._files.sizes(name) if is_own_name(file.partition("/")[2])])

    def clear_workspaces(self, jobs: Iterable[tuple[str, Mapping[str, Any]]] = ()) -> None:
        """Does nothing: workspaces are temporary folders of the workers' machines."""

    def write(self, name: str, data: bytes) -> None:
        self._files.write(name, data)

    def middle_frame(self, name: str) -> bytes | None:
        try:
            frames = sorted(file for file in self._files.sizes(f"{name}/{DEPTH_FOLDER}") if file.endswith(".npz"))
            return self._files.read(f"{name}/{DEPTH_FOLDER}/{frames[len(frames) // 2]}") if frames else None
        except OutputError:
            return None

    def _digest(self, name: str, size: int) -> str:
        with self._files.open(name) as file:
            return stream_digest(file, size)

    def _remove_own(self, folder: str, files: Sequence[str]) -> None:
        """Remove files, manifests first, so that a partly removed result does not count."""
        ordered = sorted(files, key=lambda file: file.rpartition("/")[2] != MANIFEST_NAME)
        self._files.remove([f"{folder}/{file}" for file in ordered])


ADDRESS = re.compile(r"([\w+.-]+::)*[\w+.-]{2,}://")
"""Address such as ``s3://…``, or a chain such as ``simplecache::s3://…``. One letter is a drive of Windows."""
LOCAL_ADDRESS = re.compile(r"(file|local)://", re.IGNORECASE)
"""Address of a folder, for which `LocalStore` needs no fsspec and can resume partial scenes."""


def open_store(location: str) -> Store:
    """Store in a folder, or at an address of fsspec. Raises what `RemoteFiles` raises."""
    local = LOCAL_ADDRESS.match(location)
    if local is not None:
        location = location[local.end() :]
    elif ADDRESS.match(location):
        return RemoteStore(location)
    return LocalStore(Path(location).expanduser().absolute())
