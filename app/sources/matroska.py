"""What Matroska and WebM state that neither OpenCV nor MediaInfo tells: projections, and what is not applied."""

from collections.abc import Iterator
from typing import BinaryIO

MAX_ELEMENTS = 10_000
"""Elements of a level that are read, against damaged files."""
LEVELS: dict[int, tuple[str, set[int]]] = {
    number: (name, {int(word, 16) for word in f"{inside} ec bf".split()})
    for number, name, inside in (
        (0, "the file", "1a45dfa3 18538067"),
        (0x18538067, "Segment", "114d9b74 1549a966 1254c367 1c53bb6b 1941a469 1654ae6b 1043a770"),
        (0x1654AE6B, "Tracks", "ae"),
        (
            0xAE,
            "TrackEntry",
            "d7 73c5 83 88 55aa 55ab 55ac 55ad 55ae 55af 9c 6de7 6df8 23e383 234e7a 23314f 55ee 41e4 536e 22b59c "
            "22b59d 86 63a2 258688 7446 aa 6fab 56aa 56bb 6d80 e0 e1",
        ),
        (0xE0, "Video", "9a 9d 53b8 53b9 b0 ba 54b0 54ba 54b2 54b3 2eb524 2383e3 55b0 7670"),
        (0x7670, "Projection", "7671 7672 7673 7674 7675"),
        (0x1043A770, "Chapters", "45b9"),
        (0x45B9, "EditionEntry", "45bc 45bd 45db b6 4520"),
    )
}
"""Elements of Matroska (RFC 9559) whose content is looked at, and what in them is applied or harmless."""
VALUES = {
    **{0x54AA: ("PixelCropBottom", 0), 0x54BB: ("PixelCropTop", 0), 0x54CC: ("PixelCropLeft", 0)},
    **{0x54DD: ("PixelCropRight", 0), 0x53C0: ("AlphaMode", 0), 0x2FB523: ("GammaValue", 0), 0xB9: ("FlagEnabled", 1)},
    **{0x537F: ("TrackOffset", 0), 0xE2: ("TrackOperation", 0), 0x45DD: ("EditionFlagOrdered", 0)},
}
"""Elements that are not applied, and the value with which they change nothing."""
CLUSTER, TRACK, TRACK_TYPE, PROJECTION_TYPE, BOUNDS = 0x1F43B675, 0xAE, 0x83, 0x7671, 0x7672
"""Elements of frames, of a track, of its kind (1: video), of its projection, and of what a panorama leaves out."""
MAX_VALUE_BYTES = 20
"""Bytes of an element that count: version, flags and four bounds."""


def matroska_tracks(file: BinaryIO, end: int) -> list[tuple[int, list[str]]]:
    """Number of the projection of each video track (0: a pinhole camera's; -1: a part of a panorama; -2: a cube map of
    an unknown layout), and what is not applied in it or its film.

    ``end``: bytes of the file.
    """
    of_film, found = list[str](), list[tuple[list[int], list[str]]]()
    for level, number, value in _elements(file, 0, 0, end):
        if number == TRACK:
            found.append(([0, 0, 0], []))
        kind, notes = found[-1] if found and level in (TRACK, 0xE0, 0x7670) else ([0, 0, 0], of_film)
        name, harmless = VALUES.get(number, ("", value))
        if number in (TRACK_TYPE, PROJECTION_TYPE, BOUNDS):
            kind[(TRACK_TYPE, PROJECTION_TYPE, BOUNDS).index(number)] = value
        elif value != harmless:
            notes.append(f"its {name} {value} is not applied")
        elif not name and number not in LEVELS[level][1]:
            notes.append(f"its element {number:X} in {LEVELS[level][0]} is unknown and not applied")
    return [
        ({1: -1, 2: -2}.get(projection, projection) if bounds else projection, of_film + notes)
        for (kind, projection, bounds), notes in found
        if kind == 1
    ]


def _elements(file: BinaryIO, level: int, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Level, number and value of the elements before the first frames (RFC 8794), and of those in them."""
    for _ in range(MAX_ELEMENTS):
        file.seek(at)
        head = file.read(12)
        first = 9 - head[0].bit_length() if at < end and head else len(head)
        length = 9 - head[first].bit_length() if first < len(head) else 9
        number = int.from_bytes(head[:first], "big")
        if length > 8 or number == CLUSTER:
            return
        at += first + length
        most = (1 << 7 * length) - 1
        size = int.from_bytes(head[first : first + length], "big") & most
        last = end if size == most else min(end, at + size)
        file.seek(at)
        yield level, number, int.from_bytes(file.read(min(MAX_VALUE_BYTES, max(0, last - at))), "big")
        if number in LEVELS and number in LEVELS[level][1]:
            yield from _elements(file, number, at, last)
        at = last
