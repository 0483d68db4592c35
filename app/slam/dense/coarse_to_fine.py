"""Plane sweeps from small to large images, each about the depth of the last one."""

from collections.abc import Sequence

from stream_recon.app.slam.dense.arrays import Array, Arrays
from stream_recon.app.slam.dense.config import StereoConfig, SweepConfig
from stream_recon.app.slam.dense.sweep import Sources, SweepResult, sweep


def swept(arrays: Arrays, prior: Array, levels: Sequence[tuple[Array, Sources]], config: SweepConfig) -> SweepResult:
    """Sweeps about a prior depth [h, w] at several sizes, from coarse to fine: images [h, w] and their sources."""
    result: SweepResult | None = None
    margin: Array = None
    for grey, sources in levels:
        size = grey.shape[1], grey.shape[0]
        if result is None:
            result = sweep(arrays, grey, sources, 1 / arrays.repeated(prior, size), config.coarse, config)
            margin = result.margin
        else:
            inverse = result.inverse_depth
            smooth, nearest = arrays.enlarged(inverse, size), arrays.repeated(inverse, size)
            # Between two surfaces, a mean of both depths is on neither.
            about = arrays.where(abs(smooth - nearest) < result.step, smooth, nearest)
            result = sweep(arrays, grey, sources, about, config.fine, config)
        margin = arrays.repeated(margin, size)
    assert result is not None
    return SweepResult(result.inverse_depth, result.cost, margin, result.step)


def with_other(
    arrays: Arrays, grey: Array, sources: Sources, result: SweepResult, other: Array, config: StereoConfig
) -> SweepResult:
    """The result with another depth [h, w], 0 where unknown, where images agree clearly better with it."""
    about = arrays.where(other > 0, 1 / arrays.maximum(other, 1e-9), result.inverse_depth)
    found = sweep(arrays, grey, sources, about, config.other_surfaces.sweep, config.sweep)
    is_better = (other > 0) & (found.cost < result.cost - config.other_surfaces.min_gain)
    is_better = is_better & (abs(found.inverse_depth - result.inverse_depth) > 2 * result.step)
    gain = (result.cost - found.cost) / arrays.maximum(found.cost, config.sweep.min_cost)
    return SweepResult(
        arrays.where(is_better, found.inverse_depth, result.inverse_depth),
        arrays.where(is_better, found.cost, result.cost),
        arrays.where(is_better, gain, result.margin),
        result.step,
    )


def sides(side: int, coarse_side: int) -> list[int]:
    """Longer sides of the sweeps' images, from about ``coarse_side`` to ``side``, each at most twice the last one."""
    found = [side]
    while found[0] > coarse_side * 1.2:
        found.insert(0, max((found[0] + 1) // 2, coarse_side))
    return found
