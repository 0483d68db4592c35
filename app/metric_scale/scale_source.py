"""Sources of metric scale as users write them.

``marker:0.16``, ``frames:12,240,1.85``, ``height:1.6``, ``track:walk.gpx[@12.5]``, ``exif``.
"""

import math
from dataclasses import dataclass
from pathlib import Path

from stream_recon.app.metric_scale.gps_tracks import Positions, read_positions
from stream_recon.configs.errors import ConfigError, InputError

FORMS = (
    "marker:METRES, the side of a printed ArUco or AprilTag marker; frames:A,B,METRES, the distance between the "
    "cameras of two frames; height:METRES of the camera above the ground; track:FILE[@SECONDS], positions as GPX, "
    "NMEA, CSV or TUM; "
    "exif, the GPS positions of photographs"
)


@dataclass(frozen=True)
class Marker:
    """Printed markers of known size."""

    side: float
    """In metres."""


@dataclass(frozen=True)
class Distance:
    """Distance in metres between the cameras of two frames, by their numbers in the source."""

    first: int
    second: int
    metres: float


@dataclass(frozen=True)
class Height:
    """Height in metres of the camera above the ground."""

    metres: float


@dataclass(frozen=True)
class GpsTrack:
    """Recorded positions of the camera by time or frame."""

    positions: Positions
    begins: float | None = None
    """Seconds after the track's first position at which the source begins; None: it is estimated."""


@dataclass(frozen=True)
class Photographs:
    """GPS positions in the EXIF data of the source's images."""


ScaleSource = Marker | Distance | Height | GpsTrack | Photographs


def parse_scale_source(text: str) -> tuple[ScaleSource, str]:
    """The source with the content of its files, and its text with absolute paths.

    Raises ConfigError: it is of no known form; InputError: a file cannot be read, or has no positions.
    """
    kind, _, value = text.strip().partition(":")
    if kind == "exif" and not value:
        return Photographs(), "exif"
    if kind == "track" and value:
        return _track(value)
    words = value.split(",")
    try:
        if kind == "marker" and len(words) == 1:
            return Marker(_length(words[0])), text.strip()
        if kind == "height" and len(words) == 1:
            return Height(_length(words[0])), text.strip()
        if kind == "frames" and len(words) == 3:
            first, second = int(words[0]), int(words[1])
            if first == second:
                raise ValueError("both frames are the same")
            return Distance(first, second, _length(words[2])), text.strip()
    except ValueError as error:
        raise ConfigError(f"--scale-from {text}: {error}; use {FORMS}") from error
    raise ConfigError(f"--scale-from {text}: use {FORMS}")


def _track(text: str) -> tuple[GpsTrack, str]:
    name, begins = text, None
    head, at, tail = text.rpartition("@")
    if at and head:
        try:
            name, begins = head, float(tail)
        except ValueError:
            name = text
    if begins is not None and not math.isfinite(begins):
        raise ConfigError(f"--scale-from track:{text}: the seconds after @ must be a finite number")
    path = Path(name).expanduser().absolute()
    try:
        positions = read_positions(path)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"--scale-from: {name} cannot be read: {reason}") from error
    return GpsTrack(positions, begins), f"track:{path}" + ("" if begins is None else f"@{begins:g}")


def _length(text: str) -> float:
    value = float(text)
    if not 0 < value < 1e5:
        raise ValueError(f"{text.strip()} is not a length in metres, above 0 and below 100000")
    return value
