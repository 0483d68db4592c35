"""Results under an address of fsspec. A unit is done in a temporary folder of its worker and uploaded when finished.

As in a folder, the manifest is written last: what a killed worker has uploaded by then counts for nothing.
"""

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
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
)
from stream_recon.app.batch.remote_files import RemoteFiles
from stream_recon.app.batch.remote_lock import remote_lock
from stream_recon.app.result.depth import DEPTH_FOLDER
from stream_recon.app.result.files import output_errors
from stream_recon.app.result.lock import FolderLock
from stream_recon.app.result.run_record import RUN_NAME
from stream_recon.configs.errors import OutputError

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
