"""Stores for a batch's results: their interface, and a folder. One batch at a time writes to a store."""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from stream_recon.app.batch import manifest as manifest_files
from stream_recon.app.core.cancel import Cancelled
from stream_recon.app.core.input_file import read_file
from stream_recon.app.result.depth import DEPTH_FOLDER
from stream_recon.app.result.files import output_errors, replace_file
from stream_recon.app.result.lock import FolderLock
from stream_recon.configs.errors import OutputError

LOCK_NAME = ".batch.lock"
WORK_FOLDER = ".work"
"""Folder in OUT for results under way."""


def output_lock(out: Path) -> FolderLock:
    """Lock the folder, creating it if need be. Raises OutputError if another batch holds it.

    The system releases the lock when the process ends, also by a kill.
    """
    return FolderLock(out, "batch", LOCK_NAME)


class Store(Protocol):
    """A result folder for each job, by name, and files of the batch. Pickled for workers. Methods raise OutputError."""

    @property
    def single_process(self) -> bool:
        """Whether only this process sees what is written."""

    def location(self, name: str) -> str:
        """Path or address of a file or folder, for messages."""

    def lock(self) -> AbstractContextManager[object]:
        """Lock the store for the block. Raises OutputError if another batch holds it."""

    def check(self, name: str, key: Mapping[str, Any]) -> manifest_files.CheckResult:
        """Whether there is a complete result of that name and key; see `check_manifest`."""

    def read(self, name: str) -> bytes | None:
        """Content of a file of the batch; None where there is none. Raises OutputError."""

    def check_target(self, name: str) -> None:
        """Raises OutputError if the folder of that name holds something that this program has not written."""

    def workspace(self) -> AbstractContextManager[Path]:
        """New folder on this machine for writing a result, removed at the end of the block. Raises OutputError."""

    def job_workspace(self, name: str, key: Mapping[str, Any]) -> AbstractContextManager[FolderLock]:
        """Locked `workspace` of one job, which may hold the partial result of an interrupted worker.

        It is kept when the block ends by a `Cancelled` or Ctrl-C, and when the process is killed. Where the
        store cannot keep it, or another worker still holds it, it is an ordinary workspace.
        """

    def publish(
        self,
        work: Path,
        name: str,
        key: Mapping[str, Any],
        result: Mapping[str, Any],
        known: Mapping[str, manifest_files.Checksum] | None = None,
    ) -> None:
        """Move a result from a workspace into the store, the manifest last. Arguments and errors: see `publish`."""

    def fetch(self, name: str) -> AbstractContextManager[Path | None]:
        """Folder on this machine with the files of a finished result during the block; None where there is none.

        Raises OutputError.
        """

    def remove_results(self, name: str) -> None:
        """Remove the results, finished or not, in subfolders of the folder of that name. Raises OutputError."""

    def clear_workspaces(self, jobs: Iterable[tuple[str, Mapping[str, Any]]] = ()) -> None:
        """Remove workspaces of killed workers, except those of these jobs (name, key). The store must be locked."""

    def write(self, name: str, data: bytes) -> None:
        """Write a file of the batch, replacing it atomically. Raises OutputError."""

    def middle_frame(self, name: str) -> bytes | None:
        """Content of the depth file of a result's middle frame; None if there is none that can be read."""


@dataclass(frozen=True)
class LocalStore:
    """`Store` in a folder that all workers see under the same path."""

    folder: Path

    @property
    def single_process(self) -> bool:
        return False

    def location(self, name: str) -> str:
        return str(self.folder / name)

    def lock(self) -> AbstractContextManager[object]:
        return output_lock(self.folder)

    def check(self, name: str, key: Mapping[str, Any]) -> manifest_files.CheckResult:
        return manifest_files.check_manifest(self.folder / name, key)

    def read(self, name: str) -> bytes | None:
        path = self.folder / name
        with output_errors(path):
            return read_file(path) if path.exists() or path.is_symlink() else None

    def check_target(self, name: str) -> None:
        manifest_files.check_target(self.folder / name)

    @contextmanager
    def workspace(self) -> Iterator[Path]:
        # In OUT, not in a temporary folder: files cannot be renamed across file systems.
        parent = self.folder / WORK_FOLDER
        with output_errors(parent):
            parent.mkdir(exist_ok=True)
            work = Path(tempfile.mkdtemp(dir=parent))
        try:
            yield work
        finally:
            shutil.rmtree(work, ignore_errors=True)

    @contextmanager
    def job_workspace(self, name: str, key: Mapping[str, Any]) -> Iterator[FolderLock]:
        lock = self._try_lock(self.folder / WORK_FOLDER / _work_name(name, key))
        if lock is None:
            with self.workspace() as work, FolderLock(work) as other:
                yield other
            return
        try:
            yield lock
        except (Cancelled, KeyboardInterrupt):
            raise
        except BaseException:
            shutil.rmtree(lock.folder, ignore_errors=True)
            raise
        else:
            shutil.rmtree(lock.folder, ignore_errors=True)
        finally:
            lock.release()

    def _try_lock(self, folder: Path) -> FolderLock | None:
        """Lock a workspace; None where a worker that was given up still holds it, as on a machine that was cut off."""
        with output_errors(folder):
            folder.parent.mkdir(exist_ok=True)
        if folder.is_symlink():
            return None
        try:
            return FolderLock(folder)
        except OutputError:
            return None

    def publish(
        self,
        work: Path,
        name: str,
        key: Mapping[str, Any],
        result: Mapping[str, Any],
        known: Mapping[str, manifest_files.Checksum] | None = None,
    ) -> None:
        manifest_files.publish(work, self.folder / name, key, result, known)

    @contextmanager
    def fetch(self, name: str) -> Iterator[Path | None]:
        folder = self.folder / name
        yield folder if (folder / manifest_files.MANIFEST_NAME).is_file() else None

    def remove_results(self, name: str, keep: Container[str] = ()) -> None:
        parent = self.folder / name
        with output_errors(parent):
            for folder in list(parent.iterdir()) if manifest_files.is_real_folder(parent) else []:
                if folder.name not in keep:
                    manifest_files.remove_result(folder)
            for emptied in (parent, parent.parent):
                if emptied != self.folder and manifest_files.is_real_folder(emptied) and not any(emptied.iterdir()):
                    emptied.rmdir()

    def clear_workspaces(self, jobs: Iterable[tuple[str, Mapping[str, Any]]] = ()) -> None:
        self.remove_results(WORK_FOLDER, keep={_work_name(name, key) for name, key in jobs})

    def write(self, name: str, data: bytes) -> None:
        replace_file(self.folder / name, lambda file: file.write(data))

    def middle_frame(self, name: str) -> bytes | None:
        frames = sorted((self.folder / name / DEPTH_FOLDER).glob("*.npz"))
        try:
            return read_file(frames[len(frames) // 2]) if frames else None
        except OSError:
            return None


def _work_name(name: str, key: Mapping[str, Any]) -> str:
    """Name of a job's workspace, which differs with other options or weights."""
    return hashlib.sha256(json.dumps([name, key], sort_keys=True).encode()).hexdigest()[:24]
