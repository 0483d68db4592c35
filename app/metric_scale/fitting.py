"""A robust similarity from a camera's path to known positions, and how sure a scale is."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.transforms import FloatArray, Similarity, align

ROUNDS = 30
DRAWS = 300
BLOCKS = 8
TILT = 0.05
"""Radians of uncertainty about the path's main direction, beyond which positions do not say which way is up."""


@dataclass(frozen=True)
class PathFit:
    """``transform`` takes the path to the known positions."""

    transform: Similarity
    weights: FloatArray
    """[N], 1 for positions that fit, towards 0 for those that do not."""
    off: float
    """Root of the weighted mean square distance that is left."""
    tilt: float
    """Standard error in radians of the turn about the path's main direction; infinite for a straight line."""


def fit_path(path: FloatArray, known: FloatArray, up: FloatArray | None = None) -> PathFit | None:
    """The similarity from points [N, 3] to points [N, 3], some of which may be far off; None where none is found.

    Begins with the best of many triples by the median distance, goes on by weights that fall with it (Cauchy).

    Args:
        up: a direction [3] of the path's world that is (0, 0, 1) in the other: only heading, scale and place are then
            looked for.
    """
    if len(path) < 3:
        return None
    start = _best_triple(path, known, up)
    if start is None:
        return None
    fitted, weights = start, np.ones(len(path))
    for _ in range(ROUNDS):
        distance = np.linalg.norm(fitted.apply(path) - known, axis=1)
        # Of three coordinates: the median of their length is 1.54 times their standard deviation.
        spread = max(float(np.median(distance)) / 1.54, 1e-9)
        weights = 1 / (1 + (distance / (3 * spread)) ** 2)
        following = _solve(path, known, weights, up)
        if following is None:
            return None
        fitted = following
    distance = np.linalg.norm(fitted.apply(path) - known, axis=1)
    off = float(np.sqrt((weights * distance**2).sum() / weights.sum()))
    return PathFit(fitted, weights, off, _tilt(path, weights, off / fitted.scale))


def jackknife(count: int, estimate: Callable[[NDArray[np.intp]], float | None]) -> float | None:
    """Relative standard error of a positive estimate by leaving out one block of neighbours at a time (Tukey 1958):
    errors of neighbours hang together. None where there are too few, or an estimate fails."""
    blocks = [block for block in np.array_split(np.arange(count), min(BLOCKS, count)) if len(block)]
    if len(blocks) < 3:
        return None
    values = [estimate(np.setdiff1d(np.arange(count), block)) for block in blocks]
    if any(value is None or not value > 0 for value in values):
        return None
    logs = np.log(np.array(values, np.float64))
    return float(np.sqrt((len(logs) - 1) / len(logs) * np.square(logs - logs.mean()).sum()))


def _best_triple(path: FloatArray, known: FloatArray, up: FloatArray | None) -> Similarity | None:
    draw = np.random.default_rng(0)
    best, least = None, np.inf
    for number in range(DRAWS):
        # First by all of them.
        chosen = draw.choice(len(path), 3, replace=False) if number else np.arange(len(path))
        found = _solve(path[chosen], known[chosen], np.ones(len(chosen)), up)
        if found is None:
            continue
        error = float(np.median(np.linalg.norm(found.apply(path) - known, axis=1)))
        if error < least:
            best, least = found, error
    return best


def _solve(path: FloatArray, known: FloatArray, weights: FloatArray, up: FloatArray | None) -> Similarity | None:
    if up is None:
        found = align(path, known, weights)
        return found if found.scale > 0 else None
    level = _upright(up)
    turned = path @ level.T
    share = weights / weights.sum()
    source, target = turned - share @ turned, known - share @ known
    # Heading: the turn about z that brings the horizontal parts together.
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
    """A rotation [3, 3] that brings ``up`` to (0, 0, 1)."""
    z = up / np.linalg.norm(up)
    x = np.cross(np.eye(3)[np.argmin(np.abs(z))], z)
    x = x / np.linalg.norm(x)
    return np.stack([x, np.cross(z, x), z])


def _tilt(path: FloatArray, weights: FloatArray, off: float) -> float:
    share = weights / weights.sum()
    centred = path - share @ path
    spread = np.sqrt(np.maximum(np.linalg.eigvalsh((centred * share[:, None]).T @ centred), 0))
    # The widest direction says nothing of the turn about it, the second one does.
    return float(off / (np.sqrt(len(path)) * spread[1])) if spread[1] > 0 else float("inf")
