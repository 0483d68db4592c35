"""Clock offset between a camera trajectory and a track: the offset of the best fit, or none where it is ambiguous.

All offsets on the grid of the track's interval are ranked by the least squares fit of a similarity. Its residual needs
only sums over the common time, and these are correlations, computed by FFT. The best offsets are then refined by the
robust misfit.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from stream_recon.app.core.transforms import FloatArray
from stream_recon.app.metric_scale.config import ClockOffsetConfig


@dataclass(frozen=True)
class TimedPath:
    """Positions in the order of their times."""

    times: FloatArray  # [N] ascending seconds
    positions: FloatArray  # [N, 3]

    def shifted(self, seconds: float) -> "TimedPath":
        """The same positions by a clock that is ahead."""
        return TimedPath(self.times + seconds, self.positions)

    @property
    def span(self) -> float:
        return float(np.ptp(self.times))


@dataclass(frozen=True)
class ClockOffset:
    """Offset in seconds to add to the trajectory's times, with its misfit and that of the next different one."""

    seconds: float
    misfit: float
    other: float | None = None
    """The best offset at a distance; None without any."""
    other_misfit: float = float("inf")
    min_difference: float = 0.0
    """Difference of offsets in seconds from which they are different solutions."""

    def ambiguous(self, config: ClockOffsetConfig) -> bool:
        """Whether a different offset fits about as well."""
        return fits_as_well(self.other_misfit, self.misfit, config)


def fits_as_well(misfit: float, best: float, config: ClockOffsetConfig) -> bool:
    """Whether a misfit is about as small as the ``best`` one."""
    return misfit < config.ambiguous * max(best, config.noise_floor)


def find_offset(
    path: TimedPath, track: TimedPath, misfit: Callable[[float], float], min_common: float, config: ClockOffsetConfig
) -> ClockOffset | None:
    """The offset of the best fit; None where no offset gives ``min_common`` seconds in common and a fit.

    Args:
        misfit: gives the robust misfit at an offset; infinite where there is no fit.
        min_common: seconds that both must have in common.
    """
    step = _step(path, track, config.max_grid)
    offsets, residual = _ranked(path, track, step, min_common)
    min_difference = max(config.min_difference * min(path.span, track.span), config.min_difference_steps * step)
    rows = _minima(residual, max(1, round(0.5 * min_difference / step)), config.candidates)
    ranked = sorted((misfit(offset), offset) for offset in offsets[rows].tolist())
    refined = (_refined(offset, step, misfit, config.halvings) for _, offset in ranked[: config.refined])
    solutions = [each for each in refined if np.isfinite(each[1])]
    if not solutions:
        return None
    best = min(solutions, key=lambda each: each[1])

    def common(offset: float) -> float:
        return common_time(path.shifted(offset), track)

    enough = config.same_common * common(best[0])
    different = [each for each in solutions if abs(each[0] - best[0]) > min_difference]
    others = [each for each in different if common(each[0]) >= enough]
    if not others:
        return ClockOffset(*best, min_difference=min_difference)
    other = min(others, key=lambda each: each[1])
    return ClockOffset(*best, *other, min_difference)


def common_time(one: TimedPath, other: TimedPath) -> float:
    """Seconds that both have in common; negative where they are apart."""
    return float(min(one.times[-1], other.times[-1]) - max(one.times[0], other.times[0]))


def _step(path: TimedPath, track: TimedPath, max_grid: int) -> float:
    """Grid of the search: the track's interval, and at least some points in the common time."""
    step = min(float(np.median(np.diff(track.times))), min(path.span, track.span) / 16)
    return float(max(step, (track.span + 2 * path.span) / max_grid))


