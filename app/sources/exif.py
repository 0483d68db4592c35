"""Camera metadata in photographs and videos: focal length, time, orientation and GPS position.

Photographs: EXIF 2.3 (JEITA CP-3451C), found by Pillow. Videos: the metadata keys of QuickTime files, as described by
Apple.
"""

import math
import struct
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, BinaryIO

from PIL import Image
from PIL.ExifTags import GPS, IFD, Base

from stream_recon.app.core.input_file import open_regular
from stream_recon.app.sources.calibration import Calibration
from stream_recon.app.sources.containers import MAX_TABLE_BYTES, FileBox, whole_file
from stream_recon.configs.errors import InputError

DIAGONAL_35MM = math.hypot(36.0, 24.0)
"""Diagonal of 35 mm film in millimetres, by which the equivalent focal length is defined (CIPA DCG-001)."""
SAME_FOCAL = 0.01
"""Relative difference of focal lengths up to which photographs count as one camera's: their rounding."""
VIDEO_FOCAL = b"com.apple.quicktime.camera.focal_length.35mm_equivalent"
"""Metadata key of phones' videos."""
_MILLIMETRES = {2: 25.4, 3: 10.0, 4: 1.0, 5: 0.001}
"""Length of the unit of pixel density, by EXIF's number of the unit."""
_INTEGERS, _FLOATS, _TEXT = (21, 22, 65, 66, 67, 74, 75, 76, 77, 78), (23, 24), 1
"""QuickTime's type numbers of metadata values."""


@dataclass(frozen=True)
class Exif:
    """Camera metadata of a file; None for each value it does not state."""

    focal_35mm: float | None = None
    """35 mm equivalent focal length in millimetres."""
    focal_widths: float | None = None
    """Focal length in widths of the unrotated image, from the pixel density of the sensor."""
    taken: float | None = None
    """Time at which it was taken in seconds, from any start."""
    position: tuple[float, float, float] | None = None
    """Latitude and longitude in degrees, altitude in metres or nan."""
    orientation: int = 1
    """1 to 8: how the stored image is turned for display."""


def read_exif(path: Path) -> Exif:
    """EXIF of a photograph; empty if it has none or damaged data. Raises InputError if the file is unreadable."""
    try:
        with open_regular(path) as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _exif(file)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise InputError(f"{path} cannot be read: {error}") from error


def _exif(file: BinaryIO) -> Exif:
    tags, is_turned = Image.Exif(), False
    try:
        head = file.read(12)
        file.seek(0)
        if head[:4] in (b"II*\0", b"MM\0*"):
            tags.load_from_fp(file)
        elif head[4:8] == b"ftyp":
            import pillow_heif

            tags.load(pillow_heif.open_heif(file).info.get("exif") or b"")
            is_turned = True  # its decoder turns the image
        else:
            tags.load(Image.open(file).info.get("exif") or b"")
        main, inner, gps = dict(tags), tags.get_ifd(IFD.Exif), tags.get_ifd(IFD.GPSInfo)
    except Exception:  # noqa: BLE001  # the libraries raise what they meet in damaged data
        return Exif()
    equivalent, focal = _number(inner, Base.FocalLengthIn35mmFilm), _number(inner, Base.FocalLength)
    density, width = _number(inner, Base.FocalPlaneXResolution), _number(inner, Base.ExifImageWidth)
    unit = _MILLIMETRES.get(int(_number(inner, Base.FocalPlaneResolutionUnit) or 2))
    widths = focal * density / unit / width if focal and density and width and unit else None
    turned = int(_number(main, Base.Orientation) or 1)
    is_turned = is_turned or not 1 <= turned <= 8
    return Exif(equivalent, widths, _taken(inner), _position(gps), 1 if is_turned else turned)


def _number(tags: Mapping[int, Any], tag: int) -> float | None:
    """A number above 0; None for anything else."""
    value = _float(tags.get(tag))
    return value if math.isfinite(value) and value > 0 else None


def _float(value: Any) -> float:
    """The first number of a tag; nan for none."""
    with suppress(TypeError, ValueError, ArithmeticError, IndexError):
        return float(value[0] if isinstance(value, tuple | bytes) else value)
    return math.nan


def _taken(inner: Mapping[int, Any]) -> float | None:
    text = str(inner.get(Base.DateTimeOriginal, "")).rstrip("\0 ")
    try:
        parts = str(inner.get(Base.SubsecTimeOriginal, "")).rstrip("\0 ")
        fraction = float(f"0.{parts}") if parts.isdecimal() and parts.isascii() else 0.0
        return datetime.strptime(text, "%Y:%m:%d %H:%M:%S").replace(tzinfo=UTC).timestamp() + fraction
    except ValueError:
        return None


