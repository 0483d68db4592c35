"""Which image files a user means: those of a folder or a pattern, their order, and how they come to one size."""

import glob
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import numpy as np

from stream_recon.app.core.input_file import open_regular
from stream_recon.app.sources.calibration import TURNED_BY_90
from stream_recon.app.sources.image_decoding import HEIF_SUFFIXES, IMAGE_SUFFIXES, read_unconverted, readable_suffixes
from stream_recon.configs.errors import InputError, pip_install

NUMBERED = re.compile(r"%0?(\d*)d")
"""A number in a pattern of names, as ffmpeg writes it."""
OTHER_SUFFIXES = frozenset({".dng", ".cr2", ".cr3", ".nef", ".arw", ".raf", ".jxl", ".exr", ".gif", ".psd"})
"""Image formats that are not read: their files are counted and told."""
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
        pattern = re.compile(re.escape(head) + digits + re.escape(tail))
        matches = [p for p in parent.iterdir() if pattern.fullmatch(p.name)] if parent.is_dir() else []
    else:
        matches = [Path(name) for name in glob.glob(str(Path(spec).expanduser()))]  # noqa: PTH207
    files = sorted((path for path in matches if path.is_file()), key=lambda path: natural_key(path.name))
    if not files:
        raise InputError(f"no file has a name like {spec}")
    readable = IMAGE_SUFFIXES | readable_suffixes()
    others = [path.name for path in files if path.suffix.lower() not in readable]
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


def list_images(folder: Path) -> list[Path]:
    """Image files directly in ``folder``, in natural order, without hidden ones. Names that are times are in order."""
    readable = IMAGE_SUFFIXES | readable_suffixes()
    paths = [p for p in folder.iterdir() if p.suffix.lower() in readable and not p.name.startswith(".")]
    files = [p for p in paths if p.is_file()]
    values = _values([p.stem for p in files])
    if values is not None:
        return [p for _, _, p in sorted(zip(values, (p.name for p in files), files, strict=True))]
    return sorted(files, key=lambda p: natural_key(p.name))


def _values(stems: list[str]) -> list[Decimal] | None:
    """Numbers at the ends of names that are equal before; None where they are not, or none has a decimal point."""
    endings = [re.fullmatch(r"(.*?)([0-9]+(?:\.[0-9]+)?)", stem) for stem in stems]
    parts = [match.groups() for match in endings if match is not None]
    if len(parts) < len(stems) or len({prefix for prefix, _ in parts}) != 1 or not any("." in n for _, n in parts):
        return None
    return [Decimal(number) for _, number in parts]


def only_photographs(images: list[Path]) -> tuple[list[Path], list[str]]:
    """Images without maps of depth, confidence and the like that stand in the same folder, and warnings on them.

    Images whose names differ by more than numbers are of different kinds. Maps are known by a word in their name, or by
    their content: 16 bits in one channel beside colour.
    """
    kinds: dict[str, list[Path]] = {}
    for path in images:
        kinds.setdefault(re.sub(r"[0-9]+", "0", path.name.casefold()), []).append(path)
    if not 1 < len(kinds) <= MAX_KINDS:
        return images, []
    maps = {kind for kind in kinds if OTHER_WORDS.search(kind)}
    if not maps:
        maps = {kind for kind, paths in kinds.items() if len(paths) > 1 and is_map(paths[0])}
    if not maps or len(maps) == len(kinds):
        return images, []
    photographs = [path for path in images if re.sub(r"[0-9]+", "0", path.name.casefold()) not in maps]
    example = kinds[min(maps)][0].name
    count = len(images) - len(photographs)
    return photographs, [f"{count} images were left out as maps of depth or labels, such as {example}"]


OTHER_WORDS = re.compile(
    r"(^|[^a-z])(depths?|disp[0-9]*|disparity|confidences?|conf|masks?|normals?|semantics?|instances?|labels?|segmentations?|seg"
    r"|thumb(nail)?s?|previews?)([^a-z]|$)"
)
"""Words in names of images or folders that are not photographs."""
MAX_KINDS = 6
"""Kinds of names in a folder of a capture; more are photographs of any names."""
FEW_LEVELS = 8
"""Grey levels of a map of confidence or labels of small scenes."""


def is_map(path: Path) -> bool:
    """Whether an image is a map: 16 bits in one channel, or one channel of few levels."""
    image = read_unconverted(path)
    if image is None or image.ndim != 2:
        return False
    few = image.size > 1000 and image.max() < 32 and len(np.unique(image)) <= FEW_LEVELS
    return bool(image.dtype == np.uint16 or few)


def unreadable_images(folder: Path) -> str | None:
    """Warning on images in formats that cannot be read here; None without any."""
    try:
        unread = (HEIF_SUFFIXES | OTHER_SUFFIXES) - readable_suffixes()
        names = [p.name for p in folder.iterdir() if p.suffix.lower() in unread]
    except OSError:
        return None
    if not names:
        return None
    suffixes = sorted({Path(name).suffix.lower() for name in names})
    way = f"{pip_install('pillow-heif')}, or convert them" if set(suffixes) <= HEIF_SUFFIXES else "convert them"
    return f"{len(names)} images ({', '.join(suffixes)}) cannot be read and were left out: {way}"


def natural_key(name: str) -> tuple[list[str | tuple[int, str]], str]:
    """Sort key by which 2 comes before 10: digits in a row compare as a number of any length."""
    parts: list[str | tuple[int, str]] = []
    for number, part in enumerate(re.split(r"([0-9]+)", name.casefold())):
        digits = part.lstrip("0")
        parts.append((len(digits), digits) if number % 2 else part)
    return parts, name
