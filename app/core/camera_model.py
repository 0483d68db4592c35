"""Camera with radial distortion: a perspective or an equidistant fish-eye lens with two coefficients.

Pixel (0, 0) covers [0, 1) x [0, 1). A ray (x, y, z) has the coordinates (x, y) / z at depth 1, of radius r. Its pixel
is the principal point plus focal length times these coordinates times a radial factor d(r) / r. The distorted radius is

    perspective: d = r (1 + k1 r^2 + k2 r^4)                   COLMAP's RADIAL, SIMPLE_RADIAL with k2 = 0
    fish-eye:    d = t (1 + k1 t^2 + k2 t^4), t = atan(r)      COLMAP's RADIAL_FISHEYE, SIMPLE_RADIAL_FISHEYE

Rays at 90 degrees or more from the optical axis have no pixel.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

WIDEST_RAY = np.radians(88.0)
"""Largest angle from the optical axis of a ray that a pixel is given: its coordinates at depth 1 stay finite."""
FURTHEST = 50.0
"""Largest radius at depth 1 of a perspective camera's rays."""
MIN_DEPTH = 1e-6
"""Depth up to which a point counts as behind the camera."""
SMALL = 1e-6
"""Squared radius below which the radial factor of a fish-eye lens is that of the centre."""
STEPS = 12
"""Most Newton steps that invert the distortion."""
CONVERGED = 1e-9
"""Newton step after which the inverse is exact to rounding."""
MIN_DISTORTION_PX = 0.1
"""Least displacement at the image's corner that counts as distortion: resampling would blur more than it corrects."""


