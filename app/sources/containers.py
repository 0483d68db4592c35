"""What containers of video state beyond OpenCV: tracks, edit lists, turns, panoramas, colours, and missing bytes.

Boxes of MP4 and QuickTime (ISO 14496-12) are read here, since MediaInfo, the library that reads all else, does not tell
edit lists, mirrored pictures and panoramas.
"""

import math
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from threading import Thread
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.input_file import open_regular
from stream_recon.app.sources.calibration import ORIENTATIONS
from stream_recon.app.sources.matroska import matroska_tracks
from stream_recon.app.sources.panorama import CUBE, LAYOUTS, MESH, PART, ROUND, kind_in_xml

LIBRARY_SECONDS = 20.0
"""Time that MediaInfo gets for a file: most take a tenth of a second, some damaged ones it reads for ever."""
MAX_BOXES = 10_000
"""Boxes of a level that are read, against damaged files; videos have fewer than 100."""
MAX_TABLE_BYTES = 1 << 20
"""Bytes of a box that are read: edit lists and sample descriptions have some kilobytes."""
FIRST_SAMPLES = 64
"""Samples in which the earliest time is looked for: more than a decoder reorders."""
SPHERICAL = bytes.fromhex("ffcc8263f8554a938814587a02521fdd")
"""Id of the box of Spherical Video V1, by Google."""
PROJECTIONS = {
    b"equi": ROUND,
    b"cbmp": CUBE,
    b"mshp": MESH,
    b"hequ": "a picture for a headset (VR180)",
    b"fish": "a fish-eye picture for a headset",
    b"prim": "an immersive picture for a headset",
    b"rect": "",
    b"prhd": "",
    b"equi part": PART,
}
"""Kinds of pictures by their box in Spherical Video V2, or name in Apple's ``proj``; empty: a pinhole camera's."""
TURNS = {(1, 0, 0, 1): 1} | {
    (0, 1 - 2 * y, 1 - 2 * x, 0) if swap else (1 - 2 * x, 0, 0, 1 - 2 * y): number
    for number, (swap, x, y) in ORIENTATIONS.items()
}
"""EXIF orientation by the signs of a display matrix."""
BOXES: dict[bytes, set[bytes]] = {
    level: set(names.split())
    for level, names in {
        b"": b"ftyp styp pdin moov moof mfra sidx ssix emsg prft mdat idat meta udta uuid pnot PICT pict thum frea "
        b"ithm inst sefd mpvd imda",
        b"moov": b"mvhd trak mvex udta meta iods ctab uuid pssh gps GPS ainf",
        b"trak": b"tkhd edts mdia tref trgr tapt load txas udta meta uuid ludt",
        b"edts": b"elst",
        b"mdia": b"mdhd hdlr minf elng udta name",
        b"minf": b"vmhd smhd hmhd nmhd sthd gmhd hdlr dinf stbl",
        b"stbl": b"stsd stts ctts cslg stss stps stsc stsz stz2 stco co64 sdtp sbgp csgp sgpd subs saiz saio stdp padb "
        b"stsh senc",
        b"stsd": b"avcC hvcC lhvC vvcC av1C vpcC esds d263 glbl jpgC btrt bitr pasp colr clap fiel gama chrm mdcv clli "
        b"SmDm CoLL cclv amve dvcC dvvC dvwC hvcE avcE st3d sv3d vexu hfov sinf strf dfLa uuid ACLR ARES AICI APRG",
    }.items()
}
"""Boxes that are read or do not change where and when frames are shown, by the box that they stand in."""
REQUIRED = (
    *("moov/mvhd", "moov/trak", "trak/tkhd", "trak/mdia", "edts/elst", "mdia/mdhd", "mdia/hdlr", "mdia/minf"),
    *("minf/stbl", "stbl/stsd", "stbl/stts", "stbl/stsc", "stbl/stsz stz2", "stbl/stco co64"),
)
"""Boxes that others must have."""
FREE = {b"free", b"skip", b"wide", b"junk", bytes(4)}
"""Boxes without content, anywhere."""
SEVERAL = set(b"moof sidx ssix emsg prft mdat idat udta uuid trak pssh sbgp csgp sgpd subs saiz saio colr imda".split())
"""Boxes that may stand more than once in another one."""
SAME_AXIS = 0.01
"""Share of a display matrix's row up to which its smaller number is rounding."""


@dataclass(frozen=True)
class VideoTrack:
    """A video track."""

    size: tuple[int, int] = (0, 0)
    """Width and height in pixels as stored."""
    samples: int = 0
    """Number of frames that are stored; 0: not stated."""
    begin: float = 0.0
    """Seconds after the first stored frame at which the edit list begins."""
    end: float | None = None
    """Seconds after the first stored frame at which it ends; None: no edit list."""
    edits: int = 0
    """Number of parts that are shown; more than one are joined in any order."""
    orientation: int | None = None
    """EXIF orientation (1 to 8) by which frames are turned for display; None: not stated."""
    refused: str = ""
    """What frames are that no pinhole camera shows, or why they cannot be decoded."""
    notes: tuple[str, ...] = ()
    """What it states that is not applied."""
    transfer: str = ""
    """MediaInfo's name of the transfer characteristics of its colours."""
    interlaced: bool = False


