"""Levelled exposure: one gain for each view, then a smooth correction that removes the steps at seams.

Both lead towards the mean colours of all views, which fusion gives, and whose brightness has no steps. Detail is that
of one view. The corrections at the vertices of all patches follow Lempitsky and Ivanov, 2007: equal colours on both
sides of a seam, smooth within a patch, and near a target.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_matrix, csr_matrix, diags
from scipy.sparse.linalg import cg

FloatArray = NDArray[np.float32]
LEAST = 50
"""Fewest triangles, among `SAMPLES`, that a gain is computed from."""
SAMPLES = 20_000
"""Most triangles that are compared."""
MAX_GAIN = 1.6
"""Largest gain, and the inverse of the least one."""
DARK, BRIGHT = 10.0, 245.0
"""Levels between which colours are compared: the others are clipped."""
SMOOTH = 0.3
"""Weight of the difference of two corrections along an edge of a patch, against that across a seam."""
TARGET = 0.05
"""Weight of a correction's distance from its target: over about six edges, detail is not drawn to the mean."""
MAX_CORRECTION = 40.0
"""Largest correction in levels of 255: a larger step is an error of geometry, not of exposure."""


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


def seam_corrections(
    colours: FloatArray, mean: FloatArray, seams: NDArray[np.intp], edges: NDArray[np.intp]
) -> FloatArray:
    """Corrections [N, 3] of the colours of the patches' vertices.

    Args:
        colours: [N, 3] of each vertex in its patch's view.
        mean: [N, 3] over all views.
        seams: pairs [S, 2] of vertices of two patches at the same position.
        edges: pairs [E, 2] of neighbouring vertices of one patch.
    """
    count = len(colours)
    if not count:
        return np.zeros((0, 3), np.float32)
    across = _differences(seams, count)
    along = _differences(edges, count)
    normal = (across.T @ across + SMOOTH**2 * (along.T @ along) + TARGET**2 * diags(np.ones(count))).tocsr()
    steps = (colours[seams[:, 1]] - colours[seams[:, 0]]).clip(-2 * MAX_CORRECTION, 2 * MAX_CORRECTION)
    wanted = (mean - colours).clip(-MAX_CORRECTION, MAX_CORRECTION).astype(np.float64)
    inverse = 1 / normal.diagonal()
    jacobi = diags(inverse)
    found = np.empty((count, 3), np.float32)
    for channel in range(3):
        right = across.T @ steps[:, channel].astype(np.float64) + TARGET**2 * wanted[:, channel]
        found[:, channel] = cg(normal, right, rtol=1e-3, maxiter=300, M=jacobi)[0]
    return found.clip(-MAX_CORRECTION, MAX_CORRECTION)


def _differences(pairs: NDArray[np.intp], count: int) -> csr_matrix:
    """Matrix [P, count] of the value at the first vertex of each pair minus that at the second."""
    rows = np.repeat(np.arange(len(pairs)), 2)
    values = np.tile([1.0, -1.0], len(pairs))
    return coo_matrix((values, (rows, pairs.ravel())), shape=(len(pairs), count)).tocsr()
