"""Which image files a user means: those of a folder or a pattern, their order, and how they come to one size."""

import glob
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any

import cv2
import numpy as np

from stream_recon.app.sources.calibration import TURNED_BY_90
from stream_recon.app.sources.exif import read_exif, times_taken
from stream_recon.app.sources.image_decoding import (
    HEIF_SUFFIXES,
    IMAGE_SUFFIXES,
    read_image,
    read_unconverted,
    readable_suffixes,
)
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
        matches = [p for p in parent.glob("*") if pattern.fullmatch(p.name)]
    else:
        matches = [Path(name) for name in glob.glob(str(Path(spec).expanduser()))]  # noqa: PTH207
    files = [Path(name) for name in in_order([str(path) for path in matches if path.is_file()])]
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
    found = [(path, read_exif(path)) for path in images]
    heads = [(path, (exif.size, exif.orientation)) for path, exif in found if exif.size is not None]
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


def list_images(folder: Path) -> list[Path]:
    """Image files directly in ``folder``, without hidden ones, in the order of `in_order`."""
    readable = IMAGE_SUFFIXES | readable_suffixes()
    paths = [p for p in folder.iterdir() if p.suffix.lower() in readable and not p.name.startswith(".")]
    files = {p.name: p for p in paths if p.is_file()}
    return [files[name] for name in in_order(list(files))]


def in_order(names: Sequence[str]) -> list[str]:
    """Names in natural order. Numbers with a decimal point are times where all names are equal but for numbers."""
    stems = [PurePosixPath(name).with_suffix("").as_posix() for name in names]
    decimals = [match[0].partition(".")[2] for stem in stems for match in re.finditer(DECIMAL, stem)]
    same_text = len({re.sub(rf"(?:{SIGN})?[0-9]+(\.[0-9]+)?", "0", stem) for stem in stems}) == 1
    # What counts up goes from .9 to .10; a time's last digit is 0 only where all have as many digits.
    are_times = len(set(map(len, decimals))) == 1 or not any(len(d) > 1 and d.endswith("0") for d in decimals)
    number = DECIMAL + "|[0-9]+" if same_text and are_times else "[0-9]+"
    return sorted(names, key=lambda name: natural_key(name, number))


DECIMAL = r"(?<![0-9.])[0-9]+\.[0-9]+(?!\.?[0-9])"
"""Pattern of a number with a decimal point that is no part of a version or an address."""
SIGN = "(?:^|(?<=[_= (]))-"
"""Pattern of a minus: at the beginning of a name, and after ``_``, ``=``, a space or a bracket; else it is a hyphen."""


def natural_key(name: str, number: str = r"[0-9]+") -> tuple[Any, ...]:
    """Sort key by which 2 comes before 10, a folder's names stand together, and the stem decides before the suffix."""
    *folders, last = name.casefold().split("/")
    stem, dot, suffix = last.rpartition(".")
    pattern = rf"((?:{SIGN})?(?:{number}))"
    parts = [re.split(pattern, part) for part in (*folders, *((stem, suffix) if dot and stem else (last, "")))]
    return *([Decimal(p) if k % 2 else p for k, p in enumerate(part)] for part in parts), name


def only_photographs(images: list[Path]) -> tuple[list[Path], list[str]]:
    """Photographs among images: without twins and maps, in the order in which they were taken; and warnings on both.

    Raises InputError: different pictures of one name.
    """
    photographs, warnings = _without_maps(images)
    photographs, twins = _without_twins(photographs)
    photographs, order = _as_taken(photographs)
    return photographs, [*warnings, *twins, *order, *_several_series(photographs)]


