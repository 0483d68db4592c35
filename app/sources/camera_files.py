"""Calibration files of other programs: COLMAP, nerfstudio and instant-ngp, OpenCV, ROS, Kalibr.

What a file states of its camera is applied, or the file is refused with what cannot be applied.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from stream_recon.app.core.input_file import parse_json, read_file
from stream_recon.app.sources.calibration import FORMS, NUMBER, Calibration, Distortion
from stream_recon.configs.errors import ConfigError, InputError

MAX_FILE_BYTES = 1 << 26
"""Bytes of a calibration file that are read: more than the largest transforms.json."""
SKEW = 1e-6
"""Skew of a camera matrix, as a share of its focal length, that is not rounding."""
FISHEYE_NAMES = ("equidistant", "fisheye", "kannala_brandt")
PERSPECTIVE_NAMES = ("radial-tangential", "plumb_bob", "radtan", "rational_polynomial", "none", "thin_prism", "brown")
"""Distortion models of ROS, Kalibr and OpenCV that are applied."""


def read_camera(path: Path) -> Calibration:
    """Camera from a calibration file, with all cameras of the file in ``others``.

    Raises InputError or ConfigError, as `parse_camera`.
    """
    try:
        text = read_file(path, MAX_FILE_BYTES).decode("utf-8-sig", errors="replace")
    except OSError as error:
        raise InputError(f"--intrinsics {path} cannot be read ({error.strerror}): use {FORMS}") from error
    except ValueError as error:  # a name with a zero byte
        raise InputError(f"--intrinsics: no such file; use {FORMS}") from error
    try:
        cameras = _nerfstudio(text) if text.lstrip().startswith("{") else _yaml(text) or _colmap(text)
    except (ValueError, ArithmeticError, KeyError, TypeError, IndexError) as error:
        raise InputError(f"--intrinsics {path}: {_reason(error)}") from error
    except (ConfigError, InputError) as error:
        raise InputError(f"--intrinsics {path}: {error}") from error
    if not cameras:
        raise InputError(f"--intrinsics {path} has an unknown format: use {FORMS}")
    distinct = list(dict.fromkeys(cameras))
    return replace(distinct[0], others=tuple(distinct[1:]))


def _reason(error: Exception) -> str:
    if isinstance(error, UnsupportedError):
        return f"{error}, which is not supported: undistort the images with the program that made the file"
    return f"damaged numbers or a missing entry ({error})"


class UnsupportedError(ValueError):
    """A camera that is described completely, but cannot be applied. Its text names what."""


def _colmap(text: str) -> list[Calibration]:
    """Cameras of a ``cameras.txt``: number, model, width, height, parameters. Or the camera of an
    ``intrinsics.txt``: fx fy cx cy width height."""
    cameras = []
    for line in text.splitlines():
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) == 6 and all(re.fullmatch(NUMBER, word) for word in words):
            fx, fy, cx, cy, width, height = (float(word) for word in words)
            return [Calibration(fx, fy, cx, cy, size=(int(width), int(height)))]
        if len(words) < 7 or not words[0].isdecimal():
            return []
        size = int(words[2]), int(words[3])
        cameras.append(colmap_camera(words[1], [float(word) for word in words[4:]], size))
    return cameras


COLMAP_PARAMETERS = {
    "SIMPLE_PINHOLE": 3,
    "PINHOLE": 4,
    "SIMPLE_RADIAL": 4,
    "RADIAL": 5,
    "OPENCV": 8,
    "FULL_OPENCV": 12,
    "SIMPLE_RADIAL_FISHEYE": 4,
    "RADIAL_FISHEYE": 5,
    "OPENCV_FISHEYE": 8,
}
"""Number of parameters of the models that are applied, see https://colmap.github.io/cameras.html."""