@dataclass(frozen=True)
class Film:
    """What a file of video states of itself."""

    tracks: tuple[VideoTrack, ...] = ()
    container: str = ""
    """MediaInfo's name of the container."""
    cut_off: bool = False
    """Whether it lacks bytes that its head promises."""
    recorded: float | None = None
    """Seconds since 1970 at which it was recorded."""
    others: tuple[str, ...] = ()
    """Kinds of its tracks that are no video."""
    notes: tuple[str, ...] = ()
    """What of its boxes is not understood."""


@dataclass(frozen=True)
class FileBox:
    """Content of a box, or a whole file."""

    file: BinaryIO
    name: bytes
    begin: int
    end: int

    def inside(self, *path: bytes, skip: int = 0) -> "Iterator[FileBox]":
        """Boxes at a path of names below this one; an empty name is any. ``skip``: bytes before the first."""
        at = self.begin + skip
        for _ in range(MAX_BOXES):
            if at + 8 > self.end:
                return
            self.file.seek(at)
            head = self.file.read(16)
            size, name, first = int.from_bytes(head[:4], "big"), head[4:8], 8
            if size == 1:
                size, first = int.from_bytes(head[8:16], "big"), 16
            elif size == 0:
                size = self.end - at
            if size < first or at + size > self.end:
                return
            if path[0] in (b"", name):
                box = FileBox(self.file, name, at + first, at + size)
                yield from box.inside(*path[1:]) if path[1:] else [box]
            at += size

    @property
    def content(self) -> bytes:
        self.file.seek(self.begin)
        return self.file.read(min(self.end - self.begin, MAX_TABLE_BYTES))

    def table(self, *path: bytes) -> bytes:
        """Content of the first box at a path below this one; empty without one."""
        return next((box.content for box in self.inside(*path)), b"")


def whole_file(file: BinaryIO) -> FileBox:
    return FileBox(file, b"", 0, file.seek(0, 2))


def film(path: Path) -> Film:
    """What a file states; an empty `Film` for what is no video, or not readable."""
    try:
        stat = path.stat()
    except (OSError, ValueError):
        return Film()
    return _film(path, stat.st_size, stat.st_mtime_ns)


@lru_cache(64)
def _film(path: Path, _size: int, _changed: int) -> Film:
    try:
        with open_regular(path) as file:
            found = _by_library(path, file)
            boxes, tracks, notes = whole_file(file), list[VideoTrack](), list[str]()
            with suppress(ValueError, struct.error, ArithmeticError, IndexError):
                tracks = _iso_tracks(boxes, found.tracks)
            with suppress(ValueError, struct.error, ArithmeticError, IndexError):
                notes.extend(_odd_boxes(boxes, b"") if boxes.table(b"moov") else ())
            if found.container in ("Matroska", "WebM"):
                said = matroska_tracks(file, boxes.end)
                kinds = {0: "", -1: PART, **dict(enumerate(list(PROJECTIONS.values())[:3], start=1))}
                unknown = "of an unknown projection"
                tracks = [
                    replace(track, refused=track.refused or kinds.get(number, unknown), notes=(*track.notes, *notes))
                    for track, (number, notes) in zip(found.tracks, said, strict=False)
                ]
            return replace(found, tracks=tuple(tracks) or found.tracks, notes=tuple(dict.fromkeys(notes)))
    except (OSError, ValueError):
        return Film()


def media_tracks(file: str | BinaryIO, limit_s: float = LIBRARY_SECONDS) -> list[Any]:
    """Tracks of a file, by its absolute name, or of a packet, by MediaInfo; none after ``limit_s``: it may not end."""
    found: list[Any] = []

    def read() -> None:
        with suppress(Exception):  # a library's XML of a damaged file may be none
            from pymediainfo import MediaInfo

            found.extend(MediaInfo.parse(file).tracks)

    reading = Thread(target=read, daemon=True, name="MediaInfo")
    reading.start()
    reading.join(limit_s)
    return [] if reading.is_alive() else found


def _by_library(path: Path, file: BinaryIO) -> Film:
    name = str(path.absolute())
    # A name that is not UTF-8 cannot be passed. By the file itself it does not look at the frames before an index.
    general, *tracks = media_tracks(name if name.isprintable() else file) or [None]
    if general is None:
        return Film()
    videos = [track for track in tracks if track.track_type in ("Video", "Image")]
    return Film(
        tracks=tuple(_stated(track) for track in videos),
        container=str(general.format or ""),
        cut_off=general.istruncated == "Yes",
        recorded=_seconds(general.encoded_date),
        others=tuple(sorted({str(track.track_type).lower() for track in tracks if track not in videos})),
    )