def _without_maps(images: list[Path]) -> tuple[list[Path], list[str]]:
    """Images without maps of depth, confidence and the like that stand in the same folder.

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
    left_out = {path for kind in maps for path in kinds[kind]}
    example = kinds[min(maps)][0].name
    warning = f"{len(left_out)} images were left out as maps of depth or labels, such as {example}"
    return [path for path in images if path not in left_out], [warning]


def _several_series(images: list[Path]) -> list[str]:
    """Warning on names that have the same numbers and other words, as those of two cameras or of edited copies."""
    named: dict[tuple[Path, str], list[Path]] = {}
    for path in images:
        named.setdefault((path.parent, " ".join(re.findall("[0-9]+", path.stem))), []).append(path)
    alike = [paths for (_, numbers), paths in named.items() if numbers and len(paths) > 1]
    rows = [numbers.split() for _, numbers in named]
    counts = sorted(filter(lambda n: n > 1, map(len, map(set, zip(*rows, strict=False)))))
    if len(counts) == 2 and math.prod(counts) == len(images) and len(set(map(len, rows))) == 1:
        said = f"names have all pairs of {counts[0]} and {counts[1]} numbers"
        return [f"{said}: if of several cameras, give those of one"]
    if len(alike) < 2:
        return []
    listed = ", ".join(path.name for path in alike[0][:3])
    return [f"{listed} differ by words alone: if they are of several cameras or copies, give a pattern of one of them"]


def _without_twins(images: list[Path]) -> tuple[list[Path], list[str]]:
    """Images of which several have one name without its suffix, once each: in the format that most have, else JPEG.

    Of a portrait that a phone has blurred it is the original.
    """
    named: dict[tuple[Path, str], list[Path]] = {}
    for path in images:
        named.setdefault((path.parent, PORTRAIT.sub("", path.stem.casefold())), []).append(path)
    twins = [paths for paths in named.values() if len(paths) > 1]
    if not twins:
        return images, []
    for paths in twins[:: -(-len(twins) // TWINS_COMPARED)]:
        _check_same_picture(paths)
    counts = Counter(path.suffix.lower() for path in images)
    kept = [
        max(each, key=lambda p: ("original" in p.stem.lower(), counts[p.suffix.lower()], p.suffix.lower() in JPEG))
        for each in twins
    ]
    left_out = {path for paths in twins for path in paths} - set(kept)
    example = min(path.name for path in left_out)
    warning = f"{len(left_out)} images were left out as twins of others of the same name, such as {example}"
    return [path for path in images if path not in left_out], [warning]


JPEG = (".jpg", ".jpeg")
PORTRAIT = re.compile(r"(?<=portrait)-\d+\.(cover|original)$")
"""What differs in the names of the two pictures of a portrait (Pixel)."""
TWINS_COMPARED, SAME_PICTURE = 3, 24.0
"""Pairs of twins whose pictures are compared, and the mean difference of grey levels up to which they are the same."""


def _check_same_picture(paths: Sequence[Path]) -> None:
    """Raises InputError: readable images that show different pictures."""
    read = [rgb for path in paths if (rgb := read_image(path)) is not None]
    small = [cv2.resize(rgb, (16, 16), interpolation=cv2.INTER_AREA).astype(np.float32) for rgb in read]
    if any(np.abs(image - small[0]).mean() > SAME_PICTURE for image in small[1:]):
        listed = " and ".join(path.name for path in paths)
        raise InputError(f"{listed} have one name and show different pictures: move one kind to another folder")


def _as_taken(images: list[Path]) -> tuple[list[Path], list[str]]:
    """Images by the times at which they were taken, where all state one and their names are in another order."""
    found = times_taken(images) if 1 < len(images) <= MAX_HEADS else None
    if found is None:
        stated = sum(read_exif(path).taken is not None for path in images) if len(images) <= MAX_HEADS else 0
        if 0 < stated < len(images):
            return images, [f"{stated} of {len(images)} images state when they were taken: the order is that of names"]
        return images, _doubts_of_names(images)
    times = dict(zip(images, found, strict=True))
    ordered = sorted(images, key=times.__getitem__)
    if ordered == images:
        return images, []
    after, before = next(pair for pair in pairwise(images) if times[pair[0]] > times[pair[1]])
    said = "images are in the order of their EXIF times, not of their names"
    return ordered, [f"{said}: {before.name} is before {after.name}"]


def _doubts_of_names(images: list[Path]) -> list[str]:
    """Warning on names that do not tell an order: of several forms, or of a camera that counts anew after 9999."""
    forms = {re.sub("-?[0-9]+", "0", path.stem.casefold()): path.name for path in images}
    if 1 < len(forms) < min(MAX_KINDS, len(images)) and all("0" in form for form in forms):
        one, other, *_ = forms.values()
        return [f"names have {len(forms)} forms, such as {one} and {other}: their order is a guess"]
    stems = {path.stem for path in images}
    plain = Counter(re.sub(r"(?<![0-9.])0+(?=[0-9])", "", stem) for stem in stems)
    if max(plain.values(), default=0) > 1:
        return [f"names differ by zeros alone, as those of {max(plain, key=plain.__getitem__)}: their order is a guess"]
    numbers = sorted({int(found[-1]) for path in images if (found := re.findall("[0-9]{4}", path.stem))})
    is_anew = 9999 in numbers and max(np.diff(numbers), default=0) > 5000
    return ["names have numbers up to 9999 and from 1 on: is their order that of the camera?"] if is_anew else []


OTHER_WORDS = re.compile(
    r"(^|[^a-z])(depths?|disp[0-9]*|disparity|confidences?|conf|masks?|normals?|semantics?|instances?|labels?|segmentations?|seg"
    r"|thumb(nail)?s?|previews?)([^a-z]|$)"
)
"""Words in names of images or folders that are not photographs."""
CAPTURES = ("keyframes/corrected_images", "keyframes/images", "lowres_wide")
"""Folders of photographs of Polycam, undistorted ones first, and ARKitScenes: pictures beside them are other ones."""
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


def folders_of_photographs(folder: Path) -> list[Path]:
    """Folders of photographs at most three levels below one, without those of maps by their names or content."""
    found, level = [], [folder]
    for _ in range(3):
        inner = [p for parent in level for p in sorted(parent.iterdir()) if p.is_dir() and not p.name.startswith(".")]
        level = [p for p in inner if not OTHER_WORDS.search(p.name.lower())]
        found += [p for p in level if (images := list_images(p)) and not is_map(images[0])]
    return found


def images_below(folder: Path) -> tuple[Path, list[Path], list[Path]]:
    """The folder itself or else the only one of photographs below it, its images, and all folders below that have any.

    The last are looked for only where the folder has no images itself. Of a phone's capture the photographs are taken.
    """
    for name in CAPTURES:
        if (folder / name).is_dir() and (images := list_images(folder / name)):
            return folder / name, images, [folder / name]
    images = list_images(folder)
    inner = [] if images else folders_of_photographs(folder)
    return (inner[0], list_images(inner[0]), inner) if len(inner) == 1 else (folder, images, inner)


def unreadable_images(folder: Path) -> str | None:
    """Warning on images in formats that cannot be read here, on raw files beside their photograph, and on links to
    nothing; None without."""
    try:
        files = [p for p in folder.iterdir() if not p.name.startswith(".")]
    except OSError:
        return None
    readable = readable_suffixes() | IMAGE_SUFFIXES
    nowhere = [p.name for p in files if p.suffix.lower() in readable and not p.exists()]
    links = f"{len(nowhere)} images are links to files that are not there, such as {min(nowhere)}" if nowhere else None
    return "; ".join(filter(None, (_of_other_formats(files, readable), links))) or None


def _of_other_formats(files: Sequence[Path], readable: frozenset[str]) -> str | None:
    unread = (HEIF_SUFFIXES | OTHER_SUFFIXES) - readable
    stems = {p.stem.casefold() for p in files if p.suffix.lower() in readable}
    images = [p for p in files if p.suffix.lower() in unread]
    alone = [p for p in images if p.stem.casefold() not in stems]
    if not images:
        return None
    suffixes = sorted({p.suffix.lower() for p in alone or images})
    if not alone:
        return f"{len(images)} files ({', '.join(suffixes)}) beside photographs of the same names were left out"
    way = f"{pip_install('pillow-heif')}, or convert them" if set(suffixes) <= HEIF_SUFFIXES else "convert them"
    return f"{len(alone)} images ({', '.join(suffixes)}) cannot be read and were left out: {way}"
