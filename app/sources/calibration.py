"""Known cameras, and the file formats in which other programs store them.

In this program pixel (0, 0) covers [0, 1) x [0, 1), as in COLMAP and nerfstudio. OpenCV, ROS and Kalibr place the
centre of the first pixel at (0, 0), so half a pixel is added to their principal points.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from stream_recon.app.core.json_text import parse_json
from stream_recon.configs.errors import ConfigError, InputError

Distortion = Literal["perspective", "fisheye"]
LARGEST_FILE = 1 << 26
"""Bytes of a calibration file that are read: more than the largest transforms.json."""
LARGEST = 1e7
"""Largest focal length and image side in pixels; its inverse is the smallest focal length. Guards against overflow."""
COEFFICIENTS: dict[Distortion, tuple[int, ...]] = {"perspective": (4, 5), "fisheye": (4,)}
"""Allowed numbers of distortion coefficients, as OpenCV's functions take them."""
EXIF = "exif"
"""Value of ``--intrinsics`` for the camera in the files' metadata."""
NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
"""Pattern of a decimal number."""
FORMS = (
    "fx,fy,cx,cy[,k1,k2,p1,p2[,k3]], or a file: COLMAP's cameras.txt, transforms.json, YAML of ROS, Kalibr or OpenCV"
)
"""Accepted forms of a camera, for error messages."""


@dataclass(frozen=True)
class Calibration:
    """Intrinsics and distortion of a calibrated camera, in pixels."""

    fx: float
    fy: float
    cx: float
    cy: float
    distortion: Distortion = "perspective"
    coefficients: tuple[float, ...] = ()
    """perspective: k1 k2 p1 p2 k3 (Brown, as in OpenCV); fisheye: k1 k2 k3 k4 (Kannala and Brandt); (): none."""
    size: tuple[int, int] | None = None
    """Width and height of the calibration images; None: those of the source."""

    def __post_init__(self) -> None:
        numbers = (self.fx, self.fy, self.cx, self.cy, *self.coefficients)
        if not all(math.isfinite(value) for value in numbers) or min(self.fx, self.fy) <= 0:
            raise ConfigError("a camera's numbers must be finite, and its focal lengths above 0")
        if max(self.fx, self.fy) > LARGEST or min(self.fx, self.fy) < 1 / LARGEST:
            raise ConfigError(f"a camera's focal lengths cannot be {self.fx:g} and {self.fy:g} pixels")
        distorted = any(self.coefficients) or (self.coefficients and self.distortion == "fisheye")
        if distorted and len(self.coefficients) not in COEFFICIENTS[self.distortion]:
            raise ConfigError(f"a camera cannot have {len(self.coefficients)} coefficients of distortion")
        if self.size is not None and not 0 < min(self.size) <= max(self.size) < LARGEST:
            raise ConfigError(f"a camera's images cannot be of {self.size[0]:g}x{self.size[1]:g} pixels")

    def for_size(self, size: tuple[int, int]) -> "Calibration":
        """The same camera for images resized to ``size`` (width, height).

        Raises InputError: the aspect ratio differs.
        """
        if self.size is None or self.size == size:
            return self
        sx, sy = size[0] / self.size[0], size[1] / self.size[1]
        if abs(sx / sy - 1) > 0.01:
            raise InputError(
                f"the camera was calibrated at {self.size[0]}x{self.size[1]} pixels; the source's {size[0]}x{size[1]} "
                "have another aspect ratio"
            )
        return Calibration(
            self.fx * sx, self.fy * sy, self.cx * sx, self.cy * sy, self.distortion, self.coefficients, size
        )

    def text(self) -> str:
        """The camera in one line, which `parse_camera` reads; run.json stores it."""
        return json.dumps({"bending" if name == "distortion" else name: v for name, v in asdict(self).items()})


