"""Clock offset between a camera trajectory and a track: the offset of the best fit, or none where it is ambiguous.

All offsets on the grid of the track's interval are ranked by the least squares fit of a similarity. Its residual needs
only sums over the common time, and these are correlations, computed by FFT. The best offsets are then refined by the
robust misfit.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from stream_recon.app.core.transforms import FloatArray

MAX_GRID = 1 << 21
"""Most points of the grid on which the track is sampled: 24 days at one position a second."""
CANDIDATES = 30
"""Offsets whose robust misfit is computed: robust and plain fits rank them nearly alike."""
REFINED = 6
"""Offsets that are refined."""
HALVINGS = 9
"""Steps of the local refinement: to about a hundredth of the track's interval."""
APART = 0.1
"""Difference of two offsets, as a share of the common time, from which they are different solutions."""
APART_STEPS = 4
"""The same in intervals of the track."""
AMBIGUOUS = 1.6
"""Ratio of misfits up to which another offset fits about as well."""
NOISE_FLOOR = 1e-3
"""Misfit below which differences are rounding and interpolation."""
SAME_COMMON = 0.92
"""Share of the best offset's common time that another one needs: less proves less."""


@dataclass(frozen=True)
class ClockOffset:
    """Offset in seconds to add to the trajectory's times, with its misfit and that of the next different one."""

    seconds: float
    misfit: float
    other: float | None = None
    """The best offset at a distance; None without any."""
    other_misfit: float = float("inf")
    apart: float = 0.0
    """Difference of offsets in seconds from which they are different solutions."""

    @property
    def ambiguous(self) -> bool:
        """Whether a different offset fits about as well."""
        return self.other_misfit < AMBIGUOUS * max(self.misfit, NOISE_FLOOR)


def find_offset(
    times: FloatArray,
    path: FloatArray,
    track_times: FloatArray,
    metres: FloatArray,
    misfit: Callable[[float], float],
    least: float,
) -> ClockOffset | None:
    """The offset of the best fit; None where no offset gives ``least`` seconds in common and a fit.

    Args:
        times: of the trajectory [N], ascending seconds; ``path``: its positions [N, 3].
        track_times: of the track [M]; ``metres``: its positions [M, 3].
        misfit: gives the robust misfit at an offset; infinite where there is no fit.
        least: seconds that both must have in common.
    """
    step = _step(times, track_times)
    offsets, residual = _ranked(times, path, track_times, metres, step, least)
    apart = max(APART * min(np.ptp(times), np.ptp(track_times)), APART_STEPS * step)
    rows = _minima(residual, max(1, round(0.5 * apart / step)))
    ranked = sorted((misfit(offset), offset) for offset in offsets[rows].tolist())
    refined = (_refined(offset, step, misfit) for _, offset in ranked[:REFINED])
    found = [each for each in refined if np.isfinite(each[1])]
    if not found:
        return None
    best = min(found, key=lambda each: each[1])

    def common(offset: float) -> float:
        return float(min(times[-1] + offset, track_times[-1]) - max(times[0] + offset, track_times[0]))

    enough = SAME_COMMON * common(best[0])
    others = [each for each in found if abs(each[0] - best[0]) > apart and common(each[0]) >= enough]
    if not others:
        return ClockOffset(*best, apart=apart)
    other = min(others, key=lambda each: each[1])
    return ClockOffset(*best, *other, apart)


def _step(times: FloatArray, track_times: FloatArray) -> float:
    """Grid of the search: the track's interval, and at least some points in the common time."""
    span = min(np.ptp(times), np.ptp(track_times))
    step = min(float(np.median(np.diff(track_times))), span / 16)
    return float(max(step, (np.ptp(track_times) + 2 * np.ptp(times)) / MAX_GRID))


def _ranked(
    times: FloatArray, path: FloatArray, track_times: FloatArray, metres: FloatArray, step: float, least: float
) -> tuple[FloatArray, FloatArray]:
    """Offsets [K] and the relative residual [K] of a similarity at each, 0 to 1; 2 where too little is in common."""
    at = np.arange(0, np.ptp(times) + 0.5 * step, step) + times[0]
    grid = np.arange(0, np.ptp(track_times) + 0.5 * step, step) + track_times[0]
    p, q = _sampled(at, times, path)
    k, m = _sampled(grid, track_times, metres)
    n, size = len(at), len(at) + len(grid)
    length = 1 << int(np.ceil(np.log2(size)))

    def spectrum(values: FloatArray) -> "np.ndarray[tuple[int, ...], np.dtype[np.complex128]]":
        return np.asarray(np.fft.rfft(values, length))

    def correlated(a: FloatArray, b: FloatArray) -> FloatArray:
        """Sums over i of a[i] b[o + i], for o from 1 - n."""
        product = np.conj(spectrum(a)) * spectrum(b)
        whole = np.fft.irfft(product, length)
        return np.asarray(np.concatenate([whole[length - (n - 1) :] if n > 1 else whole[:0], whole[: len(grid)]]))

    weight = correlated(q, m)
    enough = weight * step >= max(least - 1.5 * step, 3 * step)
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
    return (np.arange(len(w)) - (n - 1)) * step + track_times[0] - times[0], residual


def _sampled(at: FloatArray, times: FloatArray, positions: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Positions [N, 3] at the times ``at``, relative to their mean, and 1 for those that are not in a gap [N]."""
    steps = np.diff(times)
    right = np.searchsorted(times, at).clip(1, len(times) - 1)
    known = steps[right - 1] <= 5 * max(float(np.median(steps)), float(at[1] - at[0]) if len(at) > 1 else 0.0) + 1e-9
    known &= (at >= times[0] - 1e-9) & (at <= times[-1] + 1e-9)
    values = np.stack([np.interp(at, times, positions[:, axis]) for axis in range(3)], axis=1)
    return values - values.mean(axis=0), known.astype(np.float64)


def _minima(residual: FloatArray, width: int) -> list[int]:
    """Rows of the smallest values, none within ``width`` of a smaller one."""
    left = residual.copy()
    rows: list[int] = []
    while len(rows) < CANDIDATES:
        row = int(np.argmin(left))
        if left[row] > 1:
            break
        rows.append(row)
        left[max(0, row - width) : row + width + 1] = 3
    return rows


def _refined(offset: float, step: float, misfit: Callable[[float], float]) -> tuple[float, float]:
    """Local minimum of the misfit within a step, by a search that halves its reach."""
    best, value, reach = offset, misfit(offset), step
    for _ in range(HALVINGS):
        tried = [(misfit(at), at) for at in (best - reach, best + reach)]
        least = min(tried)
        if least[0] < value:
            value, best = least
        else:
            reach *= 0.5
    return best, value
