"""The door for files that a user names: only regular files of bounded size are read.

A pipe would block, a device never ends, and a sparse file of many gigabytes fills the memory.
"""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

LARGEST_TEXT = 1 << 28
"""Default size limit in bytes (256 MiB): more than any table, list or JSON file of a data set or result."""


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading, without waiting. Raises OSError, also for any other kind of file."""
    # Without O_NONBLOCK, opening a pipe waits for its writer.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_file(path: Path, limit: int = LARGEST_TEXT) -> bytes:
    """Content of a regular file of at most ``limit`` bytes. Raises OSError; ValueError for a name with a zero byte."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        # A file may grow while it is read, and those of /proc state no size.
        data = file.read(limit + 1) if size <= limit else b""
    if size > limit or len(data) > limit:
        raise OSError(errno.EFBIG, f"it is larger than {limit >> 20} MiB", str(path))
    return data
