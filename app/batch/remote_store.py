"""Results under an address of fsspec. A unit is done in a temporary folder of its worker and uploaded when finished.

As in a folder, the manifest is written last: what a killed worker has uploaded by then counts for nothing.

Files under an address that fsspec understands: ``s3://bucket/folder`` and the like.

One batch at a time on an address, where there are no locks: a file that its holder renews.

A batch that finds such a file watches it. If it changes, its writer is alive; if it stays the same for several beats,
its writer was killed. Clocks of different machines are never compared.

From what the user wrote to a `Store`.
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
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from stream_recon.app.batch.manifest import (
    MANIFEST_NAME,
    SIGNS,
    Check,
    Mark,
    check_content,
    file_names,
    is_own_name,
    is_own_record,
    manifest_of,
    stream_digest,
)
from stream_recon.app.batch.store import LOCK_NAME, LocalStore, Store
from stream_recon.app.result.depth import DEPTH_FOLDER
from stream_recon.app.result.files import output_errors
from stream_recon.app.result.lock import FolderLock
from stream_recon.app.result.run_record import RUN_NAME
from stream_recon.configs.errors import ConfigError, OutputError, ResourceError, StreamReconError

logger = logging.getLogger(__name__)


class RemoteFiles:
    """A folder. Names are relative to it, with ``/`` between folders. Every method raises OutputError."""

    def __init__(self, address: str) -> None:
        """
        Raises:
            ResourceError: fsspec, or the package that it needs for this address, is not installed.
            ConfigError: an address of an unknown kind.
            OutputError: the address cannot be reached.
        """
        self.address = address.rstrip("/")
        try:
            from fsspec.core import url_to_fs
        except ImportError as error:
            raise ResourceError(f"{address} needs fsspec: pip install 'stream-recon[ray]'") from error
        with self._errors("reach"):
            try:
                fs, base = url_to_fs(self.address)
            except ImportError as error:
                raise ResourceError(f"{address} needs a further package: {error}") from error
            except ValueError as error:
                raise ConfigError(f"{address} is no address that fsspec knows: {error}") from error
        self._fs: Any = fs
        self._base = str(base).rstrip("/")

    @property
    def of_one_process(self) -> bool:
        """Whether other processes see nothing of it."""
        protocol = self._fs.protocol
        return "memory" in ((protocol,) if isinstance(protocol, str) else protocol)

    def make(self) -> None:
        """Make the folder itself, where there is such a thing."""
        with self._errors("write"):
            self._fs.makedirs(self._base, exist_ok=True)

    def sizes(self, folder: str) -> dict[str, int]:
        """Sizes in bytes of all files beneath ``folder``, by their names relative to it; empty if there is none."""
        base = self._path(folder)
        with self._errors("read"):
            # What other machines wrote meanwhile may be missing in a listing that was kept.
            self._fs.invalidate_cache()
            found = self._fs.find(base, detail=True)
        # Some stores list a file as the content of itself.
        inside = {str(path): info for path, info in found.items() if str(path).startswith(base + "/")}
        return {path[len(base) + 1 :]: int(info["size"]) for path, info in inside.items()}

    def read(self, name: str) -> bytes | None:
        """The content of a file; None if there is none."""
        with self._errors("read"):
            self._fs.invalidate_cache()
            try:
                return bytes(self._fs.cat_file(self._path(name)))
            except FileNotFoundError:
                return None

    def digest(self, name: str, size: int, known: str) -> str:
        """Of the content of a file of so many bytes, in the way of a known one; see `file_digest`."""
        with self._errors("read"), self._fs.open(self._path(name), "rb") as file:
            return stream_digest(file, size, known)

    def write(self, name: str, data: bytes) -> None:
        """Write a whole file."""
        with self._errors("write"):
            self._fs.pipe_file(self._path(name), data)

    def upload(self, source: Path, folder: str, names: Sequence[str]) -> None:
        """Copy files of the local folder ``source`` into ``folder``."""
        targets = [self._path(folder, name) for name in names]
        with self._errors("write"):
            for parent in {target.rpartition("/")[0] for target in targets}:
                self._fs.makedirs(parent, exist_ok=True)
            self._fs.put([str(source / name) for name in names], targets)

    def download(self, folder: str, names: Sequence[str], target: Path) -> None:
        """Copy files of ``folder`` into the local folder ``target``."""
        for parent in {(target / name).parent for name in names}:
            parent.mkdir(parents=True, exist_ok=True)
        with self._errors("read"):
            self._fs.get([self._path(folder, name) for name in names], [str(target / name) for name in names])

    def remove(self, names: Collection[str]) -> None:
        """Remove files, in their order; those that are gone already do not matter."""
        with self._errors("write"):
            for name in names:
                # One by one: lists are taken as patterns, and names may hold brackets.
                try:
                    self._fs.rm_file(self._path(name))
                except FileNotFoundError:
                    continue

    def _path(self, *names: str) -> str:
        return "/".join([self._base, *(name for name in names if name)])

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except StreamReconError:
            raise
        except Exception as error:
            # Each kind of store raises errors of its own client library, many of them no OSError.
            reason = " ".join(str(error).split()) or "no reason given"
            raise OutputError(f"cannot {what} {self.address}: {type(error).__name__}: {reason}") from error


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


TEMPORARY = "stream-recon-"
"""Begins the names of temporary folders."""


@dataclass(frozen=True)
class RemoteStore:
    """See `Store`. Only the address travels to workers."""

    address: str

    def __post_init__(self) -> None:
        """Raises what `RemoteFiles` raises."""
        _ = self._files

    @cached_property
    def _files(self) -> RemoteFiles:
        return RemoteFiles(self.address)

    def __getstate__(self) -> dict[str, str]:
        return {"address": self.address}

    @property
    def of_one_process(self) -> bool:
        return self._files.of_one_process

    def place(self, name: str) -> str:
        return f"{self._files.address}/{name}"

    def lock(self) -> AbstractContextManager[None]:
        return remote_lock(self._files)

    def check(self, name: str, key: Mapping[str, Any]) -> Check:
        manifest = self._files.read(f"{name}/{MANIFEST_NAME}")
        sizes = self._files.sizes(name)
        if manifest is None:
            return Check(None, "unfinished" if sizes else "not there")

        def digest(file: str, known: str) -> str:
            return self._files.digest(f"{name}/{file}", sizes[file], known)

        return check_content(manifest, key, sizes, digest)

    def check_target(self, name: str) -> None:
        if self._files.sizes(name) and not any(
            is_own_record(self._files.read(f"{name}/{sign}") or b"") for sign in SIGNS
        ):
            raise OutputError(f"{self.place(name)} holds other files: move them away, or choose another -o")

    @contextmanager
    def workspace(self) -> Iterator[Path]:
        with output_errors(Path(tempfile.gettempdir())):
            folder = tempfile.TemporaryDirectory(prefix=TEMPORARY, ignore_cleanup_errors=True)
        with folder as path:
            yield Path(path)

    @contextmanager
    def own_workspace(self, name: str, key: Mapping[str, Any]) -> Iterator[FolderLock]:
        # Of what a killed worker did nothing is left that another machine could reach.
        with self.workspace() as work, FolderLock(work) as lock:
            yield lock

    def publish(
        self,
        work: Path,
        name: str,
        key: Mapping[str, Any],
        result: Mapping[str, Any],
        known: Mapping[str, Mark] | None = None,
    ) -> None:
        self.check_target(name)
        manifest = manifest_of(work, key, result, known)
        # The sign of whose folder it is stays until a new one replaces it.
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

    def remove(self, name: str) -> None:
        # Below it: a folder for each result, and what a run writes.
        self._remove_own(name, [file for file in self._files.sizes(name) if is_own_name(file.partition("/")[2])])

    def clear_work(self, units: Iterable[tuple[str, Mapping[str, Any]]] = ()) -> None:
        """Temporary folders are gone with their workers' machines at the latest; nothing of them is here."""

    def write(self, name: str, data: bytes) -> None:
        self._files.write(name, data)

    def middle_frame(self, name: str) -> bytes | None:
        try:
            frames = sorted(file for file in self._files.sizes(f"{name}/{DEPTH_FOLDER}") if file.endswith(".npz"))
            return self._files.read(f"{name}/{DEPTH_FOLDER}/{frames[len(frames) // 2]}") if frames else None
        except OutputError:
            return None

    def _remove_own(self, folder: str, files: Sequence[str]) -> None:
        """Manifests first: what is half removed must not count."""
        ordered = sorted(files, key=lambda file: file.rpartition("/")[2] != MANIFEST_NAME)
        self._files.remove([f"{folder}/{file}" for file in ordered])


ADDRESS = re.compile(r"([\w+.-]+::)*[\w+.-]{2,}://")
"""``s3://…`` or a chain such as ``simplecache::s3://…``."""
LOCAL_ADDRESS = re.compile(r"(file|local)://", re.IGNORECASE)


def open_store(place: str) -> Store:
    """A folder, or an address of fsspec.

    Raises:
        ResourceError: a package that the address needs is not installed.
        ConfigError: an address of an unknown kind.
        OutputError: the address cannot be reached.
    """
    local = LOCAL_ADDRESS.match(place)
    if local is not None:
        place = place[local.end() :]
    elif ADDRESS.match(place):
        return RemoteStore(place)
    return LocalStore(Path(place).expanduser().absolute())
