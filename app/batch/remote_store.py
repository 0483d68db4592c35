"""Results under an address of fsspec. A unit is done in a temporary folder of its worker and uploaded when finished.

As in a folder, the manifest is written last: what a killed worker has uploaded by then counts for nothing.
"""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from stream_recon.app.batch.manifest import (
    MANIFEST_NAME,
    SIGNS,
    Check,
    check_content,
    is_own_name,
    is_own_record,
)
from stream_recon.app.batch.remote_files import RemoteFiles
from stream_recon.app.batch.remote_lock import remote_lock
from stream_recon.app.batch.scene_run import guarded, reconstruct_unit
from stream_recon.app.batch.stitch import stitch
from stream_recon.app.batch.units import WINDOWS_FOLDER, Model, Outcome, Unit
from stream_recon.app.engine_protocol import FrameEngine
from stream_recon.app.output.depth import DEPTH_FOLDER
from stream_recon.app.output.run_record import RUN_NAME
from stream_recon.configs.errors import OutputError


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
        return check_content(manifest, key, sizes, lambda file: self._files.sha256(f"{name}/{file}"))

    def reconstruct(self, engine: FrameEngine, unit: Unit, on_frames: Callable[[int], None]) -> Outcome:
        def work() -> dict[str, Any]:
            self._check_target(unit.name)
            with tempfile.TemporaryDirectory(prefix="stream-recon-") as folder:
                result = reconstruct_unit(engine, unit, Path(folder), on_frames)
                self._publish(Path(folder), unit.name)
            return result

        return guarded(unit.name, work)

    def stitch(self, unit: Unit, windows: Sequence[Unit], model: Model) -> Outcome:
        def work() -> dict[str, Any]:
            self._check_target(unit.name)
            with tempfile.TemporaryDirectory(prefix="stream-recon-") as folder:
                for window in windows:
                    self._files.download(window.name, list(self._files.sizes(window.name)), Path(folder, window.name))
                result = stitch(unit, windows, Path(folder), model)
                self._publish(Path(folder), unit.name)
            self.clear_windows(unit.name)
            return result

        return guarded(unit.name, work)

    def clear_windows(self, name: str) -> None:
        parent = f"{WINDOWS_FOLDER}/{name}"
        # Below it: the window's number, and what a run writes.
        self._remove_own(parent, [file for file in self._files.sizes(parent) if is_own_name(file.partition("/")[2])])

    def clear_work(self) -> None:
        """Temporary folders are gone with their workers' machines at the latest; nothing of them is here."""

    def write(self, name: str, data: bytes) -> None:
        self._files.write(name, data)

    def middle_frame(self, name: str) -> bytes | None:
        try:
            frames = sorted(file for file in self._files.sizes(f"{name}/{DEPTH_FOLDER}") if file.endswith(".npz"))
            return self._files.read(f"{name}/{DEPTH_FOLDER}/{frames[len(frames) // 2]}") if frames else None
        except OutputError:
            return None

    def _check_target(self, name: str) -> None:
        """Raises OutputError if there are files under that name that were not written by this program."""
        if self._files.sizes(name) and not any(
            is_own_record(self._files.read(f"{name}/{sign}") or b"") for sign in SIGNS
        ):
            raise OutputError(f"{self.place(name)} holds other files: move them away, or choose another -o")

    def _publish(self, local: Path, name: str) -> None:
        """Upload a finished result in place of an earlier one. Raises OutputError."""
        source = local / name
        if not (source / MANIFEST_NAME).is_file():
            # A window beyond the end of its video.
            return
        self._check_target(name)
        new = sorted(path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file())
        # The sign of whose folder it is stays until a new one replaces it.
        old = [file for file in self._files.sizes(name) if is_own_name(file) and file != RUN_NAME]
        self._remove_own(name, old)
        self._files.upload(source, name, [RUN_NAME])
        self._files.upload(source, name, [file for file in new if file not in SIGNS])
        self._files.upload(source, name, [MANIFEST_NAME])

    def _remove_own(self, folder: str, files: Sequence[str]) -> None:
        """Manifests first: what is half removed must not count."""
        ordered = sorted(files, key=lambda file: file.rpartition("/")[2] != MANIFEST_NAME)
        self._files.remove([f"{folder}/{file}" for file in ordered])
