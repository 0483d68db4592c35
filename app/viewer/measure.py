"""Distances between picked points, with the error that the points and the scale leave."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.viewer.picking import Hit, PointingRay

DEPTH_ERROR = 0.025
"""Error (95 %) of a surface, as a share of its distance from the nearest camera."""
CLICK_PX = 1.5
"""Error (95 %) of pointing, in pixels."""
METRE = "metre"
MAX_POINTS = 40
"""Points that a page keeps: the oldest ones go."""


@dataclass(frozen=True)
class Unit:
    """Unit of the world."""

    name: str = "units"
    scale_error: float | None = None
    """Relative standard error of the scale; None: it is unknown, or there is no scale."""

    @property
    def is_metric(self) -> bool:
        return self.name == METRE


@dataclass(frozen=True)
class PickedPoint:
    """A point on a surface."""

    point: NDArray[np.float64]  # [3]
    error: float
    """Error (95 %) of its position, in the unit of the world."""


def pick(ray: PointingRay, hit: Hit, cameras: NDArray[np.floating]) -> PickedPoint:
    """The point of a hit. ``cameras`` [n, 3]: positions of the cameras that saw the scene."""
    distance = float(np.linalg.norm(cameras - hit.point, axis=1).min()) if len(cameras) else hit.distance
    error = np.hypot(DEPTH_ERROR * distance, CLICK_PX * ray.pixel * hit.distance)
    return PickedPoint(hit.point, float(np.hypot(error, hit.spread)))


@dataclass(frozen=True)
class MeasuredDistance:
    """Distance of two points."""

    first: PickedPoint
    second: PickedPoint
    unit: Unit

    @property
    def length(self) -> float:
        return float(np.linalg.norm(self.second.point - self.first.point))

    @property
    def error(self) -> float:
        """Error (95 %), with that of the scale where it is known."""
        of_scale = 2 * (self.unit.scale_error or 0.0) * self.length
        return float(np.sqrt(self.first.error**2 + self.second.error**2 + of_scale**2))

    @property
    def text(self) -> str:
        """Length and error, such as "1.52 ± 0.03 m"."""
        error = max(self.error, 1e-12)
        digits = int(np.clip(1 - np.floor(np.log10(error)), 0, 9))
        name = "m" if self.unit.is_metric else "units"
        return f"{self.length:.{digits}f} ± {error:.{digits}f} {name}"


def distances(picks: list[PickedPoint], unit: Unit) -> list[MeasuredDistance]:
    """Distances of the points two by two, as they were picked."""
    return [MeasuredDistance(a, b, unit) for a, b in zip(picks[::2], picks[1::2], strict=False)]
