"""Gains by which the colours of views are compared."""

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]
LEAST = 50
"""Fewest triangles, among `SAMPLES`, that a gain is computed from."""
SAMPLES = 20_000
"""Most triangles that are compared."""
MAX_GAIN = 1.6
"""Largest gain, and the inverse of the least one."""
DARK, BRIGHT = 10.0, 245.0
"""Levels between which colours are compared: the others are clipped."""


def view_gains(colours: NDArray[np.uint8], shown: NDArray[np.bool_], mean: FloatArray) -> FloatArray:
    """Factors [V, 3] of the channels of each view that bring its triangles to their mean colours.

    Args:
        colours: [V, M, 3] of the triangles in each view.
        shown: [V, M] where they are visible.
        mean: [M, 3] over all views.
    """
    some = np.unique(np.linspace(0, colours.shape[1] - 1, min(SAMPLES, colours.shape[1])).astype(np.intp))
    target = mean[some]
    gains = np.ones((len(colours), 3), np.float32)
    for gain, values, visible in zip(gains, colours[:, some].astype(np.float32), shown[:, some], strict=True):
        usable = visible & ((np.minimum(values, target) > DARK) & (np.maximum(values, target) < BRIGHT)).all(axis=1)
        if usable.sum() >= LEAST:
            gain[:] = np.exp(np.median(np.log(target[usable] / values[usable]), axis=0))
    return gains.clip(1 / MAX_GAIN, MAX_GAIN)
