"""Camera metadata in photographs and videos: focal length and GPS position.

Photographs: EXIF 2.3 (JEITA CP-3451C) in JPEG, TIFF, PNG and WebP, wherever it stands in the file. Videos: the metadata
keys of QuickTime files, as described by Apple.
"""

import math
import re
import struct
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, BinaryIO

from stream_recon.app.core.input_file import open_regular
from stream_recon.app.sources.calibration import Calibration
from stream_recon.app.sources.containers import boxes
from stream_recon.configs.errors import InputError

MAX_CHUNKS = 100_000
"""Parts of a JPEG, PNG or WebP that are passed: an image of a gigabyte has fewer."""
MAX_XMP_BYTES = 1 << 18
"""Bytes of a photograph in which XMP is looked for: it stands at the front."""
MAX_EXIF_BYTES = 1 << 24
"""Bytes of EXIF that are read of a PNG, JPEG or WebP: cameras write at most 64 KiB, and previews some more."""
DIAGONAL_35MM = math.hypot(36.0, 24.0)
"""Diagonal of 35 mm film in millimetres, by which the equivalent focal length is defined (CIPA DCG-001)."""
SAME_FOCAL = 0.01
"""Relative difference of focal lengths up to which photographs count as one camera's: their rounding."""
MAX_ENTRIES = 1000
"""Entries of a directory, and numbers of an entry, that are read: cameras write fewer than 100."""
MAX_METADATA_BYTES = 1 << 20
"""Bytes of a metadata box that are read: real ones have some kilobytes."""
VIDEO_FOCAL = b"com.apple.quicktime.camera.focal_length.35mm_equivalent"
"""Metadata key of phones' videos."""

_SIZES = {1: "B", 2: "s", 3: "H", 4: "I", 5: "II", 7: "B", 9: "i", 10: "ii"}
"""`struct` codes by EXIF type number; rationals are two integers."""
_EXIF, _GPS = 0x8769, 0x8825
"""Tags of the directories with camera data and position."""
_ORIENTATION = 0x0112
"""Tag of the orientation."""
_FOCAL, _FOCAL_35MM, _PLANE_X, _PLANE_UNIT, _WIDTH = 0x920A, 0xA405, 0xA20E, 0xA210, 0xA002
"""Tags of the focal length, its 35 mm equivalent, the sensor's pixel density, its unit, and the image width."""
_TAKEN = 0x9003
"""Tag of the time at which the photograph was taken."""
_MILLIMETRES = {2: 25.4, 3: 10.0, 4: 1.0}
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


