"""What an uploaded file is, by its content, and unpacking of ZIP files of photographs."""

import re
import zipfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from stream_recon.app.sources.image_files import natural_key
from stream_recon.configs.errors import InputError

HEAD_BYTES = 4096
MAX_IMAGE_BYTES = 300_000_000
MAX_RATIO = 200
"""Largest ratio of a file's size to its size in the ZIP file. Photographs do not shrink; only bombs exceed it."""
RATIO_FROM_BYTES = 1_000_000
"""Size from which the ratio counts: a small image of one colour shrinks a lot."""
BLOCK = 2**20
_IMAGES = (
    (rb"\xff\xd8\xff", ".jpg"),
    (rb"\x89PNG\r\n\x1a\n", ".png"),
    (rb"RIFF....WEBP", ".webp"),
    (rb"II\*\x00|MM\x00\*", ".tif"),
    (rb"BM....\x00\x00\x00\x00", ".bmp"),
    (rb"....ftyp(heic|heix|mif1|msf1|heim|heis|hevc)", ".heic"),
    (rb"....ftypavi[fs]", ".avif"),
)
_VIDEOS = (
    (rb"....(ftyp|moov|mdat|wide|free|skip)", ".mp4"),
    (rb"\x1aE\xdf\xa3", ".mkv"),
    (rb"RIFF....AVI ", ".avi"),
    (rb"FLV\x01", ".flv"),
    (rb"\x30\x26\xb2\x75\x8e\x66\xcf\x11", ".wmv"),
    (rb"\x00\x00\x01[\xba\xb3]", ".mpg"),
    (rb"OggS", ".ogv"),
    (rb"YUV4MPEG2 ", ".y4m"),
    (rb"\x47.{187}\x47.{187}\x47", ".ts"),
    (rb".{4}\x47.{191}\x47.{191}\x47", ".m2ts"),
)
_RECORDINGS = ((rb"\x89MCAP0\r\n", ".mcap"), (rb"#ROSBAG V2\.0", ".bag"))
_ZIP = rb"PK\x03\x04"


@dataclass(frozen=True)
class Content:
    """Kind of a file, ``video``, ``image``, ``recording`` or ``zip``, and the suffix that readers know."""

    kind: str
    suffix: str


def content_of(head: bytes) -> Content | None:
    """Kind of a file by its first `HEAD_BYTES`; None for anything that cannot be reconstructed."""
    for kind, table in (("image", _IMAGES), ("video", _VIDEOS), ("recording", _RECORDINGS), ("zip", ((_ZIP, ".zip"),))):
        for pattern, suffix in table:
            if re.match(pattern, head, re.DOTALL):
                return Content(kind, suffix)
    return None


def unpack(path: Path, target: Path, max_bytes: int, max_files: int) -> int:
    """Unpack the images of a ZIP file as ``000000.jpg`` and so on, in the natural order of their names.

    Names decide the order alone. Links, folders and other files are left out. A ZIP file with one video and no image
    gives the video. Raises InputError: damaged, encrypted, without images, more than ``max_files``, or larger than
    ``max_bytes``, a size that counts what is written and not what the file states. Returns the number of files.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            infos = [info for info in archive.infolist() if _is_wanted(info)]
            if len(infos) > max_files:
                raise InputError(f"the ZIP file has more than {max_files} files")
            infos.sort(key=lambda info: natural_key(info.filename))
            return _unpack(archive, infos, target, max_bytes)
    except (zipfile.BadZipFile, zipfile.LargeZipFile, NotImplementedError, RuntimeError, ValueError, EOFError) as error:
        raise InputError(f"the ZIP file is damaged, encrypted or of an unknown method: {error}"[:300]) from error


def _unpack(archive: zipfile.ZipFile, infos: list[zipfile.ZipInfo], target: Path, max_bytes: int) -> int:
    count, left = 0, max_bytes
    target.mkdir(mode=0o700)
    videos: list[zipfile.ZipInfo] = []
    for info in infos:
        if info.file_size > RATIO_FROM_BYTES and info.file_size > MAX_RATIO * max(1, info.compress_size):
            raise InputError("the ZIP file expands far more than photographs do: it was refused")
        with archive.open(info) as file:
            head = file.read(HEAD_BYTES)
            content = content_of(head)
            if content is not None and content.kind == "video":
                videos.append(info)
            if content is None or content.kind != "image":
                continue
            left -= _copy(file, head, target / f"{count:06d}{content.suffix}", min(left, MAX_IMAGE_BYTES))
            count += 1
    if not count and len(videos) == 1:
        with archive.open(videos[0]) as file:
            head = file.read(HEAD_BYTES)
            content = content_of(head)
            assert content is not None
            _copy(file, head, target / f"video{content.suffix}", left)
        count = 1
    if not count:
        with suppress(OSError):
            target.rmdir()
        raise InputError("the ZIP file has no photographs")
    return count


def _copy(file: IO[bytes], head: bytes, target: Path, max_bytes: int) -> int:
    """Write a file; returns its size. Raises InputError beyond ``max_bytes``."""
    written, block = 0, head
    with target.open("xb") as out:
        while block:
            written += len(block)
            if written > max_bytes:
                raise InputError("the ZIP file is larger unpacked than there is room for")
            out.write(block)
            block = file.read(BLOCK)
    return written


def _is_wanted(info: zipfile.ZipInfo) -> bool:
    """Whether an entry is a plain file that a user sees: no folder, link, or file of the system."""
    kind = (info.external_attr >> 16) & 0o170000
    hidden = info.filename.rpartition("/")[2].startswith(".") or "__MACOSX/" in info.filename
    return not info.is_dir() and kind in (0, 0o100000) and not hidden
