"""Change of several files of a result folder as a whole: a full disk or a kill leaves all old or all new ones.

All new files are written under temporary names first. Then a journal is written, which lists the renames, and only then
they are done: they need no space. A kill between them is made good by the next process that locks or reads the folder.
"""

import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from stream_recon.app.core.input_file import parse_json, read_file
from stream_recon.app.result.files import is_temporary, new_file, output_errors, replace_file, temporary_name

JOURNAL = ".stream-recon.journal"
LARGEST_JOURNAL = 1 << 16
"""Bytes of a journal that are read: one has a dozen names."""


class FolderChange:
    """Files of one folder that are replaced together by `commit`. As a context manager it removes what was not."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._renames: dict[str, str] = {}
        self._removed: list[str] = []

    def __enter__(self) -> "FolderChange":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for part in self._renames:
            with suppress(OSError):
                (self._folder / part).unlink(missing_ok=True)

    def replace(self, name: str, write: Callable[[BinaryIO], object]) -> None:
        """Write a file that `commit` gives this name. Raises OutputError."""
        part = temporary_name(self._folder / name)
        self._renames[part.name] = name
        with output_errors(self._folder / name), new_file(part) as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())

    def replace_json(self, name: str, value: object) -> None:
        """`replace` with JSON."""
        text = json.dumps(value, indent=1, allow_nan=False) + "\n"
        self.replace(name, lambda file: file.write(text.encode()))

    def adopt(self, part: Path, name: str) -> None:
        """Take a file of a `temporary_name` that is written already."""
        assert part.parent == self._folder and is_temporary(part.name)
        self._renames[part.name] = name

    def remove(self, name: str) -> None:
        """Remove a file, if there is one, at `commit`."""
        self._removed.append(name)

    def commit(self) -> None:
        """Do all changes. Raises OutputError; nothing has changed then, or the next process completes it."""
        journal = {"renames": self._renames, "removed": self._removed}
        replace_file(self._folder / JOURNAL, lambda file: file.write(json.dumps(journal).encode()), durable=True)
        renames, self._renames = self._renames, {}
        with output_errors(self._folder):
            _do(self._folder, renames, self._removed)


def is_changing(folder: Path) -> bool:
    """Whether a change of the folder is not complete."""
    return (folder / JOURNAL).is_file()


def complete_change(folder: Path) -> None:
    """Complete a change that a kill has interrupted; the caller has locked the folder. Raises OutputError."""
    path = folder / JOURNAL
    if path.is_symlink() or not path.is_file():
        return
    with output_errors(folder):
        try:
            journal = parse_json(read_file(path, LARGEST_JOURNAL))
            renames = {str(part): str(name) for part, name in journal["renames"].items()}
            removed = [str(name) for name in journal["removed"]]
        except (ValueError, KeyError, TypeError, AttributeError):
            path.unlink()
            return
        names = [*renames.values(), *removed]
        if all(map(is_temporary, renames)) and all(Path(name).name == name and name for name in names):
            _do(folder, renames, removed)
        else:
            path.unlink()


def _do(folder: Path, renames: dict[str, str], removed: list[str]) -> None:
    for part, name in renames.items():
        with suppress(FileNotFoundError):  # it was renamed before the kill
            (folder / part).replace(folder / name)
    for name in removed:
        (folder / name).unlink(missing_ok=True)
    (folder / JOURNAL).unlink(missing_ok=True)
