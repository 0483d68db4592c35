"""Readers of position tracks with times or frame numbers: GPX, NMEA, CSV with a header, and TUM files.

Geodetic positions are converted to local east, north, up coordinates in metres by the WGS 84 ellipsoid.
"""

import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import takewhile
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.input_file import read_file
from stream_recon.app.core.transforms import FloatArray
from stream_recon.app.datasets.tables import ANGLES, LENGTHS, Column, read_table
from stream_recon.app.datasets.trajectories import check_one_path
from stream_recon.app.metric_scale.nmea import is_nmea, read_nmea
from stream_recon.app.result.metric_scale import EAST_NORTH_UP, OF_FILE

EQUATOR = 6_378_137.0
"""Semi-major axis of the WGS 84 ellipsoid in metres."""
SQUARED_ECCENTRICITY = 6.694_379_990_14e-3
"""First eccentricity squared of the WGS 84 ellipsoid."""


def east_north_up(degrees: FloatArray, height: FloatArray) -> tuple[FloatArray, tuple[float, float, float]]:
    """Local east, north, up coordinates [N, 3] in metres, and their origin: the first latitude, longitude and height.

    Args:
        degrees: latitudes and longitudes [N, 2].
        height: above the ellipsoid [N], in metres.
    """
    latitude, longitude = np.radians(degrees).T
    origin = float(degrees[0, 0]), float(degrees[0, 1]), float(height[0])
    xyz = _earth_centred(latitude, longitude, height)
    b, a = latitude[0], longitude[0]
    axes = np.array(
        [
            [-np.sin(a), np.cos(a), 0],
            [-np.sin(b) * np.cos(a), -np.sin(b) * np.sin(a), np.cos(b)],
            [np.cos(b) * np.cos(a), np.cos(b) * np.sin(a), np.sin(b)],
        ]
    )
    return np.asarray((xyz - xyz[0]) @ axes.T), origin


def _earth_centred(latitude: FloatArray, longitude: FloatArray, height: FloatArray) -> FloatArray:
    """Earth-centred coordinates (ECEF) [N, 3] in metres; angles in radians."""
    normal_radius = EQUATOR / np.sqrt(1 - SQUARED_ECCENTRICITY * np.sin(latitude) ** 2)
    return np.stack(
        [
            (normal_radius + height) * np.cos(latitude) * np.cos(longitude),
            (normal_radius + height) * np.cos(latitude) * np.sin(longitude),
            (normal_radius * (1 - SQUARED_ECCENTRICITY) + height) * np.sin(latitude),
        ],
        axis=1,
    )


MAX_FILE_BYTES = 1 << 28
"""Bytes that are read of a file: days of positions, and no more memory than a machine has."""
MAX_FROM_ORIGIN_M = 10_000.0
"""Distance beyond which an origin is subtracted: national grid coordinates lose digits in the files of a result."""
NARROW = 0.02
"""Extent of positions in metres that no path has, and of degrees that every walk has."""
TIME = ("time", "timestamp", "t", "seconds", "sec", "utc", "datetime", "date", "elapsed", "stamp")
FRAME = ("frame", "index")
LATITUDE, LONGITUDE = ("lat", "latitude"), ("lon", "lng", "long", "longitude")
HEIGHT = ("alt", "altitude", "ele", "elevation", "height")
EAST, NORTH, UP = ("x", "tx", "east", "easting"), ("y", "ty", "north", "northing"), ("z", "tz", "up", *HEIGHT)
"""Names of columns of CSV files, in lower case, for this and each of the above."""


@dataclass(frozen=True)
class Positions:
    """Positions of a camera by time or frame."""

    metres: FloatArray  # [N, 3]
    world: str
    """Axes: `EAST_NORTH_UP` or `OF_FILE`."""
    times: FloatArray | None = None  # [N] seconds of any clock, ascending
    frames: FloatArray | None = None  # [N] frame numbers, where the file has these instead of times
    origin: tuple[float, float, float] | None = None
    """See `MetricScale`."""
    left_out: int = 0
    """Lines or points of the file without a position, a time or a fix."""
    without_height: int = 0
    """Positions that are taken at the median height, or all at one."""


def read_positions(path: Path) -> Positions:
    """Read positions from a file. Raises OSError, or ValueError with what is missing."""
    text = _decoded(read_file(path, MAX_FILE_BYTES))
    if text.lstrip().startswith("<"):
        return _gpx(text)
    if text.lstrip().startswith("{"):
        raise ValueError("it is JSON, which is not read: convert it to GPX, or CSV with a header")
    filled = [line for line in text.splitlines() if line.strip()]
    lines = [line for line in filled if not line.lstrip().startswith("#")]
    if not lines:
        raise ValueError("it has no positions")
    if is_nmea(lines[0]):
        degrees, height, times, damaged = read_nmea(lines)
        found = geodetic_positions(degrees, height, times)
        return replace(found, left_out=found.left_out + damaged)
    is_spaced = all(_is_number(word) for word in lines[0].split())
    lines = [" ".join(line.split()) for line in lines] if is_spaced else lines
    header = _commented_header(filled, lines[0])
    return _csv([*(header or (_usual_header(lines) if is_spaced else [])), *lines])


