"""Known cameras, and the file formats in which other programs store them.

In this program pixel (0, 0) covers [0, 1) x [0, 1), as in COLMAP and nerfstudio. OpenCV, ROS and Kalibr place the
centre of the first pixel at (0, 0), so half a pixel is added to their principal points.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

import cv2
import numpy as np

from stream_recon.app.core.input_file import parse_json
from stream_recon.app.sources.named_values import NUMBER
from stream_recon.configs.errors import ConfigError, InputError

Distortion = Literal["perspective", "fisheye", "omni"]
MAX_LENGTH_PX = 1e7
"""Largest focal length and image side in pixels; its inverse is the smallest focal length. Guards against overflow."""
COEFFICIENTS: dict[Distortion, tuple[int, ...]] = {"perspective": (4, 5, 8, 12, 14), "fisheye": (4,), "omni": (5,)}
"""Allowed numbers of distortion coefficients, as OpenCV's functions take them."""
MIN_FOCAL = 0.02
"""Focal length in longer sides of the image that no lens has; numbers below are no pixels, but shares."""
MAX_STRETCH = 3.0
"""Largest ratio of the focal lengths in x and y: anamorphic lenses stretch an image at most twice."""
SAME_ASPECT = 0.01
"""Relative difference of aspect ratios up to which an image counts as resized: rounding to whole pixels."""
SAME_CAMERA = 0.01
"""Largest difference of two cameras' images of a ray, in widths of the image, up to which they are one camera."""
CENTRAL = 0.03
"""Largest distance of most cameras' principal points from the centre, as a share of the image."""
ORIENTATIONS = {
    2: (False, True, False),
    3: (False, True, True),
    4: (False, False, True),
    5: (True, False, False),
    6: (True, True, False),
    7: (True, True, True),
    8: (True, False, True),
}
"""By EXIF orientation: whether width and height are exchanged for display, and which axes are mirrored after that."""
TURNED_BY_90 = (5, 6, 7, 8)
"""EXIF orientations that exchange width and height."""
MAX_LISTED = 8
"""Cameras listed in a message."""
EXIF = "exif"
"""Value of ``--intrinsics`` for the camera in the files' metadata."""
FORMS = (
    "fx,fy,cx,cy[,k1,k2,p1,p2[,k3]], or a file: COLMAP's cameras.txt, transforms.json, or that of OpenCV, ROS, Kalibr, "
    "Metashape, VINS or ORB-SLAM"
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
    """perspective: k1 k2 p1 p2 k3 (Brown, as in OpenCV); fisheye: k1 k2 k3 k4 (Kannala and Brandt); omni: xi k1 k2 p1
    p2 (Mei and Rives); (): none."""
    size: tuple[int, int] | None = None
    """Width and height of the calibration images; None: those of the source."""

    others: tuple["Calibration", ...] = ()
    """Further cameras of the same file; `for_size` takes the one whose size fits."""
    notes: tuple[str, ...] = field(default=(), compare=False)
    """Warnings on what the file does not state."""

    def __post_init__(self) -> None:
        numbers = (self.fx, self.fy, self.cx, self.cy, *self.coefficients)
        if not all(math.isfinite(value) for value in numbers) or min(self.fx, self.fy) <= 0:
            raise ConfigError("a camera's numbers must be finite, and its focal lengths above 0")
        if max(self.fx, self.fy) > MAX_LENGTH_PX or min(self.fx, self.fy) < 1 / MAX_LENGTH_PX:
            raise ConfigError(f"a camera's focal lengths cannot be {self.fx:g} and {self.fy:g} pixels")
        if max(self.fx, self.fy) > MAX_STRETCH * min(self.fx, self.fy):
            raise ConfigError(f"a camera's focal lengths {self.fx:g} and {self.fy:g} pixels differ too much")
        distorted = any(self.coefficients) or (self.coefficients and self.distortion != "perspective")
        if distorted and len(self.coefficients) not in COEFFICIENTS[self.distortion]:
            raise ConfigError(f"a camera cannot have {len(self.coefficients)} coefficients of distortion")
        if self.size is not None:
            if not 0 < min(self.size) <= max(self.size) < MAX_LENGTH_PX:
                raise ConfigError(f"a camera's images cannot be of {self.size[0]:g}x{self.size[1]:g} pixels")
            if not self._is_inside(self.size):
                raise ConfigError(f"a camera's {self._outside(self.size)}")

    def for_size(
        self, size: tuple[int, int], orientation: int = 1, stored: tuple[int, int] | None = None
    ) -> "Calibration":
        """The same camera for images resized to ``size`` (width, height).

        Args:
            orientation: EXIF orientation by which the images were turned for display, see `turned`.
            stored: size of the images before their pixels were made square, if it differs.

        Raises InputError: no camera of the file fits the size, or several different ones do.
        """
        fitting = self._fitting(size) or self._fitting_as_stored(size, orientation, stored)
        scaled = [camera._scaled(size) for camera in fitting]
        if any(not is_same_camera(scaled[0], other, size) for other in scaled[1:]):
            sizes = ["" if c.size is None else f" at {c.size[0]}x{c.size[1]}" for c in fitting[:MAX_LISTED]]
            listed = "; ".join(f"fx {camera.fx:.5g}{at}" for camera, at in zip(fitting, sizes, strict=False))
            raise InputError(
                f"the file has {len(fitting)} different cameras for {size[0]}x{size[1]} pixels ({listed}): give the "
                "numbers of one"
            )
        return scaled[0]

    def turned(self, orientation: int) -> "Calibration":
        """The same camera for images turned by an EXIF orientation (2 to 8). Raises InputError: prism distortion."""
        if orientation not in range(2, 9):
            return self
        if any(self.coefficients[8:]):
            raise InputError("a camera with thin prism or tilt coefficients cannot be turned with its images")
        width, height = self.size or (0, 0)
        swap, mirror_x, mirror_y = ORIENTATIONS[orientation]
        fx, fy, cx, cy = (self.fy, self.fx, self.cy, self.cx) if swap else (self.fx, self.fy, self.cx, self.cy)
        width, height = (height, width) if swap else (width, height)
        k, at = list(self.coefficients), 3 if self.distortion == "omni" else 2
        if self.distortion != "fisheye" and len(k) >= at + 2:
            # p1 belongs to y and p2 to x: both go with their axis.
            p1, p2 = (k[at + 1], k[at]) if swap else (k[at], k[at + 1])
            k[at : at + 2] = [-p1 if mirror_y else p1, -p2 if mirror_x else p2]
        return replace(
            self,
            fx=fx,
            fy=fy,
            cx=width - cx if mirror_x else cx,
            cy=height - cy if mirror_y else cy,
            coefficients=tuple(k),
            size=(width, height) if self.size is not None else None,
            others=(),
        )

    @property
    def _all(self) -> tuple["Calibration", ...]:
        return (replace(self, others=()), *self.others)

    def _fitting(self, size: tuple[int, int]) -> list["Calibration"]:
        """Cameras of exactly this size, else those of its aspect ratio or without a size."""
        exact = [camera for camera in self._all if camera.size == size]
        return exact or [c for c in self._all if c.size is None or same_aspect(c.size, size)]

    def _fitting_as_stored(
        self, size: tuple[int, int], orientation: int, stored: tuple[int, int] | None
    ) -> list["Calibration"]:
        """Cameras that fit the images before they were turned or their pixels made square, turned with them.

        Raises InputError: there is none.
        """
        turns = orientation in TURNED_BY_90
        lying = [camera.turned(orientation) for camera in self._fitting((size[1], size[0]))] if turns else []
        fitting = [camera for camera in lying if camera.size is not None]
        if not fitting and stored is not None:
            turned = [camera.turned(orientation) if turns else camera for camera in self._all]
            fitting = [camera for camera in turned if camera.size == stored]
        if not fitting:
            known = ", ".join(dict.fromkeys(f"{c.size[0]}x{c.size[1]}" for c in self._all if c.size is not None))
            said = f"the camera was calibrated at {known} pixels"
            raise InputError(f"{said}; the source's {size[0]}x{size[1]} have another aspect ratio")
        return fitting

    def _scaled(self, size: tuple[int, int]) -> "Calibration":
        if self.size is None:
            if not self._is_inside(size):
                raise InputError(f"the camera's {self._outside(size)}")
            if self._is_of_turned(size):
                raise InputError(
                    f"the camera's principal point ({self.cx:g}, {self.cy:g}) is that of {size[1]}x{size[0]} pixels, "
                    f"and the source's images are displayed at {size[0]}x{size[1]}: give the camera of the images as "
                    "displayed"
                )
            return self
        if self.size == size:
            return self
        sx, sy = size[0] / self.size[0], size[1] / self.size[1]
        return Calibration(
            self.fx * sx, self.fy * sy, self.cx * sx, self.cy * sy, self.distortion, self.coefficients, size
        )

    def _is_inside(self, size: tuple[int, int]) -> bool:
        return 0 < self.cx < size[0] and 0 < self.cy < size[1] and self.fx > MIN_FOCAL * max(size)

    def _outside(self, size: tuple[int, int]) -> str:
        return (
            f"focal length {self.fx:g} and principal point ({self.cx:g}, {self.cy:g}) are none of images of "
            f"{size[0]}x{size[1]} pixels: give pixels of this size, or a calibration file that states its own size"
        )

    def _is_of_turned(self, size: tuple[int, int]) -> bool:
        """Whether the principal point is central in images turned by 90 degrees alone."""

        def off(width: int, height: int) -> float:
            return max(abs(self.cx / width - 0.5), abs(self.cy / height - 0.5))

        return off(size[1], size[0]) < CENTRAL and off(*size) > 3 * CENTRAL

    def text(self) -> str:
        """The camera in one line, which `parse_camera` reads; run.json stores it."""
        record = {"bending" if name == "distortion" else name: value for name, value in asdict(self).items()}
        record["others"] = [parse_json(camera.text().encode()) for camera in self.others]
        return json.dumps({name: value for name, value in record.items() if value or name not in ("others", "notes")})


def parse_camera(text: str) -> Calibration:
    """Camera from comma-separated numbers, from the name of a file, or from `Calibration.text`.

    Raises ConfigError: the text is none of these, or its numbers are out of range; InputError: a file cannot be read,
    or its format is unknown.
    """
    if text.lstrip().startswith("{"):
        try:
            return _from_record(parse_json(text.encode()))
        except (ValueError, ArithmeticError, KeyError, TypeError, IndexError, AttributeError) as error:
            raise ConfigError(f"the camera in run.json is damaged: {error}") from error
    numbers = [part.strip() for part in text.split(",")]
    if len(numbers) > 1 and all(re.fullmatch(NUMBER, part) for part in numbers):
        values = [float(part) for part in numbers]
        if len(values) not in (4, 8, 9):
            raise ConfigError(f"--intrinsics {text}: {len(values)} numbers; use {FORMS}")
        fx, fy, cx, cy, *coefficients = values
        return Calibration(fx, fy, cx + 0.5, cy + 0.5, "perspective", tuple(coefficients))
    from stream_recon.app.sources.camera_files import read_camera

    return read_camera(Path(text).expanduser())


def _from_record(content: Mapping[str, Any]) -> Calibration:
    size, distortion = content["size"], content["bending"]
    if distortion not in get_args(Distortion):
        raise ValueError(distortion)
    fx, fy, cx, cy = (float(content[name]) for name in ("fx", "fy", "cx", "cy"))
    return Calibration(
        fx,
        fy,
        cx,
        cy,
        distortion,
        tuple(float(value) for value in content["coefficients"]),
        None if size is None else (int(size[0]), int(size[1])),
        tuple(_from_record(other) for other in content.get("others", ())),
        tuple(str(note) for note in content.get("notes", ())),
    )


def is_same_camera(one: Calibration, other: Calibration, size: tuple[int, int]) -> bool:
    """Whether two cameras of images of ``size`` show every ray at nearly the same pixel, see `SAME_CAMERA`."""
    if one == other:
        return True
    from stream_recon.app.sources.undistort import Undistorter

    try:
        first, second = Undistorter(one, size), Undistorter(other, size)
        if abs(first.intrinsics.fx / second.intrinsics.fx - 1) > 5 * SAME_CAMERA:
            return False
        share = np.linspace(-0.45, 0.45, 7)
        rays = np.stack(np.meshgrid(share * size[0], share * size[1]), axis=-1).reshape(-1, 2) / first.intrinsics.fx
        distances = np.linalg.norm(first.to_source(rays) - second.to_source(rays), axis=1)
    except cv2.error:
        return False
    return bool(distances.max() <= SAME_CAMERA * max(size))


def one_camera(cameras: Sequence[Calibration]) -> Calibration:
    """The camera that all of ``cameras`` agree on, as structure from motion fits one for each image.

    Its numbers are the medians. Raises InputError: they differ in size, model, or by more than `SAME_CAMERA`.
    """
    first = cameras[0]
    if any(
        (c.size, c.distortion, len(c.coefficients)) != (first.size, first.distortion, len(first.coefficients))
        for c in cameras
    ):
        raise InputError("its images have cameras of different sizes or models")
    fx, fy, cx, cy = (float(np.median([getattr(c, name) for c in cameras])) for name in ("fx", "fy", "cx", "cy"))
    coefficients = tuple(float(value) for value in np.median([c.coefficients for c in cameras], axis=0))
    middle = replace(first, fx=fx, fy=fy, cx=cx, cy=cy, coefficients=coefficients)
    if first.size is not None and not all(is_same_camera(middle, camera, first.size) for camera in cameras):
        raise InputError(f"its images have {len(cameras)} different cameras")
    return middle


def same_aspect(one: tuple[float, float], other: tuple[float, float]) -> bool:
    """Whether images of two sizes (width, height) may be one image, resized."""
    return abs(one[0] * other[1] / (one[1] * other[0]) - 1) <= SAME_ASPECT
