"""What an uploaded file is, by its content, and unpacking of ZIP files of photographs."""

import re
import zipfile
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import IO

from stream_recon.app.core.input_file import open_zip
from stream_recon.app.core.output_file import new_file
from stream_recon.app.sources.image_files import OTHER_WORDS, is_map, natural_key
from stream_recon.configs.errors import InputError

HEAD_BYTES = 4096
MAX_IMAGE_BYTES = 300_000_000
MAX_RATIO = 200
"""Largest ratio of a file's size to its size in the ZIP file. Photographs do not shrink; only bombs exceed it."""
RATIO_FROM_BYTES = 1_000_000
"""Size from which the ratio counts: a small image of one colour shrinks a lot."""
BLOCK = 2**20
SAME_NAMES = 0.5
"""Share of names that two folders have in common from which they are two cameras."""
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

    Links, folders, other files, and folders of maps and masks are left out; twins of one name get one number. A ZIP
    file with one video and no image gives the video. Raises InputError: damaged, encrypted, without images, one name
    twice, several cameras, more than ``max_files``, or larger than ``max_bytes``, a size that counts what is written
    and not what the file states. Returns the number of files.
    """
    try:
        # Others than wanted ones: folders, and a twin of each file for the attributes of macOS.
        with path.open("rb") as file, open_zip(file, 3 * max_files + 2048) as archive:
            infos = [info for info in archive.infolist() if _is_wanted(info)]
            if len(infos) > max_files:
                raise InputError(f"the ZIP file has more than {max_files} files")
            if any(info.file_size > max(RATIO_FROM_BYTES, MAX_RATIO * info.compress_size) for info in infos):
                raise InputError("the ZIP file expands far more than photographs do: it was refused")
            return _unpack(archive, infos, target, max_bytes)
    except (zipfile.BadZipFile, zipfile.LargeZipFile, NotImplementedError, RuntimeError, ValueError, EOFError) as error:
        raise InputError(f"the ZIP file is damaged, encrypted or of an unknown method: {error}"[:300]) from error


def _unpack(archive: zipfile.ZipFile, infos: list[zipfile.ZipInfo], target: Path, max_bytes: int) -> int:
    entries = {info.filename.replace("\\", "/"): (info, _content(archive, info)) for info in infos}
    if len(entries) < len(infos):
        raise InputError("the ZIP file has several files of one name: rename them")
    files = _targets(entries, target)
    if not files:
        raise InputError("the ZIP file has no photographs")
    target.mkdir(mode=0o700)
    left = max_bytes
    for name, file in files.items():
        info, content = entries[name]
        with archive.open(info) as stream:
            left -= _copy(stream, file, min(left, MAX_IMAGE_BYTES) if content.kind == "image" else left)
    return _without_map_folders(files)


def _targets(entries: dict[str, tuple[zipfile.ZipInfo, Content]], target: Path) -> dict[str, Path]:
    """Where images are unpacked, by their names; without images, one video."""
    names = sorted((name for name, (_, content) in entries.items() if content.kind == "image"), key=natural_key)
    names = [name for name in names if not OTHER_WORDS.search(name.lower())] or names
    numbers = {stem: number for number, stem in enumerate(dict.fromkeys(map(_stem, names)))}
    files = {name: target / f"{numbers[_stem(name)]:06d}{entries[name][1].suffix}" for name in names}
    if len(set(files.values())) < len(files):
        raise InputError("the ZIP file has names that differ in upper and lower case alone: rename one of them")
    videos = [name for name, (_, content) in entries.items() if content.kind == "video"]
    if videos and len(files) == 1:
        raise InputError(f"the ZIP file has one photograph and {videos[0]}: upload the film alone")
    return {videos[0]: target / f"video{entries[videos[0]][1].suffix}"} if not files and len(videos) == 1 else files


def _content(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Content:
    with archive.open(info) as file:
        return content_of(file.read(HEAD_BYTES)) or Content("other", "")


def _stem(name: str) -> str:
    folder, _, last = name.rpartition("/")
    return f"{folder}/{last.rpartition('.')[0] or last}".casefold()


def _without_map_folders(files: dict[str, Path]) -> int:
    """Remove folders of maps, by their first image's content; number of files left. Raises InputError: two cameras."""
    folders: dict[str, dict[str, Path]] = {}
    for name, path in files.items():
        folders.setdefault(name.rpartition("/")[0], {})[_stem(name).rpartition("/")[2]] = path
    maps = [folder for folder, inside in folders.items() if len(folders) > 1 and is_map(next(iter(inside.values())))]
    for folder in maps if len(maps) < len(folders) else ():
        for path in folders.pop(folder).values():
            path.unlink()
    for (one, first), (other, second) in combinations(folders.items(), 2):
        if len(first.keys() & second.keys()) > SAME_NAMES * min(len(first), len(second)):
            raise InputError(
                f"the ZIP file has images of the same names in {one or '.'} and {other}: upload one of them"
            )
    return sum(map(len, folders.values()))


def _copy(file: IO[bytes], target: Path, max_bytes: int) -> int:
    """Write a file; returns its size. Raises InputError beyond ``max_bytes``."""
    written = 0
    with new_file(target, 0o600) as out:
        while block := file.read(BLOCK):
            written += len(block)
            if written > max_bytes:
                raise InputError("the ZIP file is larger unpacked than there is room for")
            out.write(block)
    return written


def _is_wanted(info: zipfile.ZipInfo) -> bool:
    """Whether an entry is a plain file that a user sees: no folder, link, or file of the system."""
    kind = (info.external_attr >> 16) & 0o170000
    hidden = any(part.startswith((".", "__MACOSX")) for part in info.filename.split("/") if part.strip("."))
    return not info.is_dir() and kind in (0, 0o100000) and not hidden
