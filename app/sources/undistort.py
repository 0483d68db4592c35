"""Undistortion of images of a known camera: to a pinhole with square pixels and a central principal point."""

from dataclasses import dataclass
from functools import cached_property

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.types import Intrinsics
from stream_recon.app.sources.calibration import Calibration

SAME_PX = 0.5
"""Offset of the principal point in pixels up to which an image is used unchanged: half a pixel is not visible."""
SAME_SHARE = 1e-4
"""Difference of fx and fy, as a share, up to which pixels count as square: rounding in calibration files."""
MAX_FOV = np.radians(110)
"""Largest horizontal field of view, radians, of an undistorted fisheye; wider, its rim would fill the image."""
BORDER_POINTS = 64
"""Points per image border that must be visible; distortion is smooth between them."""
RAY_STEPS = 24
"""Points per ray from the centre to the border, where the distortion has to grow outwards."""
HALVINGS = 40
"""Steps of the bisection for the focal length: it ends at the precision of float64."""


@dataclass(frozen=True)
class Undistorter:
    """Maps images of ``camera`` and ``size`` (width, height) to those of a central pinhole camera of the same size."""

    camera: Calibration
    size: tuple[int, int]

    @property
    def changes_image(self) -> bool:
        """Whether the image of this camera differs from a central pinhole's."""
        c, (width, height) = self.camera, self.size
        distorted = any(c.coefficients) or c.distortion != "perspective"
        off_centre = max(abs(c.cx - width / 2), abs(c.cy - height / 2)) > SAME_PX
        return distorted or off_centre or abs(c.fx / c.fy - 1) > SAME_SHARE

    @cached_property
    def intrinsics(self) -> Intrinsics:
        """Intrinsics of the undistorted images, in pixels."""
        width, height = self.size
        if not self.changes_image:
            return Intrinsics(self.camera.fx, self.camera.fx, width / 2, height / 2)
        focal = self._shortest_focal()
        return Intrinsics(focal, focal, width / 2, height / 2)

    def __call__(self, rgb: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Undistort an image [height, width, 3]."""
        if not self.changes_image:
            return rgb
        return np.asarray(cv2.remap(rgb, *self._maps, interpolation=cv2.INTER_LINEAR), np.uint8)

    def to_source(self, rays: NDArray[np.float64]) -> NDArray[np.float64]:
        """Project rays [N, 2] (x and y at z = 1) to pixels [N, 2] of the source image."""
        c, (K, coefficients) = self.camera, self._opencv
        if c.distortion == "omni":  # seen from the centre of a sphere, then from a point xi behind it
            rays = rays / (1 + c.coefficients[0] * np.sqrt(1 + (rays**2).sum(axis=1, keepdims=True)))
        points = np.concatenate([rays, np.ones((len(rays), 1))], axis=1)[:, None]
        zero = np.zeros(3)
        if c.distortion == "fisheye":
            pixels, _ = cv2.fisheye.projectPoints(points, zero, zero, K, coefficients)
        else:
            pixels, _ = cv2.projectPoints(points, zero, zero, K, coefficients)
        return np.asarray(pixels, np.float64).reshape(-1, 2)

    def from_source(self, pixels: NDArray[np.float64]) -> NDArray[np.float64]:
        """Map pixels [N, 2] of the source image to pixels [N, 2] of the undistorted image."""
        if not self.changes_image or not len(pixels):
            return pixels
        c, k, (K, coefficients) = self.camera, self.intrinsics, self._opencv
        points = np.asarray(pixels, np.float64)[:, None]
        if c.distortion == "fisheye":
            rays = cv2.fisheye.undistortPoints(points, K, coefficients)
        else:
            criteria = (cv2.TERM_CRITERIA_COUNT | cv2.TERM_CRITERIA_EPS, 50, 1e-9)
            rays = cv2.undistortPoints(points, K, coefficients, criteria=criteria)
        found = np.asarray(rays, np.float64).reshape(-1, 2)
        if c.distortion == "omni":
            xi, square = c.coefficients[0], (found**2).sum(axis=1, keepdims=True)
            factor = (xi + np.sqrt(1 + (1 - xi**2) * square)) / (1 + square)
            found = found * factor / (factor - xi)
        return np.asarray(found * (k.fx, k.fy) + (k.cx, k.cy))

    @property
    def _opencv(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Camera matrix and coefficients of OpenCV's functions."""
        c = self.camera
        coefficients = c.coefficients[1:] if c.distortion == "omni" else c.coefficients
        K = np.array([[c.fx, 0, c.cx], [0, c.fy, c.cy], [0, 0, 1.0]])
        return K, np.array(coefficients or (0.0,) * 4, np.float64)

    @property
    def shown_at(self) -> NDArray[np.float64]:
        """Source pixel [height, width, 2] of each undistorted pixel."""
        (width, height), k = self.size, self.intrinsics
        x, y = np.meshgrid((np.arange(width) + 0.5 - k.cx) / k.fx, (np.arange(height) + 0.5 - k.cy) / k.fy)
        return self.to_source(np.stack([x, y], axis=-1).reshape(-1, 2)).reshape(height, width, 2)

    @cached_property
    def _maps(self) -> tuple[NDArray[np.int16], NDArray[np.uint16]]:
        source = self.shown_at.astype(np.float32)
        fast: tuple[NDArray[np.int16], NDArray[np.uint16]] = cv2.convertMaps(
            source[..., 0] - np.float32(0.5), source[..., 1] - np.float32(0.5), cv2.CV_16SC2
        )
        return fast

    def _shortest_focal(self) -> float:
        """Smallest focal length without empty pixels: the widest field of view."""
        width, height = self.size
        share = np.linspace(-0.5, 0.5, BORDER_POINTS)
        half = np.full(BORDER_POINTS, 0.5)
        sides = [(share, -half), (share, half), (-half, share), (half, share)]
        border = np.concatenate([np.stack(side, axis=1) for side in sides]) * (width, height)

        steps = np.linspace(0, 1, RAY_STEPS + 1)

        def is_covered(focal: float) -> bool:
            # Along rays from the centre: far outside, the distortion may return into the image, or have a pole.
            pixels = self.to_source((steps[:, None, None] * border / focal).reshape(-1, 2))
            if not ((pixels >= -SAME_PX).all() and (pixels <= np.array(self.size) + SAME_PX).all()):
                return False
            moves = np.diff(pixels.reshape(len(steps), len(border), 2), axis=0)
            return bool(((moves * border).sum(axis=2) > 0).all())

        short = width / (2 * np.tan(MAX_FOV / 2)) if self.camera.distortion != "perspective" else 0.05 * self.camera.fx
        long = 50 * max(self.camera.fx, short)
        if is_covered(short):
            return float(short)
        for _ in range(HALVINGS):
            middle = np.sqrt(short * long)
            short, long = (short, middle) if is_covered(middle) else (middle, long)
        return float(long)
