"""Levelled exposure: one gain for each view, then a smooth correction that removes the steps at seams.

The gains make views alike where several show the same triangles. The corrections at the vertices of all patches
follow Lempitsky and Ivanov, 2007: equal colours on both sides of a seam, smooth within a patch, and small.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_matrix, csr_matrix, diags
from scipy.sparse.linalg import cg

FloatArray = NDArray[np.float32]
COMMON = 50
"""Fewest common triangles of two views that are compared, among `SAMPLES`."""
SAMPLES = 20_000
"""Most triangles that are compared."""
PRIOR = 0.02
"""Weight of a gain of 1 for each view, against the comparison of two views that share all triangles."""
MAX_GAIN = 1.6
"""Largest gain, and the inverse of the least one."""
DARK, BRIGHT = 10.0, 245.0
"""Levels between which colours are compared: the others are clipped."""
SMOOTH = 0.3
"""Weight of the difference of two corrections along an edge of a patch, against that across a seam."""
SMALL = 0.01
"""Weight of a correction itself: patches without a seam keep their colours."""
MAX_CORRECTION = 40.0
"""Largest correction in levels of 255: a larger step is an error of geometry, not of exposure."""


def view_gains(colours: NDArray[np.uint8], shown: NDArray[np.bool_]) -> FloatArray:
    """Factors [V, 3] of the channels of each view that make the views alike.

    Args:
        colours: [V, M, 3] of the triangles in each view.
        shown: [V, M] where they are visible.
    """
    count = len(colours)
    some = np.unique(np.linspace(0, colours.shape[1] - 1, min(SAMPLES, colours.shape[1])).astype(np.intp))
    values = colours[:, some].astype(np.float32)
    usable = shown[:, some] & (values > DARK).all(axis=2) & (values < BRIGHT).all(axis=2)
    logs = np.log(np.maximum(values, 1))
    first, second, weight, ratio = [], [], [], []
    for i in range(count):
        for j in range(i + 1, count):
            common = np.flatnonzero(usable[i] & usable[j])
            if len(common) >= COMMON:
                first.append(i)
                second.append(j)
                weight.append(len(common) / len(some))
                ratio.append(np.median(logs[j, common] - logs[i, common], axis=0))
    normal = PRIOR * np.eye(count)
    right = np.zeros((count, 3))
    for i, j, w, r in zip(first, second, weight, ratio, strict=True):
        normal[[i, j], [i, j]] += w
        normal[[i, j], [j, i]] -= w
        right[i] += w * r
        right[j] -= w * r
    gains = np.exp(np.linalg.solve(normal, right)) if count else right
    return gains.clip(1 / MAX_GAIN, MAX_GAIN).astype(np.float32)


def seam_corrections(
    colours: FloatArray, seams: NDArray[np.intp], edges: NDArray[np.intp], weight: FloatArray
) -> FloatArray:
    """Corrections [N, 3] of the colours of the patches' vertices.

    Args:
        colours: [N, 3] of each vertex in its patch's view.
        seams: pairs [S, 2] of vertices of two patches at the same position.
        edges: pairs [E, 2] of neighbouring vertices of one patch.
        weight: [S] of the seams.
    """
    count = len(colours)
    if not len(seams):
        return np.zeros((count, 3), np.float32)
    across = _differences(seams, count)
    along = _differences(edges, count)
    scaled = across.T @ diags(weight)
    normal = (scaled @ across + SMOOTH**2 * (along.T @ along) + SMALL**2 * diags(np.ones(count))).tocsr()
    steps = (colours[seams[:, 1]] - colours[seams[:, 0]]).clip(-2 * MAX_CORRECTION, 2 * MAX_CORRECTION)
    inverse = 1 / normal.diagonal()
    jacobi = diags(inverse)
    found = np.empty((count, 3), np.float32)
    for channel in range(3):
        right = scaled @ steps[:, channel].astype(np.float64)
        found[:, channel] = cg(normal, right, rtol=1e-3, maxiter=300, M=jacobi)[0]
    return found.clip(-MAX_CORRECTION, MAX_CORRECTION)


def _differences(pairs: NDArray[np.intp], count: int) -> csr_matrix:
    """Matrix [P, count] of the value at the first vertex of each pair minus that at the second."""
    rows = np.repeat(np.arange(len(pairs)), 2)
    values = np.tile([1.0, -1.0], len(pairs))
    return coo_matrix((values, (rows, pairs.ravel())), shape=(len(pairs), count)).tocsr()
