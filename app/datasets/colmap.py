"""Reader of COLMAP folders: images/ and a sparse model in sparse/0 or sparse."""

from functools import cached_property
from pathlib import Path

import numpy as np

from stream_recon.app.core.ground_truth import DepthPoints
from stream_recon.app.core.transforms import invert_pose
from stream_recon.app.datasets.colmap_model import (
    PosedImage,
    SparsePoints,
    has_points,
    read_calibration,
    read_cameras,
    read_images,
    read_points,
)
from stream_recon.app.datasets.recording import PinholeCamera, Recording, common_camera, image_size
from stream_recon.app.sources.readers import IMAGE_SUFFIXES, natural_key
from stream_recon.configs.errors import InputError

MODEL_FOLDERS = ("sparse/0", "sparse", "colmap/sparse/0")


def is_colmap(path: Path) -> bool:
    return (path / "images").is_dir() and _model(path) is not None


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
    images, model = colmap_images(path), _model(path)
    assert model is not None, "the folder was recognised by it"
    posed, cameras = {image.name: image for image in read_images(model)}, read_cameras(model)
    folder = path / "images"
    found = {
        i: posed[name] for i, image in enumerate(images) if (name := image.relative_to(folder).as_posix()) in posed
    }
    if posed and not found:
        raise InputError(f"none of the {len(posed)} images of {model} is in {folder}")
    for image in found.values():
        if image.camera not in cameras:
            raise InputError(f"{model} has no camera {image.camera}, which {image.name} refers to")
    lost = len(posed) - len(found)
    return Recording(
        images=images,
        poses={i: invert_pose(image.T_camera_world) for i, image in found.items()},
        camera=common_camera([cameras[image.camera] for image in found.values()]),
        calibration=read_calibration(model),
        read_depth=_SparseDepth(model, images, found, cameras) if has_points(model) else None,
        metric=False,
        warnings=(f"{lost} images of the COLMAP model are not in images/",) if lost else (),
    )


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
        known = rows >= 0
        if not known.any():
            return None
        z = self._points.xyz[rows[known]] @ image.T_camera_world[2, :3] + image.T_camera_world[2, 3]
        camera = self._cameras[image.camera]
        # The model may be of the same images at another size.
        scale = np.ones(2) if camera is None or camera.size is None else np.divide(self._size, camera.size)
        return DepthPoints(np.column_stack([image.uv[known] * scale, z]))

    @cached_property
    def _points(self) -> SparsePoints:
        return read_points(self._model)

    @cached_property
    def _size(self) -> tuple[int, int]:
        return image_size(self._images)


def _model(path: Path) -> Path | None:
    for name in MODEL_FOLDERS:
        for suffix in (".bin", ".txt"):
            if all((path / name / f"{part}{suffix}").is_file() for part in ("cameras", "images")):
                return path / name
    return None