def _are_degrees(rows: list[list[str]]) -> bool:
    """Whether numbers that are said to be metres hardly change, as those of latitudes and longitudes."""
    values = np.array([[_number(word) for word in row] for row in rows if len(row) == 2]).reshape(-1, 2)
    spread, middle = np.ptp(values, axis=0, keepdims=True), np.abs(values).max(axis=0, initial=0.0)
    return bool(len(values) and (spread < NARROW).all() and (middle > 1).all() and (middle <= (90, 180)).all())


def _commented_header(filled: list[str], first: str) -> list[str]:
    """The header of a table behind a comment sign, as in EuRoC's files; none where the ``first`` line may be one."""
    cells, sign = re.split(r"[,;\t ]+", first), next((sign for sign in ";\t," if sign in first), " ")
    comments = takewhile(lambda line: line.lstrip().startswith("#"), filled)
    headers = [re.split(r"[,;\t]+" if sign != " " else r"[,;\t ]+", line.strip("# \t")) for line in comments]
    named = [sign.join(header) for header in headers if len(header) == len(cells)]
    return named[-1:] if all(map(_is_number, cells)) else []


def _usual_header(lines: list[str]) -> list[str]:
    """Names of the columns of lines ``seconds x y z``, which a quaternion may follow. Raises ValueError."""
    columns = len(lines[0].split())
    if columns not in (4, 7, 8):
        said = f"its lines have {columns} numbers, not 'seconds x y z', or with a quaternion, and no header"
        raise ValueError(f"{said} that names columns (subtitles, such as DJI's SRT, are not read)")
    if _are_degrees([line.split()[1:3] for line in lines]):
        raise ValueError("its second and third numbers look like degrees, and no header names them: time lat lon alt")
    return [" ".join(["t", "x", "y", "z", *["other"] * (columns - 4)])]


def _decoded(data: bytes) -> str:
    """Text in UTF-8 or, by its first bytes, UTF-16."""
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return data.decode("utf-16", errors="replace")
    if data[:200].count(0) > len(data[:200]) // 4:
        return data.decode("utf-16-le" if data[1:2] == b"\0" else "utf-16-be", errors="replace")
    return data.decode("utf-8-sig", errors="replace")


def geodetic_positions(
    degrees: FloatArray, height: FloatArray, times: FloatArray | None = None, frames: FloatArray | None = None
) -> Positions:
    """Positions from latitudes and longitudes [N, 2] in degrees and heights [N] in metres.

    Unknown heights (nan) are replaced by the median, so a track without heights is level. Raises ValueError.
    """
    # Longitudes may go to 360. Receivers without a fix write zeros.
    degrees = degrees - np.where((degrees > 180) & (degrees <= 360), 360.0, 0.0) * (0, 1)
    good = np.asarray(np.isfinite(degrees).all(axis=1) & (np.abs(degrees) <= (90, 180)).all(axis=1))
    good &= (degrees != 0).any(axis=1)
    known = height[good & np.isfinite(height)]
    unknown = int(good.sum()) - len(known)
    height = np.where(np.isfinite(height), height, np.median(known) if len(known) else 0.0)
    metres, origin = east_north_up(_at_least_three(degrees[good]), height[good])
    return _sorted(
        Positions(metres, EAST_NORTH_UP, _rows(times, good), _rows(frames, good), origin, int((~good).sum()), unknown)
    )


def _seconds(word: str) -> float:
    """A time of a GPX, in ISO 8601 (UTC where it has no zone), in seconds; nan for other words."""
    try:
        moment = datetime.fromisoformat(word.strip())
    except ValueError:
        return float("nan")
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _gpx(text: str) -> Positions:
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise ValueError("it is no GPX: it has a document type definition")
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise ValueError(f"it is no GPX ({error})") from error
    if _name(root) != "gpx":
        raise ValueError(f"it is no GPX, but {_name(root)[:40]}")
    rows = []
    points = list(root.iter())
    # Waypoints are places that were marked, not the path, unless there is nothing else.
    kinds = [kind for kind in ("trkpt", "rtept", "wpt") if any(_name(point) == kind for point in points)]
    for point in points:
        if not kinds or _name(point) != kinds[0]:
            continue
        inner = {_name(child): child.text or "" for child in point}
        words = point.get("lat", ""), point.get("lon", ""), inner.get("ele", "")
        rows.append([*(_number(word) for word in words), _seconds(inner.get("time", ""))])
    values = np.array(rows, np.float64).reshape(-1, 4)
    timed = np.isfinite(values[:, 3])
    if not timed.any():
        raise ValueError("it has no points with a time")
    positions = geodetic_positions(values[timed, :2], values[timed, 2], values[timed, 3])
    return replace(positions, left_out=positions.left_out + int((~timed).sum()))


