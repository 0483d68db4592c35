"""Reader of COLMAP folders: images/, and a sparse model, text or binary, in sparse/0 or sparse.

Schönberger and Frahm, CVPR 2016; colmap.github.io/format.html. Poses there are world-to-camera; pixel (0, 0) covers
[0, 1) x [0, 1).
"""

import re
import struct
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.ground_truth import DepthPoints
from stream_recon.app.core.input_file import input_errors, read_file
from stream_recon.app.core.transforms import FloatArray, invert_pose
from stream_recon.app.datasets.recording import PinholeCamera, Recording, common_calibration, common_camera, image_size
from stream_recon.app.datasets.text import content_lines, errors_in, integer, numbers, pose_from_quaternion, read_text
from stream_recon.app.sources.calibration import Calibration
from stream_recon.app.sources.camera_models import UnsupportedError, colmap_camera, colmap_rows
from stream_recon.app.sources.image_decoding import IMAGE_SUFFIXES, fits_stored
from stream_recon.app.sources.image_files import natural_key
from stream_recon.configs.errors import InputError

MAX_MODEL_BYTES = 1 << 33
"""Bytes of a model's file that are read: points of a hundred thousand images."""


@dataclass(frozen=True)
class PosedImage:
    """A registered image with its observations of sparse points."""

    name: str
    camera: int
    T_camera_world: FloatArray  # [4, 4]
    uv: FloatArray  # [K, 2] pixels
    points: NDArray[np.int64]  # [K], -1 for a keypoint without a point


def read_calibrations(model: Path) -> dict[int, Calibration | str]:
    """Cameras by id, with their distortion; a text says why a camera cannot be used.

    Raises InputError: a malformed file.
    """
    cameras: dict[int, Calibration | str] = {}
    file = _file(model, "cameras")
    with errors_in(file), input_errors(file):
        for key, name, size, values in colmap_rows(read_file(file, MAX_MODEL_BYTES)):
            try:
                cameras[key] = colmap_camera(name, values, size)
            except UnsupportedError as error:
                cameras[key] = f"camera {key}: {error} cannot be used"
    return cameras


def read_images(model: Path) -> list[PosedImage]:
    """Registered images. Raises InputError for a malformed file."""
    file = _file(model, "images")
    images = _binary_images(_Bytes(file)) if file.suffix == ".bin" else list(_text_images(file))
    names = [image.name for image in images]
    if len(set(names)) < len(names):
        raise InputError(f"{model} has {max(names, key=names.count)} more than once")
    return images


@dataclass(frozen=True)
class SparsePoints:
    """Points of the model in the world, sorted by id."""

    keys: NDArray[np.int64]  # [N] ids
    xyz: FloatArray  # [N, 3]

    @classmethod
    def from_rows(cls, keys: Iterable[int], xyz: Iterable[Iterable[float]]) -> "SparsePoints":
        numbers = np.array(list(keys), dtype=np.int64)
        order = np.argsort(numbers)
        return cls(numbers[order], np.array(list(xyz), dtype=np.float64).reshape(-1, 3)[order])

    def rows(self, ids: NDArray[np.int64]) -> NDArray[np.intp]:
        """Rows [K] of ids [K], -1 for unknown ones."""
        if not len(self.keys):
            return np.full(len(ids), -1, dtype=np.intp)
        nearest = np.clip(np.searchsorted(self.keys, ids), 0, len(self.keys) - 1)
        return np.where(self.keys[nearest] == ids, nearest, -1).astype(np.intp)


def read_points(model: Path) -> SparsePoints:
    """Points of the model. Raises InputError for a malformed file."""
    file = _file(model, "points3D")
    if file.suffix == ".bin":
        return _binary_points(_Bytes(file))
    keys, rows = [], []
    for number, line in content_lines(file):
        where = f"{file} line {number}"
        key, *row = numbers(line, where, 8)
        if len(row) % 2 == 0:
            raise InputError(
                f"{where}: the line must be 'number x y z r g b error' and pairs of an image and a keypoint"
            )
        keys.append(integer(key, where))
        rows.append(row[:3])
    return SparsePoints.from_rows(keys, rows)


