"""Robust fit of the similarity between two results to the pixels of the features that their keyframes share.

Points of keyframes are uncertain along their rays, by some percent of their depth. Across these they are as exact as
the images. So each result's points are projected into the other's keyframes, and an error along the image of a point's
ray counts less. Directions are more exact thus than from distances between points.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core import so3
from stream_recon.app.core.camera_model import CameraModel
from stream_recon.app.core.transforms import Similarity, transform_each
from stream_recon.app.localization.config import DEFAULT_LOCALIZATION, PoseConfig
from stream_recon.app.localization.pose import BEHIND_PX, RayErrors
from stream_recon.app.slam.ba.levenberg import Damping, minimise

FloatArray = NDArray[np.float64]

_STEP = 1e-6
"""Of numerical derivatives: rad, share of the distance, log scale."""
_DAMPING = Damping(first=1e-3, factor=10.0)
_ITERATIONS, _TOLERANCE = 30, 1e-6


@dataclass(frozen=True)
class SharedPixels:
    """Points of one result, and where keyframes of the other one show them."""

    points: FloatArray  # [M, 3], in their result's world
    spread: FloatArray  # [M, 3], standard deviation along the ray of the point's keyframe
    T_camera_world: FloatArray  # [M, 4, 4], of the keyframes that show them, in the other result's world
    uv: FloatArray  # [M, 2], pixels there
    camera_model: CameraModel


def fit_pixels(
    start: Similarity,
    in_second: SharedPixels,
    in_first: SharedPixels,
    distance: float,
    config: PoseConfig = DEFAULT_LOCALIZATION.pose,
) -> Similarity:
    """The similarity from the second result's world to the first's, fitted from a start.

    Args:
        in_second: points of the first result in the second's keyframes.
        in_first: points of the second in the first's.
        distance: usual distance of the points from the cameras in the first result's unit.
    """
    to_second = _CrossProjection(in_second, start.inverse(), config)
    to_first = _CrossProjection(in_first, start, config)
    centre = start.apply(in_first.points).mean(axis=0)

    def errors(S: Similarity) -> FloatArray:
        return np.concatenate([to_second.errors(S.inverse()), to_first.errors(S)])

    model = _PixelErrors(errors, centre, distance, config.loss_px)
    return minimise(model, (start, errors(start)), _ITERATIONS, _TOLERANCE, rule=_DAMPING).state[0]


@dataclass(frozen=True)
class _PixelErrors:
    """`levenberg.LinearizedModel` over similarities with their errors [M, 2]."""

    errors: Callable[[Similarity], FloatArray]
    centre: FloatArray  # [3], about which similarities turn and scale
    distance: float
    """Unit of their shifts."""
    loss_px: float

    def cost(self, state: tuple[Similarity, FloatArray]) -> float:
        return float(np.log1p((state[1] ** 2).sum(axis=1) / self.loss_px**2).sum())

    def linearise(self, state: tuple[Similarity, FloatArray]) -> tuple[FloatArray, FloatArray]:
        """Matrix and gradient of the reweighted least squares."""
        S, error = state
        moved = (self.errors(self._moved(S, _STEP * axis)) for axis in np.eye(7))
        J = np.stack([(each - error).ravel() / _STEP for each in moved], axis=1)
        weight = np.repeat(1 / (1 + (error**2).sum(axis=1) / self.loss_px**2), 2)
        return J.T @ (J * weight[:, None]), J.T @ (weight * error.ravel())

    def step(
        self, state: tuple[Similarity, FloatArray], linear: tuple[FloatArray, FloatArray], damping: float
    ) -> tuple[tuple[Similarity, FloatArray], float]:
        H, g = linear
        damped = H + damping * np.diag(np.diag(H)) + _DAMPING.min * np.eye(7)
        moved = self._moved(state[0], np.asarray(np.linalg.solve(damped, -g), np.float64))
        return (moved, self.errors(moved)), np.inf

    def _moved(self, S: Similarity, step: FloatArray) -> Similarity:
        """A similarity turned and scaled about the centre, and shifted by shares of the distance."""
        R, scale = so3.exp(step[None, :3])[0], float(np.exp(step[6]))
        return Similarity(scale, R, self.centre - scale * R @ self.centre + self.distance * step[3:6]) @ S


class _CrossProjection:
    """Projection of one result's points into the other's images; their rays' images are those at the start."""

    def __init__(self, shared: SharedPixels, S: Similarity, config: PoseConfig) -> None:
        self._shared = shared
        deviation = self._projected(S, shared.points + shared.spread) - self._projected(S, shared.points)
        self._rays = RayErrors(deviation, config.typical_px)

    def _projected(self, S: Similarity, points: FloatArray) -> FloatArray:
        return self._shared.camera_model.project(transform_each(self._shared.T_camera_world, S.apply(points)))

    def errors(self, S: Similarity) -> FloatArray:
        """Errors [M, 2] in pixels, without what an uncertain depth explains."""
        error = self._projected(S, self._shared.points) - self._shared.uv
        return self._rays.without(np.nan_to_num(error, nan=BEHIND_PX))
