"""Robust fit of the similarity between two results to the pixels of the features that their keyframes share.

Points of keyframes are uncertain along their rays, by some percent of their depth. Across these they are as exact as
the images. So each result's points are projected into the other's keyframes, and an error along the image of a point's
ray counts less. Directions are more exact thus than from distances between points.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core import so3
from stream_recon.app.core.camera_model import CameraModel
from stream_recon.app.core.transforms import Similarity
from stream_recon.app.localization.pose import BEHIND_PX, LOSS_PX, MAX_DAMPING, RayErrors

FloatArray = NDArray[np.float64]

STEP = 1e-6
"""Of numerical derivatives: rad, share of the distance, log scale."""
DAMPING, LEAST_DAMPING = 1e-3, 1e-9
"""First and least damping of Levenberg-Marquardt, as a share of the normal matrix's diagonal."""
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

    S, damping = start, DAMPING
    here = errors(S)
    for _ in range(STEPS):
        J = np.stack(
            [(errors(_moved(S, STEP * axis, centre, distance)) - here).ravel() / STEP for axis in np.eye(7)], axis=1
        )
        weight = np.repeat(1 / (1 + (here**2).sum(axis=1) / LOSS_PX**2), 2)
        H, g = J.T @ (J * weight[:, None]), J.T @ (weight * here.ravel())
        before = _cost(here)
        while damping < MAX_DAMPING:
            step = np.linalg.solve(H + damping * np.diag(np.diag(H)) + LEAST_DAMPING * np.eye(7), -g)
            moved = _moved(S, step, centre, distance)
            errors_there = errors(moved)
            if _cost(errors_there) < before:
                break
            damping *= 10
        else:
            return S
        S, here, damping = moved, errors_there, max(damping / 10, LEAST_DAMPING)
        if before - _cost(here) < TOLERANCE * before:
            break
    return S


def _moved(S: Similarity, step: FloatArray, centre: FloatArray, distance: float) -> Similarity:
    """A similarity turned and scaled about a centre, and shifted by shares of a distance."""
    R, scale = so3.exp(step[None, :3])[0], float(np.exp(step[6]))
    return Similarity(scale, R, centre - scale * R @ centre + distance * step[3:6]) @ S


def _cost(errors: FloatArray) -> float:
    return float(np.log1p((errors**2).sum(axis=1) / LOSS_PX**2).sum())


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