def parse_camera(text: str) -> Calibration:
    """Camera from comma-separated numbers, from the name of a file, or from `Calibration.text`.

    Raises ConfigError: the text is none of these, or its numbers are out of range; InputError: a file cannot be read,
    or its format is unknown.
    """
    if text.lstrip().startswith("{"):
        return _parse_text(text)
    numbers = [part.strip() for part in text.split(",")]
    if len(numbers) > 1 and all(re.fullmatch(NUMBER, part) for part in numbers):
        values = [float(part) for part in numbers]
        if len(values) not in (4, 8, 9):
            raise ConfigError(f"--intrinsics {text}: {len(values)} numbers; use {FORMS}")
        fx, fy, cx, cy, *coefficients = values
        return Calibration(fx, fy, cx + 0.5, cy + 0.5, "perspective", tuple(coefficients))
    return read_camera(Path(text).expanduser())


def read_camera(path: Path) -> Calibration:
    """Camera from a calibration file. Raises InputError or ConfigError, as `parse_camera`."""
    try:
        with path.open("rb") as file:
            text = file.read(LARGEST_FILE).decode("utf-8", errors="replace")
    except OSError as error:
        raise InputError(f"--intrinsics {path} cannot be read ({error.strerror}): use {FORMS}") from error
    except ValueError as error:  # a name with a zero byte
        raise InputError(f"--intrinsics: no such file; use {FORMS}") from error
    try:
        found = _parse_nerfstudio(text) if text.lstrip().startswith("{") else _parse_yaml(text) or _parse_colmap(text)
    except (ValueError, ArithmeticError, KeyError, TypeError, IndexError) as error:
        raise InputError(f"--intrinsics {path}: damaged numbers or an unknown camera model ({error})") from error
    if found is None:
        raise InputError(f"--intrinsics {path} has an unknown format: use {FORMS}")
    return found


def _parse_text(text: str) -> Calibration:
    try:
        content = parse_json(text.encode())
        size, distortion = content["size"], content["bending"]
        if distortion not in get_args(Distortion):
            raise ValueError(distortion)
        fx, fy, cx, cy = (float(content[name]) for name in ("fx", "fy", "cx", "cy"))
        coefficients = tuple(float(value) for value in content["coefficients"])
        return Calibration(
            fx, fy, cx, cy, distortion, coefficients, None if size is None else (int(size[0]), int(size[1]))
        )
    except (ValueError, ArithmeticError, KeyError, TypeError, IndexError) as error:
        raise ConfigError(f"the camera in run.json is damaged: {error}") from error


def _parse_colmap(text: str) -> Calibration | None:
    """First camera of a ``cameras.txt``: number, model, width, height, parameters. Or the camera of an
    ``intrinsics.txt``: fx fy cx cy width height."""
    for line in text.splitlines():
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) == 6 and all(re.fullmatch(NUMBER, word) for word in words):
            fx, fy, cx, cy, width, height = (float(word) for word in words)
            return Calibration(fx, fy, cx, cy, size=(int(width), int(height)))
        if len(words) < 7 or not words[0].isdecimal():
            return None
        size = int(words[2]), int(words[3])
        return colmap_camera(words[1], [float(word) for word in words[4:]], size)
    return None


def colmap_camera(model: str, p: list[float], size: tuple[int, int]) -> Calibration:
    """Camera of a COLMAP model, see https://colmap.github.io/cameras.html. Raises ValueError: an unknown model."""
    if model == "SIMPLE_PINHOLE":
        return Calibration(p[0], p[0], p[1], p[2], size=size)
    if model == "PINHOLE":
        return Calibration(p[0], p[1], p[2], p[3], size=size)
    if model in ("SIMPLE_RADIAL", "RADIAL"):
        k2 = p[4] if model == "RADIAL" else 0.0
        return Calibration(p[0], p[0], p[1], p[2], "perspective", (p[3], k2, 0.0, 0.0), size)
    if model == "OPENCV":
        return Calibration(p[0], p[1], p[2], p[3], "perspective", tuple(p[4:8]), size)
    if model in ("SIMPLE_RADIAL_FISHEYE", "RADIAL_FISHEYE"):
        k2 = p[4] if model == "RADIAL_FISHEYE" else 0.0
        return Calibration(p[0], p[0], p[1], p[2], "fisheye", (p[3], k2, 0.0, 0.0), size)
    if model == "OPENCV_FISHEYE":
        return Calibration(p[0], p[1], p[2], p[3], "fisheye", tuple(p[4:8]), size)
    raise ValueError(model)


