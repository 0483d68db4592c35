"""Cameras of transforms.json, as nerfstudio and instant-ngp write it."""

import math
from collections.abc import Mapping
from typing import Any

from stream_recon.app.sources.calibration import Calibration, Distortion
from stream_recon.app.sources.camera_models import UnsupportedError, absent_notes, rolling_shutter
from stream_recon.app.sources.named_values import Names
from stream_recon.configs.errors import InputError

SAME_FOCAL = 0.01
"""Relative difference up to which a focal length and an angle of view of one file say the same."""


HARMLESS = (
    r"frames|file_path|transform_matrix|sharpness|aabb(_scale)?|scale|offset|up|colmap_im_id|camera_id|time(stamp)?|name|"
    r"(depth|mask|normal|semantics?|confidence)(_file)?_path|ply_file_path|applied_(transform|scale)|exposure|"
    r"orientation_override|auto_scale_poses_override|(train|val|test)_filenames|depth_unit_scale_factor|"
    r"integer_depth_scale|enable_depth_loading|n_extra_learnable_dims|(white|black)_transparent|from_na|fix_premult|"
    r"sharpen|render_aabb|rotation|scene"
)
"""Pattern of names that say nothing of how a ray meets the image."""
FOCAL_KEYS = {"fl_x", "camera_angle_x"}
"""Keys of a transforms.json that state a focal length."""
_BROWN = ("k1", "k2", "p1", "p2")
_TRANSFORMS: dict[str, tuple[str, ...]] = {
    "OPENCV": _BROWN,
    "PERSPECTIVE": _BROWN,
    "PINHOLE": (),
    "SIMPLE_PINHOLE": (),
    "SIMPLE_RADIAL": ("k1",),
    "RADIAL": ("k1", "k2"),
    "OPENCV_FISHEYE": ("k1", "k2", "k3", "k4"),
}
"""Coefficients that a transforms.json states, by its camera model; OPENCV may have k3."""


def nerfstudio_camera(content: Mapping[str, Any], image_size: tuple[int, int] | None = None) -> Calibration:
    """Camera of a transforms.json, or of one of its frames, of nerfstudio or instant-ngp.

    Args:
        image_size: width and height of the images, where the file does not state them.

    Raises UnsupportedError, InputError: what cannot be applied or is not understood; ValueError, ConfigError: damage.
    """
    names = Names(content, "transforms.json")
    model = _model(names)
    value = {name: names.usual(name) for name in _TRANSFORMS[model]}
    if model in ("OPENCV", "PERSPECTIVE"):
        value["k3"] = names.number("k3") or 0.0
    for name in ("k1", "k2", "k3", "k4", "k5", "k6", "p1", "p2"):
        if any(names.numbers(name) or ()):
            said = ", and no camera_model is stated" if "camera_model" in names.absent else ""
            raise UnsupportedError(f"distortion {name} of {model}{said}")
    fisheye = model == "OPENCV_FISHEYE"
    coefficients = tuple(value.get(name, 0.0) for name in (_TRANSFORMS[model] if fisheye else (*_BROWN, "k3")))
    if image_size is None or "w" in names or "h" in names:
        image_size = int(names.needed("w")), int(names.needed("h"))
    focals = _focals(names, image_size)
    centre = names.usual("cx", image_size[0] / 2), names.usual("cy", image_size[1] / 2)
    notes = rolling_shutter(names, "rolling_shutter")
    names.end(HARMLESS)
    kind: Distortion = "fisheye" if fisheye else "perspective"
    return Calibration(*focals, *centre, kind, coefficients, image_size, notes=(*notes, *absent_notes(names)))


def _model(names: Names) -> str:
    fisheye, word = names.flag("is_fisheye"), names.word("camera_model")
    if word is None and fisheye is None:
        names.absent.append("camera_model")
    model = (word or ("opencv_fisheye" if fisheye else "opencv")).upper()
    if model not in _TRANSFORMS:
        raise UnsupportedError(f"camera_model {model}")
    if fisheye is not None and fisheye != (model == "OPENCV_FISHEYE"):
        raise InputError(f"is_fisheye and camera_model {model} contradict each other")
    return model


def _focals(names: Names, size: tuple[int, int]) -> tuple[float, float]:
    """Focal lengths in pixels, from themselves or from the angles of view, which must agree."""
    found: list[float] = []
    for axis, side in zip("xy", size, strict=True):
        focal, angle = names.number(f"fl_{axis}"), names.number(f"camera_angle_{axis}")
        if angle is not None:
            if not 0 < angle < math.pi:
                raise ValueError(f"camera_angle_{axis} is {angle:g}")
            by_angle = side / 2 / math.tan(angle / 2)
            focal = by_angle if focal is None else focal
            if abs(focal / by_angle - 1) > SAME_FOCAL:
                raise InputError(f"fl_{axis} and camera_angle_{axis} contradict each other")
        if focal is None:
            names.absent.append(f"fl_{axis}")
        found += [value for value in (focal, *found) if value is not None][:1]
    if "fl_x" in names.absent:
        raise InputError("transforms.json has no fl_x")
    return found[0], found[1]
