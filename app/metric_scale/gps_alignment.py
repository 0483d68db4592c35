"""Metric scale, axes and origin by alignment of the camera trajectory with a recorded track of positions."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.transforms import FloatArray, Similarity, align
from stream_recon.app.metric_scale.clock_offset import AMBIGUOUS, NOISE_FLOOR, ClockOffset, find_offset
from stream_recon.app.metric_scale.fitting import MAX_TILT, TrajectoryFit, fit_trajectory, jackknife
from stream_recon.app.metric_scale.gps_tracks import Positions, geodetic_positions
from stream_recon.app.result.cameras import FrameCamera
from stream_recon.app.result.metric_scale import EAST_NORTH_UP, FIRST_CAMERA, MetricScale
from stream_recon.configs.errors import InputError

OVERLAP = 0.8
"""Least common time of trajectory and track, as a share of the shorter one: a lesser one may be a chance match."""
ROUNDS = 4
"""Iterations of reweighted least squares for each offset: enough to rank offsets."""
SINCE_1970 = 1e8
"""Times above this number of seconds are those of a clock of the world."""
CLOCK_ERROR = 30.0
"""Seconds by which the clock of a camera is wrong, beside the length of the video: some write the time of its end."""
MAX_GAP = 5.0
"""Largest time between two known positions that is interpolated, in medians: beyond it the path is unknown."""
MIN_POSITIONS = 4
"""Fewest positions of a fit: one more than determine a similarity."""
MAX_MISFIT = 0.5
"""Largest RMS distance of a fit, as a share of the track's extent: beyond it the track is of another path."""
MAX_ERROR = 0.2
"""Largest relative error of a scale that is accepted."""


@dataclass(frozen=True)
class _Pairs:
    """Positions of the trajectory and of the track at the same times."""

    path: FloatArray  # [N, 3]
    known: FloatArray  # [N, 3]


def scale_by_track(
    cameras: Sequence[FrameCamera],
    up: FloatArray,
    positions: Positions,
    begins: float | None,
    given: str,
    recorded: float | None = None,
) -> MetricScale:
    """Metric scale by a track; the axes become those of the track.

    Args:
        cameras: frames of one segment, in order.
        up: the up direction [3] of the world, estimated from the cameras.
        begins: seconds after the track's first position at which the source begins; None: it is estimated.
        given: the user's words, for messages and the record.
        recorded: seconds since 1970 at which the video says that it was recorded, at its begin or end.

    Raises InputError: trajectory and track have too little time in common, or do not fit.
    """
    path = np.array([camera.T_world_camera[:3, 3] for camera in cameras])
    if positions.frames is not None:
        row = {camera.index: number for number, camera in enumerate(cameras)}
        both = [(row[int(frame)], n) for n, frame in enumerate(positions.frames) if int(frame) in row]
        pairs, clock = _Pairs(path[[a for a, _ in both]], positions.metres[[b for _, b in both]]), ""
    else:
        times = np.array([camera.timestamp for camera in cameras])
        pairs, clock = _synchronized(times, path, positions, begins, given, recorded)
    return _scale_by_positions(pairs.path, pairs.known, up, positions, given, clock)


def scale_by_geotags(path: FloatArray, geotags: FloatArray, up: FloatArray, given: str) -> MetricScale:
    """Metric scale by latitudes, longitudes and heights [N, 3] of cameras at ``path`` [N, 3]. Raises InputError."""
    positions = geodetic_positions(geotags[:, :2], geotags[:, 2])
    return _scale_by_positions(path, positions.metres, up, positions, given)


def _scale_by_positions(
    path: FloatArray, known: FloatArray, up: FloatArray, positions: Positions, given: str, clock: str = ""
) -> MetricScale:
    """Metric scale by known positions [N, 3] of cameras at ``path`` [N, 3], whose frame ``positions`` has.

    ``clock``: note on the clocks for the record.
    """
    if len(path) < MIN_POSITIONS:
        raise InputError(f"--scale-from {given}: only {len(path)} of its positions belong to frames of the result")
    found = fit_trajectory(path, known)
    upright = positions.world == EAST_NORTH_UP and (found is None or found.tilt > MAX_TILT)
    if upright:
        # The trajectory is nearly straight: height errors of some metres would tilt the world.
        found = fit_trajectory(path, known, up)
    if found is None:
        raise InputError(f"--scale-from {given}: the camera or the track does not move, so it has no scale")

    def scale_of(rows: NDArray[np.intp]) -> float | None:
        part = fit_trajectory(path[rows], known[rows], up if upright else None, found.transform)
        return None if part is None else part.transform.scale

    error = jackknife(len(path), scale_of)
    _check(found, known, error, given)
    how = f"{len(path)} positions, RMS error {found.rms:.3g} m{clock}"
    if positions.left_out:
        how += f"; {positions.left_out} lines of the track without a position, time or fix were left out"
    world, transform = positions.world, found.transform
    if positions.world != EAST_NORTH_UP and found.tilt > MAX_TILT:
        world, transform = FIRST_CAMERA, Similarity.of_scale(transform.scale)
        how += "; they lie nearly on a line, so the axes of the first camera are kept"
    origin = positions.origin if world != FIRST_CAMERA else None
    return MetricScale(transform, error, given, how, world, origin)


def _check(found: TrajectoryFit, known: FloatArray, error: float | None, given: str) -> None:
    """Raises InputError for a fit that is too bad."""
    share = found.weights / found.weights.sum()
    extent = float(np.sqrt(share @ np.square(known - share @ known).sum(axis=1)))
    if found.rms > MAX_MISFIT * extent or (error is not None and error > MAX_ERROR):
        raise InputError(
            f"--scale-from {given}: the track does not fit the camera's trajectory: RMS error {found.rms:.3g} m, where "
            f"the track extends over {extent:.3g} m"
        )


