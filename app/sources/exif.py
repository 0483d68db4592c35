"""Camera metadata in photographs and videos: focal length, time, orientation and GPS position.

Photographs: EXIF 2.32 (CIPA DC-008). Each tag that is read has its count of values in a table; one of another type,
count or value is told by name. Videos: the metadata keys of QuickTime files, as described by Apple.
"""

import math
import re
import struct
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from statistics import median
from typing import BinaryIO

from PIL import Image
from PIL.ExifTags import GPS, Base

from stream_recon.app.core.input_file import open_regular
from stream_recon.app.sources.calibration import ORIENTATIONS, Calibration
from stream_recon.app.sources.containers import MAX_TABLE_BYTES, FileBox, whole_file
from stream_recon.configs.errors import InputError

DIAGONAL_35MM = math.hypot(36.0, 24.0)
"""Diagonal of 35 mm film in millimetres, by which the equivalent focal length is defined (CIPA DCG-001)."""
SAME_FOCAL = 0.01
"""Relative difference of focal lengths up to which photographs count as one camera's: their rounding."""
VIDEO_FOCAL = b"com.apple.quicktime.camera.focal_length.35mm_equivalent"
"""Metadata key of phones' videos."""
PNG, TIFF = b"\x89PNG\r\n\x1a\n", (b"II*\0", b"MM\0*")
"""Signatures at the start of a file."""
_MILLIMETRES = {2: 25.4, 3: 10.0, 4: 1.0, 5: 0.001}
"""Length of the unit of pixel density, by EXIF's number of the unit."""
_INTEGERS, _FLOATS, _TEXT = (21, 22, 65, 66, 67, 74, 75, 76, 77, 78), (23, 24), 1
"""QuickTime's type numbers of metadata values."""
_WHOLE, _RATIO, _ASCII = {1: "B", 3: "H", 4: "I"}, {5: "II", 10: "ii"}, {2: "s", 129: "s"}
"""Formats of values by TIFF's number of their type."""
COLOURS = (1, 2, 3, 5, 6)
"""TIFF's numbers of what pixels are: grey with black as 0, RGB, a palette, CMYK, YCbCr."""
MP_ENTRIES = 0xB002
"""Tag of the list of pictures in a JPEG (CIPA DC-007)."""
HEAD_BYTES, MAX_TEXT = 64, 64
"""Bytes in which a file says its format, and those of a tag's text that are read."""
MAX_NUMBER, MAX_FOCAL_MM = 1e6, 1e4
"""Largest values that are no damage: pixels of a side or on a length; millimetres."""
_Table = Mapping[Base | GPS, dict[int, str]]
_MAIN: _Table = {
    **dict.fromkeys((Base.Orientation, Base.ExifOffset, Base.GPSInfo, Base.ImageWidth, Base.ImageLength), _WHOLE),
    **dict.fromkeys((Base.ExtraSamples, Base.PhotometricInterpretation), _WHOLE),
}
_TIME: _Table = dict.fromkeys((Base.DateTimeOriginal, Base.OffsetTimeOriginal, Base.SubsecTimeOriginal), _ASCII)
_FOCAL: _Table = {
    **dict.fromkeys((Base.FocalLength, Base.FocalPlaneXResolution, Base.FocalPlaneYResolution), _RATIO),
    **dict.fromkeys((Base.FocalPlaneResolutionUnit, Base.ExifImageWidth, Base.ExifImageHeight), _WHOLE),
    **{Base.DigitalZoomRatio: _RATIO, Base.FocalLengthIn35mmFilm: _WHOLE},
}
_GPS: _Table = {
    **dict.fromkeys((GPS.GPSLatitudeRef, GPS.GPSLongitudeRef), _ASCII),
    **{GPS.GPSLatitude: _RATIO, GPS.GPSLongitude: _RATIO, GPS.GPSAltitude: _RATIO, GPS.GPSAltitudeRef: _WHOLE},
}
"""Tags that are read, by directory, and the types that they may have."""