def _ranked(path: TimedPath, track: TimedPath, step: float, min_common: float) -> tuple[FloatArray, FloatArray]:
    """Offsets [K] and the relative residual [K] of a similarity at each, 0 to 1; 2 where too little is in common."""
    at = np.arange(0, path.span + 0.5 * step, step) + path.times[0]
    grid = np.arange(0, track.span + 0.5 * step, step) + track.times[0]
    p, q = _sampled(at, path)
    k, m = _sampled(grid, track)
    n, size = len(at), len(at) + len(grid)
    length = 1 << int(np.ceil(np.log2(size)))

    def spectrum(values: FloatArray) -> "np.ndarray[tuple[int, ...], np.dtype[np.complex128]]":
        return np.asarray(np.fft.rfft(values, length))

    def correlated(a: FloatArray, b: FloatArray) -> FloatArray:
        """Sums over i of a[i] b[o + i], for o from 1 - n."""
        product = np.conj(spectrum(a)) * spectrum(b)
        sums = np.fft.irfft(product, length)
        return np.asarray(np.concatenate([sums[length - (n - 1) :] if n > 1 else sums[:0], sums[: len(grid)]]))

    weight = correlated(q, m)
    enough = weight * step >= max(min_common - 1.5 * step, 3 * step)
    enough &= weight >= 4
    w = np.maximum(weight, 1)
    sum_p = np.stack([correlated(p[:, i] * q, m) for i in range(3)], axis=1)
    sum_k = np.stack([correlated(q, k[:, i] * m) for i in range(3)], axis=1)
    pp = correlated((p * p).sum(axis=1) * q, m) - (sum_p**2).sum(axis=1) / w
    kk = correlated(q, (k * k).sum(axis=1) * m) - (sum_k**2).sum(axis=1) / w
    cross = np.empty((len(w), 3, 3))
    for i in range(3):
        for j in range(3):
            cross[:, i, j] = correlated(p[:, i] * q, k[:, j] * m) - sum_p[:, i] * sum_k[:, j] / w
    good = enough & (pp > 1e-12 * pp.max()) & (kk > 1e-12 * kk.max())
    residual = np.full(len(w), 2.0)
    if good.any():
        singular = np.linalg.svd(cross[good], compute_uv=False)
        sign = np.sign(np.linalg.det(cross[good]))
        trace = singular[:, 0] + singular[:, 1] + np.where(sign < 0, -1.0, 1.0) * singular[:, 2]
        residual[good] = np.clip(1 - np.square(np.maximum(trace, 0)) / (pp[good] * kk[good]), 0, 1)
    return (np.arange(len(w)) - (n - 1)) * step + track.times[0] - path.times[0], residual


def _sampled(at: FloatArray, path: TimedPath) -> tuple[FloatArray, FloatArray]:
    """Positions [N, 3] at the times ``at``, relative to their mean, and 1 for those that are not in a gap [N]."""
    times, positions = path.times, path.positions
    steps = np.diff(times)
    right = np.searchsorted(times, at).clip(1, len(times) - 1)
    known = steps[right - 1] <= 5 * max(float(np.median(steps)), float(at[1] - at[0]) if len(at) > 1 else 0.0) + 1e-9
    known &= (at >= times[0] - 1e-9) & (at <= times[-1] + 1e-9)
    values = np.stack([np.interp(at, times, positions[:, axis]) for axis in range(3)], axis=1)
    return values - values.mean(axis=0), known.astype(np.float64)


def _minima(residual: FloatArray, width: int, count: int) -> list[int]:
    """Rows of at most ``count`` smallest values, none within ``width`` of a smaller one."""
    masked = residual.copy()
    rows: list[int] = []
    while len(rows) < count:
        row = int(np.argmin(masked))
        if masked[row] > 1:
            break
        rows.append(row)
        masked[max(0, row - width) : row + width + 1] = 3
    return rows


def _refined(offset: float, step: float, misfit: Callable[[float], float], halvings: int) -> tuple[float, float]:
    """Local minimum of the misfit within a step, by a search that halves its step."""
    best, value = offset, misfit(offset)
    for _ in range(halvings):
        nearer = min((misfit(at), at) for at in (best - step, best + step))
        if nearer[0] < value:
            value, best = nearer
        else:
            step *= 0.5
    return best, value