@dataclass(frozen=True)
class CameraModel:
    """Intrinsics shared by all cameras, in pixels."""

    focal: float
    cx: float
    cy: float
    k1: float = 0.0
    k2: float = 0.0
    fisheye: bool = False

    @property
    def is_straight(self) -> bool:
        """Whether straight lines stay straight."""
        return not (self.fisheye or self.k1 or self.k2)

    @property
    def colmap_model(self) -> str:
        """Name of the model in COLMAP."""
        if self.is_straight:
            return "SIMPLE_PINHOLE"
        return f"{'RADIAL' if self.k2 else 'SIMPLE_RADIAL'}{'_FISHEYE' if self.fisheye else ''}"

    @property
    def longer_side(self) -> float:
        """Of an image whose centre is the principal point."""
        return 2 * max(self.cx, self.cy)

    def scaled(self, factor: float) -> "CameraModel":
        """The camera of images resized by a factor."""
        return replace(self, focal=self.focal * factor, cx=self.cx * factor, cy=self.cy * factor)

    def straightened(self, size: tuple[int, int]) -> "CameraModel":
        """The camera without distortion where that moves no pixel of an image (width, height) noticeably."""
        corner = np.hypot(max(self.cx, size[0] - self.cx), max(self.cy, size[1] - self.cy)) / self.focal
        rays = np.array([[corner, 0.0]])
        moved = float(np.abs(self.distorted(rays) - rays).max()) * self.focal
        return replace(self, k1=0.0, k2=0.0, fisheye=False) if moved < MIN_DISTORTION_PX else self

    def distorted(self, plane: NDArray[np.floating]) -> FloatArray:
        """Distorted coordinates [..., 2] of rays with these coordinates [..., 2] at depth 1."""
        plane = np.asarray(plane, np.float64)
        squared = np.square(plane).sum(axis=-1, keepdims=True)
        return np.asarray(plane * self.radial_factor(squared))

    def undistorted(self, distorted: NDArray[np.floating]) -> FloatArray:
        """Coordinates [..., 2] at depth 1 of rays with these distorted coordinates [..., 2]; inverse of `distorted`.

        Beyond the largest radius that the lens has: those of the nearest radius.
        """
        bent = np.asarray(distorted, np.float64)
        if self.is_straight:
            return bent
        radius = np.sqrt(np.square(bent).sum(axis=-1, keepdims=True))
        return np.asarray(bent * (self._straight(radius) / np.where(radius > 0, radius, 1.0) + (radius == 0)))

    def rays(self, pixels: NDArray[np.floating]) -> FloatArray:
        """Coordinates [..., 2] at depth 1 of the rays through pixels [..., 2]."""
        return self.undistorted((np.asarray(pixels, np.float64) - (self.cx, self.cy)) / self.focal)

    def pixels(self, plane: NDArray[np.floating]) -> FloatArray:
        """Pixels [..., 2] of rays with these coordinates [..., 2] at depth 1."""
        return np.asarray(self.distorted(plane) * self.focal + (self.cx, self.cy))

    def unproject(self, pixels: NDArray[np.floating]) -> FloatArray:
        """Directions [N, 3] with z = 1 of the rays through pixels [N, 2]."""
        plane = self.rays(pixels)
        return np.concatenate([plane, np.ones((len(plane), 1))], axis=1)

    def project(self, xyz: NDArray[np.floating]) -> FloatArray:
        """Pixels [N, 2] of points [N, 3] in camera axes; NaN behind the camera."""
        points = np.asarray(xyz, np.float64)
        return self.pixels(points[:, :2] / np.where(points[:, 2:] > MIN_DEPTH, points[:, 2:], np.nan))

    def jacobian(self, xyz: NDArray[np.floating]) -> FloatArray:
        """Derivatives [N, 2, 3] of the pixels of points [N, 3], in front of the camera, by the points."""
        plane = xyz[:, :2] / xyz[:, 2:]
        xx, xy, yy = self.distortion_derivatives(*plane.T)
        by_plane = np.stack([xx, xy, xy, yy], axis=1).reshape(-1, 2, 2)
        plane_by_xyz = np.concatenate([np.tile(np.eye(2), (len(plane), 1, 1)), -plane[:, :, None]], axis=2)
        return np.asarray(self.focal * by_plane @ (plane_by_xyz / xyz[:, 2:, None]))

    def distortion_derivatives(self, x: FloatArray, y: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Derivatives of distorted coordinates by x, y [N] at depth 1, a symmetric matrix: its xx, xy and yy [N]."""
        factor, slope, _, _ = self.radial_derivatives(x * x + y * y)
        return factor + slope * (x * x), slope * (x * y), factor + slope * (y * y)

    def field_of_view_deg(self, length: float) -> float:
        """Angle between the rays through the middles of two borders that are ``length`` pixels apart."""
        half = self._straight(np.array([0.5 * length / self.focal]))
        return float(np.degrees(2 * np.arctan(half[0])))

    def is_invertible(self, size: tuple[int, int]) -> bool:
        """Whether each pixel of an image (width, height) has one ray."""
        corner = self.undistorted(np.array([[np.hypot(self.cx, self.cy) / self.focal, 0.0]]))
        reached = float(self.distorted(corner)[0, 0]) * self.focal
        return bool(abs(reached - np.hypot(self.cx, self.cy)) < 0.01 * max(size))

    def _straight(self, radius: FloatArray) -> FloatArray:
        """Radii at depth 1 of distorted radii."""
        if self.is_straight:
            return radius
        # Both models are a polynomial in r or in the angle. Up to its first maximum it has one inverse.
        x_max = min(WIDEST_RAY if self.fisheye else FURTHEST, _turning_point(self.k1, self.k2))
        x = np.minimum(radius, x_max)
        for _ in range(STEPS):
            s = x * x
            slope = np.maximum(1 + s * (3 * self.k1 + 5 * self.k2 * s), 0.05)
            before = x
            x = np.clip(x - (x * (1 + s * (self.k1 + self.k2 * s)) - radius) / slope, 0, x_max)
            # Steps shrink quadratically.
            if np.abs(x - before).max(initial=0.0) < CONVERGED:
                break
        return np.asarray(np.tan(x) if self.fisheye else x)

    def radial_factor(self, squared: FloatArray) -> FloatArray:
        """Distorted radius over radius, of squared radii at depth 1 (an array of any shape)."""
        if not self.fisheye:
            return np.asarray(1 + squared * (self.k1 + self.k2 * squared))
        radius = np.sqrt(np.maximum(squared, SMALL))
        angle = np.arctan(radius)
        s = angle * angle
        return np.asarray(angle * (1 + s * (self.k1 + self.k2 * s)) / radius)

    def radial_derivatives(self, squared: FloatArray) -> tuple[FloatArray, ...]:
        """Radial factor g, g'(r) / r, and the derivatives of g by k1 and k2, all [O], of squared radii [O]."""
        k1, k2 = self.k1, self.k2
        if not self.fisheye:
            return 1 + squared * (k1 + k2 * squared), 2 * k1 + 4 * k2 * squared, squared, squared * squared
        squared = np.maximum(squared, SMALL)
        radius = np.sqrt(squared)
        angle = np.arctan(radius)
        s, ratio = angle * angle, angle / radius
        factor = ratio * (1 + s * (k1 + k2 * s))
        slope = (1 + s * (3 * k1 + 5 * k2 * s)) / (1 + squared)
        return factor, (slope - factor) / squared, ratio * s, ratio * s * s


def _turning_point(k1: float, k2: float) -> float:
    """Least positive x at which x (1 + k1 x^2 + k2 x^4) stops growing; inf if it always grows."""
    roots = np.roots([5 * k2, 3 * k1, 1.0]) if k2 else np.array([-1 / (3 * k1)] if k1 else [])
    squares = roots[np.abs(np.imag(roots)) < 1e-12].real
    squares = squares[squares > 0]
    return float(np.sqrt(squares.min())) if len(squares) else float("inf")
