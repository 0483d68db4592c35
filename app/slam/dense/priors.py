"""The prior of stereo: the network's depth, corrected by triangulated points."""

from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.slam.dense.arrays import Array, Arrays
from stream_recon.app.slam.dense.fusion import Interpolator, Measured
from stream_recon.app.slam.dense.views import StereoView

POINT_SMOOTHNESS = 10.0
"""Weight of smoothness when the points' ratios are spread."""
THIN_LOG_RATIO = 0.05
"""Least log ratio of a triangulated point's depth to that of its surroundings, from which it is on another surface."""
SURROUNDINGS = 4
"""Pixels on either side whose median is the depth of a point's surroundings."""
REACH = 12.0
"""Pixels about a point on another surface at which stereo tries its depth."""
COMPANION_LOG_RATIO = 0.1
"""Log ratio of the depths of two points up to which they may be on the same surface."""
MAX_LOG_RATIO = 1.6
"""Largest log ratio of a triangulated point's depth to the network's: beyond it one of both is wrong."""


@dataclass(frozen=True)
class Prior:
    """What is known of a view's depth [h, w] before stereo."""

    depth: Array
    """The network's depth, corrected by triangulated points; positive everywhere."""
    is_valid: Array
    """Whether the network gives depth."""
    points: Measured
    """Triangulated points: log ratios of their depth to ``depth``."""
    other: Array
    """Depth of the nearest point on another surface than ``depth``, as on a thin thing; 0 where there is none near."""


def corrected_priors(arrays: Arrays, views: Sequence[StereoView], greys: Sequence[Array]) -> list[Prior]:
    """The priors of views. Pixels without the network's depth get the median depth.

    ``greys``: the views' images at the size of the depth.
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
        change = interpolator.spread_robustly(Measured(ratio, weight), 0.1)
        return prior * arrays.exp(change), ratio - change

    prior, left = arrays.batched("corrected", corrected, arrays.stack(list(greys)), prior, ratio, weight)
    others = [arrays.array(_other_depth(view, arrays.numpy(prior[n]))) for n, view in enumerate(views)]
    return [Prior(prior[n], valid[n], Measured(left[n], weight[n]), others[n]) for n in range(len(views))]


def _other_depth(view: StereoView, prior: NDArray[np.float32]) -> NDArray[np.float32]:
    """Depth [h, w] of the nearest triangulated point whose surroundings have another depth; 0 beyond `REACH`."""
    height, width = prior.shape
    column, row, inside = _cells(view, width, height)
    if not len(row):
        return np.zeros_like(prior)
    depth = view.depths[inside]
    around = np.arange(-SURROUNDINGS, SURROUNDINGS + 1)
    rows = (row[:, None, None] + around[:, None]).clip(0, height - 1)
    columns = (column[:, None, None] + around).clip(0, width - 1)
    ratio = np.log(depth / np.median(prior[rows, columns], axis=(1, 2)))
    is_other = (np.abs(ratio) > THIN_LOG_RATIO) & (np.abs(ratio) < MAX_LOG_RATIO)
    is_other[is_other] = _has_companion(column[is_other], row[is_other], depth[is_other])
    if not is_other.any():
        return np.zeros_like(prior)
    at_points, empty = np.zeros_like(prior), np.ones(prior.shape, np.uint8)
    at_points[row[is_other], column[is_other]] = depth[is_other]
    empty[row[is_other], column[is_other]] = 0
    distance, label = cv2.distanceTransformWithLabels(empty, cv2.DIST_L2, 5, labelType=cv2.DIST_LABEL_PIXEL)
    by_label = np.zeros(int(label.max()) + 1, np.float32)
    by_label[label[empty == 0]] = at_points[empty == 0]
    return np.where(distance <= REACH, by_label[label], np.float32(0))


def _has_companion(column: NDArray[np.intp], row: NDArray[np.intp], depth: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Which of the points [N] have another one near them at nearly the same depth: wrong points are alone."""
    pixels = np.stack([column, row], axis=1)
    near = np.square(pixels[:, None] - pixels).sum(axis=2) < (2 * REACH) ** 2
    near &= np.abs(np.log(depth[:, None] / depth)) < COMPANION_LOG_RATIO
    return np.asarray(near.sum(axis=1) >= 2)


def _cells(view: StereoView, width: int, height: int) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.bool_]]:
    """Columns and rows of the points inside an image of this size, and which of all points they are."""
    column, row = (view.pixels * (width / view.size[0], height / view.size[1])).astype(np.intp).T
    inside = (column >= 0) & (row >= 0) & (column < width) & (row < height) & (view.depths > 0)
    return column[inside], row[inside], inside


def _log_ratios(view: StereoView, prior: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Mean log ratios [h, w] of triangulated to prior depth, and their weights."""
    height, width = prior.shape
    column, row, inside = _cells(view, width, height)
    cell = row * width + column
    ratio = np.log(view.depths[inside] / prior.ravel()[cell])
    usable = np.abs(ratio) < MAX_LOG_RATIO
    cell, ratio = cell[usable], ratio[usable]
    weights = np.ones(len(cell)) if view.weights is None else view.weights[inside][usable]
    weight = np.bincount(cell, weights, minlength=prior.size)
    total = np.bincount(cell, weights * ratio, minlength=prior.size)
    mean = total / np.maximum(weight, 1e-9)
    shape = prior.shape
    return mean.reshape(shape).astype(np.float32), np.minimum(weight, 2).reshape(shape).astype(np.float32)
