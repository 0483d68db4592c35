"""Camera models of other programs as this program's: COLMAP's by name, OpenCV's by the number of coefficients."""

import re
import struct
from collections.abc import Iterator

from stream_recon.app.sources.calibration import Calibration, Distortion
from stream_recon.app.sources.named_values import NUMBER, Names

SKEW = 1e-6
"""Skew of a camera matrix, as a share of its focal length, that is not rounding."""
FISHEYE_NAMES = ("equidistant", "fisheye", "kannala_brandt", "kannalabrandt8")
PERSPECTIVE_NAMES = {
    "": (4, 5, 8, 12, 14),
    "plumb_bob": (4, 5, 8, 12, 14),
    "rational_polynomial": (8, 12, 14),
    "thin_prism": (12, 14),
    "brown": (4, 5),
    "radtan": (4,),
    "radial-tangential": (4, 5),
    "none": (),
}
"""Numbers of coefficients, in OpenCV's order, by the name of the distortion model in ROS, Kalibr and OpenCV."""


class UnsupportedError(ValueError):
    """A camera that is described completely, but cannot be applied. Its text names what."""


COLMAP_REFUSED = ("FOV", "THIN_PRISM_FISHEYE", "RAD_TAN_THIN_PRISM_FISHEYE")
"""Models without an equivalent in OpenCV."""
_MODELS = (
    *("SIMPLE_PINHOLE", "PINHOLE", "SIMPLE_RADIAL", "RADIAL", "OPENCV", "OPENCV_FISHEYE", "FULL_OPENCV", "FOV"),
    *("SIMPLE_RADIAL_FISHEYE", "RADIAL_FISHEYE", *COLMAP_REFUSED[1:]),
)
COLMAP_PARAMETERS = dict(zip(_MODELS, (3, 4, 4, 5, 8, 8, 12, 5, 4, 5, 12, 16), strict=True))
"""Number of parameters of models, in the order of their numbers in files; see https://colmap.github.io/cameras.html."""


def colmap_rows(data: bytes) -> Iterator[tuple[int, str, tuple[int, int], list[float]]]:
    """Number, model, size and parameters of each camera of a ``cameras.bin`` or ``cameras.txt``.

    Raises UnsupportedError: an unknown model; ValueError: damage.
    """
    seen = set[int]()
    for key, model, (width, height), values in _binary_rows(data) if b"\0" in data[:8] else _text_rows(data):
        if model not in COLMAP_PARAMETERS:
            raise UnsupportedError(f"unknown camera model {model}")
        if key in seen or min(width, height) < 1:
            raise ValueError(f"camera {key} is there twice, or has {width}x{height} pixels")
        seen.add(key)
        yield key, model, (width, height), values


def _binary_rows(data: bytes) -> Iterator[tuple[int, str, tuple[int, int], list[float]]]:
    (count,), at = struct.unpack_from("<Q", data.ljust(8, b"\0")), 8
    for _ in range(count):
        key, kind, *size = struct.unpack_from("<iiQQ", data[at : at + 24].ljust(24, b"\0"))
        model = [*COLMAP_PARAMETERS][kind] if 0 <= kind < len(COLMAP_PARAMETERS) else str(kind)
        begin, at = at + 24, at + 24 + 8 * COLMAP_PARAMETERS.get(model, 0)
        if at > len(data):
            raise ValueError("it is cut off")
        yield key, model, (size[0], size[1]), list(struct.unpack(f"<{(at - begin) // 8}d", data[begin:at]))
    if at != len(data):
        raise ValueError(f"it goes on after its {count} cameras")


def _text_rows(data: bytes) -> Iterator[tuple[int, str, tuple[int, int], list[float]]]:
    for number, line in enumerate(data.decode("utf-8-sig").splitlines(), start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        cells = [*words[:1], *words[2:]]
        is_whole = all(re.fullmatch(NUMBER, cell) for cell in cells) and not any(float(cell) % 1 for cell in cells[:3])
        if len(words) < 5 or not is_whole:
            raise ValueError(f"line {number} must be 'number MODEL width height parameters', not {line[:60]!r}")
        key, width, height, *values = map(float, cells)
        yield int(key), words[1], (int(width), int(height)), values


def colmap_camera(model: str, p: list[float], size: tuple[int, int] | None) -> Calibration:
    """Camera of a COLMAP model; ``size`` None: that of the images.

    Raises UnsupportedError: a model without an equivalent in OpenCV; ValueError: a wrong number of parameters.
    """
    if model not in COLMAP_PARAMETERS or model in COLMAP_REFUSED:
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


def distortion(model: str | None, coefficients: list[float]) -> tuple[Distortion, tuple[float, ...]]:
    """Kind and coefficients of a distortion model of ROS, Kalibr or OpenCV; without a name, OpenCV's by their number.

    Raises UnsupportedError: a model or number of coefficients that cannot be applied.
    """
    name, count, is_none = (model or "").lower(), len(coefficients), not any(coefficients)
    if name in FISHEYE_NAMES:
        if any(coefficients[4:]) or count < 4:
            raise UnsupportedError(f"distortion model {name} with {count or 'no'} coefficients")
        return "fisheye", tuple(coefficients[:4])
    if name not in PERSPECTIVE_NAMES and not (is_none and "brown" in name):
        raise UnsupportedError(f"distortion model {name}")
    if not is_none and count not in PERSPECTIVE_NAMES[name]:
        raise UnsupportedError(f"distortion model {name or 'of OpenCV'} with {count} coefficients")
    return "perspective", tuple(coefficients) if count in PERSPECTIVE_NAMES[""] else ()


def omnidirectional(xi: float, kind: Distortion, used: tuple[float, ...]) -> tuple[Distortion, tuple[float, ...]]:
    """Kind and coefficients of the unified model. Raises UnsupportedError: with other distortion than k1 k2 p1 p2."""
    if kind != "perspective" or any(used[4:]):
        raise UnsupportedError("xi with another distortion model than k1 k2 p1 p2")
    return "omni", (xi, *(used[:4] or (0.0,) * 4))


def absent_notes(names: Names) -> tuple[str, ...]:
    """Note on what the file leaves to its program's rules: 0, the centre of the image, no distortion."""
    return (f"{', '.join(names.absent)} not stated: the usual value is taken",) if names.absent else ()


def rolling_shutter(names: Names, name: str) -> tuple[str, ...]:
    """Warning on a rolling shutter, whose rows are taken as of one time."""
    return (f"{name}: all rows of an image are taken as of one time",) if any(names.numbers(name) or ()) else ()
