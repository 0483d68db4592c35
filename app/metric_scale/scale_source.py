"""Sources of metric scale as users write them.

``marker:0.16``, ``frames:12,240,1.85``, ``height:1.6``, ``track:walk.gpx[@12.5]``, ``exif``; and known poses, see
`parse_poses`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, cast, get_args

from stream_recon.app.core.transforms import FloatArray
from stream_recon.app.metric_scale.gps_tracks import Positions, read_positions
from stream_recon.configs.errors import ConfigError, InputError

FORMS = (
    "marker:METRES, the side of a printed ArUco or AprilTag marker; frames:A,B,METRES, the distance between the "
    "cameras of two frames; height:METRES of the camera above the ground; track:FILE[@SECONDS], positions as GPX, "
    "NMEA, CSV or TUM; "
    "exif, the GPS positions of photographs"
)


PosesUse = Literal["fixed", "prior", "scale"]
POSES_FORMS = (
    "FILE[@SECONDS], poses that the refinement corrects; fixed:FILE, poses that stay; scale:FILE, metres alone; where "
    "FILE is a TUM or EuRoC trajectory, a COLMAP model, transforms.json or the folder of a data set or capture"
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
    rotations: Mapping[int, FloatArray] = field(default_factory=dict)
    """By frame number [3, 3], from camera to track, of known poses: positions on a short way do not tell the axes."""


@dataclass(frozen=True)
class Photographs:
    """GPS positions in the EXIF data of the source's images."""


@dataclass(frozen=True)
class PosesChoice:
    """What ``--poses`` says."""

    use: PosesUse
    path: Path
    begins: float | None = None
    """Seconds after the first known pose at which the source begins; None: by the times, or estimated."""

    @property
    def text(self) -> str:
        """The value of ``--poses`` with an absolute path."""
        return f"{self.use}:{self.path}" + ("" if self.begins is None else f"@{self.begins:g}")


ScaleSource = Marker | Distance | Height | GpsTrack | Photographs


def parse_scale_source(text: str) -> tuple[ScaleSource | PosesChoice, str]:
    """The source with the content of its files, and its text with absolute paths.

    Raises ConfigError: it is of no known form; InputError: a file cannot be read, or has no positions.
    """
    kind, _, value = text.strip().partition(":")
    if kind == "exif" and not value:
        return Photographs(), "exif"
    if kind == "track" and value:
        return _track(value)
    if kind == "poses" and value:
        choice = parse_poses(value)
        return choice, f"poses:{choice.text}"
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


def parse_poses(text: str) -> PosesChoice:
    """Raises ConfigError: it is of no known form; InputError: there is no such file."""
    kind, _, name = text.strip().partition(":")
    use, name = (cast(PosesUse, kind), name) if kind in get_args(PosesUse) else ("prior", text.strip())
    if not name:
        raise ConfigError(f"--poses {text}: use {POSES_FORMS}")
    path, begins = split_seconds(name, f"--poses {text}")
    if path.exists():
        return PosesChoice(use, path, begins)
    if name in ("exif", "arkit"):
        other = "--scale-from exif" if name == "exif" else "the folder of the capture"
        raise ConfigError(f"--poses {text}: {name} is no file of poses: use {other}")
    raise InputError(f"--poses {text}: there is no {path}; use {POSES_FORMS}")


def split_seconds(text: str, given: str) -> tuple[Path, float | None]:
    """Absolute path and seconds of ``FILE[@SECONDS]``. Raises ConfigError, which begins with ``given``."""
    name, begins = text, None
    head, at, tail = text.rpartition("@")
    if at and head:
        try:
            name, begins = head, float(tail)
        except ValueError:
            name = text
    if begins is not None and not math.isfinite(begins):
        raise ConfigError(f"{given}: the seconds after @ must be a finite number")
    return Path(name).expanduser().absolute(), begins


def _track(text: str) -> tuple[GpsTrack, str]:
    path, begins = split_seconds(text, f"--scale-from track:{text}")
    try:
        positions = read_positions(path)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"--scale-from: {path} cannot be read: {reason}") from error
    return GpsTrack(positions, begins), f"track:{path}" + ("" if begins is None else f"@{begins:g}")


def _length(text: str) -> float:
    value = float(text)
    if not 0 < value < 1e5:
        raise ValueError(f"{text.strip()} is not a length in metres, above 0 and below 100000")
    return value
