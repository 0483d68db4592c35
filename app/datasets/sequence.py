"""Reader of sequences with ground truth for the command ``eval``.

A sequence is a folder::

    rgb/000000.jpg ..      images (jpg or png), in natural order of their names
    poses.txt              optional; lines of an image's number and a pose: 16 numbers, camera-to-world, row-major,
                           camera axes x right, y down, z forward
    intrinsics.txt         optional; fx fy cx cy width height
    depth/000000.png ..    optional; uint16 millimetres along the optical axis, 0 where unknown
    sparse/000000.txt ..   optional; lines "u v z": points in image pixels with depth in the unit of the poses
"""

from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.ground_truth import DepthPoints, DepthTruth
from stream_recon.app.core.types import Intrinsics
from stream_recon.app.datasets.recording import DepthImages, PinholeCamera, Recording, has_images
from stream_recon.app.datasets.text import dataset_errors, errors_in, number_row, number_rows, rigid
from stream_recon.app.sources.image_decoding import fits_stored, read_image
from stream_recon.app.sources.image_files import list_images
from stream_recon.configs.errors import InputError


def is_sequence(path: Path) -> bool:
    truth = any((path / name).is_file() for name in ("poses.txt", "intrinsics.txt")) or (path / "sparse").is_dir()
    return truth and has_images(path / "rgb")


def read_sequence(folder: Path) -> Recording:
    """Open a sequence folder; images and depth are read later, one at a time.

    Raises InputError: no such folder, no images in ``rgb``, or a malformed ground truth file.
    """
    rgb, sparse = folder / "rgb", folder / "sparse"
    images = tuple(list_images(rgb)) if rgb.is_dir() else ()
    if not images:
        raise InputError(f"{folder} is not an evaluation sequence: looked for {folder.name}/rgb/*.jpg or *.png")
    with dataset_errors(folder):
        intrinsics = folder / "intrinsics.txt"
        row = [*map(float, number_row(intrinsics, 6))] if intrinsics.is_file() else []
        stated = (int(row[4]), int(row[5])) if row else None
        described = bool(row) or (folder / "poses.txt").is_file()
        first = read_image(images[0], as_stored=described and fits_stored(images, stated))
        if first is None:
            raise InputError(f"{images[0]} cannot be read as an image")
        with errors_in(intrinsics):
            camera = PinholeCamera(Intrinsics(*row[:4]), stated) if row else None
            if camera is not None:
                camera.for_size((first.shape[1], first.shape[0]))
        dense = DepthImages({i: folder / "depth" / f"{image.stem}.png" for i, image in enumerate(images)}, 1000)
        points = [sparse / f"{image.stem}.txt" for image in images]
        return Recording(
            images=images,
            poses=_read_poses(folder / "poses.txt", images),
            camera=camera,
            read_depth=partial(_depth, dense, points) if sparse.is_dir() or (folder / "depth").is_dir() else None,
            metric=not sparse.is_dir(),
        )


def _depth(dense: DepthImages, sparse: list[Path], position: int) -> DepthTruth | None:
    """True depth of one image, dense where there is both. Raises InputError: a malformed depth file."""
    depth = dense(position)
    if depth is not None or not sparse[position].is_file():
        return depth
    points = number_rows(sparse[position], 3, exact=True)
    return DepthPoints(points[np.isfinite(points).all(axis=1)])


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
    return {i: rigid(pose, f"{where} {images[i].name}", tolerance=0.01) for i, pose in known.items()}


def _read_numbered_poses(path: Path) -> dict[int, NDArray[np.float64]]:
    """Poses [4, 4] by the number at the beginning of their line."""
    rows = number_rows(path, 17, exact=True)
    if odd := [row[0] for row in rows if not row[0].is_integer()]:
        raise InputError(f"{path}: a line must begin with the image's number, not {odd[0]}")
    poses = {int(row[0]): row[1:].reshape(4, 4) for row in rows}
    if len(poses) != len(rows):
        raise InputError(f"{path}: {len(rows) - len(poses)} images have more than one pose")
    return poses