class _Bytes:
    """A little-endian binary file, read sequentially; raises InputError where it ends too early."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with input_errors(path):
            self._data = read_file(path, MAX_MODEL_BYTES)
        self._position = 0

    def unpack(self, layout: str) -> tuple[float, ...]:
        """The next values, in a layout of `struct`."""
        size = struct.calcsize("<" + layout)
        return struct.unpack("<" + layout, self.read(size))

    def records(self) -> Iterator[int]:
        """Numbers of the records, by the count before them. Raises InputError where the file goes on after them."""
        count = int(self.unpack("Q")[0])
        yield from range(count)
        if self._position < len(self._data):
            raise InputError(f"{self.path} goes on after the {count} that it says")

    def read(self, size: int) -> bytes:
        """The next ``size`` bytes."""
        begin, self._position = self._position, self._position + size
        if self._position > len(self._data):
            raise InputError(f"{self.path} is cut off")
        return self._data[begin : self._position]

    def read_string(self) -> str:
        """The next zero-terminated string."""
        end = self._data.find(b"\0", self._position)
        if end < 0:
            raise InputError(f"{self.path} is cut off")
        text = self.read(end - self._position)
        self.read(1)
        return text.decode("utf-8", errors="surrogateescape")


def _binary_images(file: _Bytes) -> list[PosedImage]:
    images = []
    for _ in file.records():
        _, *pose, camera = file.unpack("i7di")
        name = file.read_string()
        rows = np.frombuffer(
            file.read(24 * int(file.unpack("Q")[0])), dtype=np.dtype([("uv", "<f8", 2), ("point", "<i8")])
        )
        images.append(_posed(name, int(camera), pose, rows["uv"], rows["point"], str(file.path)))
    return images


def _text_images(path: Path) -> Iterator[PosedImage]:
    """Images of images.txt: two lines each, of which the second, with keypoints, may be blank."""
    text = read_text(path)
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    position = count = 0
    while position < len(lines):
        words = lines[position].split(maxsplit=9)
        if not words:
            position += 1
            continue
        where = f"{path}, image {words[0]}"
        if len(words) < 10:
            line = lines[position][:60]
            raise InputError(f"{where}: the line must be 'number qw qx qy qz tx ty tz camera name', not {line!r}")
        values = numbers(" ".join(words[:9]), where, 9)
        keypoints = numbers(lines[position + 1], where, 0) if position + 1 < len(lines) else []
        if len(keypoints) % 3:
            raise InputError(f"{where}: keypoints must be triples 'x y point'")
        rows = np.array(keypoints, dtype=np.float64).reshape(-1, 3)
        points = rows[:, 2].astype(np.int64)
        yield _posed(words[9].strip(), integer(values[8], where), values[1:8], rows[:, :2], points, where)
        position, count = position + 2, count + 1
    stated = re.search(r"^# *Number of images: *(\d+)", text, re.MULTILINE)
    if stated is not None and int(stated[1]) != count:
        raise InputError(f"{path} says that it has {stated[1]} images, and has {count}")


def _posed(
    name: str, camera: int, pose: list[float], uv: FloatArray, points: NDArray[np.int64], where: str
) -> PosedImage:
    qw, qx, qy, qz, *translation = pose
    T = pose_from_quaternion(np.array(translation), np.array([qx, qy, qz, qw]), f"{where}, {name}")
    return PosedImage(name, camera, T, uv, points)


def _binary_points(file: _Bytes) -> SparsePoints:
    keys, xyz = array("q"), array("d")
    for _ in file.records():
        key, x, y, z, *_, track_length = file.unpack("Q3d3BdQ")
        file.read(8 * int(track_length))
        keys.append(int(key))
        xyz.extend((x, y, z))
    return SparsePoints.from_rows(keys, np.array(xyz).reshape(-1, 3))


MODEL_FOLDERS = ("sparse/[0-9]*", "sparse", "colmap/sparse/[0-9]*", "colmap/sparse")
"""Where models are, the places that are looked at first in front."""


def is_colmap(path: Path) -> bool:
    return (path / "images").is_dir() and bool(find_models(path))


def colmap_images(path: Path) -> tuple[Path, ...]:
    """All images below images/ in natural order of their paths; each camera may have a subfolder."""
    folder = path / "images"
    files = [f for f in folder.rglob("*") if f.suffix.lower() in IMAGE_SUFFIXES and not f.name.startswith(".")]
    names = sorted((f.relative_to(folder).as_posix() for f in files if f.is_file()), key=natural_key)
    if not names:
        raise InputError(f"no images in {folder}")
    return tuple(folder / name for name in names)


def load_colmap(path: Path) -> Recording:
    """All images with the poses of registered ones, and the model's points as sparse depth."""
    images, models = colmap_images(path), find_models(path)
    sizes = {model: len(read_images(model)) for model in models} if models[1:] else {}
    model = max(models, key=sizes.__getitem__) if sizes else models[0]
    registered, missing = _registered(model, path / "images", images)
    calibrations = read_calibrations(model)
    cameras = {key: PinholeCamera.of(calibration) for key, calibration in calibrations.items()}
    for image in registered.values():
        if image.camera not in cameras:
            raise InputError(f"{model} has no camera {image.camera}, which {image.name} refers to")
    calibration, unusable = common_calibration([calibrations[image.camera] for image in registered.values()])
    return Recording(
        images=images,
        poses={i: invert_pose(image.T_camera_world) for i, image in registered.items()},
        camera=common_camera([cameras[image.camera] for image in registered.values()]),
        calibration=calibration,
        unusable=unusable,
        read_depth=_SparseDepth(model, images, registered, cameras) if _file(model, "points3D").is_file() else None,
        metric=False,
        warnings=(
            *([f"{len(missing)} images of the COLMAP model are not in images/: {missing[0]!r}"] if missing else []),
            *([_choice(sizes, model)] if sizes else []),
        ),
    )


