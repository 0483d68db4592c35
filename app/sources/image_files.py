"""Which image files a user means: patterns and numbered names, and the sizes of a folder's photographs."""

import glob
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stream_recon.app.core.input_file import open_regular
from stream_recon.app.sources.calibration import TURNED_BY_90
from stream_recon.app.sources.image_decoding import IMAGE_SUFFIXES, readable_suffixes
from stream_recon.app.sources.readers import natural_key
from stream_recon.configs.errors import InputError

NUMBERED = re.compile(r"%0?(\d*)d")
"""A number in a pattern of names, as ffmpeg writes it."""
MAX_HEADS = 20_000
"""Photographs whose heads are read before the first is decoded: some seconds."""
WEB_PAGES = re.compile(r"^https?://([^/]*\.)?(youtube\.com|youtu\.be|vimeo\.com|tiktok\.com)/", re.IGNORECASE)
"""Addresses of pages that show a video and are none."""
Size = tuple[int, int]


def files_of_pattern(spec: str) -> list[Path]:
    """Image files of a pattern such as ``frames/*.jpg`` or ``frames/%05d.jpg``, in natural order; none of other text.

    Raises InputError: a pattern without a file, or with files that are no images.
    """
    number = NUMBERED.search(Path(spec).name)
    if number is None and not re.search(r"[*?\[]", spec):
        return []
    parent = Path(spec).expanduser().parent
    if number is not None:
        head, tail = Path(spec).name[: number.start()], Path(spec).name[number.end() :]
        digits = f"[0-9]{{{int(number[1])},}}" if number[1] else "[0-9]+"
        wanted = re.compile(re.escape(head) + digits + re.escape(tail))
        found = [p for p in parent.iterdir() if wanted.fullmatch(p.name)] if parent.is_dir() else []
    else:
        found = [Path(name) for name in glob.glob(str(Path(spec).expanduser()))]  # noqa: PTH207
    files = sorted((path for path in found if path.is_file()), key=lambda path: natural_key(path.name))
    if not files:
        raise InputError(f"no file has a name like {spec}")
    known = IMAGE_SUFFIXES | readable_suffixes()
    others = [path.name for path in files if path.suffix.lower() not in known]
    if others:
        raise InputError(f"{spec} names files that are no images, such as {others[0]}: give one video at a time")
    return files


def hint_for_missing(spec: str) -> str:
    """What a user may have meant by a source that does not exist; empty where nothing is obvious."""
    if re.match(r"^[A-Za-z]:\\", spec):
        return ": this is a path of Windows; in WSL, C:\\ is /mnt/c/"
    if re.match(r"^[a-z][a-z0-9+.-]*://", spec, re.IGNORECASE):
        return ": addresses begin with rtsp, http, https, rtmp, srt, udp or tcp"
    return ""


@dataclass(frozen=True)
class Turns:
    """How photographs of a camera that was held both ways come to one size."""

    as_stored: bool = False
    """All are used without their EXIF orientation."""
    by_90: frozenset[Path] = frozenset()
    """Photographs that are turned by 90 degrees, since nothing tells how they were turned."""


def turns_to_one_size(images: Sequence[Path]) -> Turns:
    """Turns by which photographs have one size.

    Raises InputError where there are none, with the largest group of one size.
    """
    if not 1 < len(images) <= MAX_HEADS:
        return Turns()
    heads = [(path, head) for path in images if (head := _head(path)) is not None]
    stored = Counter(size for _, (size, _) in heads)
    shown = Counter(_shown(size, turn) for _, (size, turn) in heads)
    if len(shown) < 2:
        return Turns()
    if len(stored) == 1:
        return Turns(as_stored=True)
    (most, count), *_ = shown.most_common()
    others = [(path, _shown(*head)) for path, head in heads if _shown(*head) != most]
    if all(size == most[::-1] for _, size in others):
        return Turns(by_90=frozenset(path for path, _ in others))
    path, size = others[0]
    raise InputError(
        f"frames of different sizes: {count} images are {most[0]}x{most[1]}, the largest group, and "
        f"{len(others)} are not, such as {path.name} ({size[0]}x{size[1]}); all frames of a source must have one "
        "size: move the others to another folder"
    )


def _shown(size: Size, turn: int) -> Size:
    return size[::-1] if turn in TURNED_BY_90 else size


def _head(path: Path) -> tuple[Size, int] | None:
    """Size as stored and EXIF orientation of a photograph; None where its head is not readable."""
    from PIL import Image

    try:
        with open_regular(path) as file, Image.open(file) as image:
            return image.size, int(image.getexif().get(0x0112, 1)) if image.format in ("JPEG", "MPO") else 1
    except Exception:  # noqa: BLE001 - the library has no common error, and such a file is told when its turn comes
        return None