def _csv(lines: list[str]) -> Positions:
    columns, left_out = read_table(lines)

    def column(names: tuple[str, ...]) -> Column | None:
        exact = (c for name in names for c in columns if c.name == name)
        if twice := next((name for name in names if [c.name for c in columns].count(name) > 1), None):
            raise ValueError(f"it has more than one column {twice}")
        begins = (c for name in names for c in columns if re.match(rf"{name}[ _\-.]", c.name))
        return next(exact, None) or next(begins, None)

    titles = ", ".join(" ".join(c.title.split()) for c in columns)[:200]
    time, frame = column(TIME), column(FRAME)
    if time is None and frame is None:
        raise ValueError(f"it has no column time and no column frame, but {titles}")
    times = None if time is None else time.seconds()
    frames = None if time is not None or frame is None else frame.numbers({"": 1.0})
    latitude, longitude = column(LATITUDE), column(LONGITUDE)
    if latitude is not None and longitude is not None:
        degrees = np.stack([latitude.numbers(ANGLES), longitude.numbers(ANGLES)], axis=1)
        degrees *= np.stack([_signs(columns, latitude, "N", "S"), _signs(columns, longitude, "E", "W")], axis=1)
        height_column = column(HEIGHT)
        height = np.full(len(degrees), np.nan) if height_column is None else height_column.numbers(LENGTHS)
        positions = geodetic_positions(degrees, height, times, frames)
    else:
        x, y, z = column(EAST), column(NORTH), column(UP)
        if x is None or y is None or z is None:
            raise ValueError(f"it has neither latitude and longitude nor x, y and z, but {titles}")
        metres = np.stack([x.numbers(LENGTHS), y.numbers(LENGTHS), z.numbers(LENGTHS)], axis=1)
        positions = cartesian_positions(metres, times, frames)
    return replace(positions, left_out=positions.left_out + left_out)


def _signs(columns: list[Column], angle: Column, positive: str, negative: str) -> FloatArray:
    """Signs [N] by the column of hemispheres, such as N and S, that follows an angle; 1 without one."""
    number = columns.index(angle) + 1
    words = [cell.strip().upper()[:5] for cell in columns[number].cells] if number < len(columns) else []
    if not any(words) or not {word[:1] for word in words} <= {positive, negative, ""}:
        return np.ones(len(angle.cells))
    return np.array([-1.0 if word[:1] == negative else 1.0 for word in words])


def cartesian_positions(metres: FloatArray, times: FloatArray | None, frames: FloatArray | None) -> Positions:
    """Positions from coordinates [N, 3] in metres, relative to an origin where they are far from theirs."""
    good = np.asarray(np.isfinite(metres).all(axis=1))
    metres = _at_least_three(metres[good])
    median, origin = np.median(metres, axis=0), None
    if np.abs(median).max() > MAX_FROM_ORIGIN_M:
        origin = (float(np.floor(median[0])), float(np.floor(median[1])), float(np.floor(median[2])))
        metres = metres - origin
    return _sorted(Positions(metres, OF_FILE, _rows(times, good), _rows(frames, good), origin, int((~good).sum())))


def _sorted(positions: Positions) -> Positions:
    """Positions in the order of their times or frames; of several with the same one the first."""
    times, frames = positions.times, positions.frames
    keys = times if times is not None else frames
    if keys is None:
        return positions
    good = np.flatnonzero(np.isfinite(keys))
    _, first = np.unique(keys[good], return_index=True)
    order = np.asarray(good[first], np.intp)
    if len(order) < 3:
        raise ValueError("it has fewer than three positions with a time or frame")
    check_one_path(positions.metres, order)
    left_out = positions.left_out + len(keys) - len(order)
    return replace(
        positions,
        metres=positions.metres[order],
        times=_rows(times, order),
        frames=_rows(frames, order),
        left_out=left_out,
    )


def _at_least_three(rows: FloatArray) -> FloatArray:
    if len(rows) < 3:
        raise ValueError("it has fewer than three positions")
    return rows


def _rows(values: FloatArray | None, chosen: NDArray[np.bool_] | NDArray[np.intp]) -> FloatArray | None:
    return None if values is None else values[chosen]


def _name(element: ElementTree.Element) -> str:
    return str(element.tag).rpartition("}")[2]


def _is_number(word: str) -> bool:
    return bool(np.isfinite(_number(word)))


def _number(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        return float("nan")
