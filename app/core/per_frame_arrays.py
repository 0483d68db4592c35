"""Arrays with a row for each frame, on the disk: runs have no limit, and memory does not grow with them."""

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

from stream_recon.app.core.platform import read_at, write_at

BLOCK = 1024
"""Most rows of one read or write; it limits memory to some hundred kilobytes."""
GAP = 8
"""Unwanted rows up to which two wanted rows are read together: a read costs more than a few rows."""

Rows = int | slice | NDArray[np.integer] | NDArray[np.bool_] | list[int]


class PerFrameArrays:
    """Arrays of float64 by name with a row for each frame, in a temporary file that disappears with its process.

    One thread at a time may add or set rows. Each is indexed like an array; see `PerFrameArray`.
    """

    def __init__(self, folder: Path | None = None, **shapes: tuple[int, ...]) -> None:
        """``folder`` gets the file with the first row; None: the temporary folder. ``shapes`` of a row, by column."""
        self._folder = folder
        self._dtype = np.dtype([(name, np.float64, shape) for name, shape in shapes.items()])
        self._count = 0
        self._file = -1

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, name: str) -> "PerFrameArray":
        return PerFrameArray(self, name)

    def append(self, **values: Any) -> None:
        """Add a row. Raises OSError if the disk is full; the table is then unchanged."""
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
        """Read the rows from ``first`` up to, but without, ``last``. Raises OSError."""
        size = self._dtype.itemsize
        data, offset = bytearray(), first * size
        while len(data) < (last - first) * size:
            part = read_at(self._file, (last - first) * size - len(data), offset + len(data))
            if not part:
                raise OSError("a temporary table is shorter than its rows")
            data += part
        return np.frombuffer(data, self._dtype)

    def write(self, first: int, rows: NDArray[np.void]) -> None:
        """Replace the rows from ``first`` on. Raises OSError."""
        write_at(self._file, memoryview(rows.view(np.uint8).data), first * self._dtype.itemsize)


class PerFrameArray:
    """One array [n, ...] of these. Reading by index gives a copy; assignment changes the file. Both raise OSError."""

    def __init__(self, table: PerFrameArrays, name: str) -> None:
        self._table, self._name = table, name

    def __len__(self) -> int:
        return len(self._table)

    def __getitem__(self, rows: Rows) -> NDArray[np.float64]:
        numbers = self._numbers(rows)
        out = np.empty((len(numbers), *self._shape))
        for positions, first, last in _read_ranges(numbers):
            out[positions] = self._table.read(first, last)[self._name][numbers[positions] - first]
        return out[0] if isinstance(rows, int | np.integer) else out

    def __setitem__(self, rows: Rows, values: Any) -> None:
        numbers = self._numbers(rows)
        values = np.broadcast_to(values, (len(numbers), *self._shape))
        for positions, first, last in _read_ranges(numbers):
            block = self._table.read(first, last)
            block[self._name][numbers[positions] - first] = values[positions]
            self._table.write(first, block)

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


def _read_ranges(numbers: NDArray[np.intp]) -> Iterator[tuple[NDArray[np.intp], int, int]]:
    """Ranges of rows read at once: positions in ``numbers`` [m], first row, row after the last."""
    if not len(numbers):
        return
    order = np.argsort(numbers, kind="stable")
    ordered = numbers[order]
    begin = 0
    # A range also ends at the border of a block.
    new_block = np.diff(ordered // BLOCK) > 0
    for end in [*(np.flatnonzero((np.diff(ordered) > GAP) | new_block) + 1).tolist(), len(ordered)]:
        yield order[begin:end], int(ordered[begin]), int(ordered[end - 1]) + 1
        begin = end


class SortedFrameNumbers:
    """Frame numbers in ascending order, with 8 bytes each, and their positions."""

    def __init__(self) -> None:
        self._numbers = array("q")

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, position: int) -> int:
        return self._numbers[position]

    def __contains__(self, number: int) -> bool:
        position = bisect_left(self._numbers, number)
        return position < len(self._numbers) and self._numbers[position] == number

    def below(self, number: int) -> int:
        """How many are below a number."""
        return bisect_left(self._numbers, number)

    def append(self, number: int) -> None:
        assert not self._numbers or number > self._numbers[-1], "frame numbers must ascend"
        self._numbers.append(number)

    def position(self, number: int) -> int:
        """Position of a frame number. Raises KeyError if it is missing."""
        if number not in self:
            raise KeyError(number)
        return bisect_left(self._numbers, number)
