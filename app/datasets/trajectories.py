"""Readers of true trajectories: tables of times, positions and quaternions, whose columns a header may name.

TUM RGB-D and what is written like it; EuRoC, TUM-VI and CSV files of ROS, by their headers.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.transforms import FloatArray, rotation_matrix
from stream_recon.app.datasets.tables import CLOCKS, LARGE, LENGTHS, TIMES, Column, epoch_unit, number, read_table
from stream_recon.app.datasets.text import QUATERNION_TOLERANCE, read_text
from stream_recon.configs.errors import InputError

COLUMNS = ("t", "x", "y", "z", "qx", "qy", "qz", "qw")
"""Columns of a trajectory as in TUM RGB-D."""
EUROC = ("t", "x", "y", "z", "qw", "qx", "qy", "qz")
"""First columns of EuRoC's trajectories, whose times are nanoseconds."""
_TIME = re.compile(
    r"(?:.*[_.])?(?:(?:t|time|time_?stamp|stamp|secs?|seconds)(?:[_.]?(?P<unit>s|sec|ms|us|ns|nsec))?|(?P<nano>n(?:ano)?secs?.*))"
)
_AXIS = re.compile(r"(?P<of>.*?)[_.]?(?P<axis>[xyzw])")
_QUATERNION = re.compile(r"(?:.*[_.])?(?:q|quat\w*|orientation|rot|rotation)(?:[_.].*)?")
_POSITION = re.compile(r"(?:.*[_.])?(?:p|t|pos|position|trans|translation)(?:[_.].*)?|")
"""Patterns of the names of columns."""
LOST = ("", "nan", "inf", "infinity")
"""Cells of frames without a pose."""
MIN_NAMED = 5
"""Columns that a comment names at least where it is a header."""
TANGLED = 2.0
"""Path in the order of times over that in the order of rows, beyond which these are of several trajectories."""
ROUNDED = 1e-5
"""Difference of poses' numbers up to which they are the same."""
ASSOCIATION_SECONDS = 0.02
"""Largest difference of associated timestamps, as in the tools of the TUM benchmark."""
FEW_MATCHES = 0.5
"""Share of images with a pose below which a data set's ground truth is doubted."""


@dataclass(frozen=True)
class TimedPoses:
    """Poses with timestamps."""

    times: FloatArray  # [N] seconds, ascending
    poses: FloatArray  # [N, 4, 4]


def read_trajectory(path: Path, columns: Sequence[str] = COLUMNS, unit: float | None = None) -> TimedPoses:
    """Poses of a table; lines with inf, nan or an empty cell are lost frames, left out.

    Args:
        columns: meaning of the first columns where no header names them.
        unit: seconds of the unit of times where no header states it; None: seconds, or what their size tells.

    Raises InputError: a header that is not understood, a line that does not fit it, quaternions that are none or in an
    unusual order, or different poses of one time.
    """
    try:
        header, lines = _header_and_lines(path)
        rows, listed = _rows(header, lines, columns, unit) if lines else (np.empty((0, 7)), np.empty(0))
        poses = _poses(rows, listed)
        times, first, at = np.unique(listed, return_index=True, return_inverse=True)
        if len(odd := np.flatnonzero(abs(poses[first][at] - poses).max(axis=(1, 2), initial=0.0) > ROUNDED)):
            raise ValueError(f"timestamp {listed[odd[0]]:.6f} has different poses")
        check_one_path(poses[:, :3, 3], first)
    except ValueError as error:
        raise InputError(f"{path}: {error}") from error
    # A trajectory that begins at the identity does so by half a turn where qw is taken for qx.
    if header is None and len(poses) and abs(poses[0, :3, 3]).max() < ROUNDED > abs(np.trace(poses[0])):
        said = "begins at the origin by half a turn: name its columns in a first line"
        raise InputError(f"{path} {said}, such as # timestamp tx ty tz qw qx qy qz")
    return TimedPoses(times, poses[first])