def colmap_camera(model: str, p: list[float], size: tuple[int, int]) -> Calibration:
    """Camera of a COLMAP model.

    Raises UnsupportedError: a model without an equivalent in OpenCV; ValueError: a wrong number of parameters.
    """
    if model not in COLMAP_PARAMETERS:
        raise UnsupportedError(f"camera model {model}")
    if len(p) != COLMAP_PARAMETERS[model]:
        raise ValueError(f"{len(p)} parameters for {model}")
    if model == "SIMPLE_PINHOLE":
        return Calibration(p[0], p[0], p[1], p[2], size=size)
    if model == "PINHOLE":
        return Calibration(p[0], p[1], p[2], p[3], size=size)
    kind: Distortion = "fisheye" if model.endswith("FISHEYE") else "perspective"
    if "RADIAL" in model:
        k2 = p[4] if model.startswith("RADIAL") else 0.0
        return Calibration(p[0], p[0], p[1], p[2], kind, (p[3], k2, 0.0, 0.0), size)
    return Calibration(p[0], p[1], p[2], p[3], kind, tuple(p[4:]), size)


def _nerfstudio(text: str) -> list[Calibration]:
    content = parse_json(text.encode())
    if not isinstance(content, dict):
        return []
    frames = content.get("frames")
    tables = [content | f for f in frames if isinstance(f, dict)] if isinstance(frames, list) and frames else [content]
    if not all(FOCAL_KEYS & table.keys() for table in tables):
        return []
    return list(dict.fromkeys(nerfstudio_camera(table) for table in tables))


FOCAL_KEYS = {"fl_x", "camera_angle_x"}
"""Keys of a transforms.json that state a focal length."""
_FISHEYE_KEYS, _KEYS = ("k1", "k2", "k3", "k4"), ("k1", "k2", "p1", "p2", "k3")


def nerfstudio_camera(content: Mapping[str, Any], image_size: tuple[int, int] | None = None) -> Calibration:
    """Camera of a transforms.json, or of one of its frames.

    Args:
        image_size: width and height of the images, where the file does not state them.

    Raises UnsupportedError: a camera that cannot be applied; ValueError, KeyError, TypeError or ConfigError: damage.
    """
    fisheye = bool(content.get("is_fisheye", False))
    model = str(content.get("camera_model") or ("OPENCV_FISHEYE" if fisheye else "OPENCV")).upper()
    if model not in ("OPENCV", "PINHOLE", "SIMPLE_PINHOLE", "PERSPECTIVE", "OPENCV_FISHEYE", "SIMPLE_RADIAL", "RADIAL"):
        raise UnsupportedError(f"camera_model {model}")
    fisheye = fisheye or model == "OPENCV_FISHEYE"
    used = _FISHEYE_KEYS if fisheye else _KEYS
    for name in ("k1", "k2", "k3", "k4", "k5", "k6", "p1", "p2"):
        if name not in used and float(content.get(name) or 0.0):
            raise UnsupportedError(f"distortion {name} of {model}")
    if image_size is not None and not {"w", "h"} <= content.keys():
        size = image_size
    else:
        size = int(content["w"]), int(content["h"])
    return Calibration(
        *_nerfstudio_focals(content, size),
        float(content.get("cx", size[0] / 2)),
        float(content.get("cy", size[1] / 2)),
        "fisheye" if fisheye else "perspective",
        tuple(float(content.get(name) or 0.0) for name in used),
        size,
    )


def _nerfstudio_focals(content: Mapping[str, Any], size: tuple[int, int]) -> tuple[float, float]:
    """Focal lengths in pixels, from themselves or from the angles of view."""
    if "fl_x" in content:
        fx = float(content["fl_x"])
        return fx, float(content.get("fl_y", fx))
    fx = _focal(content["camera_angle_x"], size[0])
    fy = _focal(content["camera_angle_y"], size[1]) if "camera_angle_y" in content else fx
    return fx, float(content.get("fl_y", fy))


def _focal(angle: Any, side: int) -> float:
    if not 0 < float(angle) < math.pi:
        raise ValueError(f"a camera angle of {angle}")
    return side / 2 / math.tan(float(angle) / 2)


def _yaml(text: str) -> list[Calibration]:
    """Cameras of a ROS camera_info, a Kalibr camchain or an OpenCV calibration; none for other text.

    Only lists and words of YAML are parsed. These formats use nothing else, so no library is needed.
    """
    heads = list(re.finditer(r"^cam\d+\s*:", text, re.M))
    ends = [*(head.start() for head in heads[1:]), len(text)]
    blocks = [text[head.end() : end] for head, end in zip(heads, ends, strict=True)] if heads else [text]
    cameras = [_yaml_camera(block) for block in blocks]
    return [camera for camera in cameras if camera is not None]