def _synchronized(
    times: FloatArray,
    path: FloatArray,
    positions: Positions,
    begins: float | None,
    given: str,
    recorded: float | None,
) -> tuple[_Pairs, str]:
    """Pairs of positions at the same times, and a note on the clocks for the record."""
    assert positions.times is not None, "positions by frame need no clock"
    track_times, metres = positions.times, positions.metres
    span, track_span = np.ptp(times), np.ptp(track_times)
    least = OVERLAP * min(span, track_span)
    if begins is not None:
        offset = track_times[0] + begins
        return _pairs(times + offset, path, track_times, metres), ""

    def misfit(offset: float) -> float:
        pairs = _pairs(times + offset, path, track_times, metres)
        return _misfit(pairs) if np.ptp(times) and len(pairs.path) else float("inf")

    found = find_offset(times, path, track_times, metres, misfit, least) if least > 0 else None
    if _overlap(times, track_times) >= max(least, 1e-9):
        _check_clock(found, misfit(0.0), float(track_times[0]), times[0] - track_times[0], given)
        return _pairs(times, path, track_times, metres), ""
    # The clocks differ, such as by the time of day: the offset of the best fit.
    how = "found by the fit"
    if recorded is not None and (found is None or found.ambiguous):
        near = np.abs(track_times - recorded - 0.5 * span) <= 1.5 * span + CLOCK_ERROR
        if near.sum() > MIN_POSITIONS:
            found, how = find_offset(times, path, track_times[near], metres[near], misfit, least), "by the video's time"
    if found is None:
        raise InputError(
            f"--scale-from {given}: the track does not fit the camera's trajectory at any time: give the second of the "
            "track at which the source begins, as track:FILE@SECONDS"
        )
    begin = found.seconds + times[0] - track_times[0]
    if found.ambiguous:
        assert found.other is not None, "an ambiguous offset has another one"
        raise InputError(
            f"--scale-from {given}: the track fits about as well from {begin:.1f} s as from "
            f"{found.other + times[0] - track_times[0]:.1f} s on: give the second of the track at which the source "
            "begins, as track:FILE@SECONDS"
        )
    clock = f"; the source begins {begin:.1f} s after the track ({how})"
    return _pairs(times + found.seconds, path, track_times, metres), clock


def _check_clock(found: ClockOffset | None, misfit: float, first: float, begins: float, given: str) -> None:
    """Raises InputError where times may agree by chance: the track fits better, or about as well, at another time.

    Args:
        misfit: with the times as they are; ``first``: of the track. Clocks that count from their own start, as those of
            loggers and videos do, agree by chance.
    """
    if found is None or found.misfit > MAX_MISFIT / 2:
        return
    another = found.seconds if abs(found.seconds) > found.apart else None
    if another is None and first < SINCE_1970 and found.ambiguous:
        another = found.other
    far_better = max(found.misfit, NOISE_FLOOR) * AMBIGUOUS < misfit
    if another is not None and (far_better or first < SINCE_1970):
        raise InputError(
            f"--scale-from {given}: by its times the source begins {begins:.1f} s after the track, but the track fits "
            f"{'better' if far_better else 'about as well'} from {begins + another:.1f} s on: give the second of the "
            "track at which the source begins, as track:FILE@SECONDS"
        )


def _overlap(a: FloatArray, b: FloatArray) -> float:
    return float(min(a[-1], b[-1]) - max(a[0], b[0]))


def _pairs(times: FloatArray, path: FloatArray, track_times: FloatArray, metres: FloatArray) -> _Pairs:
    """Pairs at the times of the sequence with fewer positions in the overlap; the other one is interpolated."""
    inner = track_times[(track_times >= times[0]) & (track_times <= times[-1])]
    if len(inner) <= len(times):
        good = _outside_gaps(inner, times)
        return _Pairs(_interpolated(inner[good], times, path), metres[np.searchsorted(track_times, inner[good])])
    good = (times >= track_times[0]) & (times <= track_times[-1])
    good[good] = _outside_gaps(times[good], track_times)
    return _Pairs(path[good], _interpolated(times[good], track_times, metres))


def _outside_gaps(queried: FloatArray, known: FloatArray) -> NDArray[np.bool_]:
    """Which of the ``queried`` times [N] lie outside gaps of the ``known`` ones [M]."""
    steps = np.diff(known)
    right = np.searchsorted(known, queried).clip(1, len(known) - 1)
    return np.asarray(steps[right - 1] <= MAX_GAP * np.median(steps) + 1e-9)


def _interpolated(queried: FloatArray, times: FloatArray, positions: FloatArray) -> FloatArray:
    return np.stack([np.interp(queried, times, positions[:, axis]) for axis in range(3)], axis=1)


def _misfit(pairs: _Pairs) -> float:
    """Mean distance after alignment, as a share of the track's extent; infinite where there is no similarity."""
    if len(pairs.path) < MIN_POSITIONS:
        return float("inf")
    extent = float(np.sqrt(np.square(pairs.known - pairs.known.mean(axis=0)).sum(axis=1).mean()))
    distance = np.ones(len(pairs.path))
    # Least distances, not squares, for robustness to outliers.
    for _ in range(ROUNDS):
        found = align(pairs.path, pairs.known, 1 / np.maximum(distance, 0.1 * np.median(distance) + 1e-12))
        if not found.scale > 0 or not extent > 0:
            return float("inf")
        distance = np.linalg.norm(found.apply(pairs.path) - pairs.known, axis=1)
    return float(distance.mean() / extent)
