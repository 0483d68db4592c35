"""Poses of cameras against points that stay: frames between keyframes, each from a guess of its own."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core import so3
from stream_recon.app.slam.ba.levenberg import minimise_each
from stream_recon.app.slam.ba.problem import BAScene, CameraModel, Observations, ParameterBlocks
from stream_recon.app.slam.ba.residuals import (
    RobustLosses,
    Sightings,
    linearise_sightings,
    order_sightings,
    pixel_errors,
    squared_errors,
)
from stream_recon.app.slam.ba.schur import camera_products

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]


@dataclass(frozen=True)
class Motion:
    """Of K cameras."""

    T_world_camera: FloatArray  # [K, 4, 4]
    distances: FloatArray  # [O]
    """Reprojection errors in pixels, in the order of the observations; inf where behind the camera."""
    information: FloatArray  # [K, 6, 6]
    """Of a turn in the camera's axes (rad) and a move of its centre along the world's, for errors of one sigma."""


def batched_pose_only_ba(
    T_world_camera: FloatArray,
    points: FloatArray,
    observations: Observations,
    lens: CameraModel,
    loss_scales: Sequence[float] = (20.0, 6.0, 2.0),
    iterations: int = 15,
    tolerance: float = 1e-5,
) -> Motion:
    """Poses near the guesses [K, 4, 4] from which the points [M, 3] are seen as they were observed.

    Robust (Cauchy) at each of ``loss_scales`` in turn, in sigmas of the observations, with ``iterations`` at most
    for each. A camera that sees nothing stays; one that sees little moves only where it is told to, see
    ``information``. Measured depths are not looked at.
    """
    start = np.array(T_world_camera, np.float64)
    seen = replace(observations, depth=None)
    variables = ParameterBlocks.of(BAScene(start, points, lens), np.arange(len(start)))
    sightings, order, _ = order_sightings(seen, np.arange(len(start)), variables, lens)
    state = np.concatenate([variables.rotation, variables.centre[:, :, None]], axis=2)
    model = _Motion(variables, sightings, 1.0)
    for scale in loss_scales:
        model = _Motion(variables, sightings, scale)
        state, _ = minimise_each(model, state, iterations, tolerance)
    final = model.variables(state)
    distances = np.empty(len(seen))
    distances[order] = np.linalg.norm(pixel_errors(final, sightings)[0], axis=0)
    start[:, :3] = state
    return Motion(start, np.where(np.isnan(distances), np.inf, distances), model.normals(state)[0])


class _Motion:
    """`levenberg.Many`: a state is [K, 3, 4], camera to world."""

    def __init__(self, start: ParameterBlocks, sightings: Sightings, loss_scale: float) -> None:
        self._start, self._sightings = start, sightings
        self._losses = RobustLosses(loss_scale, 1.0)
        self._starts = np.concatenate([[0], np.cumsum(sightings.per_camera)])

    def variables(self, state: FloatArray) -> ParameterBlocks:
        return replace(self._start, rotation=state[:, :, :3], centre=state[:, :, 3])

    def costs(self, state: FloatArray) -> FloatArray:
        square = squared_errors(pixel_errors(self.variables(state), self._sightings)[0], self._sightings)
        scale = self._losses.pixel
        each = 0.5 * scale**2 * np.log1p(square / scale**2)
        return np.bincount(self._sightings.camera, each, len(state)).astype(np.float64, copy=False)

    def normals(self, state: FloatArray) -> tuple[FloatArray, FloatArray]:
        rows = linearise_sightings(self.variables(state), self._sightings, self._losses)
        products = camera_products(np.concatenate([rows.camera, rows.joint[:, -1:]], axis=1), self._starts)
        return products[:, :6, :6], products[:, :6, 6]

    def stepped(self, state: FloatArray, steps: FloatArray) -> FloatArray:
        turned = state[:, :, :3] @ so3.exp(steps[:, :3])
        return np.concatenate([turned, state[:, :, 3:] + steps[:, 3:, None]], axis=2)