def _position(gps: Mapping[int, Any]) -> tuple[float, float, float] | None:
    angles = []
    for sign, name, signs in (
        (GPS.GPSLatitudeRef, GPS.GPSLatitude, "NS"),
        (GPS.GPSLongitudeRef, GPS.GPSLongitude, "EW"),
    ):
        parts, side = gps.get(name), str(gps.get(sign, "?"))[:1].upper()
        if side not in signs or not isinstance(parts, tuple) or len(parts) < 3:
            return None
        degrees, minutes, seconds = (_float(part) for part in parts[:3])
        value = degrees + minutes / 60 + (seconds if math.isfinite(seconds) else 0.0) / 3600
        angles.append(-value if side == signs[1] else value)
    if not (abs(angles[0]) <= 90 and abs(angles[1]) <= 180):
        return None
    height = _float(gps.get(GPS.GPSAltitude)) * (-1 if _float(gps.get(GPS.GPSAltitudeRef)) in (1, 3) else 1)
    return angles[0], angles[1], height


def camera_from_photographs(paths: list[Path], size: tuple[int, int], name: str) -> Calibration:
    """Camera of photographs of ``size`` (width, height) as displayed, in either orientation.

    Raises InputError: the files do not state a focal length, or state different ones.
    """
    widest = max(size)
    focals = []
    for path in paths:
        exif = read_exif(path)
        if exif.focal_35mm:
            focals.append(exif.focal_35mm / DIAGONAL_35MM * math.hypot(*size))
        elif exif.focal_widths:
            focals.append(exif.focal_widths * widest)
    if not focals:
        raise InputError(f"--intrinsics exif: {name} does not state its focal length")
    if max(focals) > min(focals) * (1 + SAME_FOCAL):
        raise InputError(
            f"--intrinsics exif: the images of {name} differ in focal length, {min(focals):.0f} to {max(focals):.0f} px"
        )
    return _centred(median(focals), size)


def camera_of_video(path: Path, size: tuple[int, int]) -> Calibration:
    """Camera of a phone's video of ``size`` (width, height) as displayed. Raises InputError: no focal length."""
    focal = None
    with suppress(OSError, ValueError, struct.error), open_regular(path) as file:
        movie = list(whole_file(file).inside(b"moov"))
        owners = [*movie, *(track for box in movie for track in box.inside(b"trak"))]
        focals = (_video_focal(meta) for owner in owners for meta in owner.inside(b"meta"))
        focal = next((focal for focal in focals if focal is not None), None)
    if focal is None:
        raise InputError(f"--intrinsics exif: {path.name} does not state its focal length")
    return _centred(focal / DIAGONAL_35MM * math.hypot(*size), size)


def _centred(focal: float, size: tuple[int, int]) -> Calibration:
    return Calibration(focal, focal, size[0] / 2, size[1] / 2, size=size)


def _video_focal(meta: FileBox) -> float | None:
    """35 mm equivalent focal length in the metadata of a video or of one of its tracks; None without one."""
    # An ISO box has a version of four bytes before its content, a QuickTime box has not.
    skip = 0 if meta.content[4:8] == b"hdlr" else 4
    parts = {box.name: box for box in meta.inside(b"", skip=skip)}
    if not parts.keys() >= {b"keys", b"ilst"} or max(box.end - box.begin for box in parts.values()) > MAX_TABLE_BYTES:
        return None
    for number, key in enumerate(parts[b"keys"].inside(b"", skip=8), start=1):
        if key.content == VIDEO_FOCAL:
            for data in parts[b"ilst"].inside(number.to_bytes(4, "big"), b"data"):
                return _value(data.content[:64])
    return None


def _value(data: bytes) -> float | None:
    """Number of a metadata value, which begins with its type and language; None for other types."""
    kind, content = int.from_bytes(data[:4], "big"), data[8:]
    if kind in _FLOATS and len(content) in (4, 8):
        value = struct.unpack(">f" if len(content) == 4 else ">d", content)[0]
    elif kind in _INTEGERS and content:
        value = float(int.from_bytes(content, "big"))
    elif kind == _TEXT:
        value = float(content.decode("ascii", errors="replace"))
    else:
        return None
    return float(value) if 1 < value < 10_000 else None
