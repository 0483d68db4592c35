"""Where the results of a batch go.

One batch at a time on one output folder.
"""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from stream_recon.app.batch.jobs import JobInterruptedError
from stream_recon.app.batch.manifest import (
    MANIFEST_NAME,
    Check,
    Mark,
    check_manifest,
    check_target,
    is_real_folder,
    publish,
    remove_result,
)
from stream_recon.app.result.depth import DEPTH_FOLDER
from stream_recon.app.result.files import output_errors, replace_file
from stream_recon.app.result.lock import FolderLock
from stream_recon.configs.errors import OutputError

LOCK_NAME = ".batch.lock"


def output_lock(out: Path) -> FolderLock:
    """Hold the folder, which is made if need be. The system lets go when the process ends, however it ends.

    Raises:
        OutputError: another batch holds it, or it cannot be made.
    """
    return FolderLock(out, "batch", LOCK_NAME)


WORK_FOLDER = ".work"


class Store(Protocol):
    """A result folder for each unit by its name, and a few files of the batch. Is sent to workers."""

    @property
    def of_one_process(self) -> bool:
        """Whether other processes see nothing of what is written."""

    def place(self, name: str) -> str:
        """Where a file or folder is, for people."""

    def lock(self) -> AbstractContextManager[object]:
        """Keep other batches out for the time of the block. Raises OutputError where one is at work."""

    def check(self, name: str, key: Mapping[str, Any]) -> Check:
        """See whether the result of that name is complete and what ``key`` describes; see `check_manifest`."""

    def check_target(self, name: str) -> None:
        """Raises OutputError if something stands at that name that was not written by this program."""

    def workspace(self) -> AbstractContextManager[Path]:
        """A new folder of this machine to make a result in, gone at the end of the block with what was written there.

        Raises:
            OutputError: it cannot be made.
        """

    def own_workspace(self, name: str, key: Mapping[str, Any]) -> AbstractContextManager[FolderLock]:
        """A `workspace` of one unit, which is held: what was done of it, and then cut off, may be there.

        It stays when the block ends by a `JobInterruptedError` or Ctrl-C, and when the process is killed. Where that
        cannot be, or another worker still holds it, it is an ordinary one.

        Raises:
            OutputError: it cannot be made.
        """

    def publish(
        self,
        work: Path,
        name: str,
        key: Mapping[str, Any],
        result: Mapping[str, Any],
        known: Mapping[str, Mark] | None = None,
    ) -> None:
        """Put the result that was made in a workspace in its place, and its manifest last; see `manifest_of`.

        Raises:
            OutputError: see `check_target`; or it cannot be written.
        """

    def fetch(self, name: str) -> AbstractContextManager[Path | None]:
        """The files of a finished result in a folder of this machine, to read for the time of the block.

        None where there is no finished result of that name.

        Raises:
            OutputError: it cannot be read.
        """

    def remove(self, name: str) -> None:
        """Remove the results, finished or not, in the folders within the one of that name. Raises OutputError."""

    def clear_work(self, units: Iterable[tuple[str, Mapping[str, Any]]] = ()) -> None:
        """Remove what killed workers left, but for what is of these units, by name and key. Only while locked.

        Raises:
            OutputError: a file cannot be removed.
        """

    def write(self, name: str, data: bytes) -> None:
        """Replace a file of the batch's own. Raises OutputError."""

    def middle_frame(self, name: str) -> bytes | None:
        """The depth file of a result's middle frame; None if there is none that can be read."""


@dataclass(frozen=True)
class LocalStore:
    """A folder that all workers see under the same path. See `Store`."""

    folder: Path

    @property
    def of_one_process(self) -> bool:
        return False

    def place(self, name: str) -> str:
        return str(self.folder / name)

    def lock(self) -> AbstractContextManager[object]:
        return output_lock(self.folder)

    def check(self, name: str, key: Mapping[str, Any]) -> Check:
        return check_manifest(self.folder / name, key)

    def check_target(self, name: str) -> None:
        check_target(self.folder / name)

    @contextmanager
    def workspace(self) -> Iterator[Path]:
        # Beside the results: from another file system they would have to be copied.
        parent = self.folder / WORK_FOLDER
        with output_errors(parent):
            parent.mkdir(exist_ok=True)
            work = Path(tempfile.mkdtemp(dir=parent))
        try:
            yield work
        finally:
            shutil.rmtree(work, ignore_errors=True)

    @contextmanager
    def own_workspace(self, name: str, key: Mapping[str, Any]) -> Iterator[FolderLock]:
        lock = self._take(self.folder / WORK_FOLDER / _work_name(name, key))
        if lock is None:
            with self.workspace() as work, FolderLock(work) as other:
                yield other
            return
        try:
            yield lock
        except (JobInterruptedError, KeyboardInterrupt):
            raise
        except BaseException:
            shutil.rmtree(lock.folder, ignore_errors=True)
            raise
        else:
            shutil.rmtree(lock.folder, ignore_errors=True)
        finally:
            lock.release()

    def _take(self, folder: Path) -> FolderLock | None:
        """None where a worker that was given up holds it all the same: such as one on a machine that was cut off."""
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
        known: Mapping[str, Mark] | None = None,
    ) -> None:
        publish(work, self.folder / name, key, result, known)

    @contextmanager
    def fetch(self, name: str) -> Iterator[Path | None]:
        folder = self.folder / name
        yield folder if (folder / MANIFEST_NAME).is_file() else None

    def remove(self, name: str) -> None:
        self._remove(name)

    def _remove(self, name: str, keep: Container[str] = ()) -> None:
        parent = self.folder / name
        with output_errors(parent):
            for folder in list(parent.iterdir()) if is_real_folder(parent) else []:
                if folder.name not in keep:
                    remove_result(folder)
            for place in (parent, parent.parent):
                if place != self.folder and is_real_folder(place) and not any(place.iterdir()):
                    place.rmdir()

    def clear_work(self, units: Iterable[tuple[str, Mapping[str, Any]]] = ()) -> None:
        self._remove(WORK_FOLDER, keep={_work_name(name, key) for name, key in units})

    def write(self, name: str, data: bytes) -> None:
        replace_file(self.folder / name, lambda file: file.write(data))

    def middle_frame(self, name: str) -> bytes | None:
        frames = sorted((self.folder / name / DEPTH_FOLDER).glob("*.npz"))
        try:
            return frames[len(frames) // 2].read_bytes() if frames else None
        except OSError:
            return None


def _work_name(name: str, key: Mapping[str, Any]) -> str:
    """Tells a unit from all others, and from itself with other options or weights."""
    return hashlib.sha256(json.dumps([name, key], sort_keys=True).encode()).hexdigest()[:24]
