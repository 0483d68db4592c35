"""What an adjustment is given: a scene to start from, what was seen of it, and what else is known.

Pixel (0, 0) covers [0, 1) x [0, 1). Cameras look along +z, x right, y down, all through one lens: a focal length for
both axes, a principal point, and one radial term, u = cx + f (1 + k1 r^2) x / z with r^2 = (x^2 + y^2) / z^2 (COLMAP's
SIMPLE_RADIAL). Lengths are in any one unit.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class CameraModel:
    """Shared by all cameras; in pixels."""

    focal: float
    cx: float
    cy: float
    k1: float = 0.0


@dataclass(frozen=True)
class BAScene:
    """All that an adjustment may change."""

    T_world_camera: FloatArray  # [N, 4, 4]
    points: FloatArray  # [M, 3], in the world
    lens: CameraModel
    """Its principal point stays."""
    log_depth_scale: FloatArray | None = None  # [N]
    """Measured depths of a camera times exp of this are the scene's. None: all 0."""


@dataclass(frozen=True)
class Observations:
    """Where cameras saw points; in any order."""

    camera: IntArray  # [O]
    point: IntArray  # [O]
    pixel: FloatArray  # [O, 2]
    sigma: FloatArray | None = None  # [O]
    """Standard deviations in pixels. None: all 1."""
    depth: FloatArray | None = None  # [O]
    """Measured along the camera's z axis, in the scene's unit. 0 or NaN where there is none."""

    def __len__(self) -> int:
        return len(self.camera)

    def take(self, chosen: IntArray | Mask) -> "Observations":
        """Those at ``chosen`` (numbers or a mask)."""
        return Observations(
            self.camera[chosen],
            self.point[chosen],
            self.pixel[chosen],
            None if self.sigma is None else self.sigma[chosen],
            None if self.depth is None else self.depth[chosen],
        )


@dataclass(frozen=True)
class RelativePoses:
    """Poses of cameras in one another's axes, as another source has them. Robust: a wrong one gives way.

    Their translations are in the unit of the measured depths. Where depth scales are free they are scaled along, by
    the mean of both cameras' log scales: what is known is then the ratio of baseline and depth, whatever the unit.
    """

    first: IntArray  # [E]
    second: IntArray  # [E]
    T_first_second: FloatArray  # [E, 4, 4]
    rotation_sigma: FloatArray  # [E]
    """In rad."""
    translation_sigma: FloatArray  # [E]
    """As shares of the translations' lengths."""
    still: float = 0.01
    """Lengths below this share of the scene's depth count as that."""


@dataclass(frozen=True)
class Priors:
    """What is known before anything was seen. Robust loss (Cauchy) on depths and relative poses, in sigmas."""

    depth_sigma: float = 0.5
    """Of the log of a measured depth. Errors of depth maps are correlated, so this is wider than they are."""
    depth_loss_scale: float = 2.0
    log_depth_scale_sigma: float = 0.1
    """Of a camera's log depth scale about 0."""
    relative_loss_scale: float = 3.0
    focal: float | None = None
    """In pixels, where there is a prior; None: none."""
    log_focal_sigma: float = 0.1
    k1_sigma: float = 0.01
    """Of k1 about 0."""
    known_lens: bool = False
    """Focal length and k1 stay what they are."""


@dataclass(frozen=True)
class Problem:
    """Where no camera is fixed the first one is: the scene can be moved and turned as a whole.

    Its scale is held by measured depths, by relative poses or by two fixed cameras; with none of these it stays
    about where it was, since every step is damped. Raises ValueError where arrays do not fit one another.
    """

    scene: BAScene
    observations: Observations
    relative_poses: RelativePoses | None = None
    fixed: Mask | None = None  # [N]
    """Cameras whose pose and depth scale stay."""
    free_focal: bool = True
    free_k1: bool = False
    free_depth_scales: bool = True
    """Only where depths were measured."""
    priors: Priors = field(default_factory=Priors)

    def __post_init__(self) -> None:
        seen, cameras, count = self.observations, len(self.scene.T_world_camera), len(self.observations)
        shapes: dict[str, tuple[NDArray[Any] | None, tuple[int, ...]]] = {
            "point": (seen.point, (count,)),
            "pixel": (seen.pixel, (count, 2)),
            "sigma": (seen.sigma, (count,)),
            "depth": (seen.depth, (count,)),
            "T_world_camera": (self.scene.T_world_camera, (cameras, 4, 4)),
            "points": (self.scene.points, (len(self.scene.points), 3)),
            "log_depth_scale": (self.scene.log_depth_scale, (cameras,)),
            "fixed": (self.fixed, (cameras,)),
        }
        for name, (array, shape) in shapes.items():
            if array is not None and array.shape != shape:
                raise ValueError(f"{name} is {array.shape}, not {shape}")
        for name, index, limit in (("camera", seen.camera, cameras), ("point", seen.point, len(self.scene.points))):
            if count and not (index.min() >= 0 and index.max() < limit):
                raise ValueError(f"an observation's {name} is not below {limit}")
