"""Where the scale is taken from, as users say it: ``marker:0.16``, ``frames:12,240,1.85``, ``height:1.6``,
``track:walk.gpx[@12.5]``, ``exif``."""

import math
from dataclasses import dataclass
from pathlib import Path

from stream_recon.app.metric_scale.gps_tracks import Positions, read_positions
from stream_recon.configs.errors import ConfigError, InputError

FORMS = (
    "marker:METRES, the side of a printed ArUco or AprilTag marker; frames:A,B,METRES, the distance between the "
    "cameras of two frames; height:METRES of the camera above the ground; track:FILE[@SECONDS], positions as GPX, CSV "
    "or TUM; "
    "exif, the GPS positions of photographs"
)


@dataclass(frozen=True)
class Marker:
    """Markers with a side of so many metres."""

    side: float


@dataclass(frozen=True)
class Distance:
    """Between the cameras of two frames, by their numbers in the source."""

    first: int
    second: int
    metres: float


@dataclass(frozen=True)
class Height:
    """Of the camera above the ground."""

    metres: float


@dataclass(frozen=True)
class Track:
    """Positions of the camera by the time."""

    positions: Positions
    begins: float | None
    """Seconds after the track's first position at which the source begins; None: it is found."""


@dataclass(frozen=True)
class Photographs:
    """Where the source's own images say that they were taken."""


Given = Marker | Distance | Height | Track | Photographs


def parse_given(text: str) -> tuple[Given, str]:
    """What a user gave, with all that its files hold, and how to say it again from anywhere.

    Raises:
        ConfigError: it is of no known form.
        InputError: a file cannot be read, or says nothing of where the camera was.
    """
    kind, _, rest = text.strip().partition(":")
    if kind == "exif" and not rest:
        return Photographs(), "exif"
    if kind == "track" and rest:
        return _track(rest)
    words = rest.split(",")
    try:
        if kind == "marker" and len(words) == 1:
            return Marker(_length(words[0])), text.strip()
        if kind == "height" and len(words) == 1:
            return Height(_length(words[0])), text.strip()
        if kind == "frames" and len(words) == 3:
            first, second = int(words[0]), int(words[1])
            if first == second:
                raise ValueError("twice the same frame")
            return Distance(first, second, _length(words[2])), text.strip()
    except ValueError as error:
        raise ConfigError(f"--scale-from {text}: {error}; use {FORMS}") from error
    raise ConfigError(f"--scale-from {text}: use {FORMS}")


def _track(rest: str) -> tuple[Track, str]:
    name, begins = rest, None
    head, at, tail = rest.rpartition("@")
    if at and head:
        try:
            name, begins = head, float(tail)
        except ValueError:
            name = rest
    if begins is not None and not math.isfinite(begins):
        raise ConfigError(f"--scale-from track:{rest}: the seconds are no number")
    path = Path(name).expanduser().absolute()
    try:
        positions = read_positions(path)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"--scale-from: {name} cannot be read: {reason}") from error
    return Track(positions, begins), f"track:{path}" + ("" if begins is None else f"@{begins:g}")


def _length(text: str) -> float:
    value = float(text)
    if not 0 < value < 1e5:
        raise ValueError(f"{text.strip()} is no length in metres")
    return value
