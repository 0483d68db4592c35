"""Readers of text files of data sets: numbers, lists of files, and camera poses. Errors name the file and the line.

Poses are camera-to-world with axes right, down, forward.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from stream_recon.app.core.input_file import input_errors, parse_json, read_file
from stream_recon.app.core.transforms import FloatArray, rotation_matrix
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


@contextmanager
def errors_in(path: Path) -> Iterator[None]:
    """Raise InputError and ValueError on elements of a file with the file's name."""
    try:
        yield
    except (InputError, ValueError) as error:
        raise InputError(f"{path}: {error}") from error


def read_json(path: Path) -> Any:
    """Content of a JSON file. Raises InputError."""
    try:
        return parse_json(read_text(path))
    except ValueError as error:
        raise InputError(f"{path} is not JSON: {error}") from error


def read_text(path: Path) -> str:
    """Content of a UTF-8 file. Raises InputError."""
    try:
        with input_errors(path):
            return read_file(path).decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not a text file") from error


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


def named_numbers(path: Path, needed: Mapping[str, int], known: str) -> dict[str, FloatArray]:
    """Numbers of lines ``name: numbers``: so many of each ``needed`` name; ``known``: pattern of names without use.

    Raises InputError: a name is missing, unknown or there twice, or has another count of numbers.
    """
    found = dict[str, FloatArray]()
    for number, line in content_lines(path):
        name, _, values = (word.strip() for word in line.partition(":"))
        if name not in needed and not re.fullmatch(known, name):
            raise InputError(f"{path} line {number}: {name[:40]!r} is not understood")
        if name in needed:
            row = np.array(numbers(values, f"{path} line {number}, {name}", needed[name]), np.float64)
            if len(row) > needed[name] or not np.array_equal(found.setdefault(name, row), row):
                raise InputError(f"{path} line {number}: {name} has {len(row)} numbers, or is there twice")
    if missing := [name for name in needed if name not in found]:
        raise InputError(f"{path} has no line '{missing[0]}:'")
    return found


def number_rows(path: Path, columns: int, *, exact: bool = False) -> FloatArray:
    """The first numbers of each line [N, columns]. Raises InputError, where ``exact`` also for a longer line."""
    rows = []
    for number, line in content_lines(path):
        row = numbers(line, f"{path} line {number}", 0 if exact else columns)
        if exact and len(row) != columns:
            raise InputError(f"{path} line {number}: {len(row)} numbers instead of {columns}")
        rows.append(row[:columns])
    return np.array(rows, dtype=np.float64).reshape(-1, columns)


def number_row(path: Path, columns: int) -> FloatArray:
    """The numbers [columns] of a file of one line. Raises InputError."""
    rows = number_rows(path, columns, exact=True)
    if len(rows) != 1 or not np.isfinite(rows).all():
        raise InputError(f"{path} must have one line of {columns} finite numbers")
    return np.asarray(rows[0])


def timed_files(path: Path) -> tuple[FloatArray, list[Path]]:
    """Timestamps and files of lines ``timestamp file`` (TUM RGB-D), relative to the list's folder.

    Raises InputError: a malformed line.
    """
    times, files = [], []
    for number, line in content_lines(path):
        stamp, _, name = line.partition(" ") if " " in line else line.partition("\t")
        if not name.strip() or "," in stamp.rstrip(","):
            raise InputError(f"{path} line {number} must be 'timestamp file'")
        times.append(numbers(stamp, f"{path} line {number}", 1)[0])
        files.append(listed_file(path.parent, name.strip()))
        if len(name.split()) > 1 and not files[-1].exists():
            raise InputError(f"{path} line {number} must be 'timestamp file', and there is no {name.strip()[:60]!r}")
    return np.array(times, dtype=np.float64), files


def listed_file(folder: Path, name: str) -> Path:
    """File of a name in a list, relative to ``folder``, also where Windows wrote it: with backslashes, or in another
    case. ``folder / name`` where there is none."""
    file = folder / name
    if file.exists():
        return file
    name = name.replace("\\", "/")
    if (folder / name).exists():
        return folder / name
    path = folder
    for part in Path(name).parts:
        inner = [] if (path / part).exists() else [p for p in _inner(path) if p.name.casefold() == part.casefold()]
        if len(inner) > 1:
            return file
        path = inner[0] if inner else path / part
    return path if path.exists() else file


@lru_cache(64)
def _inner(folder: Path) -> tuple[Path, ...]:
    try:
        return tuple(folder.iterdir())
    except OSError:
        return ()


ROTATION_TOLERANCE = 0.02
"""Largest deviation of singular values of a rotation from 1: files round their numbers."""
QUATERNION_TOLERANCE = 0.05
"""Relative difference of quaternions' lengths up to which they are rounded."""
OPENCV_FROM_OPENGL = np.diag([1.0, -1.0, -1.0, 1.0])
"""From camera axes right, up, backward to right, down, forward; its own inverse."""


def rigid(pose: FloatArray, where: str, tolerance: float = ROTATION_TOLERANCE) -> FloatArray:
    """A pose [3, 4] or [4, 4] as [4, 4] with the nearest rotation. Raises InputError: not a rigid transform."""
    refused = InputError(f"{where} is not a rotation and a translation")
    if not np.isfinite(pose).all():  # the decomposition would never end
        raise refused
    u, singular, vt = np.linalg.svd(pose[:3, :3])
    last = pose[3:] - (0, 0, 0, 1)  # a matrix by columns has its translation there
    if np.abs([*(singular - 1), *last.ravel()]).max() > tolerance or np.linalg.det(u @ vt) < 0:
        raise refused
    result = np.eye(4)
    result[:3, :3], result[:3, 3] = u @ vt, pose[:3, 3]
    return result


def pose_from_quaternion(translation: FloatArray, xyzw: FloatArray, where: str) -> FloatArray:
    """The pose [4, 4] of a translation [3] and a quaternion [4] of length 1, about.

    Raises InputError: the quaternion is none, or a number is not finite.
    """
    if not (abs(np.linalg.norm(xyzw) - 1) <= QUATERNION_TOLERANCE and np.isfinite(translation).all()):
        raise InputError(f"{where}: the quaternion is not of length 1, or a number is inf or nan")
    pose = np.eye(4)
    pose[:3, :3] = rotation_matrix(xyzw)
    pose[:3, 3] = translation
    return pose


def read_pose_lines(path: Path, columns: int) -> dict[int, FloatArray]:
    """Poses of lines with row-major matrices (12 or 16 numbers), by line number from 0.

    A blank line, or one with inf or nan, is a frame without a pose.
    """
    lines = enumerate(read_text(path).splitlines())
    found = {i: _pose(line, f"{path} line {i + 1}", columns) for i, line in lines if line.strip()}
    return {index: pose for index, pose in found.items() if pose is not None}


def read_pose_files(files: Mapping[int, Path]) -> dict[int, FloatArray]:
    """Poses of text files with a 4x4 matrix each; a missing file, or one with inf or nan, is a frame without a pose."""
    found = {index: _pose(read_text(path), str(path), 16) for index, path in files.items() if path.is_file()}
    return {index: pose for index, pose in found.items() if pose is not None}


def _pose(text: str, where: str, columns: int) -> FloatArray | None:
    values = np.array(numbers(text, where, columns), np.float64)
    if len(values) not in (columns, 16):
        raise InputError(f"{where}: {len(values)} numbers instead of {columns}")
    return rigid(values.reshape(-1, 4), where) if np.isfinite(values).all() else None
