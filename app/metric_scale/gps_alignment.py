"""Metric scale, axes and origin by alignment of the camera trajectory with a recorded track of positions."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.transforms import FloatArray, Similarity, align, mean_rotation
from stream_recon.app.export.source_images import image_files
from stream_recon.app.export.view import world_up
from stream_recon.app.metric_scale.clock_offset import ClockOffset, TimedPath, common_time, find_offset, fits_as_well
from stream_recon.app.metric_scale.config import DEFAULT_SCALE, FitConfig, TrackConfig
from stream_recon.app.metric_scale.fitting import TrajectoryFit, fit_trajectory, jackknife
from stream_recon.app.metric_scale.gps_tracks import Positions, geodetic_positions
from stream_recon.app.metric_scale.scale_source import GpsTrack
from stream_recon.app.result.cameras import FrameCamera
from stream_recon.app.result.folder import ResultFolder
from stream_recon.app.result.metric_scale import EAST_NORTH_UP, FIRST_CAMERA, MetricScale
from stream_recon.app.sources.exif import read_exif
from stream_recon.configs.errors import InputError

SINCE_1970 = 1e8
"""Times above this number of seconds are those of a clock of the world."""


@dataclass(frozen=True)
class _Pairs:
    """Positions of the trajectory and of the track at the same times."""

    path: FloatArray  # [N, 3]
    known: FloatArray  # [N, 3]
    turn: FloatArray | None = None  # [3, 3], from the trajectory's axes to the track's; None: by the positions


def scale_by_track(
    cameras: Sequence[FrameCamera],
    up: FloatArray,
    track: GpsTrack,
    text: str,
    recorded: float | None = None,
    config: TrackConfig = DEFAULT_SCALE.track,
) -> MetricScale:
    """Metric scale by a track; the axes become those of the track.

    Args:
        cameras: frames of one segment, in order.
        up: the up direction [3] of the world, estimated from the cameras.
        text: the user's words, for messages and the record.
        recorded: seconds since 1970 at which the video says that it was recorded, at its begin or end.

    Raises InputError: trajectory and track have too little time in common, or do not fit.
    """
    path, positions = np.array([camera.T_world_camera[:3, 3] for camera in cameras]), track.positions
    if positions.frames is not None:
        row = {camera.index: number for number, camera in enumerate(cameras)}
        both = [(row[int(frame)], n) for n, frame in enumerate(positions.frames) if int(frame) in row]
        given = [(track.rotations[c.index], c.T_world_camera[:3, :3]) for c in cameras if c.index in track.rotations]
        turn = mean_rotation(np.array([known @ own.T for known, own in given])) if given else None
        pairs, clock = _Pairs(path[[a for a, _ in both]], positions.metres[[b for _, b in both]], turn), ""
    else:
        times = np.array([camera.timestamp for camera in cameras])
        pairs, clock = _synchronized(TimedPath(times, path), track, text, recorded, config)
    return _scale_by_positions(pairs, up, positions, text, config.fit, clock)


def scale_by_photographs(
    result: ResultFolder, cameras: Sequence[FrameCamera], text: str, config: FitConfig
) -> MetricScale:
    """Metric scale by the GPS positions of a result's photographs. Raises InputError."""
    files = image_files(result)
    if files is None:
        raise InputError(f"--scale-from {text}: the source ({result.run['source']}) is not a folder of photographs")
    stated = [(camera, read_exif(files[camera.index])) for camera in cameras if camera.index < len(files)]
    eyes = [camera.T_world_camera[:3, 3] for camera, exif in stated if exif.position is not None]
    geotags = [exif.position for _, exif in stated if exif.position is not None]
    said = "".join(f"; {note}" for note in [*dict.fromkeys(n for _, exif in stated for n in exif.place_notes)][:3])
    if len(geotags) < 3:
        few = f"{len(geotags)} photographs have GPS positions; at least 3 are needed"
        raise InputError(f"--scale-from {text}: {few}{said}")
    degrees = np.array(geotags, np.float64)
    positions = geodetic_positions(degrees[:, :2], degrees[:, 2])
    pairs = _Pairs(np.array(eyes), positions.metres)
    return _scale_by_positions(pairs, world_up(cameras), positions, text, config, said)