def _yaml_camera(text: str) -> Calibration | None:
    matrix = _data(text, "camera_matrix", "K", "Camera_Matrix")
    if matrix is not None and len(matrix) == 9:
        fx, fy, cx, cy = matrix[0], matrix[4], matrix[2], matrix[5]
        if abs(matrix[1]) > SKEW * abs(fx):
            raise UnsupportedError(f"a camera matrix with skew {matrix[1]:g}")
        coefficients = _data(text, "distortion_coefficients", "D", "Distortion_Coefficients")
        width, height = (_number(text, rf"(?:image_)?{name}|image_{name.title()}") for name in ("width", "height"))
    else:
        values = _list(text, "intrinsics")
        if values is None:
            return None
        model = _word(text, "camera_model") or "pinhole"
        if model != "pinhole" or len(values) != 4:
            raise UnsupportedError(f"camera_model {model} with {len(values)} intrinsics")
        fx, fy, cx, cy = values
        coefficients = _list(text, "distortion_coeffs", "distortion_coefficients")
        width, height = _list(text, "resolution") or (None, None)
    size = None if width is None or height is None else (int(width), int(height))
    kind, used = distortion(_word(text, "distortion_model"), coefficients or [], bool(_number(text, "fisheye_model")))
    return Calibration(fx, fy, cx + 0.5, cy + 0.5, kind, used, size)


def distortion(
    model: str | None, coefficients: list[float], fisheye: bool = False
) -> tuple[Distortion, tuple[float, ...]]:
    """Kind and coefficients of a distortion model of ROS, Kalibr or OpenCV.

    Args:
        model: None or empty: OpenCV's, by the number of coefficients.
        fisheye: whether the file says so in another way.

    Raises UnsupportedError: a model or number of coefficients that cannot be applied.
    """
    name = (model or "").lower()
    if name in FISHEYE_NAMES or fisheye:
        if not coefficients:
            raise UnsupportedError(f"distortion model {name or 'fisheye'} without coefficients")
        if any(coefficients[4:]) or len(coefficients) < 4:
            raise UnsupportedError(f"distortion model {name or 'fisheye'} with {len(coefficients)} coefficients")
        return "fisheye", tuple(coefficients[:4])
    if name and name not in PERSPECTIVE_NAMES and any(coefficients):
        raise UnsupportedError(f"distortion model {name}")
    if not any(coefficients):
        return "perspective", tuple(coefficients) if len(coefficients) in (4, 5, 8, 12, 14) else ()
    if len(coefficients) not in (4, 5, 8, 12, 14):
        raise UnsupportedError(f"distortion with {len(coefficients)} coefficients")
    return "perspective", tuple(coefficients)


def _data(text: str, *names: str) -> list[float] | None:
    """Numbers of the matrix with the first of these names: ``name:`` and later ``data: [...]``, or as for `_list`."""
    for name in names:
        match = re.search(
            rf"^\s*{name}\s*:(?P<gap>.*?)\bdata\s*:\s*(?P<list>\[[^\]]*\]|(?:\s*-\s*{NUMBER})+)", text, re.M | re.S
        )
        near = match is not None and len(match["gap"]) < 200
        if values := _numbers(match["list"]) if match is not None and near else _list(text, name):
            return values
    return None


def _list(text: str, *names: str) -> list[float] | None:
    """Numbers of the list directly after the first of these names that has any; empty where no such list has."""
    values = None
    for name in names:
        match = re.search(rf"^\s*{name}\s*:\s*(\[[^\]]*\]|(?:\s*-\s*{NUMBER})+)", text, re.M)
        values = values or (None if match is None else _numbers(match[1]))
    return values


def _numbers(text: str) -> list[float]:
    if text.startswith("["):
        return [float(part) for part in text.strip("[]").split(",") if part.strip()]
    return [float(part) for part in re.findall(rf"-\s+({NUMBER})", text)]


def _word(text: str, name: str) -> str | None:
    match = re.search(rf"^\s*{name}\s*:\s*[\"']?(\w+)", text, re.M)
    return None if match is None else match[1]


def _number(text: str, name: str) -> float | None:
    match = re.search(rf"^\s*(?:{name})\s*:\s*({NUMBER})\s*$", text, re.M)
    return None if match is None else float(match[1])
