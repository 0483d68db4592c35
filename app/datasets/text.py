"""Readers of text files of data sets; every error names the file and the line."""

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
    """Raise errors of a reader on the files of ``scene`` as `InputError`.

    Readers report the usual faults of their layout. This covers unforeseen ones, such as numbers out of range, singular
    matrices and invalid file names.
    """
    try:
        yield
    except OSError as error:
        raise InputError(f"{scene} cannot be read: {error.strerror or error}") from error
    except (ValueError, ArithmeticError, LookupError, TypeError, RecursionError, np.linalg.LinAlgError) as error:
        raise InputError(f"{scene} does not match its layout: {error}") from error


def read_json(path: Path) -> Any:
    """Content of a JSON file. Raises InputError."""
    try:
        return parse_json(read_text(path))
    except ValueError as error:
        raise InputError(f"{path} is not JSON: {error}") from error


def read_text(path: Path) -> str:
    """Content of a UTF-8 file. Raises InputError."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not a text file") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error


def content_lines(path: Path) -> list[tuple[int, str]]:
    """Numbers, from 1, and text of the lines that are neither blank nor comments (#)."""
    lines = enumerate(read_text(path).splitlines(), start=1)
    return [(number, line.strip()) for number, line in lines if line.strip() and not line.lstrip().startswith("#")]


def numbers(text: str, where: str, least: int) -> list[float]:
    """Numbers separated by spaces or commas, at least ``least`` of them.

    Raises InputError: fewer, or a word that is not a number.
    """
    words = text.replace(",", " ").split()
    try:
        values = [float(word) for word in words]
    except ValueError as error:
        raise InputError(f"{where}: not a number ({error})") from error
    if len(values) < least:
        raise InputError(f"{where}: {len(values)} numbers, fewer than {least}")
    return values


def integer(value: float, where: str) -> int:
    """The number as an integer. Raises InputError for a fraction, inf, nan, or more than 64 bits."""
    if not abs(value) < 2**63 or value != int(value):
        raise InputError(f"{where}: {value:g} must be an integer")
    return int(value)


def number_rows(path: Path, columns: int) -> NDArray[np.float64]:
    """The first numbers of each line [N, columns]."""
    rows = [numbers(line, f"{path} line {number}", columns)[:columns] for number, line in content_lines(path)]
    return np.array(rows, dtype=np.float64).reshape(-1, columns)


def timed_files(path: Path) -> tuple[NDArray[np.float64], list[Path]]:
    """Timestamps and files of lines ``timestamp file`` (TUM RGB-D), relative to the list's folder.

    Raises InputError: a malformed line.
    """
    times, files = [], []
    for number, line in content_lines(path):
        stamp, _, name = line.partition(" ") if " " in line else line.partition("\t")
        if not name.strip():
            raise InputError(f"{path} line {number} must be 'timestamp file'")
        times.append(numbers(stamp, f"{path} line {number}", 1)[0])
        files.append(path.parent / name.strip())
    return np.array(times, dtype=np.float64), files
