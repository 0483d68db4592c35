"""Tracks of positions in files: GPX, CSV with a header, and the TUM form. All beside the times at which they hold.

Positions on Earth as metres east, north and up of one of them, by the ellipsoid of WGS 84.
"""

import csv
import io
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.transforms import FloatArray
from stream_recon.app.result.metric_scale import EAST_NORTH_UP, OF_FILE

EQUATOR = 6_378_137.0
SQUARED_ECCENTRICITY = 6.694_379_990_14e-3


def east_north_up(degrees: FloatArray, height: FloatArray) -> tuple[FloatArray, tuple[float, float, float]]:
    """Positions [N, 3] in metres from latitudes and longitudes [N, 2] in degrees and heights [N], and their origin:
    the first one's latitude, longitude and height."""
    latitude, longitude = np.radians(degrees).T
    origin = float(degrees[0, 0]), float(degrees[0, 1]), float(height[0])
    xyz = _from_centre(latitude, longitude, height)
    b, a = latitude[0], longitude[0]
    axes = np.array(
        [
            [-np.sin(a), np.cos(a), 0],
            [-np.sin(b) * np.cos(a), -np.sin(b) * np.sin(a), np.cos(b)],
            [np.cos(b) * np.cos(a), np.cos(b) * np.sin(a), np.sin(b)],
        ]
    )
    return np.asarray((xyz - xyz[0]) @ axes.T), origin


def _from_centre(latitude: FloatArray, longitude: FloatArray, height: FloatArray) -> FloatArray:
    across = EQUATOR / np.sqrt(1 - SQUARED_ECCENTRICITY * np.sin(latitude) ** 2)
    return np.stack(
        [
            (across + height) * np.cos(latitude) * np.cos(longitude),
            (across + height) * np.cos(latitude) * np.sin(longitude),
            (across * (1 - SQUARED_ECCENTRICITY) + height) * np.sin(latitude),
        ],
        axis=1,
    )


LARGEST_FILE = 1 << 28
FAR_FROM_ORIGIN = 10_000.0
"""Metres: coordinates of a country's grid lose too many digits in the files of a result."""
TIME = ("time", "timestamp", "t", "seconds", "sec", "utc", "date", "datetime")
FRAME = ("frame", "index")
LATITUDE, LONGITUDE = ("lat", "latitude"), ("lon", "lng", "long", "longitude")
HEIGHT = ("alt", "altitude", "ele", "elevation", "height")
EAST, NORTH, UP = ("x", "tx", "east", "easting"), ("y", "ty", "north", "northing"), ("z", "tz", "up", *HEIGHT)


@dataclass(frozen=True)
class Positions:
    """Where a camera was."""

    metres: FloatArray  # [N, 3]
    world: str
    """`EAST_NORTH_UP` or `OF_FILE`."""
    times: FloatArray | None = None
    """[N] seconds, rising; of whatever clock."""
    frames: FloatArray | None = None
    """[N] numbers of frames, where the file has these instead."""
    origin: tuple[float, float, float] | None = None
    """See `Metres`."""


def read_positions(path: Path) -> Positions:
    """Positions from a file. Raises OSError, or ValueError, saying what is missing in it."""
    with path.open("rb") as file:
        text = file.read(LARGEST_FILE).decode("utf-8-sig", errors="replace")
    if text.lstrip().startswith("<"):
        return _gpx(text)
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    if not lines:
        raise ValueError("it has no positions")
    return _tum(lines) if all(_is_number(word) for word in lines[0].split()) else _csv(lines)


def of_degrees(
    degrees: FloatArray, height: FloatArray, times: FloatArray | None = None, frames: FloatArray | None = None
) -> Positions:
    """Positions from latitudes and longitudes [N, 2] and heights [N], nan where unknown: then that of the others, so
    that a track without heights is level. Raises ValueError."""
    good = np.asarray(np.isfinite(degrees).all(axis=1) & (np.abs(degrees) <= (90, 180)).all(axis=1))
    known = height[good & np.isfinite(height)]
    height = np.where(np.isfinite(height), height, np.median(known) if len(known) else 0.0)
    metres, origin = east_north_up(_some(degrees[good]), height[good])
    return _checked(metres, EAST_NORTH_UP, _at(times, good), _at(frames, good), origin)


