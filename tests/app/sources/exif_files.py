"""Writer of photographs and videos with camera metadata, byte by byte."""

import struct
import zlib
from datetime import datetime
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

Entries = dict[str, tuple[int, int, bytes]]
"""Tag, type and values in their bytes, by name."""
TYPES = {1: "B", 2: "s", 3: "H", 4: "I", 5: "II", 7: "B", 9: "i", 12: "d"}
SIZES = {kind: struct.calcsize("=" + form) for kind, form in TYPES.items()}


def tiff(*stated: Any, order: str = "<", **named: Any) -> bytes:
    """TIFF structure with the tags of `entries`."""
    return structure(*entries(*stated, order=order, **named), order)


def entries(
    focal_35mm: int | None = None,
    place: tuple[float, float, float] | None = None,
    focal: float | None = None,
    density: float | None = None,
    width: int = 400,
    orientation: int = 1,
    taken: datetime | None = None,
    order: str = "<",
) -> tuple[Entries, Entries, Entries]:
    """Entries of the main, the EXIF and the GPS directory."""

    def packed(form: str, *values: int) -> bytes:
        return struct.pack(order + form, *values)

    main: Entries = {"Orientation": (0x0112, 3, packed("H", orientation))}
    inner: Entries = {}
    if focal_35mm is not None:
        inner["FocalLengthIn35mmFilm"] = (0xA405, 3, packed("H", focal_35mm))
    if taken is not None:
        inner["DateTimeOriginal"] = (0x9003, 2, taken.strftime("%Y:%m:%d %H:%M:%S").encode() + b"\0")
    if focal is not None and density is not None:
        inner["FocalLength"] = (0x920A, 5, packed("II", round(1000 * focal), 1000))
        inner["ExifImageWidth"] = (0xA002, 4, packed("I", width))
        inner["FocalPlaneXResolution"] = (0xA20E, 5, packed("II", round(1000 * density), 1000))
        inner["FocalPlaneResolutionUnit"] = (0xA210, 3, packed("H", 3))
    gps: Entries = {}
    if place is not None:
        latitude, longitude, height = place
        gps = {
            "GPSLatitudeRef": (1, 2, b"S\0" if latitude < 0 else b"N\0"),
            "GPSLatitude": (2, 5, _degrees(abs(latitude), order)),
            "GPSLongitudeRef": (3, 2, b"W\0" if longitude < 0 else b"E\0"),
            "GPSLongitude": (4, 5, _degrees(abs(longitude), order)),
            "GPSAltitudeRef": (5, 1, bytes([height < 0])),
            "GPSAltitude": (6, 5, packed("II", round(1000 * abs(height)), 1000)),
        }
    return main, inner, gps


def structure(main: Entries, inner: Entries, gps: Entries, order: str = "<") -> bytes:
    head = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(order + "I", 8)
    below = [(name, tag, own) for name, tag, own in (("a", 0x8769, inner), ("b", 0x8825, gps)) if own]
    pointers: Entries = {name: (tag, 4, bytes(4)) for name, tag, _ in below}
    at = 8 + len(_directory(main | pointers, 8, order))
    tail = b""
    for name, tag, own in below:
        pointers[name] = (tag, 4, struct.pack(order + "I", at + len(tail)))
        tail += _directory(own, at + len(tail), order)
    return head + _directory(main | pointers, 8, order) + tail


def jpeg(path: Path, rgb: NDArray[np.uint8], block: bytes) -> Path:
    data = cv2.imencode(".jpg", rgb[..., ::-1])[1].tobytes()
    part = b"Exif\0\0" + block
    path.write_bytes(data[:2] + b"\xff\xe1" + struct.pack(">H", len(part) + 2) + part + data[2:])
    return path


def video(path: Path, key: bytes, value: bytes, kind: int, *, iso: bool) -> Path:
    """Write a QuickTime file with one metadata entry and no video."""
    keys = _box(b"keys", struct.pack(">II", 0, 1) + _box(b"mdta", key))
    data = _box(b"data", struct.pack(">II", kind, 0) + value)
    inner = _box(b"hdlr", bytes(24)) + keys + _box(b"ilst", _box(struct.pack(">I", 1), data))
    moov = _box(b"moov", _box(b"mvhd", bytes(100)) + _box(b"meta", (bytes(4) if iso else b"") + inner))
    path.write_bytes(_box(b"ftyp", b"qt  ") + struct.pack(">I4sQ", 1, b"mdat", 16 + 1000) + bytes(1000) + moov)
    return path


def _box(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", 8 + len(content)) + name + content


def _degrees(value: float, order: str) -> bytes:
    minutes, seconds = divmod(value * 3600, 60)
    degrees, minutes = divmod(minutes, 60)
    return struct.pack(order + "6I", int(degrees), 1, int(minutes), 1, round(10_000 * seconds), 10_000)


def _directory(entries: Entries, at: int, order: str) -> bytes:
    table, data = struct.pack(order + "H", len(entries)), b""
    begin = at + 2 + 12 * len(entries) + 4
    for tag, kind, content in sorted(entries.values()):
        count = len(content) // SIZES[kind]
        where = content.ljust(4, b"\0") if len(content) <= 4 else struct.pack(order + "I", begin + len(data))
        data += content if len(content) > 4 else b""
        table += struct.pack(order + "HHI", tag, kind, count) + where
    return table + struct.pack(order + "I", 0) + data


def png(path: Path, rgb: NDArray[np.uint8], block: bytes, *, at_end: bool = False) -> Path:
    data = cv2.imencode(".png", rgb[..., ::-1])[1].tobytes()
    check = struct.pack(">I", zlib.crc32(b"eXIf" + block))
    at = len(data) - 12 if at_end else 33
    path.write_bytes(data[:at] + struct.pack(">I", len(block)) + b"eXIf" + block + check + data[at:])
    return path
