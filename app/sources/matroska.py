"""Video tracks of a Matroska or WebM file (RFC 9559): size, colours, panoramas and interlacing."""

from collections.abc import Iterator
from pathlib import Path

from stream_recon.app.core.input_file import open_regular
from stream_recon.app.sources.containers import EBML, VideoTrack, video_tracks

SEGMENT, TRACKS, ENTRY, VIDEO = 0x18538067, 0x1654AE6B, 0xAE, 0xE0
KIND, WIDTH, HEIGHT, INTERLACED = 0x83, 0xB0, 0xBA, 0x9A
COLOUR, TRANSFER, PROJECTION, PROJECTION_KIND = 0x55B0, 0x55BA, 0x7670, 0x7671
MAX_HEAD_BYTES = 1 << 20
"""Bytes at the start of a file in which tracks are looked for: fonts and pictures may come first."""


def film_tracks(path: Path) -> list[VideoTrack]:
    """Video tracks of an MP4, QuickTime, Matroska or WebM file, in the order of the file; none for others."""
    return video_tracks(path) or matroska_tracks(path)


def matroska_tracks(path: Path) -> list[VideoTrack]:
    """Video tracks without their number of frames; none for other or damaged files."""
    try:
        with open_regular(path) as file:
            head = file.read(4)
            data = head + file.read(MAX_HEAD_BYTES) if head == EBML else b""
    except OSError:
        return []
    for name, begin, end in _elements(data, 0, len(data)):
        if name == SEGMENT:
            for inner, a, b in _elements(data, begin, end):
                if inner == TRACKS:
                    entries = [(c, d) for entry, c, d in _elements(data, a, b) if entry == ENTRY]
                    return [track for c, d in entries if (track := _track(data, c, d)) is not None]
    return []


def _track(data: bytes, begin: int, end: int) -> VideoTrack | None:
    inner = {name: (a, b) for name, a, b in _elements(data, begin, end)}
    if KIND not in inner or _number(data, inner[KIND]) != 1:
        return None
    video = {name: (a, b) for name, a, b in _elements(data, *inner[VIDEO])} if VIDEO in inner else {}
    colour = {name: (a, b) for name, a, b in _elements(data, *video[COLOUR])} if COLOUR in video else {}
    shape = {name: (a, b) for name, a, b in _elements(data, *video[PROJECTION])} if PROJECTION in video else {}
    width, height, interlaced = (
        _number(data, video[name]) if name in video else 0 for name in (WIDTH, HEIGHT, INTERLACED)
    )
    return VideoTrack(
        samples=0,
        size=(width, height),
        transfer=_number(data, colour[TRANSFER]) if TRANSFER in colour else 0,
        spherical=PROJECTION_KIND in shape and _number(data, shape[PROJECTION_KIND]) > 0,
        interlaced=interlaced == 1,
    )


def _elements(data: bytes, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Elements of a level: id, and begin and end of the content; one without a stated size fills the rest."""
    while begin < end:
        first = data[begin]
        width = 9 - first.bit_length()
        if width > 4 or begin + width >= end:
            return
        name = int.from_bytes(data[begin : begin + width], "big")
        begin += width
        width = 9 - data[begin].bit_length()
        if width > 8:
            return
        size = int.from_bytes(data[begin : begin + width], "big") & ((1 << 7 * width) - 1)
        begin += width
        last = end if size == (1 << 7 * width) - 1 else min(begin + size, end)
        yield name, begin, last
        begin = last


def _number(data: bytes, place: tuple[int, int]) -> int:
    return int.from_bytes(data[place[0] : min(place[1], place[0] + 8)], "big")
