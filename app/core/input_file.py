"""The door for files that a user names: only regular files of bounded size are read.

A pipe would block, a device never ends, and a sparse file of many gigabytes fills the memory.
"""

import errno
import json
import os
import queue
import stat
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO, TypeVar

from stream_recon.app.core.platform import NO_WAIT, OPEN_FLAGS
from stream_recon.configs.errors import InputError

MAX_TEXT_BYTES = 1 << 28
"""Default size limit in bytes (256 MiB): more than any table, list or JSON file of a data set or result."""

MAX_MESH_BYTES = 1 << 31
"""The same for meshes."""
READ_SECONDS = 60.0
"""Time within which a file must open, and within which each part of it must be read: a network drive whose server is
gone blocks for ever."""
CHUNK = 1 << 24
"""Bytes of a part: slow drives give them within seconds."""
ENTRY_BYTES = 256
"""Of an entry in the list of a ZIP file, on average: a long name, times and attributes."""
T = TypeVar("T")


@contextmanager
def input_errors(name: object) -> Iterator[None]:
    """Raise a system error in the block, on the input called ``name``, as `InputError`."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{name} cannot be read: {error.strerror}") from error


def open_regular(path: Path, timeout_s: float = READ_SECONDS) -> BufferedReader:
    """Open a regular file for reading, without waiting. Raises OSError, also for any other kind of file."""
    return _in_time(lambda _: _open_regular(path), path, timeout_s)


def _open_regular(path: Path) -> BufferedReader:
    # Without O_NONBLOCK, opening a pipe waits for its writer.
    descriptor = os.open(path, os.O_RDONLY | NO_WAIT | OPEN_FLAGS)
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


def read_file(path: Path, limit: int = MAX_TEXT_BYTES, timeout_s: float = READ_SECONDS) -> bytes:
    """Content of a regular file of at most ``limit`` bytes. Raises OSError; ValueError for a name with a zero byte."""

    def read(progress: Callable[[], None]) -> bytes:
        with _open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            # A file may grow while it is read, and those of /proc state no size.
            parts: list[bytes] = []
            while size <= limit and (part := file.read(min(CHUNK, limit + 1 - sum(map(len, parts))))):
                parts.append(part)
                progress()
        if size > limit or sum(map(len, parts)) > limit:
            raise OSError(errno.EFBIG, f"it is larger than {limit >> 20} MiB", str(path))
        return parts[0] if len(parts) == 1 else b"".join(parts)

    return _in_time(read, path, timeout_s)


def _in_time(work: Callable[[Callable[[], None]], T], path: Path, timeout_s: float) -> T:
    """Result of ``work``, which runs in a thread and is given up after ``timeout_s`` without progress.

    ``work`` gets a function to call after each part. Raises OSError, or what ``work`` raises.
    """
    answers: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()
    failed: list[BaseException] = []

    def run() -> None:
        try:
            answers.put((True, work(lambda: answers.put((False, None)))))
        except BaseException as error:  # noqa: BLE001  # raised by the thread that waits
            failed.append(error)
            answers.put((True, None))

    try:
        threading.Thread(target=run, name="read a file", daemon=True).start()
    except RuntimeError:  # no more threads, or the program ends
        run()
    try:
        while not (answer := answers.get(timeout=timeout_s))[0]:
            pass
    except queue.Empty:
        raise OSError(errno.ETIMEDOUT, f"its drive did not answer for {timeout_s:g} s", str(path)) from None
    if failed:
        raise failed[0]
    result: T = answer[1]
    return result


def open_zip(file: BinaryIO, max_entries: int, *, stored: bool = False) -> zipfile.ZipFile:
    """A ZIP file of at most so many entries, which are counted before they are read. ``stored``: of uncompressed ones.

    Raises BadZipFile, also for methods other than Deflate: what these unpack a few bytes to has no bound.
    """

    def read(size: int = -1) -> bytes:  # `zipfile` reads the whole list at once
        if size > ENTRY_BYTES * max_entries or (data := file.read(size)).count(b"PK\x01\x02") > max_entries:
            raise zipfile.BadZipFile(f"it has more than {max_entries} entries")
        return data

    reads = SimpleNamespace(read=read, seek=file.seek, tell=file.tell, seekable=file.seekable)
    archive = zipfile.ZipFile(reads)  # type: ignore[call-overload]
    reads.read = file.read  # the list is read; contents may be longer
    methods = (zipfile.ZIP_STORED, zipfile.ZIP_STORED if stored else zipfile.ZIP_DEFLATED)
    if any(entry.compress_type not in methods for entry in archive.infolist()):
        raise zipfile.BadZipFile("it is compressed" if stored else "its method of compression is not Deflate")
    return archive


def parse_json(text: str | bytes) -> Any:
    """Parse JSON that another program or a killed process may have written.

    Raises ValueError: not JSON, not UTF-8, or nested too deeply.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
