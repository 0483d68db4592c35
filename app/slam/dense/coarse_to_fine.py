"""Plane sweeps from small to large images, each about the depth of the last one."""

from collections.abc import Sequence

from stream_recon.app.slam.dense.arrays import Array, Arrays
from stream_recon.app.slam.dense.sweep import Sources, SweepRange, SweepResult, sweep

COARSE_SIDE, COARSE = 192, SweepRange(40, 0.55, 1.8, distance_cost=0.001, has_margin=True)
"""The first sweep: about the prior, whose errors it has to span. Far things are often several times as far."""
FINE = SweepRange(9, 0.3, 3.0)
"""Each further sweep, at up to twice the size, about the depth of the last one."""
OTHER, MIN_GAIN = SweepRange(3, 0.3, 3.0), 0.02
"""The sweep about the depth of triangulated points that are on another surface, and how much less its cost must be."""


def swept(arrays: Arrays, prior: Array, levels: Sequence[tuple[Array, Sources]]) -> SweepResult:
    """Sweeps about a prior depth [h, w] at several sizes, from coarse to fine: images [h, w] and their sources."""
    result: SweepResult | None = None
    margin: Array = None
    for grey, sources in levels:
        size = grey.shape[1], grey.shape[0]
        if result is None:
            result = sweep(arrays, grey, sources, 1 / arrays.repeated(prior, size), COARSE)
            margin = result.margin
        else:
            inverse = result.inverse_depth
            smooth, nearest = arrays.enlarged(inverse, size), arrays.repeated(inverse, size)
            # Between two surfaces, a mean of both depths is on neither.
            about = arrays.where(abs(smooth - nearest) < result.step, smooth, nearest)
            result = sweep(arrays, grey, sources, about, FINE)
        margin = arrays.repeated(margin, size)
    assert result is not None
    return SweepResult(result.inverse_depth, result.cost, margin, result.step)


def with_other(arrays: Arrays, grey: Array, sources: Sources, result: SweepResult, other: Array) -> SweepResult:
    """The result with another depth [h, w], 0 where unknown, where images agree clearly better with it."""
    about = arrays.where(other > 0, 1 / arrays.maximum(other, 1e-9), result.inverse_depth)
    found = sweep(arrays, grey, sources, about, OTHER)
    is_better = (other > 0) & (found.cost < result.cost - MIN_GAIN)
    is_better = is_better & (abs(found.inverse_depth - result.inverse_depth) > 2 * result.step)
    gain = (result.cost - found.cost) / arrays.maximum(found.cost, 0.004)
    return SweepResult(
        arrays.where(is_better, found.inverse_depth, result.inverse_depth),
        arrays.where(is_better, found.cost, result.cost),
        arrays.where(is_better, gain, result.margin),
        result.step,
    )


def sides(side: int) -> list[int]:
    """Longer sides of the images of the sweeps, from coarse to ``side``, each at most twice the last one."""
    found = [side]
    while found[0] > COARSE_SIDE * 1.2:
        found.insert(0, max((found[0] + 1) // 2, COARSE_SIDE))
    return found
