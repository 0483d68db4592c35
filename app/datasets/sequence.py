"""Reader of sequences with ground truth for the command ``eval``.

A sequence is a folder::

    rgb/000000.jpg ..      images (jpg or png), in natural order of their names
    poses.txt              optional; lines of an image's number and a pose: 16 numbers, camera-to-world, row-major,
                           camera axes x right, y down, z forward
    intrinsics.txt         optional; fx fy cx cy width height
    depth/000000.png ..    optional; uint16 millimetres along the optical axis, 0 where unknown
    sparse/000000.txt ..   optional; lines "u v z": points in image pixels with depth in the unit of the poses
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.ground_truth import DepthMap, DepthPoints
from stream_recon.app.core.types import Intrinsics
from stream_recon.app.datasets.text import dataset_errors, number_row, number_rows, rigid
from stream_recon.app.sources.calibration import same_aspect
from stream_recon.app.sources.image_decoding import fits_stored, read_depth_image, read_image
from stream_recon.app.sources.image_files import list_images
from stream_recon.configs.errors import InputError

ROTATION_TOLERANCE = 0.01
"""Largest deviation of singular values of a rotation from 1: files round their numbers."""


@dataclass(frozen=True)
class TruthSequence:
    """Images with ground truth. ``poses`` maps an image's position (from 0) to its pose [4, 4]."""

    folder: Path
    images: tuple[Path, ...]
    source_size: tuple[int, int]
    """Width and height of every image."""
    poses: Mapping[int, NDArray[np.float64]]
    intrinsics: Intrinsics | None
    """In pixels of the images."""

    def depth(self, position: int) -> DepthMap | DepthPoints | None:
        """True depth of one image, dense where there is both; None where there is neither.

        Raises InputError: a malformed depth file.
        """
        stem = self.images[position].stem
        dense, sparse = self.folder / "depth" / f"{stem}.png", self.folder / "sparse" / f"{stem}.txt"
        with dataset_errors(self.folder):
            if dense.is_file():
                millimetres = read_depth_image(dense)
                if millimetres is None:
                    raise InputError(f"{dense} is not a 16-bit image of one channel (depth in millimetres)")
                return DepthMap(millimetres.astype(np.float32) / 1000)
            if sparse.is_file():
                points = number_rows(sparse, 3, exact=True)
                return DepthPoints(points[np.isfinite(points).all(axis=1)])
        return None


def read_sequence(folder: Path) -> TruthSequence:
    """Open a sequence folder; images and depth are read later, one at a time.

    Raises InputError: no such folder, no images in ``rgb``, or a malformed ground truth file.
    """
    rgb = folder / "rgb"
    images = tuple(list_images(rgb)) if rgb.is_dir() else ()
    if not images:
        raise InputError(f"{folder} is not an evaluation sequence: looked for {folder.name}/rgb/*.jpg or *.png")
    with dataset_errors(folder):
        intrinsics = folder / "intrinsics.txt"
        row = number_row(intrinsics, 6) if intrinsics.is_file() else None
        stated = None if row is None else (int(row[4]), int(row[5]))
        described = row is not None or (folder / "poses.txt").is_file()
        first = read_image(images[0], as_stored=described and fits_stored(images, stated))
        if first is None:
            raise InputError(f"{images[0]} cannot be read as an image")
        size = (first.shape[1], first.shape[0])
        return TruthSequence(
            folder=folder,
            images=images,
            source_size=size,
            poses=_read_poses(folder / "poses.txt", images),
            intrinsics=None if row is None else _read_intrinsics(intrinsics, row, size),
        )


def _read_poses(path: Path, images: tuple[Path, ...]) -> dict[int, NDArray[np.float64]]:
    """Poses by position. A line's number is that of the image's name where names are numbers, else its position.

    Lost frames, which some data sets write as inf or nan, are left out.
    """
    if not path.is_file():
        return {}
    poses = _read_numbered_poses(path)
    positions = range(len(images))
    by_name = [int(p.stem) if p.stem.isdecimal() else -1 for p in images]
    keys = by_name if sum(k in poses for k in by_name) >= sum(k in poses for k in positions) else positions
    if poses and not any(k in poses for k in keys):
        raise InputError(f"{path}: none of its {len(poses)} poses belongs to an image in {path.parent / 'rgb'}")
    known = {i: poses[k] for i, k in enumerate(keys) if k in poses and bool(np.isfinite(poses[k]).all())}
    # With the nearest rotation, rounding in the file does not show in small errors.
    where = f"{path}: the pose (camera-to-world, row-major) of"
    return {i: rigid(pose, f"{where} {images[i].name}", ROTATION_TOLERANCE) for i, pose in known.items()}


def _read_numbered_poses(path: Path) -> dict[int, NDArray[np.float64]]:
    """Poses [4, 4] by the number at the beginning of their line."""
    rows = number_rows(path, 17, exact=True)
    for row in rows:
        if not row[0].is_integer():
            raise InputError(f"{path}: a line must begin with the image's number, not {row[0]}")
    poses = {int(row[0]): row[1:].reshape(4, 4) for row in rows}
    if len(poses) != len(rows):
        raise InputError(f"{path}: {len(rows) - len(poses)} images have more than one pose")
    return poses


def _read_intrinsics(path: Path, row: NDArray[np.float64], size: tuple[int, int]) -> Intrinsics:
    fx, fy, cx, cy, width, height = map(float, row)
    if min(fx, fy, width, height) <= 0:
        raise InputError(f"{path} must have one line 'fx fy cx cy width height'")
    if not same_aspect(size, (width, height)):
        raise InputError(f"{path} is for {width:g}x{height:g} pixels; the images are {size[0]}x{size[1]}")
    sx, sy = size[0] / width, size[1] / height
    return Intrinsics(fx * sx, fy * sy, cx * sx, cy * sy)
