"""Files that stay readable when the process is killed at any moment, and ordered work in threads.

Small files are written under a temporary name, which is new and cannot be guessed, and renamed. Growing files are
extended by one write at a time; a write that fails (disk full) is undone. There is no fsync, so a power cut may lose
data.
"""

import json
import os
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor, Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.input_file import open_regular
from stream_recon.app.core.output_file import is_temporary, open_new, replacing, temporary_name
from stream_recon.app.core.platform import read_at, write_at
from stream_recon.app.core.ply import VERTEX, Vertices, header, vertices_of
from stream_recon.app.result.run_record import RUN_NAME
from stream_recon.configs.errors import OutputError

FARTHEST = 1e9
"""Largest coordinate of a point: beyond it, lengths overflow."""
COPY_BYTES = 2**20
"""Bytes copied at a time: large enough for disk speed, small in memory."""


@contextmanager
def output_errors(path: Path) -> Iterator[None]:
    """Turn the system's errors on writing ``path`` (disk full, no permission) into `OutputError`."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        kept = "; finished frames are kept" if _holds_result(path) else ""
        raise OutputError(f"cannot write {path}: {reason}{kept}") from error


def _holds_result(path: Path) -> bool:
    """Whether ``path`` is a file or folder of a result, or the result folder."""
    with suppress(OSError):
        return any((folder / RUN_NAME).is_file() for folder in (path, path.parent, path.parent.parent))
    return False


def remove_temporary(folder: Path) -> None:
    """Remove temporary files that killed processes left; the caller has locked the folder."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if is_temporary(entry.name) and entry.is_file(follow_symlinks=False):
                with suppress(OSError):
                    Path(entry.path).unlink()


def replace_file(path: Path, write: Callable[[BinaryIO], object], *, durable: bool = False) -> None:
    """Write a file under a temporary name in its folder, then rename it: readers see the old or the new file.

    ``durable``: wait until the content is on the disk. Raises OutputError; the old file then stays.
    """
    with output_errors(path), replacing(path, durable=durable) as file:
        write(file)


def replace_json(path: Path, value: Any) -> None:
    """`replace_file` with JSON."""
    text = json.dumps(value, indent=1, allow_nan=False) + "\n"
    replace_file(path, lambda file: file.write(text.encode()))