def _registered(model: Path, folder: Path, images: Sequence[Path]) -> tuple[dict[int, PosedImage], list[str]]:
    """The model's images by their positions in ``images``, and the names of those that are not among these."""
    posed = {image.name: image for image in read_images(model)}
    names = [image.relative_to(folder).as_posix() for image in images]
    if not posed.keys() & set(names):
        # Written on Windows, where folders are separated by backslashes and case does not count.
        plain = {name.casefold(): name for name in names}
        posed = {plain.get(name.replace("\\", "/").casefold(), name): image for name, image in posed.items()}
    registered = {i: posed[name] for i, name in enumerate(names) if name in posed}
    if posed and not registered:
        raise InputError(f"none of the {len(posed)} images of {model} is in {folder}")
    return registered, [name for name in posed if name not in names]


class _SparseDepth:
    """Depth of the points observed in an image; the points are read at the first call."""

    def __init__(
        self,
        model: Path,
        images: tuple[Path, ...],
        posed: dict[int, PosedImage],
        cameras: dict[int, PinholeCamera | None],
    ) -> None:
        self._model, self._images, self._posed, self._cameras = model, images, posed, cameras

    def __call__(self, index: int) -> DepthPoints | None:
        image = self._posed.get(index)
        if image is None:
            return None
        rows = self._points.rows(image.points)
        has_point = rows >= 0
        if not has_point.any():
            return None
        z = self._points.xyz[rows[has_point]] @ image.T_camera_world[2, :3] + image.T_camera_world[2, 3]
        camera = self._cameras[image.camera]
        # The model may be of the same images at another size.
        known = None if camera is None else camera.size
        scale = np.ones(2) if known is None else np.divide(_image_size(self._images, known), known)
        return DepthPoints(np.column_stack([image.uv[has_point] * scale, z]))

    @cached_property
    def _points(self) -> SparsePoints:
        return read_points(self._model)


@lru_cache(16)
def _image_size(images: tuple[Path, ...], known: tuple[int, int]) -> tuple[int, int]:
    return image_size(images, as_stored=fits_stored(images, known))


def _choice(sizes: dict[Path, int], chosen: Path) -> str:
    """Warning on several models, of which each has its own world."""
    others = ", ".join(f"{model.name} ({count})" for model, count in sizes.items() if model != chosen)
    return f"of {len(sizes)} COLMAP models {chosen.name}, of {sizes[chosen]} images, is used, not {others}"


def find_models(path: Path) -> list[Path]:
    """Models of the first place that has any, by their numbers."""
    for pattern in MODEL_FOLDERS:
        folders = sorted(path.glob(pattern), key=lambda folder: natural_key(folder.name))
        if found := [folder for folder in folders if is_model(folder)]:
            return found
    return []


def is_model(folder: Path) -> bool:
    return all(_file(folder, part).is_file() for part in ("cameras", "images"))


def _file(model: Path, part: str) -> Path:
    """A file of a model: binary where both cameras and images are, as COLMAP reads it, else text; never of each."""
    is_binary = all((model / f"{name}.bin").is_file() for name in ("cameras", "images"))
    return model / f"{part}.{'bin' if is_binary else 'txt'}"