def check_one_path(positions: FloatArray, order: NDArray[np.intp]) -> None:
    """Raises ValueError: positions [N, 3] of several paths, which in the order of their times go to and fro."""
    paths = [np.linalg.norm(np.diff(each, axis=0), axis=1).sum() for each in (positions, positions[order])]
    if paths[1] > TANGLED * paths[0] + ROUNDED:
        raise ValueError("its rows are not in the order of their times: are there two trajectories in it?")


def _poses(rows: FloatArray, times: FloatArray) -> FloatArray:
    """Poses [N, 4, 4] of positions and quaternions [N, 7], whose lengths must agree. Raises ValueError."""
    lengths = np.linalg.norm(rows[:, 3:], axis=1)
    usual = float(np.median(lengths)) if len(rows) else 1.0
    if (odd := ~(abs(lengths - usual) <= QUATERNION_TOLERANCE * usual) | (lengths == 0)).any():
        worst = int((abs(lengths - usual) + odd).argmax())
        said = f"is of length {lengths[worst]:.3g}, others of {usual:.3g}" if lengths[worst] else "is zero"
        raise ValueError(f"timestamp {times[worst]:.6f}: the quaternion {said}: check the order of the columns")
    poses = np.tile(np.eye(4), (len(rows), 1, 1))
    poses[:, :3, :3], poses[:, :3, 3] = rotation_matrix(rows[:, 3:]), rows[:, :3]
    return poses


read_euroc_trajectory: Callable[[Path], TimedPoses] = partial(read_trajectory, columns=EUROC, unit=1e-9)


def in_seconds(times: FloatArray, unit: float | None = None) -> FloatArray:
    """Times in seconds; without a unit those too large for seconds are milli-, micro- or nanoseconds."""
    return np.asarray(times * (unit or epoch_unit(times))) if len(times) else times


def _header_and_lines(path: Path) -> tuple[str | None, list[str]]:
    """The line that names the columns, if one does, and those after it."""
    header: str | None = None
    lines: list[str] = []
    for line in filter(None, map(str.strip, read_text(path).splitlines())):
        text = line.lstrip("#% ")
        is_named = re.match(r"[-+.\d]|nan|inf", text, re.IGNORECASE) is None and not lines
        if line.startswith("#"):
            names = {_meaning(word)[0] for word in re.split(r"[\s,;]+", text)} & {*COLUMNS}
            if is_named and len(names) >= MIN_NAMED:
                header = re.sub(r"^\w+:\s*[,;]?\s*", "", text)
        elif is_named and header is None:
            header = text
        else:
            lines.append(line)
    return header, lines


def _rows(
    header: str | None, lines: list[str], columns: Sequence[str], unit: float | None
) -> tuple[FloatArray, FloatArray]:
    """Positions and quaternions [N, 7], and times [N] in seconds, without lost frames. Raises ValueError."""
    header = header or _usual_header(lines[0], columns)
    table, left_out = read_table([header, *lines])
    named = {_meaning(column.name)[0]: column for column in reversed(table)}
    meanings = [_meaning(column.name)[0] for column in table]
    if doubled := [name for name in COLUMNS[1:] if meanings.count(name) > 1]:
        raise ValueError(f"the header {header[:80]!r} names more than one column for {', '.join(doubled)}")
    if missing := [name for name in COLUMNS if name not in named]:
        raise ValueError(f"the header {header[:80]!r} names no column for {', '.join(missing)}")
    if left_out:
        raise ValueError(f"{left_out} lines have not {len(table)} cells, as the header or the first line has")
    quaternion = [replace(named[name], unit="") for name in COLUMNS[4:]]
    rows = np.array(
        [column.numbers(LENGTHS, LOST) for column in (*map(named.__getitem__, COLUMNS[1:4]), *quaternion)]
    ).T
    times = _times([column for column in table if _meaning(column.name)[0] == "t"], unit)
    is_known = np.isfinite(rows).all(axis=1) & np.isfinite(times)
    return rows[is_known], times[is_known]


