"""Robust similarity from a camera trajectory to known positions, and the standard error of a scale."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.transforms import FloatArray, Similarity, align
from stream_recon.app.metric_scale.config import FitConfig


@dataclass(frozen=True)
class TrajectoryFit:
    """Similarity from a trajectory to known positions."""

    transform: Similarity
    weights: FloatArray  # [N] robust weights, 1 for inliers, towards 0 for outliers
    rms: float
    """Weighted RMS distance after alignment."""
    tilt: float
    """Standard error in radians of the rotation about the main direction; infinite for a straight line."""


def fit_trajectory(
    path: FloatArray,
    known: FloatArray,
    config: FitConfig,
    up: FloatArray | None = None,
    start: Similarity | None = None,
) -> TrajectoryFit | None:
    """Robust similarity from points [N, 3] to points [N, 3] with outliers; None where there is none.

    It starts from the best of random triples by the median distance, and goes on by least squares with Cauchy weights.

    ``up``: a direction [3] in the trajectory's world that is (0, 0, 1) in the other; then only heading, scale and
    translation are estimated. ``start``: a similarity to start from in place of the best of the triples.
    """
    if len(path) < 3:
        return None
    start = _best_triple(path, known, up, config.samples) if start is None else start
    if start is None:
        return None
    fitted, weights = start, np.ones(len(path))
    for _ in range(config.rounds):
        distance = np.linalg.norm(fitted.apply(path) - known, axis=1)
        # The median length of a normal 3-vector is 1.54 times the standard deviation of its coordinates.
        sigma = max(float(np.median(distance)) / 1.54, 1e-9)
        weights = 1 / (1 + (distance / (3 * sigma)) ** 2)
        solved = _solve(path, known, weights, up)
        if solved is None:
            return None
        fitted = solved
    distance = np.linalg.norm(fitted.apply(path) - known, axis=1)
    rms = float(np.sqrt((weights * distance**2).sum() / weights.sum()))
    return TrajectoryFit(fitted, weights, rms, _tilt(path, weights, rms / fitted.scale))


def jackknife(count: int, estimate: Callable[[NDArray[np.intp]], float | None], config: FitConfig) -> float | None:
    """Relative standard error of a positive estimate by the block jackknife (Tukey 1958).

    Blocks hold neighbours, whose errors are correlated. None where there are too few, or an estimate fails.

    Args:
        count: number of samples.
        estimate: the estimate from the samples with the given indices.
    """
    blocks = [block for block in np.array_split(np.arange(count), min(config.blocks, count)) if len(block)]
    if len(blocks) < 3:
        return None
    values = [estimate(np.setdiff1d(np.arange(count), block)) for block in blocks]
    if any(value is None or not value > 0 for value in values):
        return None
    logs = np.log(np.array(values, np.float64))
    return float(config.student * np.sqrt((len(logs) - 1) / len(logs) * np.square(logs - logs.mean()).sum()))


def _best_triple(path: FloatArray, known: FloatArray, up: FloatArray | None, samples: int) -> Similarity | None:
    rng = np.random.default_rng(0)
    best, least = None, np.inf
    for number in range(samples):
        # The first sample has all positions.
        chosen = rng.choice(len(path), 3, replace=False) if number else np.arange(len(path))
        solved = _solve(path[chosen], known[chosen], np.ones(len(chosen)), up)
        if solved is None:
            continue
        error = float(np.median(np.linalg.norm(solved.apply(path) - known, axis=1)))
        if error < least:
            best, least = solved, error
    return best


def _solve(path: FloatArray, known: FloatArray, weights: FloatArray, up: FloatArray | None) -> Similarity | None:
    if up is None:
        similarity = align(path, known, weights)
        return similarity if similarity.scale > 0 else None
    level = _upright(up)
    levelled = path @ level.T
    share = weights / weights.sum()
    source, target = levelled - share @ levelled, known - share @ known
    # Heading: the rotation about z that aligns the horizontal components.
    dot = share @ (source[:, :2] * target[:, :2]).sum(axis=1)
    cross = share @ (source[:, 0] * target[:, 1] - source[:, 1] * target[:, 0])
    angle = np.arctan2(cross, dot)
    heading = np.array([[np.cos(angle), -np.sin(angle), 0], [np.sin(angle), np.cos(angle), 0], [0, 0, 1.0]])
    source = source @ heading.T
    extent = share @ np.square(source).sum(axis=1)
    scale = float(share @ (source * target).sum(axis=1) / extent) if extent > 0 else 0.0
    if not scale > 0:
        return None
    rotation = heading @ level
    return Similarity(scale, rotation, share @ known - scale * rotation @ (share @ path))


def _upright(up: FloatArray) -> FloatArray:
    """A rotation [3, 3] that takes ``up`` to (0, 0, 1)."""
    z = up / np.linalg.norm(up)
    x = np.cross(np.eye(3)[np.argmin(np.abs(z))], z)
    x = x / np.linalg.norm(x)
    return np.stack([x, np.cross(z, x), z])


def _tilt(path: FloatArray, weights: FloatArray, rms: float) -> float:
    share = weights / weights.sum()
    centred = path - share @ path
    extent = np.sqrt(np.maximum(np.linalg.eigvalsh((centred * share[:, None]).T @ centred), 0))
    # The second largest extent determines the rotation about the main direction.
    return float(rms / (np.sqrt(len(path)) * extent[1])) if extent[1] > 0 else float("inf")
