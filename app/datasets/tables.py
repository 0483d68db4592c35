"""Tables of positions (CSV): columns with their units, decimal signs, dates and times of day.

What a header states of a unit is applied, or the file is refused with the column and its first cell.
"""

import csv
import io
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np

from stream_recon.app.core.transforms import FloatArray

LENGTHS = {
    **dict.fromkeys(("m", "meter", "meters", "metre", "metres"), 1.0),
    **dict.fromkeys(("km", "kilometer", "kilometers", "kilometre", "kilometres"), 1000.0),
    **dict.fromkeys(("cm", "centimeters", "centimetres"), 0.01),
    **dict.fromkeys(("mm", "millimeters", "millimetres"), 0.001),
    **dict.fromkeys(("ft", "feet", "foot", "'"), 0.3048),
    **dict.fromkeys(("yd", "yards"), 0.9144),
    **dict.fromkeys(("mi", "mile", "miles"), 1609.344),
}
"""Metres in a unit of length."""
TIMES = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("ms", "msec", "millisecond", "milliseconds", "millis"), 1e-3),
    **dict.fromkeys(("us", "µs", "μs", "usec", "microsecond", "microseconds"), 1e-6),
    **dict.fromkeys(("ns", "nsec", "nanosecond", "nanoseconds"), 1e-9),
    **dict.fromkeys(("min", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hr", "hour", "hours"), 3600.0),
}
"""Seconds in a unit of time."""
CLOCKS = ("utc", "gmt", "z", "local", "iso", "iso8601", "unix", "epoch", "posix", "gps", "hh:mm:ss", "timestamp")
"""Words in the place of a unit that say which clock; numbers and dates are then recognised by their form."""
ANGLES = {
    **dict.fromkeys(("deg", "degree", "degrees", "°", "dd", "decimal", "wgs84", "gps"), 1.0),
    **dict.fromkeys(("rad", "radian", "radians"), 180 / math.pi),
    **dict.fromkeys(("dege7", "e7", "1e7", "1e-7"), 1e-7),
}
"""Degrees in a unit of angle."""
UNITS = frozenset({*LENGTHS, *TIMES, *ANGLES, *CLOCKS})
DATES = ("%Y/%m/%d", "%d.%m.%Y", "%m/%d/%Y", "%d/%m/%Y", "%m-%d-%Y", "%d-%m-%Y")
CLOCK_FORMS = ("%H:%M:%S", "%H:%M:%S.%f", "%I:%M:%S %p", "%I:%M:%S.%f %p", "%H:%M")
DAY = 86_400.0
MAX_TITLE = 200
"""Characters of a column's title that are looked at."""
PLAIN = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
LARGE = ((1e17, 1e-9), (1e14, 1e-6), (1e11, 1e-3))
"""Times without a unit above these limits are nano-, micro- and milliseconds since 1970."""


@dataclass(frozen=True)
class Column:
    """A column with its name in lower case, its unit (empty: none given), and its cells."""

    title: str
    name: str
    unit: str
    cells: tuple[str, ...]

    def described(self) -> str:
        first = next((cell for cell in self.cells if cell.strip()), "")
        return f"column '{' '.join(self.title.split())}' (first value {first.strip()[:40]!r})"

    def numbers(self, units: dict[str, float], lost: Sequence[str] = ()) -> FloatArray:
        """Values [N] in the base unit, nan for empty cells. Raises ValueError: another unit, or no number.

        ``lost``: the only words that may stand for a number; without them any word does where one cell is a number.
        """
        if self.unit and self.unit not in units:
            main = {size: word for word, size in reversed(units.items())}.values()
            raise ValueError(f"{self.described()}: its unit {self.unit!r} is not known; use {', '.join(main)}")
        values = np.array([number(cell) for cell in self.cells], np.float64)
        words = [cell.strip() for cell, value in zip(self.cells, values, strict=True) if not np.isfinite(value)]
        if other := [word for word in words if lost and word.lower().lstrip("+-") not in lost]:
            raise ValueError(f"{other[0][:40]!r} is not a number")
        if len(words) == len(values) and not lost:
            raise ValueError(f"{self.described()} has no number")
        return values * units.get(self.unit, 1.0)

    def seconds(self) -> FloatArray:
        """Times [N] in seconds, nan for empty cells. Raises ValueError: an unknown unit or form of dates."""
        values = np.array([number(cell) for cell in self.cells], np.float64)
        filled = [cell for cell in self.cells if cell.strip()]
        if np.isfinite(values).sum() * 2 > len(filled):
            if self.unit and self.unit not in TIMES and self.unit not in CLOCKS:
                raise ValueError(f"{self.described()}: its unit {self.unit!r} is not known; use s, ms, us or ns")
            return values * TIMES[self.unit] if self.unit in TIMES else values * epoch_unit(values)
        return _moments(self)


def epoch_unit(values: FloatArray) -> float:
    """Seconds in a unit of times without one, by their size."""
    largest = float(np.nanmax(np.abs(values), initial=0.0))
    return next((unit for limit, unit in LARGE if largest > limit), 1.0)


def number(cell: str) -> float:
    """A number; nan for other words."""
    word = cell.strip()
    return float(word) if re.fullmatch(PLAIN, word) else math.nan


def read_table(lines: Sequence[str]) -> tuple[list[Column], int]:
    """Columns of a table whose first line is its header, and the number of its lines that were left out.

    Raises ValueError: no table, or numbers whose decimal sign cannot be told.
    """
    delimiter = next((sign for sign in ";\t," if sign in lines[0]), " ")
    try:
        table = list(csv.reader(io.StringIO("\n".join(lines)), delimiter=delimiter, skipinitialspace=True))
    except csv.Error as error:
        raise ValueError(f"it is no table: {error}") from error
    titles, rows = table[0], table[1:]
    fitting = [row for row in rows if len(row) == len(titles)]
    if rows and not fitting:
        raise ValueError(
            f"its lines have {len(rows[0])} cells and its header has {len(titles)}: numbers with a decimal comma need "
            "a semicolon or tab between cells"
        )
    units = [""] * len(titles)
    if fitting and all(cell.strip().strip("[]()").casefold() in UNITS | {""} for cell in fitting[0]):
        units = [cell.strip().strip("[]()").casefold() for cell in fitting[0]]
        fitting = fitting[1:]
    convert = _decimal_sign(fitting, delimiter)
    columns = []
    for number, title in enumerate(titles):
        name, unit = _name_and_unit(title)
        columns.append(Column(title.strip(), name, unit or units[number], tuple(convert(r[number]) for r in fitting)))
    return columns, len(rows) - len(fitting) - any(units)


def _name_and_unit(title: str) -> tuple[str, str]:
    text = title[:MAX_TITLE].strip().lstrip("#").strip().casefold()
    inside = re.search(r"[\[(]\s*([^\])]*?)\s*[\])]", text)
    name = re.sub(r"[\[(].*", "", text).strip(" _-:")
    if inside is not None:
        return name, inside[1]
    words = re.split(r"[ _\-/:]+", name)
    if len(words) > 1 and words[-1] in {*LENGTHS, *TIMES, *ANGLES} - {"'", "m", "s", "h"} | {"m", "s"}:
        return name[: -len(words[-1])].strip(" _-/:"), words[-1]
    return name, ""


def _decimal_sign(rows: list[list[str]], delimiter: str) -> Callable[[str], str]:
    """Conversion of cells to numbers with a decimal point. Raises ValueError: commas of unknown meaning."""
    cells = [cell.strip() for row in rows[:1000] for cell in row]
    commas = [cell for cell in cells if re.fullmatch(r"[-+]?\d+,\d+", cell)]
    if not commas:
        return lambda cell: cell
    if any(re.fullmatch(r"[-+]?\d+\.\d+", cell) for cell in cells):
        raise ValueError(f"its numbers have points and commas, such as {commas[0]!r}: write all with a decimal point")
    if delimiter == "," and all(re.fullmatch(r"[-+]?\d{1,3},\d{3}", cell) for cell in commas):
        raise ValueError(f"the comma in {commas[0]!r} may be a decimal comma or separate thousands")
    return lambda cell: cell.replace(",", ".") if re.fullmatch(r"\s*[-+]?\d+,\d+\s*", cell) else cell


def _moments(column: Column) -> FloatArray:
    """Seconds of dates with times, or of times of day. Raises ValueError: an unknown form or order of the day."""
    cells = [cell.strip() for cell in column.cells]
    iso = _parsed(cells, _iso)
    if iso is not None:
        return iso
    for form in CLOCK_FORMS:
        clock = _parsed(cells, lambda cell, form=form: _strptime(cell, form))  # type: ignore[misc]
        if clock is not None:
            return _over_midnight(clock)
    readings: list[FloatArray] = []
    for date in DATES:
        for form in CLOCK_FORMS:
            times = _parsed(cells, lambda cell, form=f"{date} {form}": _strptime(cell, form))  # type: ignore[misc]
            if times is not None:
                readings.append(times)
    if not readings:
        raise ValueError(f"{column.described()}: its form of times is not known; use seconds, or 2026-05-04T10:00:00Z")
    if all(np.allclose(np.diff(readings[0]), np.diff(other), equal_nan=True) for other in readings[1:]):
        return readings[0]
    ascending = [times for times in readings if (np.diff(times[np.isfinite(times)]) >= 0).all()]
    if len(ascending) != 1:
        raise ValueError(f"{column.described()}: day and month cannot be told apart; use 2026-05-04T10:00:00Z")
    return ascending[0]


def _parsed(cells: list[str], parse: Callable[[str], float]) -> FloatArray | None:
    """Times of all cells, nan for empty ones; None where one has another form."""
    values = []
    for cell in cells:
        try:
            values.append(parse(cell) if cell else math.nan)
        except ValueError:
            return None
    return np.array(values, np.float64) if np.isfinite(values).any() else None


def _iso(cell: str) -> float:
    if re.fullmatch(r"\d{1,2}:.*", cell):
        raise ValueError("a time of day")
    moment = datetime.fromisoformat(cell)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _strptime(cell: str, form: str) -> float:
    return datetime.strptime(cell.removesuffix("Z").strip(), form).replace(tzinfo=UTC).timestamp()


def _over_midnight(clock: FloatArray) -> FloatArray:
    """Times of day as times that go on after midnight."""
    known = np.isfinite(clock)
    values = clock[known]
    days = np.concatenate([[0], np.cumsum(np.diff(values) < -DAY / 2)])
    result = clock.copy()
    result[known] = values + days * DAY
    return result
