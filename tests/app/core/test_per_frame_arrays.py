"""Tables on the disk behave like arrays, and cost no memory; a disk that is full loses nothing that was there."""

import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from stream_recon.app.core.per_frame_arrays import BLOCK, PerFrameArrays, SortedFrameNumbers

COUNT = 2 * BLOCK + 100


def filled(folder: Path) -> tuple[PerFrameArrays, np.ndarray]:
    values = np.random.default_rng(0).normal(size=(COUNT, 2, 3))
    table = PerFrameArrays(folder, a=(2, 3), b=())
    for number, value in enumerate(values):
        table.append(a=value, b=number)
    return table, values


def test_rows_are_read_as_from_an_array(tmp_path: Path) -> None:
    table, values = filled(tmp_path)
    scattered = np.random.default_rng(1).permutation(COUNT)[:500]
    every = slice(None)
    picked = np.zeros(COUNT, bool)
    picked[[3, 700, COUNT - 1]] = True
    for rows in (0, -1, np.int64(5), slice(10, 2000), slice(-5, None), every, scattered, [7, 7, 2], [-1], picked, []):
        wanted = values[np.array(rows, int) if isinstance(rows, list) else rows]
        np.testing.assert_array_equal(table["a"][rows], wanted)
    assert table["b"][COUNT - 1] == COUNT - 1 and len(table) == len(table["b"]) == COUNT
    for outside in (COUNT, -COUNT - 1, [0, COUNT]):
        with pytest.raises(IndexError):
            table["a"][outside]
    assert list(tmp_path.iterdir()) == [], "the file has no name: a killed process leaves nothing"


def test_rows_are_set_as_in_an_array(tmp_path: Path) -> None:
    table, values = filled(tmp_path)
    random = np.random.default_rng(2)
    scattered = random.permutation(COUNT)[:300]
    for rows, new in ((4, np.ones((2, 3))), (slice(1000, 1500), 0.5), (scattered, random.normal(size=(300, 2, 3)))):
        table["a"][rows] = new
        values[rows] = new
        np.testing.assert_array_equal(table["a"][:], values)
    np.testing.assert_array_equal(table["b"][:], np.arange(COUNT))


def test_memory_does_not_grow_with_the_rows(tmp_path: Path) -> None:
    table = PerFrameArrays(tmp_path, a=(4, 4))
    table.append(a=np.eye(4))
    tracemalloc.start()
    try:
        for _ in range(5000):
            table.append(a=np.eye(4))
        grown, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert grown < 20_000 < 5000 * 128


def test_no_room_leaves_the_table_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, values = filled(tmp_path)

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        with pytest.raises(OSError, match="No space"):
            table.append(a=np.zeros((2, 3)), b=0.0)
    assert len(table) == COUNT
    table.append(a=np.ones((2, 3)), b=1.0)
    np.testing.assert_array_equal(table["a"][:], [*values, np.ones((2, 3))])


def test_numbers_that_ascend() -> None:
    numbers = SortedFrameNumbers()
    for number in (0, 3, 4, 2**40):
        numbers.append(number)
    assert len(numbers) == 4 and numbers[1] == 3 and numbers.position(2**40) == 3
    assert 3 in numbers and 2 not in numbers and 2**41 not in numbers
    with pytest.raises(KeyError):
        numbers.position(5)
    with pytest.raises(AssertionError):
        numbers.append(7)
