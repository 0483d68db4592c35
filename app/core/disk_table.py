"""What a run has to remember of each frame, for runs that may have no end: on the disk, or 8 bytes a frame."""

import os
import tempfile
import weakref
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

BLOCK = 1024
"""Rows that are read or written at once, at most."""
GAP = 8
"""Rows between two that are wanted which are rather read than passed over."""

Rows = int | slice | NDArray[np.integer] | NDArray[np.bool_] | list[int]


class DiskTable:
    """Columns of numbers, in a file without a name that goes with its process; memory does not grow with the rows.

    One thread at a time may add or set rows. Columns are indexed like arrays, by rows alone; see `DiskColumn`.
    """

    def __init__(self, folder: Path | None = None, **shapes: tuple[int, ...]) -> None:
        """
        Args:
            folder: where the file is made with the first row; None: where the system has temporary files.
            shapes: of one row of each column, which has float64.
        """
        self._folder = folder
        self._dtype = np.dtype([(name, np.float64, shape) for name, shape in shapes.items()])
        self._count = 0
        self._file = -1

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, name: str) -> "DiskColumn":
        return DiskColumn(self, name)

    def append(self, **values: Any) -> None:
        """Add a row. Raises OSError: no room; the table is as it was."""
        if self._file < 0:
            with tempfile.TemporaryFile(dir=self._folder, buffering=0) as file:
                self._file = os.dup(file.fileno())
            weakref.finalize(self, os.close, self._file)
        row = np.zeros(1, self._dtype)
        for name, value in values.items():
            row[name][0] = value
        self.write(self._count, row)
        self._count += 1

    def read(self, first: int, last: int) -> NDArray[np.void]:
        """The rows from ``first`` to before ``last``. Raises OSError."""
        size = self._dtype.itemsize
        rows = np.empty(last - first, self._dtype)
        view, offset = memoryview(rows.view(np.uint8).data), first * size
        while view:
            count = os.preadv(self._file, [view], offset)
            if not count:
                raise OSError("a table on the disk was cut off")
            view, offset = view[count:], offset + count
        return rows

    def write(self, first: int, rows: NDArray[np.void]) -> None:
        """Replace the rows from ``first`` on. Raises OSError."""
        view, offset = memoryview(rows.view(np.uint8).data), first * self._dtype.itemsize
        while view:
            count = os.pwrite(self._file, view, offset)
            view, offset = view[count:], offset + count


class DiskColumn:
    """A column [n, ...]. What indexing gives is a copy; assigning to rows changes the table. Both raise OSError."""

    def __init__(self, table: DiskTable, name: str) -> None:
        self._table, self._name = table, name

    def __len__(self) -> int:
        return len(self._table)

    def __getitem__(self, rows: Rows) -> NDArray[np.float64]:
        numbers = self._numbers(rows)
        out = np.empty((len(numbers), *self._shape))
        for places, first, last in _pieces(numbers):
            out[places] = self._table.read(first, last)[self._name][numbers[places] - first]
        return out[0] if isinstance(rows, int | np.integer) else out

    def __setitem__(self, rows: Rows, values: Any) -> None:
        numbers = self._numbers(rows)
        values = np.broadcast_to(values, (len(numbers), *self._shape))
        for places, first, last in _pieces(numbers):
            piece = self._table.read(first, last)
            piece[self._name][numbers[places] - first] = values[places]
            self._table.write(first, piece)

    @property
    def _shape(self) -> tuple[int, ...]:
        fields = self._table._dtype.fields
        assert fields is not None
        return fields[self._name][0].shape

    def _numbers(self, rows: Rows) -> NDArray[np.intp]:
        if isinstance(rows, slice):
            return np.arange(*rows.indices(len(self)))
        numbers = np.atleast_1d(np.asarray(rows))
        if numbers.dtype == np.bool_:
            return np.flatnonzero(numbers)
        numbers = np.where(numbers < 0, numbers + len(self), numbers).astype(np.intp)
        if len(numbers) and not (numbers.min() >= 0 and numbers.max() < len(self)):
            raise IndexError(f"the table has {len(self)} rows")
        return numbers


def _pieces(numbers: NDArray[np.intp]) -> Iterator[tuple[NDArray[np.intp], int, int]]:
    """Which of the ``numbers`` [m] lie close together, by their places, and from which row to before which they go."""
    if not len(numbers):
        return
    order = np.argsort(numbers, kind="stable")
    ordered = numbers[order]
    begin = 0
    # What is close together is also cut where a block of rows is full.
    block = np.diff(ordered // BLOCK) > 0
    for end in [*(np.flatnonzero((np.diff(ordered) > GAP) | block) + 1).tolist(), len(ordered)]:
        yield order[begin:end], int(ordered[begin]), int(ordered[end - 1]) + 1
        begin = end


class AscendingColumn:
    """Numbers of frames, each larger than the one before: 8 bytes each."""

    def __init__(self) -> None:
        self._numbers = array("q")

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, position: int) -> int:
        return self._numbers[position]

    def __contains__(self, number: int) -> bool:
        at = bisect_left(self._numbers, number)
        return at < len(self._numbers) and self._numbers[at] == number

    def append(self, number: int) -> None:
        assert not self._numbers or number > self._numbers[-1], "frames have to come in their order"
        self._numbers.append(number)

    def position(self, number: int) -> int:
        """How many are smaller. Raises KeyError if it is not one of them."""
        at = bisect_left(self._numbers, number)
        if at == len(self._numbers) or self._numbers[at] != number:
            raise KeyError(number)
        return at