def _scale_by_positions(
    pairs: _Pairs, up: FloatArray, positions: Positions, text: str, config: FitConfig, note: str = ""
) -> MetricScale:
    """Metric scale by known positions of cameras, in the frame of ``positions``.

    ``note``: on the clocks, or on what is not understood of the positions, for the record.
    """
    path, known = pairs.path, pairs.known
    if len(path) < config.min_positions:
        raise InputError(f"--scale-from {text}: only {len(path)} of its positions belong to frames of the result")
    fit = fit_trajectory(path, known, config)
    upright = positions.world == EAST_NORTH_UP and (fit is None or fit.tilt > config.max_tilt)
    if upright:
        # The trajectory is nearly straight: height errors of some metres would tilt the world.
        fit = fit_trajectory(path, known, config, up)
    if fit is None:
        raise InputError(f"--scale-from {text}: the camera or the track does not move, so it has no scale")

    def scale_of(rows: NDArray[np.intp]) -> float | None:
        part = fit_trajectory(path[rows], known[rows], config, up if upright else None, fit.transform)
        return None if part is None else part.transform.scale

    error = jackknife(len(path), scale_of, config)
    _check(fit, known, error, text, config)
    how = f"{len(path)} positions, RMS error {fit.rms:.3g} m{note}"
    if positions.left_out:
        how += f"; {positions.left_out} lines of the track without a position, time or fix were left out"
    if positions.without_height:
        how += f"; {positions.without_height} positions of the track have no height and are taken at the usual one"
    world, transform = positions.world, fit.transform
    if pairs.turn is not None:
        turned = transform.scale * path @ pairs.turn.T
        transform = Similarity(transform.scale, pairs.turn, np.median(known - turned, axis=0))
    elif positions.world != EAST_NORTH_UP and fit.tilt > config.max_tilt:
        world, transform = FIRST_CAMERA, Similarity.of_scale(transform.scale)
        how += "; they lie nearly on a line, so the axes of the first camera are kept"
    origin = positions.origin if world != FIRST_CAMERA else None
    return MetricScale(transform, error, text, how, world, origin)


def _check(fit: TrajectoryFit, known: FloatArray, error: float | None, text: str, config: FitConfig) -> None:
    """Raises InputError for a fit that is too bad."""
    share = fit.weights / fit.weights.sum()
    extent = float(np.sqrt(share @ np.square(known - share @ known).sum(axis=1)))
    if fit.rms > config.max_misfit * extent or (error is not None and error > config.max_error):
        raise InputError(
            f"--scale-from {text}: the track does not fit the camera's trajectory: RMS error {fit.rms:.3g} m, where "
            f"the track extends over {extent:.3g} m"
        )


def _synchronized(
    path: TimedPath, source: GpsTrack, text: str, recorded: float | None, config: TrackConfig
) -> tuple[_Pairs, str]:
    """Pairs of positions at the same times, and a note on the clocks for the record."""
    assert source.positions.times is not None, "positions by frame need no clock"
    track = TimedPath(source.positions.times, source.positions.metres)
    seconds, note = clock_shift(path, track, source.begins, f"--scale-from {text}", recorded, config)
    return _pairs(path.shifted(seconds), track, config), note


def clock_shift(
    path: TimedPath,
    track: TimedPath,
    begins: float | None,
    given: str,
    recorded: float | None = None,
    config: TrackConfig = DEFAULT_SCALE.track,
) -> tuple[float, str]:
    """Seconds to add to the trajectory's times so that they are the track's, and a note on the clocks for the record.

    Args:
        begins: see `GpsTrack`.
        given: the option in the user's words, for messages.

    Raises InputError: the times do not overlap, and no offset, or more than one, fits.
    """
    min_common = config.min_overlap * min(path.span, track.span)
    first, delay = float(track.times[0]), float(path.times[0] - track.times[0])
    if begins is not None:
        return first + begins, ""

    def misfit(offset: float) -> float:
        pairs = _pairs(path.shifted(offset), track, config)
        return _misfit(pairs, config) if path.span and len(pairs.path) else float("inf")

    best = find_offset(path, track, misfit, min_common, config.offset) if min_common > 0 else None
    if common_time(path, track) >= max(min_common, 1e-9):
        _check_clock(best, misfit(0.0), first, delay, given, config)
        return 0.0, ""
    # The clocks differ, such as by the time of day: the offset of the best fit.
    how = "found by the fit"
    if recorded is not None and (best is None or best.ambiguous(config.offset)):
        near = np.abs(track.times - recorded - 0.5 * path.span) <= 1.5 * path.span + config.clock_error_s
        if near.sum() > config.fit.min_positions:
            part = TimedPath(track.times[near], track.positions[near])
            best = find_offset(path, part, misfit, min_common, config.offset)
            how = "by the video's time"
    if best is None:
        raise InputError(
            f"{given}: the track does not fit the camera's trajectory at any time (it is of {first:.2f} to "
            f"{track.times[-1]:.2f} s, the camera's of {path.times[0]:.2f} to {path.times[-1]:.2f} s): give the second "
            "of the track at which the source begins, as FILE@SECONDS"
        )
    begin = best.seconds + delay
    if best.ambiguous(config.offset):
        assert best.other is not None, "an ambiguous offset has another one"
        raise InputError(
            f"{given}: the track fits about as well from {begin:.1f} s as from "
            f"{best.other + delay:.1f} s on: give the second of the track at which the source "
            "begins, as FILE@SECONDS"
        )
    return best.seconds, f"; the source begins {begin:.1f} s after the track ({how})"