class GrowingFile:
    """A file of a head, any number of entries and a tail, which is complete after every `append`."""

    def __init__(self, path: Path, head: bytes, tail: bytes = b"") -> None:
        """Create ``path``. Raises OutputError, also where the name exists."""
        self.path = path
        self._tail = tail
        self._end = 0
        self._ends = array("q")
        with output_errors(path):
            self._file = open_new(path)
        self.append(head)

    @classmethod
    def replacing(cls, path: Path, head: bytes, entries: Iterable[bytes], tail: bytes = b"") -> "GrowingFile":
        """Replace the file at ``path``, in one step, by one with these entries. Raises OutputError; it then stays."""
        part = temporary_name(path)
        try:
            file = cls(part, head, tail)
            for entry in entries:
                file.append(entry)
            with output_errors(path):
                part.replace(path)
        except BaseException:
            with suppress(OSError):
                part.unlink(missing_ok=True)
            raise
        file.path = path
        return file

    def append(self, entry: bytes | memoryview) -> None:
        """Add an entry before the tail, in one write. Raises OutputError; the file is then unchanged."""
        with output_errors(self.path):
            try:
                write_at(self._file, b"".join((entry, self._tail)) if self._tail else entry, self._end)
            except OSError:
                # The old tail's blocks are still allocated, so this needs no space on the disk.
                write_at(self._file, self._tail, self._end)
                os.ftruncate(self._file, self._end + len(self._tail))
                raise
        self._end += len(entry)
        self._ends.append(self._end)

    def entry(self, number: int) -> bytes:
        """The bytes of an entry, by its number. Raises OutputError."""
        return self.read(self._ends[number], self._ends[number + 1] - self._ends[number])

    def read(self, offset: int, size: int) -> bytes:
        """Bytes from anywhere before the tail; thread-safe. Raises OutputError."""
        with output_errors(self.path):
            data = read_at(self._file, size, offset)
            if len(data) == size:
                return data
            # A single call gives at most 2 GiB.
            return data + (self.read(offset + len(data), size - len(data)) if data else b"")

    def rewrite(self, head: bytes, changed: Mapping[int, bytes]) -> None:
        """Replace the head and some entries, by their numbers, in one step; the rest is copied.

        Raises OutputError; the old file then stays and can still be appended to.
        """
        part = temporary_name(self.path)
        with output_errors(self.path):
            renewed = open_new(part)
            try:
                with os.fdopen(os.dup(renewed), "wb") as file:
                    file.write(head)
                    ends, copied = array("q", [len(head)]), 0
                    for number in sorted(changed):
                        self._copy(file, ends, copied, number)
                        file.write(changed[number])
                        ends.append(ends[-1] + len(changed[number]))
                        copied = number + 1
                    self._copy(file, ends, copied, len(self._ends) - 1)
                    file.write(self._tail)
                part.replace(self.path)
            except BaseException:
                os.close(renewed)
                part.unlink(missing_ok=True)
                raise
        os.close(self._file)
        self._file, self._ends, self._end = renewed, ends, ends[-1]

    def _copy(self, file: BinaryIO, ends: "array[int]", first: int, last: int) -> None:
        """Append the entries from ``first`` to before ``last`` to another file, whose entries end at ``ends``."""
        offset, stop = self._ends[first], self._ends[last]
        difference = ends[-1] - offset
        ends.extend(end + difference for end in self._ends[first + 1 : last + 1])
        while offset < stop:
            block = read_at(self._file, min(COPY_BYTES, stop - offset), offset)
            file.write(block)
            offset += len(block)

    def patch(self, offset: int, data: bytes) -> None:
        """Overwrite existing bytes. Raises OutputError."""
        assert offset + len(data) <= self._end
        with output_errors(self.path):
            write_at(self._file, data, offset)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class PlyFile:
    """A binary little-endian PLY that grows. Points are written before the header's count is raised."""

    def __init__(self, path: Path) -> None:
        """Create ``path``. Raises OutputError, also where the name exists."""
        self.count = 0
        self._head_size = len(header(0))
        self._file = GrowingFile(path, header(0))

    def append(self, xyz: NDArray[np.float32], rgb: NDArray[np.uint8]) -> None:
        """Add points [N, 3] with colours [N, 3]. Raises OutputError; the file then keeps its earlier points."""
        self.append_vertices(vertices_of(xyz, rgb))

    def append_vertices(self, vertices: Vertices) -> None:
        """Add points; see `append`."""
        self._file.append(vertices.view(np.uint8).data)
        self.count += len(vertices)
        self._file.patch(0, header(self.count))

    def read(self, first: int, last: int) -> Vertices:
        """The points from number ``first`` to before ``last``; thread-safe. Raises OutputError."""
        size = VERTEX.itemsize
        return np.frombuffer(self._file.read(self._head_size + first * size, (last - first) * size), VERTEX)

    def close(self) -> None:
        self._file.close()


def stored_points(path: Path) -> Vertices:
    """The points of a file written by `PlyFile`, mapped into memory.

    Raises OutputError where it is missing, damaged, or of another program.
    """
    try:
        with open_regular(path) as file:
            head = file.read(len(header(0)))
        count = int(head.split(b"element vertex ", 1)[1].split(b"\n", 1)[0])
        if head != header(count):
            raise ValueError("its header is of another program")
        if not count:
            return np.empty(0, VERTEX)
        return np.memmap(path, VERTEX, "r", offset=len(head), shape=(count,))
    except (OSError, ValueError, IndexError) as error:
        raise OutputError(f"{path} is missing or damaged: {error}") from error


def checked_points(path: Path) -> Vertices:
    """The points of `stored_points`, of which none is at an impossible place. Raises OutputError."""
    points = stored_points(path)
    if any(not (np.abs(points[axis]) <= FARTHEST).all() for axis in "xyz"):
        raise OutputError(f"{path} is damaged: a point is too far away; stream-recon refine makes it again")
    return points


Result = TypeVar("Result")


def in_order(
    pool: Executor, work: Callable[..., Result], arguments: Iterable[tuple[Any, ...]], ahead: int
) -> Iterator[Result]:
    """``pool.map`` that reads its arguments lazily: at most ``ahead`` results wait."""
    waiting: deque[Future[Result]] = deque()
    try:
        for some in arguments:
            waiting.append(pool.submit(work, *some))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()
