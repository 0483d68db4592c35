"""Reader of NMEA 0183 sentences of satellite receivers: GGA for positions, RMC and ZDA for the date."""

import math
from datetime import UTC, datetime
from functools import reduce

import numpy as np

from stream_recon.app.core.transforms import FloatArray

DAY = 86_400.0
GUESSED = ("6", "7", "8")
"""Kinds of positions (word 6 of GGA) that no satellites gave: by dead reckoning, by hand, of a simulator."""


def is_nmea(line: str) -> bool:
    """Whether a line is a sentence."""
    return line.lstrip().startswith("$") and "," in line


def read_nmea(lines: list[str]) -> tuple[FloatArray, FloatArray, FloatArray, int]:
    """Latitudes and longitudes [N, 2] in degrees, heights [N] in metres, times [N] in seconds, and damaged sentences.

    Without a date, times are seconds of the first day. Raises ValueError: no position.
    """
    date, rows, damaged = 0.0, [], 0
    last = -math.inf
    for line in lines:
        words = _words(line)
        if words is None:
            damaged += 1
            continue
        kind = words[0][3:6]
        try:
            if kind == "RMC" and words[9]:
                date = datetime.strptime(words[9], "%d%m%y").replace(tzinfo=UTC).timestamp()
            elif kind == "GGA" and words[6] not in ("", "0"):
                position, time = _position(words), _time(words[1])
                if not date and time < last - DAY / 2:
                    time += DAY * math.ceil((last - time) / DAY - 0.5)
                last = time
                rows.append((*position, time, date))
        except (ValueError, IndexError):
            damaged += 1
    if not rows:
        raise ValueError("it has no position (sentence GGA) of a receiver with a fix")
    values = np.array(rows, np.float64)
    times = values[:, 3] + values[:, 4]
    # The date of the first sentences comes with the first RMC.
    first = values[:, 4][values[:, 4] > 0]
    if len(first):
        times = times + np.where(values[:, 4] == 0, first[0], 0.0)
        # RMC of a new day may come after the GGA of the same second.
        times = times + DAY * np.concatenate([[0], (np.diff(times) < -DAY / 2)])
    return values[:, :2], values[:, 2], times, damaged


def _position(words: list[str]) -> tuple[float, float, float]:
    """Latitude, longitude and height of a GGA. Raises ValueError: they are not measured."""
    if words[6] in GUESSED:
        raise ValueError(words[6])
    height = float(words[9] or "nan") + float(words[11] or 0.0) if len(words) > 11 else math.nan
    return _angle(words[2], words[3], "NS"), _angle(words[4], words[5], "EW"), height


def _words(line: str) -> list[str] | None:
    """Words of a sentence; None where its checksum is wrong or it is no sentence."""
    body, _, check = line.strip().removeprefix("$").partition("*")
    if not line.strip().startswith("$") or len(body) < 6:
        return None
    if check:
        try:
            if reduce(lambda a, b: a ^ b, body.encode("ascii"), 0) != int(check[:2], 16):
                return None
        except ValueError:
            return None
    return ("$" + body).split(",")


def _time(word: str) -> float:
    if len(word) < 6:
        raise ValueError(word)
    return 3600 * int(word[:2]) + 60 * int(word[2:4]) + float(word[4:])


def _angle(word: str, side: str, sides: str) -> float:
    """Degrees of ``ddmm.mmmm`` or ``dddmm.mmmm``, negative on the second of two sides. Raises ValueError."""
    point = word.index(".") if "." in word else len(word)
    degrees = int(word[: point - 2]) + float(word[point - 2 :]) / 60
    return degrees * (1, -1)[[*sides].index(side)]
