"""Where an export goes: whole under its name, or not there at all; what others put there is never removed."""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stream_recon.app.result.files import output_errors
from stream_recon.configs.errors import OutputError

README_NAME = "README.txt"
README_TITLE = "stream-recon export"
OURS = re.compile(
    r"README\.txt|images/frame_\d+\.jpg|(depth|masks)/frame_\d+\.png|sparse/0/(cameras|images|points3D|rigs|frames)\.bin"
    r"|transforms\.json|points\.ply|cameras\.csv|trajectory_tum\.txt|trajectory_kitti\.txt|times_kitti\.txt"
    r"|trajectory_euroc\.csv"
)
"""Every file that an export's folder may hold."""


def check_target(target: Path, overwrite: bool, *, is_file: bool) -> None:
    """See whether an export may be written to ``target``; changes nothing.

    Raises:
        OutputError: something is there, and is not an earlier export or ``overwrite`` is not given.
    """
    with output_errors(target):
        if not target.exists() and not target.is_symlink():
            if not target.absolute().parent.is_dir():
                raise OutputError(f"{target} cannot be written: there is no folder {target.absolute().parent}")
            return
        if is_file != target.is_file():
            raise OutputError(f"{target} is a {'folder' if is_file else 'file'}: choose another -o TARGET")
        if not is_file and not any(target.iterdir()):
            return
        if not overwrite:
            raise OutputError(f"{target} exists: use --overwrite, or another -o TARGET")
        if is_file:
            return
        if not _title(target / README_NAME).startswith(README_TITLE):
            raise OutputError(f"{target} is no earlier export: choose another -o TARGET")
        for path in target.rglob("*"):
            if (not path.is_dir() or path.is_symlink()) and not OURS.fullmatch(path.relative_to(target).as_posix()):
                raise OutputError(f"{path} was not written by an export: move it, or choose another -o TARGET")


@contextmanager
def staged_folder(target: Path, overwrite: bool) -> Iterator[Path]:
    """A new folder to fill, which becomes ``target`` when the block ends well and is removed when it does not.

    Raises:
        OutputError: see `check_target`; or the system refuses, as on a full disk.
    """
    check_target(target, overwrite, is_file=False)
    part = _beside(target, "part")
    with output_errors(target):
        part.mkdir()
        try:
            yield part
            old = _beside(target, "old") if target.exists() else None
            if old is not None:
                target.replace(old)
            try:
                part.replace(target)
            except OSError:
                if old is not None:
                    old.replace(target)
                raise
            if old is not None:
                shutil.rmtree(old, ignore_errors=True)
        finally:
            shutil.rmtree(part, ignore_errors=True)


@contextmanager
def staged_file(target: Path, overwrite: bool) -> Iterator[Path]:
    """A path to write to, which becomes ``target`` when the block ends well and is removed when it does not.

    Raises:
        OutputError: as `staged_folder`.
    """
    check_target(target, overwrite, is_file=True)
    part = _beside(target, "part")
    with output_errors(target):
        try:
            yield part
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)


def _beside(target: Path, what: str) -> Path:
    # A trailing ".." or "." has no name of its own.
    whole = target.resolve() if not target.name else target
    # With the suffix last: writers go by it.
    return whole.with_name(f".{whole.stem}.{os.getpid()}.{what}{whole.suffix}")


def _title(readme: Path) -> str:
    try:
        with readme.open(encoding="utf-8", errors="replace") as file:
            return file.readline()
    except OSError:
        return ""
