"""Triangulation of tracks: linear (DLT on rays), then by reprojection errors."""

from dataclasses import dataclass, replace

import numpy as np

from stream_recon.app.core.camera_model import CameraModel
from stream_recon.app.slam.ba.problem import BAScene, FloatArray, IntArray, Mask, Observations, ParameterBlocks
from stream_recon.app.slam.ba.residuals import (
    RobustLosses,
    Sightings,
    linearise_sightings,
    order_sightings,
    pixel_errors,
    squared_errors,
)

_FARTHEST = 1e5
"""Largest distance of a point, in multiples of the extent of the cameras that see it."""
_DAMPING = 1e-6
"""Initial damping; small, since the linear solution is close."""
_TOLERANCE = 1e-6
"""Share of the cost below which a decrease ends the search."""


@dataclass(frozen=True)
class Triangulation:
    """Points of M tracks; those with fewer than two views are NaN, with angle 0 and not in front."""

    points: FloatArray  # [M, 3], in the world
    angle_deg: FloatArray  # [M]
    """Approximate widest angle between two rays; at least half of it."""
    in_front: Mask  # [M]
    """Whether the point is in front of all cameras of its track."""
    rms_px: FloatArray  # [M]
    """RMS reprojection error; inf behind a camera."""
    views: IntArray  # [M]


def triangulate(
    T_world_camera: FloatArray,
    camera_model: CameraModel,
    observations: Observations,
    count: int,
    loss_scale: float = 1e3,
    iterations: int = 5,
    otherwise: FloatArray | None = None,
) -> Triangulation:
    """Points of ``count`` tracks, which the observations call points. Measured depths are ignored.

    ``loss_scale``: of the Cauchy loss on reprojection errors, in sigmas of the observations; large, so that the error
    shows a wrong member of a track.
    ``otherwise``: [count, 3], initial points where the linear ones fit worse, as without parallax, where these may lie
    anywhere, also behind the cameras.
    """
    T = np.asarray(T_world_camera, np.float64)
    observations = replace(observations, depth=None)
    views = np.bincount(observations.point, minlength=count)
    plane = camera_model.rays(observations.pixel)
    rays = np.einsum("oij,oj->oi", T[observations.camera, :3, :3], np.column_stack([plane, np.ones(len(observations))]))
    rays /= np.linalg.norm(rays, axis=1, keepdims=True)
    start = _linear(T[observations.camera, :3, 3], rays, observations.point, count)
    variables = ParameterBlocks.from_scene(BAScene(T, start, camera_model), np.arange(len(T)))
    sightings, _, _ = order_sightings(observations, np.arange(len(T)), variables, camera_model)
    # Points that start behind a camera would have zero gradient there.
    model = _Points(variables, replace(sightings, near=0.0), loss_scale)
    if otherwise is not None:
        start = np.where((model.costs(otherwise) < model.costs(start))[:, None], otherwise, start)
    points = model.minimise(start, iterations)
    error, z = pixel_errors(model.variables(points), model.sightings)
    square = np.where(np.isnan(error[0]), np.inf, (error**2).sum(axis=0))
    behind = np.bincount(sightings.point, ~(z > 0), count) > 0
    known = views >= 2
    rms = np.sqrt(np.bincount(sightings.point, square, count) / np.maximum(views, 1))
    angle = np.where(known, _widest_angle_deg(rays, observations.point, count), 0.0)
    points, rms = np.where(known[:, None], points, np.nan), np.where(known, rms, np.inf)
    return Triangulation(points, angle, known & ~behind, rms, views)


def _linear(centres: FloatArray, rays: FloatArray, point: IntArray, count: int) -> FloatArray:
    """Points [count, 3] of least distance to the rays, homogeneous, so that far points stay well conditioned.

    Each unit ray d from c gives (I - d d^T) (X - c w) = 0 for (X, w). Coordinates are relative to the mean of a
    track's camera centres and scaled by their extent.
    """
    views = np.maximum(np.bincount(point, minlength=count), 1)
    mean = _summed(centres, point, count) / views[:, None]
    away = centres - mean[point]
    extent = np.sqrt(np.bincount(point, (away**2).sum(axis=1), count) / views)
    extent = np.where(extent > 0, extent, 1.0)
    away = away / extent[point, None]
    P = np.eye(3) - rays[:, :, None] * rays[:, None]
    Pc = np.einsum("oij,oj->oi", P, away)
    A = np.zeros((count, 4, 4))
    A[:, :3, :3] = _summed(P.reshape(-1, 9), point, count).reshape(-1, 3, 3)
    A[:, :3, 3] = A[:, 3, :3] = -_summed(Pc, point, count)
    A[:, 3, 3] = np.bincount(point, (Pc * away).sum(axis=1), count)
    _, vectors = np.linalg.eigh(A)
    X, w = vectors[:, :3, 0], vectors[:, 3, 0]
    # The sign that is in front of the cameras on average, also where noise dominates w.
    forward = np.sign((_summed(rays, point, count) * X).sum(axis=1))
    w = np.where(np.abs(w) * _FARTHEST < 1, np.where(forward < 0, -1, 1) / _FARTHEST, w)
    return np.asarray(mean + extent[:, None] * X / w[:, None])