def _parse_nerfstudio(text: str) -> Calibration | None:
    content = parse_json(text.encode())
    if not isinstance(content, dict) or "fl_x" not in content:
        return None
    return nerfstudio_camera(content)


def nerfstudio_camera(content: Mapping[str, Any]) -> Calibration:
    """Camera at the top of a transforms.json. Raises ValueError, KeyError, TypeError or ConfigError."""
    model = content.get("camera_model", "OPENCV")
    if model not in ("OPENCV", "PINHOLE", "SIMPLE_PINHOLE", "OPENCV_FISHEYE"):
        raise ValueError(model)
    fisheye = model == "OPENCV_FISHEYE"
    names = ("k1", "k2", "k3", "k4") if fisheye else ("k1", "k2", "p1", "p2", "k3")
    fx, size = float(content["fl_x"]), (int(content["w"]), int(content["h"]))
    return Calibration(
        fx,
        float(content.get("fl_y", fx)),
        float(content.get("cx", size[0] / 2)),
        float(content.get("cy", size[1] / 2)),
        "fisheye" if fisheye else "perspective",
        tuple(float(content.get(name, 0.0)) for name in names),
        size,
    )


def _parse_yaml(text: str) -> Calibration | None:
    """Camera of a ROS camera_info, a Kalibr camchain (its first camera) or an OpenCV calibration; None for other text.

    Only lists and words of YAML are parsed. These formats use nothing else, so no library is needed.
    """
    matrix = _data(text, "camera_matrix") or _data(text, "K") or _data(text, "Camera_Matrix")
    if matrix is not None and len(matrix) == 9:
        fx, fy, cx, cy = matrix[0], matrix[4], matrix[2], matrix[5]
        coefficients = (
            _data(text, "distortion_coefficients") or _data(text, "D") or _data(text, "Distortion_Coefficients")
        )
        width, height = (_number(text, rf"(?:image_)?{name}|image_{name.title()}") for name in ("width", "height"))
    else:
        values = _list(text, "intrinsics")
        if values is None or len(values) != 4 or _word(text, "camera_model") not in ("pinhole", None):
            return None
        fx, fy, cx, cy = values
        coefficients = _list(text, "distortion_coeffs")
        width, height = _list(text, "resolution") or (None, None)
    size = None if width is None or height is None else (int(width), int(height))
    kind = _word(text, "distortion_model") or "plumb_bob"
    if kind not in ("plumb_bob", "radtan", "rational_polynomial", "equidistant", "fisheye", "none"):
        raise ValueError(kind)
    fisheye = kind in ("equidistant", "fisheye")
    if kind == "rational_polynomial" and coefficients is not None and any(coefficients[5:]):
        raise ValueError(kind)
    used = tuple(coefficients or ())[: 4 if fisheye else 5]
    return Calibration(fx, fy, cx + 0.5, cy + 0.5, "fisheye" if fisheye else "perspective", used, size)


def _data(text: str, name: str) -> list[float] | None:
    """Numbers of a matrix: ``name:`` and later ``data: [...]``, or the list directly after the name."""
    found = re.search(
        rf"^\s*{name}\s*:(?P<rest>.*?)\bdata\s*:\s*(?P<list>\[[^\]]*\]|(?:\s*-\s*{NUMBER})+)", text, re.M | re.S
    )
    if found is not None and len(found["rest"]) < 200:
        return _numbers(found["list"])
    return _list(text, name)


def _list(text: str, name: str) -> list[float] | None:
    found = re.search(rf"^\s*{name}\s*:\s*(\[[^\]]*\]|(?:\s*-\s*{NUMBER})+)", text, re.M)
    return None if found is None else _numbers(found[1])


def _numbers(text: str) -> list[float]:
    if text.startswith("["):
        return [float(part) for part in text.strip("[]").split(",") if part.strip()]
    return [float(part) for part in re.findall(rf"-\s+({NUMBER})", text)]


def _word(text: str, name: str) -> str | None:
    found = re.search(rf"^\s*{name}\s*:\s*[\"']?(\w+)", text, re.M)
    return None if found is None else found[1]


def _number(text: str, name: str) -> float | None:
    found = re.search(rf"^\s*(?:{name})\s*:\s*({NUMBER})\s*$", text, re.M)
    return None if found is None else float(found[1])
