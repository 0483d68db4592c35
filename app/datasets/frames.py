"""Image lists in time order, and depth images of data sets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.ground_truth import DepthMap
from stream_recon.app.sources.readers import list_images, read_depth_image
from stream_recon.configs.errors import InputError


@dataclass(frozen=True)
class TimedImages:
    """Images in the order of their timestamps."""

    images: tuple[Path, ...]
    times: NDArray[np.float64]  # [N] seconds, ascending
    kept: NDArray[np.intp]  # [N] positions in the original list
    warnings: tuple[str, ...]


def in_time_order(images: Sequence[Path], times: NDArray[np.float64], where: Path) -> TimedImages:
    """Images sorted by timestamp, with warnings; of several with one timestamp the first is kept.

    Raises InputError: no images, or a timestamp that is negative or not finite.
    """
    if not len(images):
        raise InputError(f"{where} lists no images")
    if not np.isfinite(times).all() or times.min() < 0:
        raise InputError(f"{where}: a timestamp is negative or not a number")
    order = np.argsort(times, kind="stable")
    unique = np.concatenate([[True], np.diff(times[order]) > 0])
    kept = order[unique]
    warnings = []
    if (np.diff(times) < 0).any():
        warnings.append(f"timestamps in {where.name} are out of order: the frames were sorted by them")
    if not unique.all():
        count = int((~unique).sum())
        warnings.append(f"{count} images in {where.name} repeat another's timestamp and were left out")
    return TimedImages(tuple(images[i] for i in kept), times[kept], kept, tuple(warnings))


def images_in(folder: Path) -> tuple[Path, ...]:
    """Images directly in a folder, in natural order. Raises InputError: none, or the folder cannot be read."""
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
    """Numbers in the images' names after a prefix; their positions where not all names are numbers."""
    stems = [path.stem.removeprefix(prefix) for path in images]
    return [int(stem) for stem in stems] if all(s.isdecimal() for s in stems) else list(range(len(images)))


@dataclass(frozen=True)
class DepthImages:
    """Reader of depth along the optical axis from 16-bit images of one channel; 0 is unknown."""

    files: Mapping[int, Path]
    """Files by frame index."""
    units_per_metre: float
    invalid: int = 0
    """Another value that means unknown."""

    def __call__(self, index: int) -> DepthMap | None:
        """Depth in metres of one frame; None where there is no file.

        Raises InputError: not a 16-bit image of one channel.
        """
        path = self.files.get(index)
        if path is None or not path.is_file():
            return None
        units = read_depth_image(path)
        if units is None:
            raise InputError(f"{path} is not a 16-bit image of one channel (depth)")
        metres = units.astype(np.float32) / np.float32(self.units_per_metre)
        return DepthMap(np.where(units == self.invalid, np.float32(0), metres))
