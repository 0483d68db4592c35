"""Reader of transforms.json of nerfstudio and instant-ngp: camera-to-world matrices with OpenGL's camera axes."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from stream_recon.app.core.transforms import FloatArray
from stream_recon.app.core.types import Intrinsics
from stream_recon.app.datasets.recording import DepthImages, PinholeCamera, Recording, common_camera, image_size
from stream_recon.app.datasets.text import OPENCV_FROM_OPENGL, listed_file, read_json, rigid
from stream_recon.app.sources.calibration import Calibration, one_camera
from stream_recon.app.sources.camera_files import FOCAL_KEYS, UnsupportedError, nerfstudio_camera
from stream_recon.app.sources.image_files import natural_key
from stream_recon.configs.errors import ConfigError, InputError

FISHEYE_MODELS = ("OPENCV_FISHEYE", "FISHEYE", "EQUIRECTANGULAR", "FISHEYE624")
DEPTH_UNITS = 1000.0
"""Steps of depth images in one unit of the poses, nerfstudio's default."""


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
    named = ((i, frame.get("depth_file_path")) for i, frame in enumerate(frames))
    depth = {i: listed_file(path, name) for i, name in named if isinstance(name, str)}
    tables = [table | frame for frame in frames]
    lacks_size = any(FOCAL_KEYS & t.keys() and not {"w", "h"} <= t.keys() for t in tables)
    # As stored: the programs that write this file ignore the EXIF orientation.
    size = image_size(images, as_stored=True) if lacks_size else None
    calibration, unusable = _calibrations(tables, size)
    units = 1 / _number(table, "depth_unit_scale_factor", 1 / DEPTH_UNITS, path)
    return Recording(
        images=images,
        poses={i: _pose(frame, file) for i, frame in enumerate(frames)},
        camera=common_camera([_camera(t, path, size) for t in tables]),
        calibration=calibration,
        unusable=unusable,
        read_depth=DepthImages(depth, units) if depth else None,
        # Poses from structure from motion have arbitrary scale; measured depth comes from a metric sensor.
        metric=bool(depth),
    )


def _calibrations(tables: list[dict[str, Any]], size: tuple[int, int] | None) -> tuple[Calibration | None, str | None]:
    """The common camera of all frames with its distortion, or why there is none."""
    if not all(FOCAL_KEYS & table.keys() for table in tables):
        return None, None
    try:
        return one_camera(list(dict.fromkeys(nerfstudio_camera(table, size) for table in tables))), None
    except UnsupportedError as error:
        return None, f"transforms.json has {error}, which is not supported"
    except (ValueError, KeyError, TypeError, ConfigError) as error:
        return None, f"the camera in transforms.json is damaged: {error}"
    except InputError as error:
        return None, str(error)


def _frames(file: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    table = read_json(file)
    frames = table.get("frames") if isinstance(table, dict) else None
    if not isinstance(frames, list) or not frames:
        raise InputError(f"{file} has no list of 'frames'")
    for frame in frames:
        if not isinstance(frame, dict) or not isinstance(frame.get("file_path"), str):
            raise InputError(f"{file}: a frame has no 'file_path'")
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


def _number(table: Mapping[str, Any], key: str, default: float, path: Path) -> float:
    value = table.get(key, default)
    if not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise InputError(f"{path / 'transforms.json'}: '{key}' must be a number above 0")
    return float(value)


def _camera(table: Mapping[str, Any], path: Path, size: tuple[int, int] | None) -> PinholeCamera | None:
    """Pinhole camera; None without intrinsics, or for fisheye models. ``size``: of the images, if known."""
    if str(table.get("camera_model", "")).upper() in FISHEYE_MODELS or table.get("is_fisheye"):
        return None
    if not FOCAL_KEYS & table.keys():
        return None
    if size is None:
        size = int(_number(table, "w", 1, path)), int(_number(table, "h", 1, path))
    angle = _number(table, "camera_angle_x", 1.0, path)
    fx = _number(table, "fl_x", size[0] / 2 / math.tan(angle / 2), path)
    fy = _number(table, "fl_y", fx, path)
    cx, cy = _number(table, "cx", size[0] / 2, path), _number(table, "cy", size[1] / 2, path)
    return PinholeCamera(Intrinsics(fx, fy, cx, cy), size)
