"""Videos of coloured clouds whose containers are read from front to back, or not."""

import struct
from pathlib import Path

import cv2
import numpy as np

FRAMES = 72
SIZE = (160, 120)
_PARENTS = (b"moov", b"trak", b"mdia", b"minf", b"stbl")


def film(path: Path, frames: int = FRAMES) -> bytes:
    """A video, of a container by its suffix; an MP4 has its index at the end."""
    writer = cv2.VideoWriter(str(path), cv2.CAP_FFMPEG, cv2.VideoWriter.fourcc(*"mp4v"), 20, SIZE)
    draw = np.random.default_rng(0)
    for _ in range(frames):
        coarse = draw.integers(0, 255, (SIZE[1] // 10, SIZE[0] // 10, 3), dtype=np.uint8)
        writer.write(np.asarray(cv2.resize(coarse, SIZE)))
    writer.release()
    return path.read_bytes()


def box(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I4s", len(content) + 8, name) + content


def boxes(data: bytes) -> list[tuple[bytes, bytes]]:
    """Names and contents of the boxes of an MP4."""
    found, at = [], 0
    while at < len(data):
        size, name = struct.unpack(">I4s", data[at : at + 8])
        found.append((name, data[at + 8 : at + size]))
        at += size
    return found


def index_first(data: bytes) -> bytes:
    """An MP4 with its index in front of the frames."""
    parts = dict(boxes(data))
    index = bytearray(box(b"moov", parts[b"moov"]))
    at = index.index(b"stco")
    (count,) = struct.unpack(">I", index[at + 8 : at + 12])
    for i in range(at + 12, at + 12 + 4 * count, 4):
        index[i : i + 4] = struct.pack(">I", struct.unpack(">I", index[i : i + 4])[0] + len(index))
    return b"".join(
        (box(b"ftyp", parts[b"ftyp"]), bytes(index), box(b"free", parts[b"free"]), box(b"mdat", parts[b"mdat"]))
    )


def fragmented(data: bytes) -> bytes:
    """An MP4 as fragments of one frame each: its index has no samples, and a ``moof`` stands in front of each frame."""
    parts = dict(boxes(data))
    index, media = parts[b"moov"], parts[b"mdat"]
    at = index.index(b"stsz")
    (count,) = struct.unpack(">I", index[at + 12 : at + 16])
    sizes = struct.unpack(f">{count}I", index[at + 16 : at + 16 + 4 * count])
    (step,) = struct.unpack(">I", index[index.index(b"stts") + 16 : index.index(b"stts") + 20])
    extends = box(b"mvex", box(b"trex", struct.pack(">6I", 0, 1, 1, 0, 0, 0)))
    out = box(b"ftyp", parts[b"ftyp"]) + box(b"moov", _without_samples(index) + extends)
    for number, size in enumerate(sizes):
        out += _fragment(number, number * step, step, size) + box(b"mdat", media[:size])
        media = media[size:]
    return out


def _without_samples(data: bytes) -> bytes:
    out = b""
    for name, content in boxes(data):
        if name in (b"stss", b"edts", b"udta"):
            continue
        if name in _PARENTS:
            content = _without_samples(content)
        content = {b"stts": bytes(8), b"stco": bytes(8), b"stsc": bytes(8), b"stsz": bytes(12)}.get(name, content)
        out += box(name, content)
    return out


def _fragment(number: int, begin: int, step: int, size: int) -> bytes:
    """The ``moof`` of one frame; the frame follows in an ``mdat``."""

    def made(offset: int) -> bytes:
        flags = 0x02000000 if number % 12 == 0 else 0x01010000
        run = struct.pack(">2Ii3I", 0x000701, 1, offset, step, size, flags)
        header = box(b"tfhd", struct.pack(">2I", 0x020000, 1)) + box(b"tfdt", struct.pack(">2I", 0, begin))
        return box(b"moof", box(b"mfhd", struct.pack(">2I", 0, number + 1)) + box(b"traf", header + box(b"trun", run)))

    return made(len(made(0)) + 8)