def seconds(word: str) -> float:
    """A time as seconds: a number (of milli-, micro- or nanoseconds where it is that large), or a date of ISO 8601,
    without a zone in UTC. nan where it is neither."""
    if _is_number(word):
        value = float(word)
        for limit in (1e17, 1e14, 1e11):
            if abs(value) > limit:
                return value / (limit / 1e8)
        return value
    try:
        moment = datetime.fromisoformat(word.strip())
    except ValueError:
        return float("nan")
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _gpx(text: str) -> Positions:
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise ValueError("no GPX has a document type of its own")
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise ValueError(f"it is no GPX ({error})") from error
    rows = []
    for point in root.iter():
        if _name(point) not in ("trkpt", "rtept", "wpt"):
            continue
        inner = {_name(child): child.text or "" for child in point}
        words = point.get("lat", ""), point.get("lon", ""), inner.get("ele", "")
        rows.append([*(_number(word) for word in words), seconds(inner.get("time", ""))])
    values = np.array(rows, np.float64).reshape(-1, 4)
    values = values[np.isfinite(values[:, 3])]
    if not len(values):
        raise ValueError("it has no points with a time")
    return of_degrees(values[:, :2], values[:, 2], values[:, 3])


def _tum(lines: list[str]) -> Positions:
    """time x y z .."""
    try:
        rows = np.array([[float(word) for word in line.split()[:4]] for line in lines], np.float64)
    except ValueError as error:
        raise ValueError("its lines are not 'seconds x y z ..'") from error
    if rows.ndim != 2 or rows.shape[1] != 4:
        raise ValueError("its lines are not 'seconds x y z ..'")
    return _of_file(rows[:, 1:], rows[:, 0], None)


def _csv(lines: list[str]) -> Positions:
    delimiter = max(",;\t ", key=lines[0].count)
    try:
        table = list(csv.reader(io.StringIO("\n".join(lines)), delimiter=delimiter, skipinitialspace=True))
    except csv.Error as error:
        raise ValueError(f"it is no table: {error}") from error
    names = [re.sub(r"[\s\[(_].*", "", name.strip().casefold()) for name in table[0]]
    rows = [row for row in table[1:] if len(row) == len(names)]

    def column(wanted: tuple[str, ...]) -> int | None:
        return next((names.index(name) for name in wanted if name in names), None)

    def values(at: int | None) -> FloatArray:
        return np.array([float("nan") if at is None else _number(row[at]) for row in rows], np.float64)

    time, frame = column(TIME), column(FRAME)
    if time is None and frame is None:
        raise ValueError(f"it has neither a column for the time nor one called frame, but {_listed(table[0])}")
    times = None if time is None else np.array([seconds(row[time]) for row in rows])
    frames = None if time is not None else values(frame)
    latitude, longitude = column(LATITUDE), column(LONGITUDE)
    if latitude is not None and longitude is not None:
        degrees = np.stack([values(latitude), values(longitude)], axis=1)
        return of_degrees(degrees, values(column(HEIGHT)), times, frames)
    x, y, z = column(EAST), column(NORTH), column(UP)
    if x is None or y is None or z is None:
        raise ValueError(f"it has neither latitude and longitude nor x, y and z, but {_listed(table[0])}")
    return _of_file(np.stack([values(x), values(y), values(z)], axis=1), times, frames)


def _listed(names: list[str]) -> str:
    return ", ".join(" ".join(name.split()) for name in names)[:200]


def _of_file(metres: FloatArray, times: FloatArray | None, frames: FloatArray | None) -> Positions:
    good = np.asarray(np.isfinite(metres).all(axis=1))
    metres = _some(metres[good])
    middle, origin = np.median(metres, axis=0), None
    if np.abs(middle).max() > FAR_FROM_ORIGIN:
        origin = (float(np.floor(middle[0])), float(np.floor(middle[1])), float(np.floor(middle[2])))
        metres = metres - origin
    return _checked(metres, OF_FILE, _at(times, good), _at(frames, good), origin)


def _checked(
    metres: FloatArray,
    world: str,
    times: FloatArray | None,
    frames: FloatArray | None,
    origin: tuple[float, float, float] | None,
) -> Positions:
    """In the order of their times or frames, of several with the same the first."""
    keys = times if times is not None else frames
    if keys is None:
        return Positions(metres, world, None, None, origin)
    good = np.flatnonzero(np.isfinite(keys))
    _, first = np.unique(keys[good], return_index=True)
    order = np.asarray(good[first], np.intp)
    if len(order) < 3:
        raise ValueError("it has fewer than three positions with a time or frame")
    return Positions(metres[order], world, _at(times, order), _at(frames, order), origin)


def _some(rows: FloatArray) -> FloatArray:
    if len(rows) < 3:
        raise ValueError("it has fewer than three positions")
    return rows


def _at(values: FloatArray | None, chosen: NDArray[np.bool_] | NDArray[np.intp]) -> FloatArray | None:
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
