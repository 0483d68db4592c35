"""Reader of transforms.json of nerfstudio and instant-ngp: camera-to-world matrices with OpenGL's camera axes."""

import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from stream_recon.app.core.transforms import FloatArray
from stream_recon.app.datasets.recording import (
    DepthImages,
    PinholeCamera,
    Recording,
    common_calibration,
    common_camera,
    image_size,
)
from stream_recon.app.datasets.text import OPENCV_FROM_OPENGL, errors_in, listed_file, read_json, rigid
from stream_recon.app.sources.calibration import Calibration
from stream_recon.app.sources.image_files import natural_key
from stream_recon.app.sources.named_values import Names
from stream_recon.app.sources.transforms_json import FOCAL_KEYS, HARMLESS, nerfstudio_camera
from stream_recon.configs.errors import ConfigError, InputError

NOT_APPLIED = {"mask_path": "is not applied: --masks takes a folder", "depth_path": "is not read: depth_file_path is"}
"""Keys of frames without effect, and what to do."""
DEPTH_UNIT = 1e-3
"""Step of depth images in units of the poses, nerfstudio's default."""


def is_nerfstudio(path: Path) -> bool:
    return (path / "transforms.json").is_file()


def count_nerfstudio(path: Path) -> int:
    return len(_frames(path / "transforms.json")[1])


def named_poses(file: Path) -> tuple[dict[str, FloatArray], bool]:
    """Poses of a transforms.json by the names of its images, which need not be there, and whether they are in metres.

    Raises InputError.
    """
    frames = _frames(file)[1]
    # As of `load_nerfstudio`: measured depth comes from a metric sensor.
    metric = any(isinstance(frame.get("depth_file_path"), str) for frame in frames)
    return {str(frame["file_path"]): _pose(frame, file) for frame in frames}, metric


def load_nerfstudio(path: Path) -> Recording:
    """The images that transforms.json lists, in natural order of their names; without timestamps."""
    file = path / "transforms.json"
    table, frames = _frames(file)
    images = tuple(_image(path, frame) for frame in frames)
    tables = [table | frame for frame in frames]
    lacks_size = any(FOCAL_KEYS & t.keys() and not {"w", "h"} <= t.keys() for t in tables)
    # As stored: the programs that write this file ignore the EXIF orientation.
    size = image_size(images, as_stored=True) if lacks_size else None
    cameras = [_camera(each, size) for each in tables]
    calibration, unusable = common_calibration(list(dict.fromkeys(cameras)))
    depth = _depth(path, table, frames)
    return Recording(
        images=images,
        poses={i: _pose(frame, file) for i, frame in enumerate(frames)},
        camera=common_camera([PinholeCamera.of(camera) for camera in cameras]),
        calibration=calibration,
        unusable=unusable,
        read_depth=depth,
        # Poses from structure from motion have arbitrary scale; measured depth comes from a metric sensor.
        metric=depth is not None,
        warnings=tuple(
            f"{key} of its frames {said}" for key, said in NOT_APPLIED.items() if any(key in t for t in tables)
        ),
    )


def _depth(path: Path, table: dict[str, Any], frames: list[dict[str, Any]]) -> DepthImages | None:
    named = ((i, frame.get("depth_file_path")) for i, frame in enumerate(frames))
    depth = {i: listed_file(path, name) for i, name in named if isinstance(name, str)}
    with errors_in(path / "transforms.json"):
        factor = Names(table).number("depth_unit_scale_factor")
        if factor is not None and factor <= 0:
            raise InputError("depth_unit_scale_factor must be above 0")
    return DepthImages(depth, 1 / (factor or DEPTH_UNIT)) if depth else None


def _camera(table: dict[str, Any], size: tuple[int, int] | None) -> Calibration | str | None:
    """Camera of a frame, or why it cannot be used; None where the file says nothing of it."""
    if all(re.fullmatch(HARMLESS, name) for name in table):
        return None
    try:
        return nerfstudio_camera(table, size)
    except (InputError, ConfigError, ValueError) as error:  # what is not supported is a ValueError, too
        return f"the camera in transforms.json: {error}"


def _frames(file: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    table = read_json(file)
    frames = table.get("frames") if isinstance(table, dict) else None
    if not isinstance(frames, list) or not frames:
        raise InputError(f"{file} has no list of 'frames'")
    for frame in frames:
        if not isinstance(frame, dict) or not isinstance(frame.get("file_path"), str):
            raise InputError(f"{file}: a frame has no 'file_path'")
    names = [PurePosixPath(frame["file_path"].replace("\\", "/")).as_posix() for frame in frames]
    if len(set(names)) < len(names):
        raise InputError(f"{file}: {max(names, key=names.count)} is in 'frames' more than once")
    return table, sorted(frames, key=lambda frame: natural_key(frame["file_path"]))


def _image(path: Path, frame: Mapping[str, Any]) -> Path:
    name = str(frame["file_path"])
    # Synthetic scenes omit the suffix.
    return listed_file(path, name if Path(name).suffix else f"{name}.png")


def _pose(frame: Mapping[str, Any], file: Path) -> FloatArray:
    where = f"{file}, transform_matrix of {frame['file_path']}"
    try:
        matrix = np.array(frame.get("transform_matrix"), dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{where} must have numbers") from error
    if matrix.shape not in ((3, 4), (4, 4)) or not np.isfinite(matrix).all():
        raise InputError(f"{where} must be a 4x4 matrix")
    return rigid(matrix, where) @ OPENCV_FROM_OPENGL
