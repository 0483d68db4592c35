"""What containers of video state beyond OpenCV: edit lists, several tracks, panoramas, and whether a file is cut off.

MP4 and QuickTime (ISO 14496-12), Matroska and WebM (RFC 9559), AVI.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from stream_recon.app.core.input_file import open_regular

MAX_BOXES = 10_000
"""Boxes of a level that are read, against damaged files; videos have fewer than 100."""
MAX_TABLE_BYTES = 1 << 20
"""Bytes of a box that are read: edit lists and sample descriptions have some kilobytes."""
FIRST_SAMPLES = 64
"""Samples in which the earliest time is looked for: more than a decoder reorders."""
SECONDS_TO_1970 = 2_082_844_800
"""Seconds from 1904, from which QuickTime counts, to 1970."""
SPHERICAL = (b"sv3d", bytes.fromhex("ffcc8263f8554a938814587a02521fdd"))
"""Box of Spherical Video V2, and id of the box of V1, by Google."""
EBML, SEGMENT = b"\x1a\x45\xdf\xa3", b"\x18\x53\x80\x67"
OTHER_CONTAINERS = (b"FLV", b"OggS", bytes.fromhex("3026b2758e66cf11"))
"""Heads of containers that state a length, in a form that is not read here: Flash, Ogg and Windows Media."""


@dataclass(frozen=True)
class VideoTrack:
    """A video track of an MP4."""

    samples: int
    """Number of frames that are stored."""
    begin: float = 0.0
    """Seconds after the first stored frame at which the edit list begins."""
    end: float | None = None
    """Seconds after the first stored frame at which it ends; None: no edit list."""
    edits: int = 0
    """Number of parts that are shown; more than one are joined in any order."""
    spherical: bool = False
    """Whether it is marked as a panorama of 360 degrees."""
    transfer: int = 0
    """Transfer characteristics (ITU-T H.273) of its colours; 16 is PQ. 0: not stated."""
    size: tuple[int, int] = (0, 0)
    """Width and height in pixels as stored."""
    interlaced: bool = False


def video_tracks(path: Path) -> list[VideoTrack]:
    """Video tracks of an MP4 or QuickTime file, in the order of the file; none for other or damaged files."""
    try:
        with open_regular(path) as file:
            videos = []
            for _, first, last in boxes(file, 0, file.seek(0, 2), {b"moov"}):
                scale = _time_scale(file, first, last, b"mvhd")
                tracks = boxes(file, first, last, {b"trak"})
                videos += [track for _, a, b in tracks if (track := _track(file, a, b, scale)) is not None]
            return videos
    except (OSError, ValueError, struct.error, ArithmeticError):
        return []


def creation_time(path: Path) -> float | None:
    """Seconds since 1970 at which an MP4 says that it was recorded; None where it does not."""
    try:
        with open_regular(path) as file:
            for _, first, last in boxes(file, 0, file.seek(0, 2), {b"moov"}):
                for _, a, b in boxes(file, first, last, {b"mvhd"}):
                    data = _content(file, a, b)
                    (seconds,) = struct.unpack_from(">Q" if data[0] == 1 else ">I", data, 4)
                    return float(seconds - SECONDS_TO_1970) if seconds > SECONDS_TO_1970 else None
    except (OSError, ValueError, IndexError, struct.error):
        pass
    return None


def is_cut_off(path: Path) -> bool:
    """Whether a file may lack bytes that its head promises; False for raw streams, which promise none."""
    try:
        with open_regular(path) as file:
            size = file.seek(0, 2)
            file.seek(0)
            head = file.read(64)
            if head[4:8] in (b"ftyp", b"moov", b"mdat", b"free", b"wide", b"skip"):
                return not _boxes_fill(file, size)
            if head[:4] == b"RIFF":
                return int.from_bytes(head[4:8], "little") + 8 > size
            if head[:4] == EBML:
                return _segment_end(head, file) > size
            return head.startswith(OTHER_CONTAINERS)
    except (OSError, ValueError, struct.error):
        return True


def boxes(file: BinaryIO, begin: int, end: int, names: set[bytes]) -> Iterator[tuple[bytes, int, int]]:
    """Boxes (ISO 14496-12) of these names: name, and begin and end of the content."""
    for name, first, last in _all_boxes(file, begin, end):
        if name in names:
            yield name, first, last


def _all_boxes(file: BinaryIO, begin: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    for _ in range(MAX_BOXES):
        if begin + 8 > end:
            return
        file.seek(begin)
        head = file.read(16)
        size, name, skip = int.from_bytes(head[:4], "big"), head[4:8], 8
        if size == 1:
            size, skip = int.from_bytes(head[8:16], "big"), 16
        elif size == 0:
            size = end - begin
        if size < skip or begin + size > end:
            return
        yield name, begin + skip, begin + size
        begin += size


def _boxes_fill(file: BinaryIO, size: int) -> bool:
    last, names = 0, set()
    for name, _, end in _all_boxes(file, 0, size):
        last = end
        names.add(name)
    return last == size and {b"moov", b"mdat"} <= names


def _segment_end(head: bytes, file: BinaryIO) -> float:
    """End of a Matroska segment; infinite where its size is not stated."""
    length, width = _vint(head, 4)
    at = 4 + width + length
    file.seek(at)
    data = file.read(16)
    if data[:4] != SEGMENT:
        return float("inf")
    length, width = _vint(data, 4)
    if length == (1 << 7 * width) - 1:
        return float("inf")
    return at + 4 + width + length


def _vint(data: bytes, at: int) -> tuple[int, int]:
    """Number with variable length of EBML, and its length. Raises ValueError."""
    first = data[at] if at < len(data) else 0
    if not first:
        raise ValueError("no length")
    width = 9 - first.bit_length()
    return int.from_bytes(data[at : at + width], "big") & ((1 << 7 * width) - 1), width


def _time_scale(file: BinaryIO, begin: int, end: int, name: bytes) -> int:
    for _, first, last in boxes(file, begin, end, {name}):
        data = _content(file, first, last)
        (scale,) = struct.unpack_from(">I", data, 20 if data[0] == 1 else 12)
        return max(1, int(scale))
    return 1


def _track(file: BinaryIO, begin: int, end: int, movie_scale: int) -> VideoTrack | None:
    inner = {name: (a, b) for name, a, b in boxes(file, begin, end, {b"mdia", b"edts"})}
    if b"mdia" not in inner:
        return None
    media = inner[b"mdia"]
    kinds = [_content(file, a, b)[8:12] for _, a, b in boxes(file, *media, {b"hdlr"})]
    if kinds != [b"vide"]:
        return None
    scale = _time_scale(file, *media, b"mdhd")
    for _, a, b in boxes(file, *media, {b"minf"}):
        for _, c, d in boxes(file, a, b, {b"stbl"}):
            tables = {name: _content(file, e, f) for name, e, f in boxes(file, c, d, _TABLES)}
            (samples,) = struct.unpack_from(">I", tables[b"stsz"], 8) if b"stsz" in tables else (0,)
            spherical = any(mark in tables.get(b"stsd", b"") for mark in SPHERICAL) or _has_uuid(file, begin, end)
            description = tables.get(b"stsd", b"")
            transfer, size = _transfer(description), (_short(description, 40), _short(description, 42))
            at = description.find(b"fiel")
            interlaced = at >= 0 and description[at + 4 : at + 5] == b"\2"
            edits = _edits(file, inner[b"edts"], movie_scale, scale) if b"edts" in inner else []
            if not edits:
                return VideoTrack(int(samples), 0.0, None, 0, spherical, transfer, size, interlaced)
            first = _earliest(tables.get(b"stts", b""), tables.get(b"ctts", b"")) / scale
            span = sum(duration for _, duration in edits)
            begin_s = edits[0][0] - first
            return VideoTrack(int(samples), begin_s, begin_s + span, len(edits), spherical, transfer, size, interlaced)
    return None


_TABLES = {b"stts", b"ctts", b"stsz", b"stsd"}


def _transfer(description: bytes) -> int:
    """Transfer characteristics in the colour box of a sample description."""
    at = max(description.find(b"colrnclx"), description.find(b"colrnclc"))
    return int.from_bytes(description[at + 10 : at + 12], "big") if at >= 0 else 0


def _short(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 2], "big")


def _has_uuid(file: BinaryIO, begin: int, end: int) -> bool:
    uuids = boxes(file, begin, end, {b"uuid"})
    return any(_content(file, a, min(b, a + 16)) == SPHERICAL[1] for _, a, b in uuids)


def _content(file: BinaryIO, begin: int, end: int) -> bytes:
    file.seek(begin)
    return file.read(min(end - begin, MAX_TABLE_BYTES))


def _edits(file: BinaryIO, part: tuple[int, int], movie_scale: int, scale: int) -> list[tuple[float, float]]:
    """Begin in the media and duration in seconds of each part that is shown."""
    edits = []
    for _, a, b in boxes(file, *part, {b"elst"}):
        data = _content(file, a, b)
        layout = ">Qqi" if data[0] == 1 else ">Iii"
        (count,) = struct.unpack_from(">I", data, 4)
        for number in range(min(int(count), MAX_BOXES)):
            duration, begin, _ = struct.unpack_from(layout, data, 8 + number * struct.calcsize(layout))
            # A negative begin is a pause before the video; a duration of 0 means up to the end.
            if begin >= 0 and duration > 0:
                edits.append((begin / scale, duration / movie_scale))
    return edits


def _earliest(stts: bytes, ctts: bytes) -> int:
    """Earliest time of the first samples, in units of the media."""
    durations = _runs(stts, ">II")
    offsets = _runs(ctts, ">Ii") or [0] * len(durations)
    times, at = [], 0
    for duration, offset in zip(durations, offsets, strict=False):
        times.append(at + offset)
        at += duration
    return min(times, default=0)


def _runs(data: bytes, layout: str) -> list[int]:
    """First values of a table of runs (count, value)."""
    values: list[int] = []
    for number in range((len(data) - 8) // 8):
        count, value = struct.unpack_from(layout, data, 8 + 8 * number)
        values += [value] * min(int(count), FIRST_SAMPLES)
        if len(values) >= FIRST_SAMPLES:
            break
    return values[:FIRST_SAMPLES]
