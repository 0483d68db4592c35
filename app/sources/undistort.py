"""Images of a known camera as one without a lens would have taken them: square pixels, the axis in the middle."""

from dataclasses import dataclass
from functools import cached_property

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.types import Intrinsics
from stream_recon.app.sources.calibration import Calibration

SAME_PX, SAME_SHARE = 0.5, 1e-4
"""A camera whose axis and pixels are no further from the wanted ones is left as it is."""
WIDEST = np.radians(110)
"""Field of view, from side to side, up to which a fish-eye's image is kept: beyond, its rim would fill the image."""
BORDER_POINTS = 64
HALVINGS = 40


@dataclass(frozen=True)
class Undistorter:
    """For images [height, width] of ``size`` (width, height); ``camera`` is for that size."""

    camera: Calibration
    size: tuple[int, int]

    @property
    def bends(self) -> bool:
        """Whether images have to be changed at all."""
        c, (width, height) = self.camera, self.size
        bent = any(c.coefficients) or c.bending == "fisheye"
        off = max(abs(c.cx - width / 2), abs(c.cy - height / 2)) > SAME_PX
        return bent or off or abs(c.fx / c.fy - 1) > SAME_SHARE

    @cached_property
    def intrinsics(self) -> Intrinsics:
        """Of the images that come out, in their pixels, which are as many as before."""
        width, height = self.size
        if not self.bends:
            return Intrinsics(self.camera.fx, self.camera.fx, width / 2, height / 2)
        focal = self._shortest_focal()
        return Intrinsics(focal, focal, width / 2, height / 2)

    def __call__(self, rgb: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """The image [height, width, 3] without the lens."""
        if not self.bends:
            return rgb
        return np.asarray(cv2.remap(rgb, *self._maps, interpolation=cv2.INTER_LINEAR), np.uint8)

    def to_source(self, rays: NDArray[np.float64]) -> NDArray[np.float64]:
        """Pixels [N, 2] of the source that show rays [N, 2], x and y at z = 1."""
        c = self.camera
        K = np.array([[c.fx, 0, c.cx], [0, c.fy, c.cy], [0, 0, 1.0]])
        bent = np.array(c.coefficients or (0.0,) * 4, np.float64)
        points = np.concatenate([rays, np.ones((len(rays), 1))], axis=1)[:, None]
        still = np.zeros(3)
        if c.bending == "fisheye":
            pixels, _ = cv2.fisheye.projectPoints(points, still, still, K, bent)
        else:
            pixels, _ = cv2.projectPoints(points, still, still, K, bent)
        return np.asarray(pixels, np.float64).reshape(-1, 2)

    def from_source(self, pixels: NDArray[np.float64]) -> NDArray[np.float64]:
        """Where pixels [N, 2] of the source are in the images that come out."""
        if not self.bends or not len(pixels):
            return pixels
        c, k = self.camera, self.intrinsics
        K = np.array([[c.fx, 0, c.cx], [0, c.fy, c.cy], [0, 0, 1.0]])
        bent = np.array(c.coefficients or (0.0,) * 4, np.float64)
        points = np.asarray(pixels, np.float64)[:, None]
        if c.bending == "fisheye":
            rays = cv2.fisheye.undistortPoints(points, K, bent)
        else:
            exact = (cv2.TERM_CRITERIA_COUNT | cv2.TERM_CRITERIA_EPS, 50, 1e-9)
            rays = cv2.undistortPoints(points, K, bent, criteria=exact)
        return np.asarray(np.asarray(rays, np.float64).reshape(-1, 2) * (k.fx, k.fy) + (k.cx, k.cy))

    @property
    def shown_at(self) -> NDArray[np.float64]:
        """Pixels [height, width, 2] of the source that the pixels of the images that come out show."""
        (width, height), k = self.size, self.intrinsics
        x, y = np.meshgrid((np.arange(width) + 0.5 - k.cx) / k.fx, (np.arange(height) + 0.5 - k.cy) / k.fy)
        return self.to_source(np.stack([x, y], axis=-1).reshape(-1, 2)).reshape(height, width, 2)

    @cached_property
    def _maps(self) -> tuple[NDArray[np.int16], NDArray[np.uint16]]:
        at = self.shown_at.astype(np.float32)
        fast: tuple[NDArray[np.int16], NDArray[np.uint16]] = cv2.convertMaps(
            at[..., 0] - np.float32(0.5), at[..., 1] - np.float32(0.5), cv2.CV_16SC2
        )
        return fast

    def _shortest_focal(self) -> float:
        """Of those with which the source shows every pixel: the widest view without an empty corner."""
        width, height = self.size
        share = np.linspace(-0.5, 0.5, BORDER_POINTS)
        half = np.full(BORDER_POINTS, 0.5)
        sides = [(share, -half), (share, half), (-half, share), (half, share)]
        border = np.concatenate([np.stack(side, axis=1) for side in sides]) * (width, height)

        def shown(focal: float) -> bool:
            # All along the way from the middle: far out a polynomial may come back into the image.
            rays = np.concatenate([border * (step / focal) for step in np.linspace(0.25, 1, 8)])
            pixels = self.to_source(rays)
            return bool((pixels >= -SAME_PX).all() and (pixels <= np.array(self.size) + SAME_PX).all())

        short = width / (2 * np.tan(WIDEST / 2)) if self.camera.bending == "fisheye" else 0.05 * self.camera.fx
        long = 50 * max(self.camera.fx, short)
        if shown(short):
            return float(short)
        for _ in range(HALVINGS):
            middle = np.sqrt(short * long)
            short, long = (short, middle) if shown(middle) else (middle, long)
        return float(long)
