"""Change of several files of a folder as a whole: a full disk, Ctrl-C or a kill leaves all old or all new ones.

All new files are written under temporary names first. Then a journal is written, which lists the renames, and only then
they are done: they need no space. An end between them is made good by the next process that locks or reads the folder.
Each step is on the disk before the next one begins.
"""

import json
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from stream_recon.app.core import output_file
from stream_recon.app.core.input_file import parse_json, read_file
from stream_recon.app.result.files import output_errors
from stream_recon.app.result.run_record import FILE_NAMES, RUN_NAME

JOURNAL = ".stream-recon.journal"
LARGEST_JOURNAL = 1 << 16
"""Bytes of a journal that are read: one has a dozen names."""
RESULT_NAMES = (*FILE_NAMES, RUN_NAME)
"""Files that a journal of a result may name; others are those of a user."""


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
        # The files of a journal are no longer those of this change alone.
        for part in () if is_changing(self._folder) else self._renames:
            with suppress(OSError):
                (self._folder / part).unlink(missing_ok=True)

    def part(self, name: str) -> Path:
        """Path at which to write a new file that `commit` gives this name."""
        part = output_file.temporary_name(self._folder / name)
        self._renames[part.name] = name
        return part

    def replace(self, name: str, write: Callable[[BinaryIO], object], permissions: int = 0o644) -> None:
        """Write a file that `commit` gives this name. Raises OutputError."""
        with output_errors(self._folder / name), output_file.new_file(self.part(name), permissions) as file:
            write(file)

    def replace_json(self, name: str, value: object) -> None:
        text = json.dumps(value, indent=1, allow_nan=False) + "\n"
        self.replace(name, lambda file: file.write(text.encode()))

    def remove(self, name: str) -> None:
        """Remove a file, if there is one, at `commit`."""
        self._removed.append(name)

    def commit(self) -> None:
        """Do all changes. Raises OutputError; nothing has changed then, or the next process completes it."""
        complete_change(self._folder, (*self._renames.values(), *self._removed, *RESULT_NAMES))  # one that failed
        journal = json.dumps({"renames": self._renames, "removed": self._removed}).encode()
        with output_errors(self._folder):
            for part in self._renames:
                with output_file.open_again(self._folder / part) as file:
                    output_file.sync(file)
            output_file.sync_folder(self._folder)
            with output_file.replacing(self._folder / JOURNAL, durable=True) as file:
                file.write(journal)
            _do(self._folder, self._renames, self._removed)


def is_changing(folder: Path) -> bool:
    """Whether a change of the folder is not complete."""
    return (folder / JOURNAL).is_file()


def complete_change(folder: Path, own: Collection[str] = RESULT_NAMES) -> None:
    """Complete a change that was interrupted; the caller has locked the folder. Raises OutputError.

    ``own``: names that the journal may have; one with others is of nobody, and is removed.
    """
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
        are_parts = all(
            output_file.is_temporary(part) and part.startswith(f"{name}.") for part, name in renames.items()
        )
        if are_parts and all(name in own for name in (*renames.values(), *removed)):
            _do(folder, renames, removed)
        else:
            path.unlink()


def _do(folder: Path, renames: dict[str, str], removed: list[str]) -> None:
    for part, name in renames.items():
        with suppress(FileNotFoundError):  # it was renamed before the interruption
            (folder / part).replace(folder / name)
    for name in removed:
        (folder / name).unlink(missing_ok=True)
    output_file.sync_folder(folder)
    (folder / JOURNAL).unlink(missing_ok=True)
