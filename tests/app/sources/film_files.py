"""Videos with properties that OpenCV's writer cannot make: their boxes and bytes are changed after writing."""

import struct
from pathlib import Path

import cv2
import numpy as np

from tests.app.media import write_video

CONTAINERS = (b"moov", b"trak", b"mdia", b"minf", b"stbl", b"edts")


def find_box(data: bytes, path: list[bytes], begin: int = 0, end: int | None = None) -> tuple[int, int]:
    """Begin and end of a box, by the names on the way to it."""
    end = len(data) if end is None else end
    while begin + 8 <= end:
        size = int.from_bytes(data[begin : begin + 4], "big")
        if data[begin + 4 : begin + 8] == path[0]:
            if len(path) == 1:
                return begin, begin + size
            skip = 16 if path[0] == b"stsd" else 8
            return find_box(data, path[1:], begin + skip, begin + size)
        begin += size
    raise AssertionError(f"no {path[0]!r}")


def insert_box(data: bytes, path: list[bytes], box: bytes) -> bytes:
    """The file with a box at the end of the box at ``path``; what it shifts must not be addressed."""
    grown = bytearray(data)
    for depth in range(1, len(path) + 1):
        begin, _ = find_box(data, path[:depth])
        size = int.from_bytes(data[begin : begin + 4], "big")
        grown[begin : begin + 4] = (size + len(box)).to_bytes(4, "big")
    _, end = find_box(data, path)
    moov, _ = find_box(data, [b"moov"])
    assert moov > data.index(b"mdat"), "offsets of frames would change"
    return bytes(grown[:end] + box + grown[end:])


TO_SAMPLE = [b"moov", b"trak", b"mdia", b"minf", b"stbl", b"stsd", b"mp4v"]


def with_wide_pixels(path: Path, over: int, under: int, **video: object) -> Path:
    """A video whose pixels are ``over``:``under`` wide."""
    write_video(path, **video)  # type: ignore[arg-type]
    box = struct.pack(">I4sII", 16, b"pasp", over, under)
    data = path.read_bytes()
    begin, end = find_box(data, TO_SAMPLE)
    at = data.find(b"pasp", begin, end)
    if at >= 0:
        path.write_bytes(data[: at + 4] + struct.pack(">II", over, under) + data[at + 12 :])
    else:
        path.write_bytes(insert_box(data, TO_SAMPLE, box))
    return path


def trimmed(path: Path, begin: float, seconds: float, **video: object) -> Path:
    """A video that an edit list cuts, as a cut without encoding does: all packets are there."""
    write_video(path, **video)  # type: ignore[arg-type]
    data = bytearray(path.read_bytes())
    at, _ = find_box(bytes(data), [b"moov", b"mvhd"])
    (movie_scale,) = struct.unpack_from(">I", data, at + 20)
    at, _ = find_box(bytes(data), [b"moov", b"trak", b"mdia", b"mdhd"])
    (scale,) = struct.unpack_from(">I", data, at + 20)
    at, _ = find_box(bytes(data), [b"moov", b"trak", b"edts", b"elst"])
    struct.pack_into(">Ii", data, at + 16, round(seconds * movie_scale), round(begin * scale))
    path.write_bytes(data)
    return path


def displayed(path: Path, matrix: tuple[int, int, int, int], **video: object) -> Path:
    """A video that players turn or mirror by a display matrix of these numbers."""
    write_video(path, **video)  # type: ignore[arg-type]
    data = bytearray(path.read_bytes())
    _, end = find_box(bytes(data), [b"moov", b"trak", b"tkhd"])
    a, b, c, d = (value << 16 for value in matrix)
    struct.pack_into(">9i", data, end - 44, a, b, 0, c, d, 0, 0, 0, 1 << 30)
    path.write_bytes(data)
    return path


def box(name: bytes, *content: bytes) -> bytes:
    inner = b"".join(content)
    return struct.pack(">I", 8 + len(inner)) + name + inner


def spherical(path: Path, xml: bytes = b"") -> Path:
    """A video that is marked as a panorama, by Spherical Video V1."""
    write_video(path)
    head = struct.pack(">I4s16s", 24 + len(xml), b"uuid", bytes.fromhex("ffcc8263f8554a938814587a02521fdd"))
    path.write_bytes(insert_box(path.read_bytes(), [b"moov", b"trak"], head + xml))
    return path


def turning(path: Path, first: tuple[int, int] = (96, 64), then: tuple[int, int] = (64, 96), each: int = 10) -> Path:
    """A raw Motion JPEG stream whose pictures change their size after ``each`` frames."""
    data = b""
    for number in range(2 * each):
        width, height = first if number < each else then
        image = np.full((height, width, 3), 20 + 8 * number, np.uint8)
        cv2.circle(image, (width // 2, height // 2), 20, (250, 250, 250), -1)
        data += cv2.imencode(".jpg", image)[1].tobytes()
    path.write_bytes(data)
    return path


Element = tuple[str, "bytes | list[Element]"]
"""Number in hexadecimal digits, and content or elements of Matroska."""
MASTERS = ("18538067", "1654ae6b", "ae", "e0", "7670", "1043a770", "45b9")


def elements(data: bytes) -> list[Element]:
    """Elements of a Matroska file, without those that address others."""
    at, found = 0, list[Element]()
    while at < len(data):
        first = at + 9 - data[at].bit_length()
        length = 9 - data[first].bit_length()
        size = int.from_bytes(data[first : first + length], "big") & ((1 << 7 * length) - 1)
        name, content = data[at:first].hex(), data[first + length : first + length + size]
        if name not in ("114d9b74", "1c53bb6b"):
            found.append((name, elements(content) if name in MASTERS else content))
        at = first + length + size
    return found


def matroska(tree: list[Element]) -> bytes:
    parts = [(bytes.fromhex(name), matroska(inside) if isinstance(inside, list) else inside) for name, inside in tree]
    return b"".join(name + (1 << 56 | len(content)).to_bytes(8, "big") + content for name, content in parts)