def _stated(track: Any) -> VideoTrack:
    layout = str(track.multiview_layout or "").lower()
    views = next((number for word, number in (("side", 2), ("top", 1), ("bottom", 1)) if word in layout), 3)
    packed = LAYOUTS[0 if layout in ("", "mono") else views]
    is_dolby = ".05" in str(track.hdr_format_profile or "")  # the one profile without another form of the colours
    return VideoTrack(
        size=(int(track.width or 0), int(track.height or 0)),
        samples=int(track.source_frame_count or track.frame_count or 0),
        refused="encrypted" if track.encryption else packed,
        notes=("its colours are Dolby Vision's, which are not converted",) if is_dolby else (),
        transfer=str(track.transfer_characteristics or ""),
        interlaced=(track.scan_type or "Progressive") != "Progressive",
    )


def _seconds(date: str | None) -> float | None:
    """Time of a date by MediaInfo; None for none, or the first one of QuickTime's clock."""
    with suppress(ValueError):
        moment = datetime.fromisoformat((date or "").replace("UTC", "").strip()).replace(tzinfo=UTC)
        return moment.timestamp() if moment.timestamp() > 0 else None
    return None


def _iso_tracks(file: FileBox, stated: tuple[VideoTrack, ...]) -> list[VideoTrack]:
    """Tracks of an MP4 or QuickTime file in its order; those ``stated`` tell what is not in boxes."""
    tracks = []
    for movie in file.inside(b"moov"):
        head = movie.table(b"mvhd")
        turn = _matrix(head[-64:-28])
        rate = head[-80:-76]
        videos = [box for box in movie.inside(b"trak") if box.table(b"mdia", b"hdlr")[8:12] == b"vide"]
        for number, box in enumerate(videos):
            # A picture of the film alone may be no video of the library's.
            known = stated[number] if len(stated) == len(videos) else VideoTrack()
            if rate not in (b"", bytes(4), b"\0\1\0\0"):
                known = replace(known, notes=(*known.notes, "its preferred rate (mvhd) is not applied"))
            tracks.append(_track(box, known, _scale(head), turn))
    return tracks


def _odd_boxes(box: FileBox, level: bytes, skip: int = 0) -> Iterator[str]:
    """What is not understood of the boxes in one, and in those below it."""
    seen: set[bytes] = set()
    for inner in box.inside(b"", skip=skip):
        name, where = inner.name.decode("latin-1"), level.decode() or "the file"
        if inner.name.strip() not in BOXES[level] | FREE:
            yield f"its box {name!r} in {where} is unknown and not applied"
        elif inner.name in seen - SEVERAL - FREE:
            yield f"its box {name!r} stands more than once in {where}: one is used"
        seen.add(inner.name)
        if inner.name in BOXES and inner.name != b"stsd":
            yield from _odd_boxes(inner, inner.name)
    for outer, names in (place.split("/") for place in REQUIRED):
        if outer == level.decode() and not seen & set(names.encode().split()):
            yield f"it lacks its box {names.split()[0]!r} in {outer}"


def _track(box: FileBox, stated: VideoTrack, movie_scale: int, turn: NDArray[np.float64]) -> VideoTrack:
    scale = _scale(box.table(b"mdia", b"mdhd"))
    tables = next(box.inside(b"mdia", b"minf", b"stbl"), None)
    if tables is None:
        return stated
    entries = [entry for table in tables.inside(b"stsd") for entry in table.inside(b"", skip=8)]
    kind = next(filter(None, map(_kind, entries)), "")
    marks = (mark.content for mark in box.inside(b"uuid") if mark.content[:16] == SPHERICAL)
    kind = kind or next((kind_in_xml(mark[16:]) for mark in marks), "")
    orientation, notes = _turn(_matrix(box.table(b"tkhd")[-44:-8]) @ turn)
    (samples,) = struct.unpack_from(">I", tables.table(b"stsz").ljust(12, b"\0"), 8)
    track = replace(stated, samples=samples, orientation=orientation, refused=stated.refused or kind)
    notes += (*stated.notes, *_entry_notes(entries))
    flags = box.table(b"tkhd")[3:4]
    if not flags or not flags[0] & 1:
        notes += ("its video track is not enabled (tkhd), and used",)
    edits = _edits(box.table(b"edts", b"elst"), movie_scale, scale)
    if not edits:
        return replace(track, notes=notes)
    begin = edits[0][0] - _earliest(tables.table(b"stts"), tables.table(b"ctts")) / scale
    if any(rate not in (0, 1 << 16) for *_, rate in edits):
        notes += ("its edit list changes the speed, which is not applied",)
    end = begin + sum(duration for _, duration, _ in edits)
    return replace(track, begin=begin, end=end, edits=len(edits), notes=notes)