def _check_clock(
    best: ClockOffset | None, misfit: float, first: float, begins: float, given: str, config: TrackConfig
) -> None:
    """Raises InputError where times may agree by chance: the track fits better, or about as well, at another time.

    Args:
        misfit: with the times as they are; ``first``: of the track. Clocks that count from their own start, as those of
            loggers and videos do, agree by chance.
    """
    if best is None or best.misfit > config.fit.max_misfit / 2:
        return
    another = best.seconds if abs(best.seconds) > best.min_difference else None
    if another is None and first < SINCE_1970 and best.ambiguous(config.offset):
        another = best.other
    far_better = not fits_as_well(misfit, best.misfit, config.offset)
    if another is not None and (far_better or first < SINCE_1970):
        raise InputError(
            f"{given}: by its times the source begins {begins:.1f} s after the track, but the track fits "
            f"{'better' if far_better else 'about as well'} from {begins + another:.1f} s on: give the second of the "
            "track at which the source begins, as FILE@SECONDS"
        )


def _pairs(path: TimedPath, track: TimedPath, config: TrackConfig) -> _Pairs:
    """Pairs at the times of the sequence with fewer positions in the overlap; the other one is interpolated."""
    times, track_times = path.times, track.times
    inner = track_times[(track_times >= times[0]) & (track_times <= times[-1])]
    if len(inner) <= len(times):
        good = _outside_gaps(inner, times, config.max_gap)
        return _Pairs(_interpolated(inner[good], path), track.positions[np.searchsorted(track_times, inner[good])])
    good = (times >= track_times[0]) & (times <= track_times[-1])
    good[good] = _outside_gaps(times[good], track_times, config.max_gap)
    return _Pairs(path.positions[good], _interpolated(times[good], track))


def _outside_gaps(queried: FloatArray, known: FloatArray, max_gap: float) -> NDArray[np.bool_]:
    """Which of the ``queried`` times [N] lie outside gaps of the ``known`` ones [M]."""
    steps = np.diff(known)
    right = np.searchsorted(known, queried).clip(1, len(known) - 1)
    return np.asarray(steps[right - 1] <= max_gap * np.median(steps) + 1e-9)


def _interpolated(times: FloatArray, path: TimedPath) -> FloatArray:
    """Positions [N, 3] of the path at ``times`` [N]."""
    return np.stack([np.interp(times, path.times, path.positions[:, axis]) for axis in range(3)], axis=1)


def _misfit(pairs: _Pairs, config: TrackConfig) -> float:
    """Mean distance after alignment, as a share of the track's extent; infinite where there is no similarity."""
    if len(pairs.path) < config.fit.min_positions:
        return float("inf")
    extent = float(np.sqrt(np.square(pairs.known - pairs.known.mean(axis=0)).sum(axis=1).mean()))
    distance = np.ones(len(pairs.path))
    # Least distances, not squares, for robustness to outliers.
    for _ in range(config.rounds):
        aligned = align(pairs.path, pairs.known, 1 / np.maximum(distance, 0.1 * np.median(distance) + 1e-12))
        if not aligned.scale > 0 or not extent > 0:
            return float("inf")
        distance = np.linalg.norm(aligned.apply(pairs.path) - pairs.known, axis=1)
    return float(distance.mean() / extent)
