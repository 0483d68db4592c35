"""Whether depth jumps where it should."""

import numpy as np
from numpy.typing import NDArray

FIRST, LAST, STEPS = 1.05, 1.25, 5
"""Ratios of neighbours' depths above which they lie on two surfaces: so many, evenly, from one to the other."""


def boundary_f1(predicted: NDArray[np.floating], truth: NDArray[np.floating], valid: NDArray[np.bool_]) -> float:
    """F1 of the pairs of neighbouring pixels between which depth jumps, at the very pixel, as a weighted mean over
    sizes of jumps; 1 where all are right and none is missed (Depth Pro, arXiv 2410.02073, 3.2).

    Args:
        predicted, truth: depth [h, w], in whatever units, above 0 where ``valid``.
        valid: [h, w], the pixels that count.
    """
    ratios = np.linspace(FIRST, LAST, STEPS)
    jumps = np.concatenate([_jumps(predicted, truth, valid, axis) for axis in (0, 1)], axis=1)
    same_way = np.sign(jumps[0]) == np.sign(jumps[1])
    scores = [_f1(np.abs(jumps) > np.log(ratio), same_way) for ratio in ratios]
    return float(np.average(scores, weights=ratios))


def _jumps(
    predicted: NDArray[np.floating], truth: NDArray[np.floating], valid: NDArray[np.bool_], axis: int
) -> NDArray[np.float64]:
    """Logarithms of the ratios of neighbours along an axis, [2, pairs]: predicted, true."""
    one, next_one = ((slice(None),) * axis + (part,) for part in (slice(None, -1), slice(1, None)))
    both = valid[one] & valid[next_one]
    return np.stack([np.log(depth[next_one][both]) - np.log(depth[one][both]) for depth in (predicted, truth)])


def _f1(jumps: NDArray[np.bool_], same_way: NDArray[np.bool_]) -> float:
    """jumps [2, pairs]: whether there is one, predicted and true."""
    right = int((jumps[0] & jumps[1] & same_way).sum())
    return 2 * right / max(int(jumps.sum()), 1)
