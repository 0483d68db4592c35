"""The prior of stereo: the network's depth, corrected by triangulated points."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.cores import usable_cores
from stream_recon.app.slam.dense.arrays import Array, Arrays
from stream_recon.app.slam.dense.config import OtherSurfaceConfig, StereoConfig
from stream_recon.app.slam.dense.interpolation import Interpolator, MeasuredRatios
from stream_recon.app.slam.dense.views import StereoView

Result = TypeVar("Result")


@dataclass(frozen=True)
class Prior:
    """What is known of a view's depth [h, w] before stereo."""

    depth: Array
    """The network's depth, corrected by triangulated points; positive everywhere."""
    is_valid: Array
    """Whether the network gives depth."""
    points: MeasuredRatios
    """Triangulated points: log ratios of their depth to ``depth``."""


def corrected_priors(
    arrays: Arrays, views: Sequence[StereoView], greys: Sequence[Array], config: StereoConfig
) -> list[Prior]:
    """The priors of views. Pixels without the network's depth get the median depth.

    ``greys``: the views' images at the size of the depth.
    """
    size = greys[0].shape[1], greys[0].shape[0]
    known = np.array([view.prior > 0 for view in views])
    filled = np.array([view.prior for view in views])
    for values, is_known in zip(filled, known, strict=True):
        if not is_known.all():
            values[~is_known] = np.median(values[is_known]) if is_known.any() else 1
    prior = arrays.repeated(arrays.array(filled), size)
    valid = arrays.repeated(arrays.to_float(arrays.array(known)), size) > 0.5
    if not config.points.is_enabled:
        nothing = arrays.zeros_like(prior)
        return [Prior(prior[n], valid[n], MeasuredRatios(nothing[n], nothing[n])) for n in range(len(views))]
    log_ratios = partial(_log_ratios, max_log_ratio=config.points.max_log_ratio)
    points = _of_each(log_ratios, views, arrays.numpy(prior))
    ratio, weight = (arrays.array(np.array(column)) for column in zip(*points, strict=True))

    spreading = replace(config.interpolation, smoothness=config.points.smoothness)

    def corrected(grey: Array, prior: Array, ratio: Array, weight: Array) -> tuple[Array, ...]:
        interpolator = Interpolator(arrays, grey, prior, spreading)
        change = interpolator.spread_robustly(MeasuredRatios(ratio, weight), config.points.outlier)
        return prior * arrays.exp(change), ratio - change

    prior, left = arrays.batched(("corrected", config), corrected, arrays.stack(list(greys)), prior, ratio, weight)
    return [Prior(prior[n], valid[n], MeasuredRatios(left[n], weight[n])) for n in range(len(views))]


def other_surfaces(arrays: Arrays, views: Sequence[StereoView], priors: Sequence[Prior], config: StereoConfig) -> Array:
    """Depths [n, h, w] of the nearest triangulated points on other surfaces than the priors, as on thin things.

    0 where there is none near.
    """
    depths = arrays.stack([prior.depth for prior in priors])
    if not config.other_surfaces.is_enabled:
        return arrays.zeros_like(depths)
    other = partial(_other_depth, config=config.other_surfaces, max_log_ratio=config.points.max_log_ratio)
    return arrays.array(np.array(_of_each(other, views, arrays.numpy(depths))))


def _of_each(
    function: Callable[[StereoView, NDArray[np.float32]], Result],
    views: Sequence[StereoView],
    priors: NDArray[np.float32],
) -> list[Result]:
    """A function of each view and its prior, side by side for the groups of a GPU, which would wait."""
    if len(views) == 1:
        return [function(views[0], priors[0])]
    with ThreadPoolExecutor(usable_cores(), "priors") as pool:
        return list(pool.map(function, views, priors))


def _other_depth(
    view: StereoView, prior: NDArray[np.float32], config: OtherSurfaceConfig, max_log_ratio: float
) -> NDArray[np.float32]:
    """Depth [h, w] of the nearest triangulated point whose surroundings have another depth; 0 elsewhere."""
    height, width = prior.shape
    column, row, inside = _cells(view, width, height)
    if not len(row):
        return np.zeros_like(prior)
    depth = view.depths[inside]
    around = np.arange(-config.surroundings, config.surroundings + 1)
    rows = (row[:, None, None] + around[:, None]).clip(0, height - 1)
    columns = (column[:, None, None] + around).clip(0, width - 1)
    ratio = np.log(depth / np.median(prior[rows, columns], axis=(1, 2)))
    is_other = (np.abs(ratio) > config.min_log_ratio) & (np.abs(ratio) < max_log_ratio)
    is_other[is_other] = _has_companion(column[is_other], row[is_other], depth[is_other], config)
    if not is_other.any():
        return np.zeros_like(prior)
    column, row, depth = column[is_other], row[is_other], depth[is_other]
    # Only the rectangle that the points reach is searched.
    margin = int(config.radius) + 1
    top, left = max(int(row.min()) - margin, 0), max(int(column.min()) - margin, 0)
    reached = np.s_[top : int(row.max()) + margin + 1, left : int(column.max()) + margin + 1]
    empty = np.ones(prior.shape, np.uint8)[reached]
    empty[row - top, column - left] = 0
    distance, label = cv2.distanceTransformWithLabels(empty, cv2.DIST_L2, 5, labelType=cv2.DIST_LABEL_PIXEL)
    of_label = np.zeros(len(row) + 1, np.float32)
    of_label[label[row - top, column - left]] = depth
    nearest = np.zeros_like(prior)
    nearest[reached] = np.where(distance <= config.radius, of_label[label], np.float32(0))
    return nearest


def _has_companion(
    column: NDArray[np.intp], row: NDArray[np.intp], depth: NDArray[np.float32], config: OtherSurfaceConfig
) -> NDArray[np.bool_]:
    """Which of the points [N] have another one near them at nearly the same depth: wrong points are alone."""
    pixels = np.stack([column, row], axis=1)
    near = np.square(pixels[:, None] - pixels).sum(axis=2) < (2 * config.radius) ** 2
    near &= np.abs(np.log(depth[:, None] / depth)) < config.companion_log_ratio
    return np.asarray(near.sum(axis=1) >= 2)


def _cells(view: StereoView, width: int, height: int) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.bool_]]:
    """Columns and rows of the points inside an image of this size, and which of all points they are."""
    column, row = (view.pixels * (width / view.size[0], height / view.size[1])).astype(np.intp).T
    inside = (column >= 0) & (row >= 0) & (column < width) & (row < height) & (view.depths > 0)
    return column[inside], row[inside], inside


def _log_ratios(
    view: StereoView, prior: NDArray[np.float32], max_log_ratio: float
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Mean log ratios [h, w] of triangulated to prior depth, and their weights."""
    height, width = prior.shape
    column, row, inside = _cells(view, width, height)
    cell = row * width + column
    ratio = np.log(view.depths[inside] / prior.ravel()[cell])
    usable = np.abs(ratio) < max_log_ratio
    weights = np.ones(len(cell)) if view.weights is None else view.weights[inside]
    # There are few points: sums over the whole image would take longer than all else.
    cell, number = np.unique(cell[usable], return_inverse=True)
    weight = np.bincount(number, weights[usable], minlength=len(cell))
    total = np.bincount(number, weights[usable] * ratio[usable], minlength=len(cell))
    tables = np.zeros((2, height * width), np.float32)
    tables[0, cell] = total / np.maximum(weight, 1e-9)
    tables[1, cell] = np.minimum(weight, 2)
    mean, least = tables.reshape(2, height, width)
    return mean, least
