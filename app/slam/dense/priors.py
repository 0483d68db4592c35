"""The prior of stereo: the network's depth, corrected by triangulated points."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.slam.dense.arrays import Array, Arrays
from stream_recon.app.slam.dense.fusion import Interpolator, Measured
from stream_recon.app.slam.dense.views import StereoView

POINT_SMOOTHNESS = 10.0
"""Weight of smoothness when the points' ratios are spread."""
MAX_LOG_RATIO = 1.6
"""Largest log ratio of a triangulated point's depth to the network's: beyond it one of both is wrong."""


def corrected_priors(arrays: Arrays, views: Sequence[StereoView], greys: Sequence[Array]) -> list[tuple[Array, Array]]:
    """The network's depth [h, w] of views, corrected by triangulated points, and where it is known.

    Unknown pixels get the median depth. ``greys``: the views' images at the size of the depth.
    """
    size = greys[0].shape[1], greys[0].shape[0]
    priors, valid, points = [], [], []
    for view in views:
        known = view.prior > 0
        filled = np.where(known, view.prior, np.float32(np.median(view.prior[known]) if known.any() else 1))
        priors.append(arrays.repeated(arrays.array(filled), size))
        valid.append(arrays.repeated(arrays.array(known.astype(np.float32)), size) > 0.5)
        points.append(_log_ratios(view, arrays.numpy(priors[-1])))
    prior = arrays.stack(priors)
    ratio, weight = (arrays.array(np.array(column)) for column in zip(*points, strict=True))

    def corrected(grey: Array, prior: Array, ratio: Array, weight: Array) -> tuple[Array, ...]:
        interpolator = Interpolator(arrays, grey, prior, POINT_SMOOTHNESS)
        return (prior * arrays.exp(interpolator.spread_robustly(Measured(ratio, weight), 0.1)),)

    (prior,) = arrays.batched("corrected", corrected, arrays.stack(list(greys)), prior, ratio, weight)
    return [(prior[number], valid[number]) for number in range(len(views))]


def _log_ratios(view: StereoView, prior: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Mean log ratios [h, w] of triangulated to prior depth, and their weights."""
    height, width = prior.shape
    column, row = (view.pixels * (width / view.size[0], height / view.size[1])).astype(np.intp).T
    inside = (column >= 0) & (row >= 0) & (column < width) & (row < height) & (view.depths > 0)
    cell = row[inside] * width + column[inside]
    ratio = np.log(view.depths[inside] / prior.ravel()[cell])
    usable = np.abs(ratio) < MAX_LOG_RATIO
    cell, ratio = cell[usable], ratio[usable]
    weights = np.ones(len(cell)) if view.weights is None else view.weights[inside][usable]
    weight = np.bincount(cell, weights, minlength=prior.size)
    total = np.bincount(cell, weights * ratio, minlength=prior.size)
    mean = total / np.maximum(weight, 1e-9)
    shape = prior.shape
    return mean.reshape(shape).astype(np.float32), np.minimum(weight, 2).reshape(shape).astype(np.float32)
