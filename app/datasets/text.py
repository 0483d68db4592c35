"""Numbers out of the text files of data sets; every error names the file and the line."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.json_text import parse_json
from stream_recon.configs.errors import InputError


@contextmanager
def dataset_errors(scene: Path) -> Iterator[None]:
    """Turn whatever the files of ``scene`` make a reader stumble over into `InputError`.

    Readers check what their layout can go wrong in and say so themselves; this is for all that nobody thought of, such
    as numbers beyond any range, singular matrices and names that no file can have.
    """
    try:
        yield
    except OSError as error:
        raise InputError(f"{scene} cannot be read: {error.strerror or error}") from error
    except (ValueError, ArithmeticError, LookupError, TypeError, RecursionError, np.linalg.LinAlgError) as error:
        raise InputError(f"{scene} does not have the form of its layout: {error}") from error


def read_json(path: Path) -> Any:
    """
    Raises:
        InputError: not readable, or not JSON.
    """
    try:
        return parse_json(read_text(path))
    except ValueError as error:
        raise InputError(f"{path} is not JSON: {error}") from error


def read_text(path: Path) -> str:
    """
    Raises:
        InputError: not readable, or not text.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not a text file") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error


def content_lines(path: Path) -> list[tuple[int, str]]:
    """Lines with their numbers from 1, without blank ones and comments (#)."""
    lines = enumerate(read_text(path).splitlines(), start=1)
    return [(number, line.strip()) for number, line in lines if line.strip() and not line.lstrip().startswith("#")]


def numbers(text: str, where: str, least: int) -> list[float]:
    """At least ``least`` numbers, between spaces or commas.

    Raises:
        InputError: fewer, or something that is no number.
    """
    words = text.replace(",", " ").split()
    try:
        values = [float(word) for word in words]
    except ValueError as error:
        raise InputError(f"{where}: not a number ({error})") from error
    if len(values) < least:
        raise InputError(f"{where}: {len(values)} numbers where {least} belong")
    return values


def whole_number(value: float, where: str) -> int:
    """
    Raises:
        InputError: a fraction, inf, nan, or beyond 64 bits.
    """
    if not abs(value) < 2**63 or value != int(value):
        raise InputError(f"{where}: a whole number is wanted, not {value:g}")
    return int(value)


def number_rows(path: Path, columns: int) -> NDArray[np.float64]:
    """The first ``columns`` numbers of each line, [N, columns]."""
    rows = [numbers(line, f"{path} line {number}", columns)[:columns] for number, line in content_lines(path)]
    return np.array(rows, dtype=np.float64).reshape(-1, columns)


def timed_files(path: Path) -> tuple[NDArray[np.float64], list[Path]]:
    """Lines ``timestamp file``, the files relative to the list's folder (rgb.txt and depth.txt of the TUM benchmark).

    Raises:
        InputError: a line of another form.
    """
    times, files = [], []
    for number, line in content_lines(path):
        stamp, _, name = line.partition(" ") if " " in line else line.partition("\t")
        if not name.strip():
            raise InputError(f"{path} line {number}: 'timestamp file' is wanted")
        times.append(numbers(stamp, f"{path} line {number}", 1)[0])
        files.append(path.parent / name.strip())
    return np.array(times, dtype=np.float64), files