def _scale(head: bytes) -> int:
    """Time units a second of a movie's or track's head."""
    return max(1, struct.unpack_from(">I", head, 20 if head[0] == 1 else 12)[0]) if head else 1


def _kind(entry: FileBox) -> str:
    """What the frames of a sample description are that no pinhole camera shows, or why they cannot be decoded."""
    if entry.name == b"encv":
        return "encrypted"
    for box in entry.inside(b"", skip=78):
        if box.name == b"st3d" and (number := box.content[4]):
            return LAYOUTS[number] if number < len(LAYOUTS) else LAYOUTS[3]
        shapes = [_shape(shape) for shape in box.inside(b"proj", b"")] if box.name == b"sv3d" else []
        shapes += [shape.content[4:8] for shape in box.inside(b"proj", b"prji")] if box.name == b"vexu" else []
        for name in shapes:
            if kind := PROJECTIONS.get(name, f"of projection {name.decode('latin-1')}"):
                return kind
        if box.name == b"vexu" and any(True for _ in box.inside(b"pack")):
            return LAYOUTS[2]
    return ""


def _shape(box: FileBox) -> bytes:
    """Name of a projection of Spherical Video V2; ``equi part`` where the bounds of `equi` leave out a part."""
    if box.name == b"cbmp" and any(box.content[4:12]):
        return b"cbmp of another layout than 0, or with padding"
    return b"equi part" if box.name == b"equi" and any(box.content[4:20]) else box.name


def _entry_notes(entries: list[FileBox]) -> Iterator[str]:
    """What of sample descriptions is not understood, and clean apertures that are a part of the picture."""
    for entry in entries:
        yield from _odd_boxes(entry, b"stsd", skip=78)
        if clap := next((box.content for box in entry.inside(b"", skip=78) if box.name == b"clap"), b""):
            width, over, height, under = struct.unpack_from(">4I", clap)
            part, whole = (width / over, height / under), struct.unpack_from(">HH", entry.content, 24)
            if part != whole:
                yield f"its clean aperture (clap) of {part[0]:g}x{part[1]:g} is not cut out of {whole[0]}x{whole[1]}"


def _matrix(data: bytes) -> NDArray[np.float64]:
    """Numbers [[a, b], [c, d]] of a display matrix; those of no change where it is missing or zero."""
    matrix = np.frombuffer(data, ">i4").reshape(-1, 3)[:2, :2].astype(np.float64)
    return matrix / (1 << 16) if matrix.shape == (2, 2) and matrix.any() else np.eye(2)


def _turn(matrix: NDArray[np.float64]) -> tuple[int, tuple[str, ...]]:
    """EXIF orientation of a display matrix, and what cannot be applied."""
    largest = np.abs(matrix).max(axis=1, keepdims=True)
    signs = np.where(np.abs(matrix) <= SAME_AXIS * largest, 0, np.sign(matrix)).astype(int).ravel()
    if (orientation := TURNS.get(tuple(signs.tolist()))) is not None:
        return orientation, ()
    angle = math.degrees(math.atan2(matrix[0, 1], matrix[0, 0]))
    return 1, (f"its display matrix turns it by {angle:.0f} degrees, which is not applied",)


def _edits(data: bytes, movie_scale: int, scale: int) -> list[tuple[float, float, int]]:
    """Begin in the media and duration in seconds, and speed, of each part that is shown."""
    layout = ">Qqi" if data[:1] == b"\1" else ">Iii"
    rows = struct.iter_unpack(
        layout, data[8 : 8 + (len(data) - 8) // struct.calcsize(layout) * struct.calcsize(layout)]
    )
    # A negative begin is a pause before the video; a duration of 0 means up to the end.
    return [(at / scale, duration / movie_scale, rate) for duration, at, rate in rows if at >= 0 and duration > 0]


def _earliest(stts: bytes, ctts: bytes) -> int:
    """Earliest time of the first samples, in units of the media."""
    durations = _runs(stts)
    starts = np.cumsum(durations) - durations
    offsets = _runs(ctts)
    count = min(len(starts), len(offsets)) if len(offsets) else 0
    return int(min(starts[:count] + offsets[:count])) if count else 0


def _runs(table: bytes) -> NDArray[np.int64]:
    """First values of a table of runs (count, value)."""
    rows = np.frombuffer(table[8 : 8 + 8 * FIRST_SAMPLES], ">i4").reshape(-1, 2).astype(np.int64)
    return np.repeat(rows[:, 1], np.clip(rows[:, 0], 0, FIRST_SAMPLES))[:FIRST_SAMPLES]