@dataclass(frozen=True)
class Exif:
    """Camera metadata of a file; None for each value that it does not state, or that is not understood."""

    size: tuple[int, int] | None = None
    """Width and height in pixels as stored; of HEIC as displayed."""
    focal_35mm: float | None = None
    """35 mm equivalent focal length in millimetres."""
    focal_widths: float | None = None
    """Focal length in longer sides of the image, from the pixel density of the sensor."""
    taken: float | None = None
    """Local time at which it was taken in seconds, from any start."""
    ahead_s: float | None = None
    """Seconds by which that is ahead of UTC."""
    position: tuple[float, float, float] | None = None
    """Latitude and longitude in degrees, altitude in metres or nan."""
    orientation: int = 1
    """1 to 8: how the stored image is turned for display."""
    has_alpha: bool = False
    """Whether pixels have an opacity."""
    notes: tuple[str, ...] = ()
    focal_notes: tuple[str, ...] = ()
    place_notes: tuple[str, ...] = ()
    """What is not understood of orientation and time, of the focal length, and of the position."""


@dataclass
class _Tags:
    """Values of the tags of a directory by name, and what is not understood of them."""

    texts: dict[str, str] = field(default_factory=dict)
    numbers: dict[str, list[float]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    following: bool = False

    def take(self, name: str, form: str, layout: str, file: BinaryIO, where: bytes) -> None:
        """Read values: those in the last four bytes of an entry, or where these say."""
        if struct.calcsize(layout) > 4:
            file.seek(struct.unpack(layout[0] + "I", where)[0])
            where = file.read(struct.calcsize(layout))
        values = struct.unpack_from(layout, where)
        if form == "s":
            self.texts[name] = values[0].split(b"\0")[0].decode("latin-1").strip()
        else:
            pairs = zip(values[::2], values[1::2], strict=True) if len(form) == 2 else ((v, 1) for v in values)
            self.numbers[name] = [math.nan if b in (0, 0xFFFFFFFF) else a / b for a, b in pairs]

    def odd(self, name: str, value: object, then: str = "not used") -> None:
        self.notes.append(f"EXIF {name} {value} is not understood, and {then}")

    def number(self, name: str, most: float = MAX_NUMBER) -> float | None:
        """A number above 0; None without it, and for 0, which says that it is not known."""
        value = self.numbers.get(name, [0.0])[0]
        if not 0 <= value <= most:
            self.odd(name, f"{value:g}")
            return None
        return value or None


def is_heic(head: bytes) -> bool:
    """Whether a file that begins so is HEIC, which its decoder turns; AVIF has the same boxes."""
    return head[4:8] == b"ftyp" and b"avif" not in head[8:HEAD_BYTES]


def read_exif(path: Path) -> Exif:
    """Metadata of a photograph; empty if it has none. Raises InputError if the file is unreadable."""
    try:
        stat = path.stat()
        return _read(path, stat.st_size, stat.st_mtime_ns)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise InputError(f"{path} cannot be read: {error}") from error


@lru_cache(1 << 15)
def _read(path: Path, _size: int, _changed: int) -> Exif:
    with open_regular(path) as file:
        return exif_of(file)


def exif_of(file: BinaryIO) -> Exif:
    """Metadata of an open photograph; empty if it has none."""
    head = file.read(HEAD_BYTES)
    file.seek(0)
    if head[:4] in TIFF:
        return _exif(file, None)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            size, block, several, has_alpha = _block(file, head)
    except Exception:  # noqa: BLE001  # the libraries raise what they meet in damaged data
        return Exif(notes=("its EXIF cannot be read",))
    found = _exif(BytesIO(block.removeprefix(b"Exif\0\0")), size) if block else Exif(size)
    found = replace(found, notes=(*found.notes, f"its further pictures ({several}) are not read")) if several else found
    return replace(found, orientation=1 if is_heic(head) else found.orientation, has_alpha=has_alpha)


def _block(file: BinaryIO, head: bytes) -> tuple[tuple[int, int], bytes, str, bool]:
    """Size of an image, its EXIF as a TIFF structure (empty without one), its format where it has several pictures (of
    an animation, a burst or two lenses), and whether its pixels have an opacity."""
    if is_heic(head):
        import pillow_heif

        heif = pillow_heif.open_heif(file)
        return heif.size, heif.info.get("exif") or b"", "HEIC" if len(heif) > 1 else "", "A" in heif.mode
    with Image.open(file) as image:
        size, block, has_alpha = (
            image.size,
            image.info.get("exif") or b"",
            "A" in image.getbands() or "transparency" in image.info,
        )
        # Beside a JPEG's picture there may be a brightness map or a smaller copy of it, which say nothing else.
        kinds = [entry["Attribute"]["MPType"] for entry in getattr(image, "mpinfo", {}).get(MP_ENTRIES, ())]
        is_one = getattr(image, "n_frames", 1) == 1 or (kinds and not any("Multi-Frame" in kind for kind in kinds[1:]))
        several = "" if is_one else str(image.format)
    if not block and head[:8] == PNG:
        file.seek(len(PNG))
        while len(chunk := file.read(8)) == 8:  # it may also stand after the image
            length = int.from_bytes(chunk[:4], "big")
            if chunk[4:] == b"eXIf":
                return size, file.read(min(length, MAX_TABLE_BYTES)), several, has_alpha
            file.seek(length + 4, 1)
    return size, block, several, has_alpha


def _exif(file: BinaryIO, size: tuple[int, int] | None) -> Exif:
    """What a TIFF structure states; its own size where ``size`` is None."""
    head = file.read(8)
    if head[:4] not in TIFF:
        return Exif(size, notes=("its EXIF cannot be read",))
    order = "<" if head[:2] == b"II" else ">"
    (first,) = struct.unpack(order + "I", head[4:].ljust(4, b"\0"))
    main = _tags(file, order, first, _MAIN)
    inner, place = (int(main.number(name, math.inf) or 0) for name in ("ExifOffset", "GPSInfo"))
    times, focals, gps = (
        _tags(file, order, at, table) for at, table in ((inner, _TIME), (inner, _FOCAL), (place, _GPS))
    )
    if size is None:
        main.notes += ["its further pictures (TIFF) are not read"] * main.following
        if (colours := main.numbers.get("PhotometricInterpretation", [2])[0]) not in COLOURS:
            main.odd("PhotometricInterpretation", f"{colours:g}", "its pixels are taken as grey or red, green and blue")
        width, height = (int(main.number(name) or 0) for name in ("ImageWidth", "ImageLength"))
        size = (width, height) if width and height else None
    turned = main.numbers.get("Orientation", [1.0])[0]
    if turned != 1 and turned not in ORIENTATIONS:
        main.odd("Orientation", f"{turned:g}", "the image is taken as stored")
        turned = 1
    taken, ahead_s = _taken(times)
    equivalent, widths, position = focals.number("FocalLengthIn35mmFilm", MAX_FOCAL_MM), _widths(focals), _position(gps)
    notes, has_alpha = [tuple(tags.notes) for tags in (main, times, focals, gps)], bool(main.number("ExtraSamples"))
    seen = int(turned), has_alpha
    return Exif(size, equivalent, widths, taken, ahead_s, position, *seen, notes[0] + notes[1], *notes[2:])


def _tags(file: BinaryIO, order: str, at: int, table: _Table) -> _Tags:
    """Tags of ``table`` in the directory at a byte; none at 0."""
    found, names = _Tags(), {int(tag): tag.name for tag in table}
    try:
        file.seek(at)
        (count,) = struct.unpack(order + "H", file.read(2)) if at else (0,)
        entries = file.read(12 * count)
        found.following = any(file.read(4))
        for tag, kind, length, where in struct.iter_unpack(order + "HHI4s", entries):
            if (name := names.get(tag)) is None:
                continue
            form, wanted = table[tag].get(kind), 3 if name in ("GPSLatitude", "GPSLongitude") else 1
            if form is None or not (form == "s" or length == wanted):
                found.odd(name, f"(type {kind}, {length} values)")
            elif name in found.texts or name in found.numbers:
                found.odd(name, "(there twice)")
            else:
                layout = order + (f"{min(length, MAX_TEXT)}s" if form == "s" else form * wanted)
                found.take(name, form, layout, file, where)
        if len(entries) < 12 * count:
            raise ValueError
    except (struct.error, OverflowError, ValueError):
        found.notes.append(f"its EXIF is damaged, and may lack {', '.join(names.values())}")
    return found


def _taken(tags: _Tags) -> tuple[float | None, float | None]:
    """Local time in seconds, and by how much it is ahead of UTC."""
    text, zone, parts = (tags.texts.get(tag.name, "") for tag in _TIME)
    taken = ahead_s = None
    if text.strip(" :0"):
        try:
            taken = datetime.strptime(text, "%Y:%m:%d %H:%M:%S").replace(tzinfo=UTC).timestamp()
        except ValueError:
            tags.odd("DateTimeOriginal", repr(text))
    if parts.isdecimal() and parts.isascii():
        taken = None if taken is None else taken + float(f"0.{parts}")
    elif parts:
        tags.odd("SubsecTimeOriginal", repr(parts))
    if found := re.fullmatch(r"([+-])([01]\d):([0-5]\d)", zone, re.ASCII):
        ahead_s = float(f"{found[1]}1") * (3600 * int(found[2]) + 60 * int(found[3]))
    elif zone.strip(" :"):
        tags.odd("OffsetTimeOriginal", repr(zone))
    return taken, ahead_s


def _widths(tags: _Tags) -> float | None:
    """Focal length in longer sides of the image, by the pixels on a length of the sensor."""
    focal, zoom = tags.number("FocalLength", MAX_FOCAL_MM), tags.number("DigitalZoomRatio")
    density, down = (tags.number(f"FocalPlane{axis}Resolution") for axis in "XY")
    sides = [tags.number(name) or 0.0 for name in ("ExifImageWidth", "ExifImageHeight")]
    (unit,) = tags.numbers.get("FocalPlaneResolutionUnit", [math.nan])
    if zoom not in (None, 1.0):
        tags.odd("DigitalZoomRatio", f"{zoom:g}")
    if not density or not focal or not any(sides):
        return None
    if down and abs(down / density - 1) > SAME_FOCAL:
        tags.odd("FocalPlaneYResolution", f"{down:g} beside FocalPlaneXResolution {density:g}")
    if "FocalPlaneResolutionUnit" not in tags.numbers:
        tags.notes.append("EXIF FocalPlaneResolutionUnit is missing: inches are taken")
        unit = 2.0
    if unit not in _MILLIMETRES:
        tags.odd("FocalPlaneResolutionUnit", f"{unit:g}")
        return None
    return focal * density / _MILLIMETRES[int(unit)] / max(sides)


def _position(tags: _Tags) -> tuple[float, float, float] | None:
    angles = []
    for name, signs, limit in (("GPSLatitude", "NS", 90), ("GPSLongitude", "EW", 180)):
        side, parts = tags.texts.get(f"{name}Ref", "")[:1].upper(), tags.numbers.get(name, [])
        if not side or not parts:
            if tags.texts or tags.numbers:
                tags.notes.append(f"EXIF {name} or {name}Ref is missing")
            return None
        value = parts[0] + parts[1] / 60 + (parts[2] if math.isfinite(parts[2]) else 0.0) / 3600
        if side not in signs or not 0 <= value <= limit:
            tags.odd(f"{name} {value:.4f}, {name}Ref", repr(side))
            return None
        angles.append(-value if side == signs[1] else value)
    return angles[0], angles[1], _height(tags)


def _height(tags: _Tags) -> float:
    (height,) = tags.numbers.get("GPSAltitude", [math.nan])
    below = tags.numbers.get("GPSAltitudeRef", ["(missing)"])[0]
    if "GPSAltitude" in tags.numbers and (below not in (0, 1, 2, 3) or math.isnan(height)):
        tags.odd("GPSAltitudeRef" if math.isfinite(height) else "GPSAltitude", below, "0 is taken")
    return -height if below in (1, 3) else height


def times_taken(paths: Sequence[Path]) -> list[float] | None:
    """Seconds, from any start, at which photographs were taken; None where one does not state it.

    Of their time zones all are applied or none.
    """
    found = [read_exif(path) for path in paths]
    has_zones = all(exif.ahead_s is not None for exif in found)
    times = [exif.taken - (exif.ahead_s or 0.0) * has_zones for exif in found if exif.taken is not None]
    return times if len(times) == len(paths) else None


def camera_from_photographs(paths: list[Path], size: tuple[int, int], name: str) -> Calibration:
    """Camera of photographs of ``size`` (width, height) as displayed, in either orientation.

    Raises InputError: the files do not state a focal length, or state different ones.
    """
    focals, notes = list[float](), dict[str, None]()
    for exif in map(read_exif, paths):
        notes |= dict.fromkeys(exif.focal_notes)
        if exif.focal_35mm:
            focals.append(exif.focal_35mm / DIAGONAL_35MM * math.hypot(*size))
        elif exif.focal_widths:
            focals.append(exif.focal_widths * max(size))
    if not focals:
        raise InputError("; ".join([f"--intrinsics exif: {name} does not state its focal length", *notes]))
    if len(focals) < len(paths):
        notes[f"{len(paths) - len(focals)} of {len(paths)} photographs do not state their focal length"] = None
    if max(focals) > min(focals) * (1 + SAME_FOCAL):
        raise InputError(
            f"--intrinsics exif: the images of {name} differ in focal length, {min(focals):.0f} to {max(focals):.0f} px"
        )
    said = tuple(f"--intrinsics exif: {note}" for note in notes)
    return replace(_centred(median(focals), size), notes=said)


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
