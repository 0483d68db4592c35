"""Files that are complete at any moment: what a killed process leaves behind can be read.

Small files are written under a temporary name and renamed. Growing files are extended by one write each time, and a
write that fails half-way (disk full) is taken back. Nothing here survives a power cut any better than the file
system does: there is no fsync.

The coloured cloud as a binary PLY that grows with the run and is readable at any moment.

Work for many threads whose results are wanted in order.
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

from stream_recon.app.core.ply import VERTEX, Vertices, header, vertices_of
from stream_recon.app.result.run_record import RUN_NAME
from stream_recon.configs.errors import OutputError

PART_SUFFIX = ".part"
COPY_BYTES = 2**20


@contextmanager
def output_errors(path: Path) -> Iterator[None]:
    """Turn the system's errors on writing ``path`` into `OutputError`: disk full, no permission, and so on."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        kept = "; what was finished before is kept" if _holds_result(path) else ""
        raise OutputError(f"cannot write {path}: {reason}{kept}") from error


def _holds_result(path: Path) -> bool:
    """Whether a run's record is beside the file that could not be written, or a folder above it."""
    with suppress(OSError):
        return any((folder / RUN_NAME).is_file() for folder in (path, path.parent, path.parent.parent))
    return False


def replace_file(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a whole file under a temporary name beside it, then rename: readers see the old or the new one.

    Raises:
        OutputError: it cannot be written; the old file stays.
    """
    part = path.with_name(path.name + PART_SUFFIX)
    with output_errors(path):
        try:
            with part.open("wb") as file:
                write(file)
            part.replace(path)
        except OSError:
            part.unlink(missing_ok=True)
            raise


def replace_json(path: Path, value: Any) -> None:
    """`replace_file` with JSON."""
    text = json.dumps(value, indent=1, allow_nan=False) + "\n"
    replace_file(path, lambda file: file.write(text.encode()))


class GrowingFile:
    """A file of a head, any number of entries and a tail, with the tail in place after every `append`."""

    def __init__(self, path: Path, head: bytes, tail: bytes = b"") -> None:
        """Begin ``path`` anew. Raises OutputError."""
        self.path = path
        self._tail = tail
        self._end = 0
        self._ends = array("q")
        with output_errors(path):
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        self.append(head)

    @classmethod
    def replacing(cls, path: Path, head: bytes, entries: Iterable[bytes], tail: bytes = b"") -> "GrowingFile":
        """A file with these entries in place of the one at ``path``, in one step. Raises OutputError; it then stays."""
        part = path.with_name(path.name + PART_SUFFIX)
        file = cls(part, head, tail)
        with output_errors(path):
            for entry in entries:
                file.append(entry)
            part.replace(path)
        file.path = path
        return file

    def append(self, entry: bytes | memoryview) -> None:
        """Add an entry before the tail, in one write. Raises OutputError; the file is then as it was before."""
        with output_errors(self.path):
            try:
                _write_all(self._file, b"".join((entry, self._tail)) if self._tail else entry, self._end)
            except OSError:
                # The tail's old place is still ours, so this needs no room on the disk.
                _write_all(self._file, self._tail, self._end)
                os.ftruncate(self._file, self._end + len(self._tail))
                raise
        self._end += len(entry)
        self._ends.append(self._end)

    def entry(self, number: int) -> bytes:
        """An entry as it was given to `append`. Raises OutputError."""
        return self.read(self._ends[number], self._ends[number + 1] - self._ends[number])

    def read(self, offset: int, size: int) -> bytes:
        """Bytes from anywhere before the tail. Any thread may. Raises OutputError."""
        with output_errors(self.path):
            data = os.pread(self._file, size, offset)
            if len(data) == size:
                return data
            # A single call gives at most 2 GiB.
            return data + (self.read(offset + len(data), size - len(data)) if data else b"")

    def rewrite(self, head: bytes, changed: Mapping[int, bytes]) -> None:
        """Replace the head and some entries, by their numbers, in one step; the rest is copied as it is.

        Raises:
            OutputError: it cannot be written; the old file stays, and goes on growing.
        """
        part = self.path.with_name(self.path.name + PART_SUFFIX)
        with output_errors(self.path):
            try:
                with part.open("wb") as file:
                    file.write(head)
                    ends, copied = array("q", [len(head)]), 0
                    for number in sorted(changed):
                        self._copy(file, ends, copied, number)
                        file.write(changed[number])
                        ends.append(ends[-1] + len(changed[number]))
                        copied = number + 1
                    self._copy(file, ends, copied, len(self._ends) - 1)
                    file.write(self._tail)
                renewed = os.open(part, os.O_RDWR)
                try:
                    part.replace(self.path)
                except OSError:
                    os.close(renewed)
                    raise
            except OSError:
                part.unlink(missing_ok=True)
                raise
        os.close(self._file)
        self._file, self._ends, self._end = renewed, ends, ends[-1]

    def _copy(self, file: BinaryIO, ends: "array[int]", first: int, last: int) -> None:
        """Entries from ``first`` to before ``last``, to the end of another file whose entries end at ``ends``."""
        offset, stop = self._ends[first], self._ends[last]
        shift = ends[-1] - offset
        ends.extend(end + shift for end in self._ends[first + 1 : last + 1])
        while offset < stop:
            block = os.pread(self._file, min(COPY_BYTES, stop - offset), offset)
            file.write(block)
            offset += len(block)

    def patch(self, offset: int, data: bytes) -> None:
        """Overwrite bytes that are there already. Raises OutputError."""
        assert offset + len(data) <= self._end
        with output_errors(self.path):
            _write_all(self._file, data, offset)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _write_all(file: int, data: bytes | memoryview, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(file, view, offset)
        view, offset = view[written:], offset + written


class PlyFile:
    """A binary little-endian PLY. Points are appended, then the header's count is raised: never the other way."""

    def __init__(self, path: Path) -> None:
        """Begin ``path`` anew. Raises OutputError."""
        self.count = 0
        self._head_size = len(header(0))
        self._file = GrowingFile(path, header(0))

    def append(self, xyz: NDArray[np.float32], rgb: NDArray[np.uint8]) -> None:
        """Add points [N, 3] with colours [N, 3]. Raises OutputError; the file then holds the points before."""
        self.append_vertices(vertices_of(xyz, rgb))

    def append_vertices(self, vertices: Vertices) -> None:
        """Add points; see `append`."""
        self._file.append(vertices.view(np.uint8).data)
        self.count += len(vertices)
        self._file.patch(0, header(self.count))

    def read(self, first: int, last: int) -> Vertices:
        """The points from number ``first`` to before ``last``. Any thread may. Raises OutputError."""
        size = VERTEX.itemsize
        return np.frombuffer(self._file.read(self._head_size + first * size, (last - first) * size), VERTEX)

    def close(self) -> None:
        self._file.close()


def stored_points(path: Path) -> Vertices:
    """The points of a file written by `PlyFile`, as they are now: not in memory, but read where they are looked at.

    Raises:
        OutputError: the file is missing, damaged, or of another program.
    """
    try:
        with path.open("rb") as file:
            head = file.read(len(header(0)))
        count = int(head.split(b"element vertex ", 1)[1].split(b"\n", 1)[0])
        if head != header(count):
            raise ValueError("it was not written here")
        if not count:
            return np.empty(0, VERTEX)
        return np.memmap(path, VERTEX, "r", offset=len(head), shape=(count,))
    except (OSError, ValueError, IndexError) as error:
        raise OutputError(f"{path} is missing or damaged: {error}") from error


Result = TypeVar("Result")


def in_order(
    pool: Executor, work: Callable[..., Result], arguments: Iterable[tuple[Any, ...]], ahead: int
) -> Iterator[Result]:
    """As the pool's own ``map``, which would read all of the arguments at once; here at most ``ahead`` of them wait."""
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
