"""What points take from a matrix of cameras, Y Y^T, where the cameras are some hundred: by dense products.

Points that begin and end among the same cameras go together: what they have in common with these is nearly full.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]

SPAN = 10
"""Cameras among which points of a group begin, and likewise end: more of them make fewer products with more zeros."""
GAPS = 1.5
"""Times as many cameras as see the points may lie between the first and the last one, for these to be gone through as
one range."""


@dataclass(frozen=True)
class _CameraGroup:
    """Points that go together."""

    begin: int
    """Its sightings' first one in the order of all groups."""
    end: int
    at: IntArray  # [end - begin], where in a table [points, cameras] they belong
    points: int
    cameras: int
    rows: "slice | IntArray"
    """Of the whole matrix, in blocks."""


class SchurProducts:
    """For one problem: which of ``cameras`` cameras sees which point, none of them twice.

    Args:
        camera: [O], of the sightings.
        point: [O], likewise.
    """

    def __init__(self, camera: IntArray, point: IntArray, cameras: int, points: int) -> None:
        self._cameras = cameras
        first, last = np.full(points, cameras), np.zeros(points, np.intp)
        np.minimum.at(first, point, camera)
        np.maximum.at(last, point, camera)
        cell = (first // SPAN * cameras + last // SPAN)[point]
        self._order = np.lexsort((camera, point, cell))
        camera, point, cell = camera[self._order], point[self._order], cell[self._order]
        bounds = [0, *(np.flatnonzero(np.diff(cell)) + 1).tolist(), len(cell)] if len(cell) else [0]
        self._groups = [_group(begin, end, camera[begin:end], point[begin:end]) for begin, end in pairwise(bounds)]

    def of(self, Y: FloatArray) -> FloatArray:
        """[C D, C D] of the sightings' ``Y`` [D, 3, O]."""
        size, count = len(Y), self._cameras
        out = np.zeros((count, size, count, size))
        sorted_ = Y.transpose(1, 2, 0)[:, self._order]
        for group in self._groups:
            table = np.zeros((3, group.points * group.cameras, size))
            table[:, group.at] = sorted_[:, group.begin : group.end]
            flat = table.reshape(3 * group.points, -1)
            product = (flat.T @ flat).reshape(group.cameras, size, group.cameras, size)
            if isinstance(group.rows, slice):
                out[group.rows, :, group.rows] += product
            else:
                out[group.rows[:, None], :, group.rows] += product.transpose(0, 2, 1, 3)
        return out.reshape(count * size, -1)


def _group(begin: int, end: int, camera: IntArray, point: IntArray) -> _CameraGroup:
    seen, place = np.unique(camera, return_inverse=True)
    used, row = np.unique(point, return_inverse=True)
    rows: slice | IntArray = seen
    if seen[-1] - seen[0] < GAPS * len(seen):
        rows, place = slice(int(seen[0]), int(seen[-1]) + 1), camera - seen[0]
    cameras = rows.stop - rows.start if isinstance(rows, slice) else len(seen)
    return _CameraGroup(begin, end, row * cameras + place, len(used), cameras, rows)