class _FileBytes:
    """Bytes of a file, read where they are looked at."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._size = file.seek(0, 2)

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, part: slice) -> bytes:
        begin, end, _ = part.indices(self._size)
        self._file.seek(begin)
        return self._file.read(max(0, end - begin))


_Data = bytes | _FileBytes


def read_exif(path: Path) -> Exif:
    """EXIF of a photograph; empty if it has none or damaged data. Raises InputError if the file is unreadable."""
    try:
        with open_regular(path) as file:
            block = _block(_FileBytes(file))
            return Exif() if block is None else _exif(block)
    except (struct.error, ArithmeticError, IndexError):
        return Exif()
    except ValueError as error:
        if "\0" in str(path):
            raise InputError(f"{path} cannot be read: {error}") from error
        return Exif()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error


def is_panorama(path: Path) -> bool:
    """Whether the XMP metadata of a photograph (Photo Sphere, by Google) says that it is equirectangular."""
    try:
        with open_regular(path) as file:
            head = file.read(MAX_XMP_BYTES)
    except (OSError, ValueError):
        return False
    return re.search(rb"GPano:ProjectionType(=[\"']|>)\s*equirectangular", head) is not None


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
    try:
        with open_regular(path) as file:
            focal = _video_focal(file)
    except (OSError, ValueError, struct.error):
        focal = None
    if focal is None:
        raise InputError(f"--intrinsics exif: {path.name} does not state its focal length")
    return _centred(focal / DIAGONAL_35MM * math.hypot(*size), size)


def _centred(focal: float, size: tuple[int, int]) -> Calibration:
    return Calibration(focal, focal, size[0] / 2, size[1] / 2, size=size)


def _block(data: _FileBytes) -> _Data | None:
    """TIFF structure that holds the EXIF of a file; None without one."""
    head = data[:12]
    if head[:4] in (b"II*\0", b"MM\0*"):
        return data
    if head[:2] == b"\xff\xd8":
        return _jpeg_block(data)
    if head[:8] == b"\x89PNG\r\n\x1a\n":
        return _chunk(data, 8, b"eXIf", ">I", ahead=True)
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        chunk = _chunk(data, 12, b"EXIF", "<I", ahead=False)
        return None if chunk is None else chunk.removeprefix(b"Exif\0\0")
    return None


def _jpeg_block(data: _FileBytes) -> bytes | None:
    at = 2
    for _ in range(MAX_CHUNKS):
        head = data[at : at + 10]
        if len(head) < 10 or head[0] != 0xFF or head[1] == 0xDA:
            return None
        length = int.from_bytes(head[2:4], "big")
        if head[1] == 0xE1 and head[4:10] == b"Exif\0\0":
            return data[at + 10 : at + 2 + length]
        at += 2 + max(length, 2)
    return None


def _chunk(data: _FileBytes, at: int, name: bytes, length: str, *, ahead: bool) -> bytes | None:
    """Content of a chunk of a PNG (its length comes ``ahead`` of its name) or of a WebP."""
    for _ in range(MAX_CHUNKS):
        head = data[at : at + 8]
        if len(head) < 8:
            return None
        first, second = head[:4], head[4:]
        (size,) = struct.unpack(length, first if ahead else second)
        if (second if ahead else first) == name:
            return data[at + 8 : at + 8 + min(size, MAX_EXIF_BYTES)]
        at += 8 + size + (4 if ahead else size % 2)
    return None


def _unpack(layout: str, block: _Data, at: int) -> tuple[Any, ...]:
    return struct.unpack(layout, block[at : at + struct.calcsize(layout)])


def _exif(block: _Data) -> Exif:
    order = {b"II": "<", b"MM": ">"}[block[:2]] if block[:2] in (b"II", b"MM") else ""
    if not order:
        return Exif()
    (first,) = _unpack(order + "I", block, 4)
    main = _directory(block, order, first)
    inner = _directory(block, order, int(main[_EXIF][0])) if _EXIF in main else {}
    gps = _directory(block, order, int(main[_GPS][0])) if _GPS in main else {}
    equivalent, focal = _first(inner, _FOCAL_35MM), _first(inner, _FOCAL)
    density, width = _first(inner, _PLANE_X), _first(inner, _WIDTH)
    unit = _MILLIMETRES.get(int(_first(inner, _PLANE_UNIT) or 2), 25.4)
    widths = focal * density / unit / width if focal and density and width else None
    turned = int(_first(main, _ORIENTATION) or 1)
    return Exif(equivalent, widths, _taken(inner), _position(gps), turned if 1 <= turned <= 8 else 1)


def _directory(block: _Data, order: str, at: int) -> dict[int, tuple[float, ...]]:
    """Values of an EXIF directory by tag; text as character codes."""
    (count,) = _unpack(order + "H", block, at)
    entries: dict[int, tuple[float, ...]] = {}
    for number in range(min(count, MAX_ENTRIES)):
        tag, kind, length = _unpack(order + "HHI", block, at + 2 + 12 * number)
        if kind not in _SIZES or not 0 < length < MAX_ENTRIES:
            continue
        layout = f"{length}s" if kind == 2 else _SIZES[kind] * length
        where = at + 2 + 12 * number + 8
        if struct.calcsize(order + layout) > 4:
            (where,) = _unpack(order + "I", block, where)
        if where + struct.calcsize(order + layout) > len(block):
            continue
        values = _unpack(order + layout, block, where)
        if kind == 2:
            entries[tag] = tuple(values[0])
        elif kind in (5, 10):
            entries[tag] = tuple(a / b if b else math.nan for a, b in zip(values[::2], values[1::2], strict=True))
        else:
            entries[tag] = tuple(float(value) for value in values)
    return entries


def _taken(inner: dict[int, tuple[float, ...]]) -> float | None:
    text = bytes(int(code) for code in inner.get(_TAKEN, ())).rstrip(b"\0 ").decode("ascii", "replace")
    try:
        return datetime.strptime(text, "%Y:%m:%d %H:%M:%S").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None


def _first(directory: dict[int, tuple[float, ...]], tag: int) -> float | None:
    value = directory.get(tag, (0.0,))[0]
    return value if math.isfinite(value) and value > 0 else None


def _position(gps: dict[int, tuple[float, ...]]) -> tuple[float, float, float] | None:
    angles = []
    for sign, degrees, negative in ((1, 2, "S"), (3, 4, "W")):
        if sign not in gps or len(gps.get(degrees, ())) < 3:
            return None
        full_degrees, minutes, seconds = gps[degrees][:3]
        value = full_degrees + minutes / 60 + (seconds if math.isfinite(seconds) else 0.0) / 3600
        angles.append(-value if chr(int(gps[sign][0])) == negative else value)
    if not (abs(angles[0]) <= 90 and abs(angles[1]) <= 180):
        return None
    height = gps.get(6, (math.nan,))[0] * (-1 if gps.get(5, (0.0,))[0] == 1 else 1)
    return angles[0], angles[1], height


def _video_focal(file: BinaryIO) -> float | None:
    """35 mm equivalent focal length in the metadata of a video or of one of its tracks; None without one."""
    for films in boxes(file, 0, file.seek(0, 2), {b"moov"}):
        for box in boxes(file, *films[1:], {b"meta", b"trak"}):
            metas = [box] if box[0] == b"meta" else list(boxes(file, *box[1:], {b"meta"}))
            for _, first, last in metas:
                focal = _key(file, first, last)
                if focal is not None:
                    return focal
    return None


def _key(file: BinaryIO, begin: int, end: int) -> float | None:
    # An ISO box has a version of four bytes before its content, a QuickTime box has not.
    file.seek(begin)
    begin += 0 if file.read(8)[4:] == b"hdlr" else 4
    parts = {name: (first, last) for name, first, last in boxes(file, begin, end, {b"keys", b"ilst"})}
    if len(parts) < 2 or any(last - first > MAX_METADATA_BYTES for first, last in parts.values()):
        return None
    first, last = parts[b"keys"]
    file.seek(first)
    keys, at, number = file.read(last - first), 8, 0
    while at + 8 <= len(keys):
        size, number = int.from_bytes(keys[at : at + 4], "big"), number + 1
        if keys[at + 8 : at + size] == VIDEO_FOCAL:
            for _, inner, outer in boxes(file, *parts[b"ilst"], {number.to_bytes(4, "big")}):
                for _, value, stop in boxes(file, inner, outer, {b"data"}):
                    file.seek(value)
                    return _value(file.read(min(stop - value, 64)))
        at += max(size, 8)
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
