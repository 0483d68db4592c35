"""Lists of images in the order in which a camera took them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.sources.readers import list_images
from stream_recon.configs.errors import InputError


@dataclass(frozen=True)
class TimedImages:
    """Images in the order of their timestamps."""

    images: tuple[Path, ...]
    times: NDArray[np.float64]  # [N] seconds, rising
    kept: NDArray[np.intp]  # [N] positions in the list as the files have it
    warnings: tuple[str, ...]


def in_time_order(images: Sequence[Path], times: NDArray[np.float64], where: Path) -> TimedImages:
    """Sort images by their timestamps; of several with one timestamp the first is kept. A warning says what changed.

    Raises:
        InputError: no images, or a timestamp that is negative or no number.
    """
    if not len(images):
        raise InputError(f"{where} lists no images")
    if not np.isfinite(times).all() or times.min() < 0:
        raise InputError(f"{where}: a timestamp is negative or not a number")
    order = np.argsort(times, kind="stable")
    fresh = np.concatenate([[True], np.diff(times[order]) > 0])
    kept = order[fresh]
    warnings = []
    if (np.diff(times) < 0).any():
        warnings.append(f"timestamps in {where.name} are out of order: the frames were sorted by them")
    if not fresh.all():
        count = int((~fresh).sum())
        warnings.append(f"{count} images in {where.name} repeat another's timestamp and were left out")
    return TimedImages(tuple(images[i] for i in kept), times[kept], kept, tuple(warnings))


def images_in(folder: Path) -> tuple[Path, ...]:
    """Images right in a folder, in natural order.

    Raises:
        InputError: none, or the folder cannot be read.
    """
    try:
        images = tuple(list_images(folder))
    except OSError as error:
        raise InputError(f"{folder} cannot be read: {error.strerror}") from error
    if not images:
        raise InputError(f"no images in {folder}")
    return images


def has_images(folder: Path) -> bool:
    return folder.is_dir() and bool(list_images(folder))


def frame_numbers(images: Sequence[Path], prefix: str = "") -> list[int]:
    """The number that each image's name is, after a prefix; their positions where not all names are numbers."""
    stems = [path.stem.removeprefix(prefix) for path in images]
    return [int(stem) for stem in stems] if all(s.isdecimal() for s in stems) else list(range(len(images)))