def _times(columns: Sequence[Column], unit: float | None) -> FloatArray:
    """Times [N] in seconds, nan where there is none. Raises ValueError: columns of different times."""
    known, found = TIMES | dict.fromkeys(CLOCKS, 1.0), list[FloatArray]()
    for column in columns:
        stated = 1.0 if column.unit in TIMES else TIMES.get(_meaning(column.name)[1], unit)
        found.append(in_seconds(column.numbers(known, LOST), stated))
        if (abs(found[-1] - found[0]) > ASSOCIATION_SECONDS).any():
            raise ValueError(
                f"the columns {columns[0].title!r} and {column.title!r} are times and differ: leave one out"
            )
    return found[0]


def _usual_header(line: str, columns: Sequence[str]) -> str:
    """Names of the columns of a table without a header, by its first line. Raises ValueError."""
    sign = next((sign for sign in ";\t," if sign in line), " ")
    count = len(cells := line.split(None if sign == " " else sign))
    # A table of a known program may have more columns that no header names; those of others would be guessed at.
    if count < 8 or (count > 8 and columns == COLUMNS):
        raise ValueError(f"line 1: {count} numbers, {'fewer' if count < 8 else 'more'} than 8, and no header")
    if sign == "," and columns == COLUMNS and number(cells[0]) > LARGE[0][0]:
        raise ValueError("nanoseconds and commas, as EuRoC's files with qw first, and no header that names the columns")
    return sign.join([*columns, *["other"] * (count - 8)])


def _meaning(name: str) -> tuple[str, str]:
    """What a column's name says that it holds (empty: anything else), and its unit of time."""
    plain = name.lower().strip("#%'\"")
    if (time := _TIME.fullmatch(plain)) is not None:
        return "t", time["unit"] or ("ns" if time["nano"] else "")
    axis = _AXIS.fullmatch(plain)
    if axis is not None and _QUATERNION.fullmatch(axis["of"]):
        return f"q{axis['axis']}", ""
    is_position = axis is not None and axis["axis"] != "w" and _POSITION.fullmatch(axis["of"])
    return (axis["axis"] if axis is not None and is_position else ""), ""


def associate(times: FloatArray, others: FloatArray, within: float = ASSOCIATION_SECONDS) -> NDArray[np.intp]:
    """Positions [N] in ``others`` [M] (in any order) nearest to ``times`` [N]; -1 beyond ``within`` seconds."""
    if not len(others):
        return np.full(len(times), -1, dtype=np.intp)
    order = np.argsort(others, kind="stable")
    ordered = others[order]
    after = np.clip(np.searchsorted(ordered, times), 0, len(others) - 1)
    before = np.maximum(after - 1, 0)
    nearest = np.where(np.abs(ordered[before] - times) <= np.abs(ordered[after] - times), before, after)
    return np.where(np.abs(ordered[nearest] - times) < within, order[nearest], -1).astype(np.intp)


def matched_poses(
    path: Path | None, times: FloatArray, read: Callable[[Path], TimedPoses] = read_trajectory
) -> tuple[dict[int, FloatArray], list[str]]:
    """The pose of a file within `ASSOCIATION_SECONDS` of each time, by position in ``times``, and a warning where most
    have none, as for times in another unit.

    None without a file. ``read``: its reader.
    """
    if path is None or not path.is_file():
        return {}, []
    truth = read(path)
    poses = {i: truth.poses[match] for i, match in enumerate(associate(times, truth.times)) if match >= 0}
    if not len(times) or len(poses) >= FEW_MATCHES * len(times):
        return poses, []
    if not len(truth.times):
        return poses, [f"{path.name} has no pose with finite numbers"]
    spans = [f"{t.min():.2f} to {t.max():.2f} s" for t in (truth.times, times)]
    return poses, [
        f"{len(poses)} of {len(times)} images have a pose in {path.name}: its times are {spans[0]}, those of the "
        f"images {spans[1]}"
    ]
