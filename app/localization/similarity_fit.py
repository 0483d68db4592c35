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
from stream_recon.app.core.transforms import Similarity
from stream_recon.app.localization.pose import BEHIND_PX, LOSS_PX, RayErrors
from stream_recon.app.slam.ba.levenberg import Damping, minimise

FloatArray = NDArray[np.float64]

STEP = 1e-6
"""Of numerical derivatives: rad, share of the distance, log scale."""
DAMPING = Damping(first=1e-3, factor=10.0)
STEPS, TOLERANCE = 30, 1e-6
"""Most steps; relative decrease of the cost that ends the fit."""


@dataclass(frozen=True)
class SharedPixels:
    """Points of one result, and where keyframes of the other one show them."""

    points: FloatArray  # [M, 3], in their result's world
    spread: FloatArray  # [M, 3], standard deviation along the ray of the point's keyframe
    T_camera_world: FloatArray  # [M, 4, 4], of the keyframes that show them, in the other result's world
    uv: FloatArray  # [M, 2], pixels there
    lens: CameraModel


def fit_pixels(start: Similarity, there: SharedPixels, back: SharedPixels, distance: float) -> Similarity:
    """The similarity from the second result's world to the first's, fitted from a start.

    Args:
        there: points of the first result in the second's keyframes.
        back: points of the second in the first's.
        distance: usual distance of the points from the cameras in the first result's unit.
    """
    seen_there, seen_back = _View(there, start.inverse()), _View(back, start)
    centre = start.apply(back.points).mean(axis=0)

    def errors(S: Similarity) -> FloatArray:
        return np.concatenate([seen_there.errors(S.inverse()), seen_back.errors(S)])

    model = _PixelErrors(errors, centre, distance)
    return minimise(model, (start, errors(start)), STEPS, TOLERANCE, rule=DAMPING).state[0]


@dataclass(frozen=True)
class _PixelErrors:
    """`levenberg.LinearizedModel` over similarities with their errors [M, 2]."""

    errors: Callable[[Similarity], FloatArray]
    centre: FloatArray  # [3], about which similarities turn and scale
    distance: float
    """Unit of their shifts."""

    def cost(self, state: tuple[Similarity, FloatArray]) -> float:
        return float(np.log1p((state[1] ** 2).sum(axis=1) / LOSS_PX**2).sum())

    def linearise(self, state: tuple[Similarity, FloatArray]) -> tuple[FloatArray, FloatArray]:
        """Matrix and gradient of the reweighted least squares."""
        S, here = state
        J = np.stack([(self.errors(self._moved(S, STEP * axis)) - here).ravel() / STEP for axis in np.eye(7)], axis=1)
        weight = np.repeat(1 / (1 + (here**2).sum(axis=1) / LOSS_PX**2), 2)
        return J.T @ (J * weight[:, None]), J.T @ (weight * here.ravel())

    def step(
        self, state: tuple[Similarity, FloatArray], linear: tuple[FloatArray, FloatArray], damping: float
    ) -> tuple[tuple[Similarity, FloatArray], float]:
        H, g = linear
        step = np.asarray(np.linalg.solve(H + damping * np.diag(np.diag(H)) + DAMPING.min * np.eye(7), -g), np.float64)
        moved = self._moved(state[0], step)
        return (moved, self.errors(moved)), np.inf

    def _moved(self, S: Similarity, step: FloatArray) -> Similarity:
        """A similarity turned and scaled about the centre, and shifted by shares of the distance."""
        R, scale = so3.exp(step[None, :3])[0], float(np.exp(step[6]))
        return Similarity(scale, R, self.centre - scale * R @ self.centre + self.distance * step[3:6]) @ S


class _View:
    """Errors of one result's points in the other's images; their rays' images are those at the start."""

    def __init__(self, shared: SharedPixels, S: Similarity) -> None:
        self._shared = shared
        self._rays = RayErrors(self._projected(S, shared.points + shared.spread) - self._projected(S, shared.points))

    def _projected(self, S: Similarity, points: FloatArray) -> FloatArray:
        T = self._shared.T_camera_world
        xyz = np.einsum("nij,nj->ni", T[:, :3, :3], S.apply(points)) + T[:, :3, 3]
        return np.asarray(self._shared.lens.project(xyz))

    def errors(self, S: Similarity) -> FloatArray:
        """Errors [M, 2] in pixels, without what an uncertain depth explains."""
        error = self._projected(S, self._shared.points) - self._shared.uv
        return self._rays.without(np.nan_to_num(error, nan=BEHIND_PX))
