"""A known camera, from numbers or arrays."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from stream_recon.app.sources.calibration import Calibration, Distortion
from stream_recon.configs.errors import ConfigError


@dataclass(frozen=True)
class Camera:
    """A calibrated camera with OpenCV's numbers, in pixels; the centre of the first pixel is (0, 0).

    Args:
        fx, fy: focal lengths.
        cx, cy: principal point.
        distortion: perspective: k1 k2 p1 p2 [k3 ...] (4, 5, 8, 12 or 14); fisheye: k1 k2 k3 k4; empty: none.
        model: ``perspective`` (Brown) or ``fisheye`` (Kannala and Brandt).
        size: width and height of the calibration's images; None: those of the source.

    Raises ConfigError: numbers that no camera has.
    """

    fx: float
    fy: float
    cx: float
    cy: float
    distortion: Sequence[float] = ()
    model: Distortion = "perspective"
    size: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        self.calibration()

    @classmethod
    def from_matrix(
        cls,
        K: ArrayLike,
        distortion: ArrayLike = (),
        model: Distortion = "perspective",
        size: tuple[int, int] | None = None,
    ) -> "Camera":
        """The camera of OpenCV's matrix [3, 3] and its coefficients [N], such as `cv2.calibrateCamera` gives them.

        Raises ConfigError.
        """
        matrix = np.asarray(K, np.float64)
        if matrix.shape != (3, 3) or matrix[0, 1] or (matrix[2] != (0, 0, 1)).any():
            raise ConfigError("a camera matrix is [[fx, 0, cx], [0, fy, cy], [0, 0, 1]]")
        coefficients = tuple(float(value) for value in np.ravel(np.asarray(distortion, np.float64)))
        (fx, _, cx), (_, fy, cy) = matrix[:2].tolist()
        return cls(fx, fy, cx, cy, coefficients, model, size)

    def calibration(self) -> Calibration:
        """The camera as the program keeps it, with (0, 0) at the first pixel's corner. Raises ConfigError."""
        if self.model not in ("perspective", "fisheye"):
            raise ConfigError(f"model is {self.model!r}: use perspective or fisheye")
        try:
            fx, fy, cx, cy = (float(value) for value in (self.fx, self.fy, self.cx, self.cy))
            coefficients = tuple(float(value) for value in self.distortion)
            size = None if self.size is None else (int(self.size[0]), int(self.size[1]))
        except (TypeError, ValueError) as error:
            raise ConfigError(f"a camera's values must be numbers: {error}") from error
        return Calibration(fx, fy, cx + 0.5, cy + 0.5, self.model, coefficients, size)
