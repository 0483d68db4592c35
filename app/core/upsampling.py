"""Depth maps made finer by the image: edges of depth go where edges of colour are."""

from collections.abc import Iterator

import cv2
import numpy as np
from numpy.typing import NDArray

RADIUS = 2
"""Of the window, in the depth map's pixels."""
SPREAD = 1.0
"""Standard deviation of a pixel's weight over the window, likewise."""
ALIKE = 20.0
"""Standard deviation over differences of colour, in levels of 255."""
FURTHEST = 2.0
"""So many times what a pixel itself has, or as little, may the plane through it say of another."""
LEAST = 1e-8
"""Weight of a pixel whose colour is nowhere near: where nothing is alike, all count the same."""


def upsample_depth(depth: NDArray[np.float32], image: NDArray[np.uint8]) -> NDArray[np.float32]:
    """A depth map at an image's size: each pixel takes the mean of what the planes through those around it say of
    itself, as far as their colour is its own (joint bilateral upsampling, Kopf et al. 2007, doi
    10.1145/1276377.1276497, of inverse depth, which is linear over a plane).

    Args:
        depth: [h, w], of the same view as the image; 0 where there is none.
        image: [H, W, 3], no smaller.

    Returns:
        [H, W]; 0 where the nearest pixel of ``depth`` has none.
    """
    height, width = image.shape[:2]
    rows, columns = depth.shape
    small = cv2.resize(image, (columns, rows), interpolation=cv2.INTER_AREA).astype(np.float32) / ALIKE
    fine = image.astype(np.float32) / ALIKE
    known = depth > 0
    inverse = np.divide(1, depth, out=np.zeros_like(depth, np.float32), where=known)
    down, right = (_slopes(inverse, known, axis) for axis in (0, 1))
    total, weights = np.zeros((height, width), np.float32), np.zeros((height, width), np.float32)
    across = list(_window(width, columns))
    for y, y_off, y_weight in _window(height, rows):
        colours, seen, there_of, down_of, right_of = (values[y] for values in (small, known, inverse, down, right))
        for x, x_off, x_weight in across:
            difference = fine - colours[:, x]
            weight = np.exp(-0.5 * np.einsum("ijk,ijk->ij", difference, difference))
            weight = (weight + LEAST) * y_weight[:, None] * x_weight * seen[:, x]
            there = there_of[:, x]
            here = there + down_of[:, x] * y_off[:, None] + right_of[:, x] * x_off
            total += weight * np.clip(here, there / FURTHEST, there * FURTHEST)
            weights += weight
    near = known[_nearest(height, rows)][:, _nearest(width, columns)]
    return np.divide(weights, total, out=np.zeros_like(total), where=near)


def _nearest(fine: int, coarse: int) -> NDArray[np.intp]:
    """The coarse pixel that each fine one lies in, along one axis."""
    return ((np.arange(fine) + 0.5) * coarse / fine).astype(np.intp)


def _slopes(inverse: NDArray[np.float32], known: NDArray[np.bool_], axis: int) -> NDArray[np.float32]:
    """What inverse depth grows by along an axis from one pixel to the next: the lesser of the two sides, and none where
    they differ in sign, so that it is a surface's and not a jump's."""
    steps = np.moveaxis(np.diff(inverse, axis=axis), axis, 0)
    both = np.moveaxis(known, axis, 0)
    steps = np.where(both[1:] & both[:-1], steps, 0)
    before, after = np.concatenate([steps[:1], steps]), np.concatenate([steps, steps[-1:]])
    least = np.where(np.abs(before) < np.abs(after), before, after)
    return np.asarray(np.moveaxis(np.where(before * after > 0, least, 0), 0, axis), np.float32)


def _window(fine: int, coarse: int) -> Iterator[tuple[NDArray[np.intp], NDArray[np.float32], NDArray[np.float32]]]:
    """Along one axis, from the window's one end to the other: which coarse pixel each fine one looks at, how far it is
    from there, in coarse ones, and the weight by that; 0 beyond the border."""
    place = (np.arange(fine) + 0.5) * coarse / fine - 0.5
    middle = np.rint(place).astype(np.intp)
    for step in range(-RADIUS, RADIUS + 1):
        there = middle + step
        off = (place - there).astype(np.float32)
        weight = np.exp(-0.5 * (off / SPREAD) ** 2) * ((there >= 0) & (there < coarse))
        yield np.clip(there, 0, coarse - 1), off, weight.astype(np.float32)
