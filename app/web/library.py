"""The results in the data folder: what a page lists of each, its picture, renaming and removal."""

import io
import math
import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stream_recon.app.core.input_file import open_regular, parse_json, read_file
from stream_recon.app.result.cameras import TRAJECTORY_NAME
from stream_recon.app.result.depth import DEPTH_FOLDER
from stream_recon.app.result.files import output_errors
from stream_recon.app.result.folder import MESH_NAME
from stream_recon.app.result.lock import FolderLock
from stream_recon.app.result.run_record import METRIC_SCALE, PROGRAM, REFINEMENT, RUN_NAME, section
from stream_recon.app.result.tracks import DAMAGE, read_arrays
from stream_recon.app.result.verdict import recorded_verdict
from stream_recon.app.result.writer import remove_result
from stream_recon.app.web.data_folder import MAX_NAME, DataFolder, safe_name
from stream_recon.app.web.limits import ConflictError, MissingError
from stream_recon.configs.errors import OutputError

MAX_RECORD_BYTES = 16_000_000
"""Bound of a ``run.json`` that is read."""
MAX_PICTURE_BYTES = 4_000_000
READ_SECONDS = 3.0
"""Time within which each file of a result must be read."""
JPEG = b"\xff\xd8\xff"


@dataclass(frozen=True)
class ResultListing:
    """A result as a page lists it."""

    name: str
    source: str
    frames: int
    seconds: float | None
    """Length of the part of the source that was reconstructed."""
    interrupted: bool
    refined: bool
    metres: bool
    mesh: bool
    verdict: str
    """good, unsure, doubtful or failed; empty where it is not judged."""
    reason: str
    changed: float
    """Time of the last change, in seconds since 1970."""


class Library:
    """Reads the results; what it read is kept until their ``run.json`` changes."""

    def __init__(self, data: DataFolder) -> None:
        self._data = data
        self._entries: dict[str, tuple[tuple[int, int], ResultListing | None]] = {}

    def entries(self) -> list[ResultListing]:
        """All results, the last changed first. Folders with a damaged ``run.json`` are left out. Raises OSError."""
        listed: dict[str, tuple[tuple[int, int], ResultListing | None]] = {}
        for name in self._data.results():
            folder = self._data.path / name
            with suppress(OSError):
                stat = (folder / RUN_NAME).stat()
                key = stat.st_mtime_ns, stat.st_size
                known = self._entries.get(name)
                listed[name] = known if known is not None and known[0] == key else (key, None)
                if listed[name] is not known:
                    with suppress(ValueError, RecursionError, MemoryError):
                        listed[name] = key, _entry(folder, stat.st_mtime)
        self._entries = listed
        return sorted((entry for _, entry in listed.values() if entry is not None), key=lambda entry: -entry.changed)

    def folder(self, name: str) -> Path:
        """Folder of a result. Raises MissingError where there is none of this name."""
        folder = self._data.result(name)
        if folder is None:
            raise MissingError("there is no such result")
        return folder

    def picture(self, name: str) -> bytes:
        """JPEG of a frame in the middle. Raises OutputError where there is none."""
        folder = self.folder(name)
        try:
            names = sorted(entry.name for entry in os.scandir(folder / DEPTH_FOLDER) if entry.name.endswith(".npz"))
            content = io.BytesIO(read_file(folder / DEPTH_FOLDER / names[len(names) // 2], timeout_s=READ_SECONDS))
            data = read_arrays(content, ["rgb_jpeg"], stored=True)["rgb_jpeg"].astype(np.uint8).tobytes()
        except (*DAMAGE, IndexError) as error:
            raise OutputError("it has no picture") from error
        if not data.startswith(JPEG) or len(data) > MAX_PICTURE_BYTES:
            raise OutputError("it has no picture")
        return bytes(data)

    def rename(self, name: str, title: object, taken: Collection[str] = ()) -> str:
        """Give a result's folder another name, which is returned; ``taken``: names of jobs. Raises OutputError."""
        folder = self.folder(name)
        if not isinstance(title, str) or not title.strip():
            raise OutputError("give a name")
        new = safe_name(title[: 4 * MAX_NAME])
        if new == name:
            return name
        target = self._data.path / new
        if self._data.is_taken(new, taken):
            raise ConflictError(f"{new} exists: choose another name")
        FolderLock(folder).release()  # refuses where a process writes to it
        with output_errors(folder):
            folder.rename(target)
        return new

    def source(self, name: str) -> str:
        """Path or address that a result was made of; empty where it is not known. Raises OutputError."""
        try:
            return _text(section(_record(self.folder(name)), "options").get("source"))
        except (OSError, ValueError):
            return ""

    def remove(self, name: str) -> bool:
        """Remove a result's own files; returns whether its folder is gone. Raises OutputError."""
        return remove_result(self.folder(name))


def _record(folder: Path) -> Mapping[str, Any]:
    """The ``run.json`` of a result. Raises OSError, ValueError."""
    record = parse_json(read_file(folder / RUN_NAME, MAX_RECORD_BYTES, READ_SECONDS))
    if not isinstance(record, dict) or record.get("program") != PROGRAM:
        raise ValueError("it is of another program")
    return record


def _entry(folder: Path, changed: float) -> ResultListing:
    """Raises OSError, ValueError."""
    record = _record(folder)
    verdict = recorded_verdict(record)
    frames = section(record, "frames").get("reconstructed")
    return ResultListing(
        name=folder.name,
        source=_text(record.get("source"))[:200],
        frames=frames if isinstance(frames, int) and 0 <= frames < 2**53 else 0,
        seconds=_length(folder / TRAJECTORY_NAME),
        interrupted=record.get("interrupted") is not False,
        refined=bool(section(record, REFINEMENT)),
        metres=bool(section(record, METRIC_SCALE)),
        mesh=(folder / MESH_NAME).is_file(),
        verdict=verdict.level if verdict else "",
        reason=_text(verdict.explanation)[:1000] if verdict else "",
        changed=changed,
    )


def _text(value: object) -> str:
    """A text that UTF-8 can write; empty for anything else."""
    return value.encode(errors="replace").decode() if isinstance(value, str) else ""


def _length(trajectory: Path) -> float | None:
    """Seconds from the first to the last pose; None where the file is missing or damaged."""
    try:
        with open_regular(trajectory, READ_SECONDS) as file:
            first = file.read(4096)
            file.seek(max(0, os.fstat(file.fileno()).st_size - 4096))
            last = file.read(4096)
        begin = next(line for line in first.split(b"\n") if line and not line.startswith(b"#"))
        end = [line for line in last.split(b"\n") if line and not line.startswith(b"#")][-1]
        seconds = float(end.split()[0]) - float(begin.split()[0])
    except (OSError, ValueError, IndexError, StopIteration):
        return None
    return seconds if math.isfinite(seconds) else None