def _widest_angle_deg(rays: FloatArray, point: IntArray, count: int) -> FloatArray:
    """Angles [count] from the ray farthest from each track's first one to the ray farthest from that."""
    order = np.argsort(point, kind="stable")
    track = point[order]
    starts = np.flatnonzero(np.r_[True, track[1:] != track[:-1]]) if len(track) else np.zeros(0, np.intp)
    angle = np.zeros(count)
    if not len(starts):
        return angle
    ordered = rays[order]
    lengths = np.diff(np.r_[starts, len(track)])
    far = ordered[starts]
    widest = np.zeros(len(starts))
    for _ in range(2):
        chord = np.linalg.norm(ordered - np.repeat(far, lengths, axis=0), axis=1)
        widest = np.maximum.reduceat(chord, starts)
        farthest = np.flatnonzero(chord == np.repeat(widest, lengths))
        # The first of several equal ones.
        far = ordered[farthest[np.searchsorted(farthest, starts)]]
    angle[track[starts]] = np.degrees(2 * np.arcsin(np.minimum(widest / 2, 1.0)))
    return angle


def _summed(values: FloatArray, point: IntArray, count: int) -> FloatArray:
    """Sums [count, k] of rows [O, k] over the sightings of each point."""
    return np.stack([np.bincount(point, column, count) for column in values.T], axis=1)


class _Points:
    """Independent adjustment of each point [M, 3] with cameras fixed."""

    def __init__(self, start: ParameterBlocks, sightings: Sightings, loss_scale: float) -> None:
        self.sightings = sightings
        self._start, self._losses = start, RobustLosses(loss_scale, 1.0)

    def variables(self, points: FloatArray) -> ParameterBlocks:
        return replace(self._start, points=np.ascontiguousarray(points.T))

    def minimise(self, points: FloatArray, iterations: int) -> FloatArray:
        """Points after Levenberg-Marquardt; each has its own damping."""
        costs, damping = self.costs(points), np.full(len(points), _DAMPING)
        for _ in range(iterations):
            H, g = self._normal_equations(points)
            diagonal = H[:, range(3), range(3)]
            # A floor keeps unconstrained coordinates where they are.
            floor = np.maximum(1e-15 * diagonal.max(axis=1, initial=0.0, keepdims=True), np.finfo(float).tiny)
            added = damping[:, None] * np.maximum(diagonal, floor) + floor
            steps = -np.linalg.solve(H + added[:, :, None] * np.eye(3), g[..., None])[..., 0]
            candidate = points + steps
            reached = self.costs(candidate)
            better, converged = reached < costs, costs - reached <= _TOLERANCE * costs
            points, costs = np.where(better[:, None], candidate, points), np.where(better, reached, costs)
            damping = np.where(better, np.maximum(damping / 10, 1e-9), damping * 10)
            if bool(np.all((better & converged) | (damping > 1e6) | (np.abs(steps).max(axis=1) == 0))):
                break
        return points

    def costs(self, points: FloatArray) -> FloatArray:
        """Robust costs [M]."""
        square = squared_errors(pixel_errors(self.variables(points), self.sightings)[0], self.sightings)
        scale = self._losses.pixel
        each = 0.5 * scale**2 * np.log1p(square / scale**2)
        return np.bincount(self.sightings.point, each, len(points)).astype(np.float64, copy=False)

    def _normal_equations(self, points: FloatArray) -> tuple[FloatArray, FloatArray]:
        rows = linearise_sightings(self.variables(points), self.sightings, self._losses)
        J, point, count = rows.point, self.sightings.point, len(points)
        H = _summed(np.einsum("rio,rjo->oij", J, J).reshape(-1, 9), point, count).reshape(-1, 3, 3)
        return H, _summed(np.einsum("rio,ro->oi", J, rows.residual), point, count)
