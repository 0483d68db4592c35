"""The door for files that the program writes: new ones, never through a link, under their own name once complete.

A test searches the program for other ways to open a file for writing.
"""

import errno
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import BinaryIO, TextIO

from stream_recon.app.core.platform import NO_FOLLOW, NO_WAIT, OPEN_FLAGS

PART_SUFFIX = ".part"
_TEMPORARY = re.compile(r".+\.[0-9a-f]{16}\.part")
LONGEST_NAME = 200
"""Characters of a name that a temporary one repeats: file systems allow 255 bytes."""


def temporary_name(path: Path) -> Path:
    """A name next to ``path`` that nobody can guess: a link that waits there would lead the writing elsewhere."""
    return path.with_name(f"{path.name[:LONGEST_NAME]}.{secrets.token_hex(8)}{PART_SUFFIX}")


def is_temporary(name: str) -> bool:
    """Whether a file's name is one that `temporary_name` gives."""
    return _TEMPORARY.fullmatch(name) is not None


def open_new(path: Path, permissions: int = 0o644) -> int:
    """Descriptor of a new file, for reading and writing. Raises OSError where the name exists, also as a link."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | NO_FOLLOW | OPEN_FLAGS, permissions)


def new_file(path: Path, permissions: int = 0o644) -> BinaryIO:
    """A new file for writing. Raises OSError where the name exists, also as a link."""
    return os.fdopen(open_new(path, permissions), "w+b")


def new_text(path: Path) -> TextIO:
    """`new_file` for text in UTF-8."""
    return os.fdopen(open_new(path), "w", encoding="utf-8", newline="\n")


def write_new(path: Path, content: bytes | str, permissions: int = 0o644) -> None:
    """Write a new file. Raises OSError where the name exists, also as a link."""
    with new_file(path, permissions) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def open_again(path: Path) -> FileIO:
    """A file that the program has written, unbuffered, for changing it.

    Raises OSError where it is missing, a link or no file.
    """
    file = os.fdopen(os.open(path, os.O_RDWR | NO_FOLLOW | NO_WAIT | OPEN_FLAGS), "r+b", buffering=0)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return file


@contextmanager
def replacing(path: Path, permissions: int = 0o644, *, durable: bool = False) -> Iterator[BinaryIO]:
    """A file of a temporary name that replaces ``path`` when the block ends, and is removed when it raises.

    ``durable``: the content is on the disk before the name, and the name at the end. Raises OSError.
    """
    part = temporary_name(path)
    try:
        with new_file(part, permissions) as file:
            yield file
            if durable:
                sync(file)
        part.replace(path)
    except BaseException:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(path.parent)


def give_name(part: Path, path: Path, *, overwrite: bool) -> None:
    """Give a complete file its name. Raises OSError; FileExistsError where it is taken, without ``overwrite``."""
    if not overwrite:
        try:
            path.hardlink_to(part)
        except FileExistsError:
            raise
        except OSError as error:  # not every file system has hard links
            if os.path.lexists(path):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from error
        else:
            part.unlink()
            return
    part.replace(path)


def sync(file: BinaryIO | FileIO) -> None:
    """Wait until a file's content is on the disk. Raises OSError."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk, where the system can say so."""
    with suppress(OSError):  # Windows opens no folders
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def is_disk_full(error: BaseException | None) -> bool:
    """Whether an error comes from a full disk or quota."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        error = error.__cause__ or error.__context__
    return False
