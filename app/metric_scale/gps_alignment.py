"""The scale, and where on Earth, from a track of positions that runs beside the camera's path."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.transforms import FloatArray, Similarity, align
from stream_recon.app.metric_scale.fitting import TILT, PathFit, fit_path, jackknife
from stream_recon.app.metric_scale.gps_tracks import Positions
from stream_recon.app.result.cameras import Camera
from stream_recon.app.result.metric_scale import EAST_NORTH_UP, FIRST_CAMERA, MetricScale
from stream_recon.configs.errors import InputError

OVERLAP = 0.8
"""Share of the path's or the track's time, whichever is shorter, that both have to have in common."""
STEPS = 200
"""Beginnings that are tried where nobody says how the two clocks lie."""
FINER = 4
ROUNDS = 4
"""Of weights for each of these."""
GAP = 5.0
"""Times the usual distance between positions, beyond which nothing is said of what lies between."""
LEAST = 4
WORST = 0.5
"""Share of the track's extent by which positions may be off in the mean: beyond, it is another walk."""
UNSURE = 0.2
"""Relative error of a scale that is no scale."""


@dataclass(frozen=True)
class _Pairs:
    path: FloatArray  # [N, 3]
    known: FloatArray  # [N, 3]


def scale_by_track(
    cameras: Sequence[Camera], up: FloatArray, positions: Positions, begins: float | None, given: str
) -> MetricScale:
    """Metres by a track; the axes become the track's own.

    Args:
        cameras: frames of one stretch, in order.
        up: the world's up, as the cameras have it.
        begins: seconds after the track's first position at which the source begins; None: looked for.

    Raises:
        InputError: path and track have too little in common, or do not fit.
    """
    path = np.array([camera.T_world_camera[:3, 3] for camera in cameras])
    if positions.frames is not None:
        row = {camera.index: number for number, camera in enumerate(cameras)}
        both = [(row[int(frame)], n) for n, frame in enumerate(positions.frames) if int(frame) in row]
        pairs, told = _Pairs(path[[a for a, _ in both]], positions.metres[[b for _, b in both]]), ""
    else:
        assert positions.times is not None
        times = np.array([camera.timestamp for camera in cameras])
        pairs, told = _at_one_time(times, path, positions.times, positions.metres, begins)
    return fitted_to(pairs.path, pairs.known, up, positions, given, told)


def fitted_to(
    path: FloatArray, known: FloatArray, up: FloatArray, positions: Positions, given: str, told: str = ""
) -> MetricScale:
    """Metres by where cameras [N, 3] are known to have been. Raises InputError."""
    if len(path) < LEAST:
        raise InputError(f"--scale-from {given}: only {len(path)} of its positions belong to frames of the result")
    found = fit_path(path, known)
    upright = positions.world == EAST_NORTH_UP and (found is None or found.tilt > TILT)
    if upright:
        # Nearly straight: heights that are some metres off would tip the world over.
        found = fit_path(path, known, up)
    if found is None:
        raise InputError(f"--scale-from {given}: the camera or the track does not move: there is no scale in that")

    def scale_of(rows: NDArray[np.intp]) -> float | None:
        again = fit_path(path[rows], known[rows], up if upright else None)
        return None if again is None else again.transform.scale

    error = jackknife(len(path), scale_of)
    _check(found, known, error, given)
    how = f"{len(path)} positions, off by {found.off:.3g} m (RMS){told}"
    world, transform = positions.world, found.transform
    if positions.world != EAST_NORTH_UP and found.tilt > TILT:
        world, transform = FIRST_CAMERA, Similarity.of_scale(transform.scale)
        how += "; nearly on one line, which tells no axes: those of the first camera are kept"
    origin = positions.origin if world != FIRST_CAMERA else None
    return MetricScale(transform, error, given, how, world, origin)


def _check(found: PathFit, known: FloatArray, error: float | None, given: str) -> None:
    share = found.weights / found.weights.sum()
    extent = float(np.sqrt(share @ np.square(known - share @ known).sum(axis=1)))
    if found.off > WORST * extent or (error is not None and error > UNSURE):
        raise InputError(
            f"--scale-from {given}: the track does not fit the camera's path: off by {found.off:.3g} m where it "
            f"extends over {extent:.3g} m"
        )


def _at_one_time(
    times: FloatArray, path: FloatArray, track_times: FloatArray, metres: FloatArray, begins: float | None
) -> tuple[_Pairs, str]:
    """Pairs of positions at the same times, and what to tell of the clocks."""
    span, track_span = np.ptp(times), np.ptp(track_times)
    least = OVERLAP * min(span, track_span)
    if begins is not None:
        shift = track_times[0] + begins
        return _pairs(times + shift, path, track_times, metres), ""
    if _common(times, track_times) >= max(least, 1e-9):
        return _pairs(times, path, track_times, metres), ""
    # Another clock, such as the time of day: the one at which both fit best.
    first, last = track_times[0] - times[0] - span + least, track_times[-1] - times[0] - least
    best, reach = 0.5 * (first + last), 0.5 * (last - first)
    for _ in range(FINER):
        tried = np.linspace(best - reach, best + reach, STEPS + 1)
        best = float(min(tried, key=lambda shift: _misfit(_pairs(times + shift, path, track_times, metres))))
        reach = 2 * (tried[1] - tried[0])
    told = f"; the source begins {best + times[0] - track_times[0]:.1f} s after the track (found by the fit)"
    return _pairs(times + best, path, track_times, metres), told


def _common(a: FloatArray, b: FloatArray) -> float:
    return float(min(a[-1], b[-1]) - max(a[0], b[0]))


def _pairs(times: FloatArray, path: FloatArray, track_times: FloatArray, metres: FloatArray) -> _Pairs:
    """At the times of whichever has fewer positions where both are known; the other is interpolated."""
    inner = track_times[(track_times >= times[0]) & (track_times <= times[-1])]
    if len(inner) <= len(times):
        good = _between(inner, times)
        return _Pairs(_interpolated(inner[good], times, path), metres[np.searchsorted(track_times, inner[good])])
    good = (times >= track_times[0]) & (times <= track_times[-1])
    good[good] = _between(times[good], track_times)
    return _Pairs(path[good], _interpolated(times[good], track_times, metres))


def _between(at: FloatArray, known: FloatArray) -> NDArray[np.bool_]:
    """Which of the times [N] are not within a gap of the known ones."""
    steps = np.diff(known)
    right = np.searchsorted(known, at).clip(1, len(known) - 1)
    return np.asarray(steps[right - 1] <= GAP * np.median(steps) + 1e-9)


def _interpolated(at: FloatArray, times: FloatArray, positions: FloatArray) -> FloatArray:
    return np.stack([np.interp(at, times, positions[:, axis]) for axis in range(3)], axis=1)


def _misfit(pairs: _Pairs) -> float:
    """Mean distance that a similarity leaves, as a share of the track's extent; infinite for none."""
    if len(pairs.path) < LEAST:
        return float("inf")
    extent = float(np.sqrt(np.square(pairs.known - pairs.known.mean(axis=0)).sum(axis=1).mean()))
    off = np.ones(len(pairs.path))
    # Least distances, not squares: a few positions may be far off.
    for _ in range(ROUNDS):
        found = align(pairs.path, pairs.known, 1 / np.maximum(off, 0.1 * np.median(off) + 1e-12))
        if not found.scale > 0 or not extent > 0:
            return float("inf")
        off = np.linalg.norm(found.apply(pairs.path) - pairs.known, axis=1)
    return float(off.mean() / extent)
