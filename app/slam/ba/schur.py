"""Normal equations of an adjustment and elimination of the points by the Schur complement (Brown 1958).

Points share only cameras, so each is eliminated on its own, and a system in cameras and intrinsics remains. With
V = L L^T of a point and W of each of its sightings, Y = W L^-T, the cameras' matrix loses Y Y^T.
For some hundred cameras Y Y^T is computed by dense products. Points whose first cameras are near each other, and whose
last ones are, form a group, whose product is nearly full.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse as sparse

from stream_recon.app.slam.ba.levenberg import SingularError
from stream_recon.app.slam.ba.linear import FLOOR, block_diagonal, damping_diagonal, factorised
from stream_recon.app.slam.ba.problem import INTRINSICS_SIZE, FloatArray, IntArray
from stream_recon.app.slam.ba.residuals import ResidualRows, Sightings

SPAN = 10
"""Width in cameras of the bins of a group's first and last camera; wider bins give fewer products with more zeros."""
GAPS = 1.5
"""Ratio of a group's camera range to its number of cameras up to which the range is processed as a slice."""


@dataclass(frozen=True)
class _CameraGroup:
    """Points processed in one product: sightings from ``begin`` to before ``end``, in the order of all groups."""

    begin: int
    end: int
    cell: IntArray  # [end - begin], index in a table [points, cameras]
    points: int
    cameras: int
    rows: "slice | IntArray"
    """Block rows in the full matrix."""


class SchurProducts:
    """Dense products for one problem, in which no camera sees a point twice."""

    def __init__(self, camera: IntArray, point: IntArray, cameras: int, points: int) -> None:
        """``camera``, ``point``: [O], of each sighting."""
        self._cameras = cameras
        first, last = np.full(points, cameras), np.zeros(points, np.intp)
        np.minimum.at(first, point, camera)
        np.maximum.at(last, point, camera)
        cell = (first // SPAN * cameras + last // SPAN)[point]
        self._order = np.lexsort((camera, point, cell))
        camera, point, cell = camera[self._order], point[self._order], cell[self._order]
        bounds = [0, *(np.flatnonzero(np.diff(cell)) + 1).tolist(), len(cell)] if len(cell) else [0]
        self._groups = [_group(begin, end, camera[begin:end], point[begin:end]) for begin, end in pairwise(bounds)]

    def product(self, Y: FloatArray) -> FloatArray:
        """Y Y^T [C D, C D] of the sightings' ``Y`` [D, 3, O]."""
        size, count = len(Y), self._cameras
        out = np.zeros((count, size, count, size))
        sorted_ = Y.transpose(1, 2, 0)[:, self._order]
        for group in self._groups:
            table = np.zeros((3, group.points * group.cameras, size))
            table[:, group.cell] = sorted_[:, group.begin : group.end]
            flat = table.reshape(3 * group.points, -1)
            product = (flat.T @ flat).reshape(group.cameras, size, group.cameras, size)
            if isinstance(group.rows, slice):
                out[group.rows, :, group.rows] += product
            else:
                out[group.rows[:, None], :, group.rows] += product.transpose(0, 2, 1, 3)
        return out.reshape(count * size, -1)


def _group(begin: int, end: int, camera: IntArray, point: IntArray) -> _CameraGroup:
    unique, column = np.unique(camera, return_inverse=True)
    used, row = np.unique(point, return_inverse=True)
    rows: slice | IntArray = unique
    if unique[-1] - unique[0] < GAPS * len(unique):
        rows, column = slice(int(unique[0]), int(unique[-1]) + 1), camera - unique[0]
    cameras = rows.stop - rows.start if isinstance(rows, slice) else len(unique)
    return _CameraGroup(begin, end, row * cameras + column, len(used), cameras, rows)


_POINT_SHARE = 0.01
"""Levenberg-Marquardt damping of points relative to that of cameras; see `_point_damping`."""
_DENSE_UNKNOWNS = 150
"""Unknowns of cameras up to which Y is a dense matrix."""
_DENSE_ENTRIES = 2_000_000
"""Entries of Y up to which a dense product is faster than a sparse one."""
_GROUPED_UNKNOWNS = 1400
"""Unknowns of cameras up to which Y Y^T is a dense matrix, computed by `SchurProducts`."""


@dataclass(frozen=True)
class NormalEquations:
    """Normal equations H = J^T J and g = J^T r in parts, before damping. C: free cameras with D unknowns each."""

    rows: ResidualRows
    camera: FloatArray  # [C, D, D]
    camera_intrinsics: FloatArray  # [C, D, INTRINSICS_SIZE]
    camera_gradient: FloatArray  # [C, D]
    intrinsics: FloatArray  # [INTRINSICS_SIZE, INTRINSICS_SIZE]
    intrinsics_gradient: FloatArray  # [INTRINSICS_SIZE]
    point: FloatArray  # [6, M]: V00, V10, V11, V20, V21, V22
    point_intrinsics: FloatArray  # [INTRINSICS_SIZE, 3, M]
    point_gradient: FloatArray  # [3, M]
    off_diagonal: Any
    """Blocks between cameras from relative poses: a BSR matrix [C D, C D], or None."""


@dataclass(frozen=True)
class ReducedSystem:
    """Reduced system in cameras and intrinsics, with the data for back-substitution of the points."""

    cameras: Any  # [C D, C D], an array or BSR
    border: FloatArray  # [C D, INTRINSICS_SIZE], between cameras and intrinsics
    rhs: FloatArray  # [C D]
    intrinsics: FloatArray  # [INTRINSICS_SIZE, INTRINSICS_SIZE]
    intrinsics_rhs: FloatArray  # [INTRINSICS_SIZE]
    Yt: Any  # [3 M, C D], an array or BSR
    y_intrinsics: FloatArray  # [INTRINSICS_SIZE, 3, M]
    y_point: FloatArray  # [3, M]
    root: FloatArray  # [6, M], of L^-1
    size: int
    """D."""


class Elimination:
    """Elimination for one problem, reused in every iteration; the first ``free`` cameras may move."""

    def __init__(self, sightings: Sightings, free: int, points: int) -> None:
        self.free, self.points = free, points
        self._point = sightings.point
        self._starts = np.concatenate([[0], np.cumsum(sightings.per_camera)])
        self._moving = int(self._starts[free])
        moving = sightings.point[: self._moving]
        self._by_point = np.argsort(moving, kind="stable")
        self._point_starts = np.concatenate([[0], np.cumsum(np.bincount(moving, minlength=points))])
        self._camera = sightings.camera[: self._moving]
        self._camera_of = self._camera[self._by_point]

    @cached_property
    def _seen_once(self) -> bool:
        """Whether no camera sees a point twice."""
        return len(np.unique(self._camera * self.points + self._point[: self._moving])) == self._moving

    @cached_property
    def _products(self) -> SchurProducts | None:
        if 7 * self.free > _GROUPED_UNKNOWNS or not self._seen_once:
            return None
        return SchurProducts(self._camera, self._point[: self._moving], self.free, self.points)

    def normal(self, rows: ResidualRows) -> NormalEquations:
        """Normal equations of the sightings, without relative poses."""
        size = rows.camera.shape[1]
        joint = camera_products(rows.joint, self._starts)
        intrinsics = joint[:, size:, size:].sum(axis=0)
        joint = joint[: self.free]
        J, r = rows.point, rows.residual
        point = [self._summed((J[:, i] * J[:, j]).sum(axis=0)) for i in range(3) for j in range(i + 1)]
        gradient = [self._summed((J[:, i] * r).sum(axis=0)) for i in range(3)]
        point_intrinsics = [
            # Intrinsics do not change depths: two rows.
            [self._summed((J[:2, i] * rows.intrinsics[:2, k]).sum(axis=0)) for i in range(3)]
            for k in range(INTRINSICS_SIZE)
        ]
        cameras = joint[:, :size, :size], joint[:, :size, size:-1], joint[:, :size, -1]
        points = np.array(point), np.array(point_intrinsics), np.array(gradient)
        shared = intrinsics[:INTRINSICS_SIZE, :INTRINSICS_SIZE], intrinsics[:INTRINSICS_SIZE, INTRINSICS_SIZE]
        return NormalEquations(rows, *cameras, *shared, *points, None)

    def reduced(self, normal: NormalEquations, damping: float) -> ReducedSystem:
        """Damped system after elimination of the points. Raises SingularError."""
        root = _inverse_root(normal.point, damping)
        y_point = _times(root, normal.point_gradient)
        y_intrinsics = np.stack([_times(root, part) for part in normal.point_intrinsics])
        moving = slice(self._moving)
        J = normal.rows.point[:, :, moving]
        whitened = _times(np.take(root, self._point[moving], axis=1)[:, None], J.transpose(1, 0, 2))
        Y = np.einsum("rdo,kro->dko", normal.rows.camera[:, :, moving], whitened)
        cameras_first, points_first = self._both_ways(Y.transpose(2, 0, 1))
        grouped = None if isinstance(cameras_first, np.ndarray) else self._products
        eliminated = cameras_first @ points_first if grouped is None else grouped.product(Y)
        damped = normal.camera + damping * damping_diagonal(normal.camera)
        sparsely = not isinstance(eliminated, np.ndarray)
        cameras = _cameras_matrix(damped, normal.off_diagonal, sparsely=sparsely) - eliminated
        columns = np.stack([*y_intrinsics, y_point]).transpose(2, 1, 0).reshape(-1, INTRINSICS_SIZE + 1)
        lost = cameras_first @ columns
        flat = y_intrinsics.reshape(INTRINSICS_SIZE, -1)
        border = normal.camera_intrinsics.reshape(-1, INTRINSICS_SIZE) - lost[:, :INTRINSICS_SIZE]
        rhs = lost[:, INTRINSICS_SIZE] - normal.camera_gradient.reshape(-1)
        intrinsics = normal.intrinsics + damping * np.diag(_intrinsics_damping(normal.intrinsics)) - flat @ flat.T
        right = flat @ y_point.reshape(-1) - normal.intrinsics_gradient
        return ReducedSystem(cameras, border, rhs, intrinsics, right, points_first, y_intrinsics, y_point, root, len(Y))

    def intrinsics_system(self, reduced: ReducedSystem) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Reduced matrix and right-hand side of the intrinsics, and the cameras' solutions [C D, INTRINSICS_SIZE + 1].

        The solutions belong to the right-hand side and to the border with the intrinsics. Raises SingularError.
        """
        if not self.free:
            return reduced.intrinsics, reduced.intrinsics_rhs, np.zeros((0, INTRINSICS_SIZE + 1))
        solved = factorised(reduced.cameras)(np.column_stack([reduced.rhs, reduced.border]))
        left = reduced.border.T @ solved
        return reduced.intrinsics - left[:, 1:], reduced.intrinsics_rhs - left[:, 0], solved

    def solve(self, reduced: ReducedSystem, free: IntArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Steps of cameras [C, D], points [3, M] and intrinsics [INTRINSICS_SIZE]. Raises SingularError."""
        information, rhs, solved = self.intrinsics_system(reduced)
        intrinsics = np.zeros(INTRINSICS_SIZE)
        if len(free):
            try:
                intrinsics[free] = np.linalg.solve(information[np.ix_(free, free)], rhs[free])
            except np.linalg.LinAlgError as error:
                raise SingularError from error
        cameras = solved[:, 0] - solved[:, 1:] @ intrinsics
        moved = (reduced.Yt @ cameras).reshape(-1, 3).T
        by_intrinsics = np.tensordot(intrinsics, reduced.y_intrinsics, 1)
        points = _transposed_times(reduced.root, -reduced.y_point - moved - by_intrinsics)
        if not (np.isfinite(cameras).all() and np.isfinite(points).all() and np.isfinite(intrinsics).all()):
            raise SingularError
        return cameras.reshape(self.free, reduced.size), points, intrinsics

    def _both_ways(self, Y: FloatArray) -> tuple[Any, Any]:
        """``Y`` [O, D, 3] of the sightings as a matrix [C D, 3 M], and its transpose."""
        size = Y.shape[1]
        shape = (size * self.free, 3 * self.points)
        if shape[0] <= _DENSE_UNKNOWNS and shape[0] * shape[1] <= _DENSE_ENTRIES and self._seen_once:
            dense = np.zeros((self.free, size, self.points, 3))
            dense[self._camera, :, self._point[: self._moving]] = Y
            dense = dense.reshape(shape)
            return dense, dense.T
        data = np.ascontiguousarray(Y)
        cameras_first = sparse.bsr_matrix(
            (data, self._point[: self._moving], self._starts[: self.free + 1]), shape=shape, blocksize=(size, 3)
        )
        transposed = np.ascontiguousarray(data[self._by_point].transpose(0, 2, 1))
        points_first = sparse.bsr_matrix(
            (transposed, self._camera_of, self._point_starts), shape=shape[::-1], blocksize=(3, size)
        )
        return cameras_first, points_first

    def _summed(self, values: FloatArray) -> FloatArray:
        """Sums [M] over the sightings of each point."""
        return np.bincount(self._point, values, self.points).astype(np.float64, copy=False)


def _cameras_matrix(blocks: FloatArray, off_diagonal: Any, *, sparsely: bool) -> Any:
    """Matrix of diagonal ``blocks`` [C, D, D] and off-diagonal ones: BSR if ``sparsely``, else an array."""
    if sparsely:
        return block_diagonal(blocks) if off_diagonal is None else block_diagonal(blocks) + off_diagonal
    count, size = blocks.shape[:2]
    out = np.zeros((count * size, count * size)) if off_diagonal is None else off_diagonal.toarray()
    each = np.arange(count)
    out.reshape(count, size, count, size)[each, :, each] += blocks
    return out


def camera_products(joint: FloatArray, starts: IntArray) -> FloatArray:
    """J^T J [N, k, k] of each camera from ``joint`` [rows, k, O]; ``starts`` [N + 1]: first sighting of each camera."""
    out = np.zeros((len(starts) - 1, joint.shape[1], joint.shape[1]))
    for product, begin, end in zip(out, starts, starts[1:], strict=False):
        if begin < end:
            for row in joint[:, :, begin:end]:
                product += row @ row.T
    return out


def damped_square(normal: NormalEquations, cameras: FloatArray, points: FloatArray, intrinsics: FloatArray) -> float:
    """Squared length of a step in the metric of the damping."""
    square = float(np.einsum("cij,ci,cj->", damping_diagonal(normal.camera), cameras, cameras))
    square += float((_point_damping(normal.point) * points**2).sum())
    return square + float(_intrinsics_damping(normal.intrinsics) @ intrinsics**2)


def _intrinsics_damping(intrinsics: FloatArray) -> FloatArray:
    diagonal = np.diag(intrinsics)
    # Any positive damping serves for unconstrained unknowns.
    return np.where(diagonal > 0, diagonal, 1.0)


def _point_damping(point: FloatArray) -> FloatArray:
    """Levenberg-Marquardt damping [M] by the trace of each point's Hessian block, times a small factor.

    The trace comes from directions across the rays. A point seen under small angles is known far less along them, and
    with the cameras' damping would hardly move.
    """
    trace = (point[0] + point[2] + point[5]) / 3
    floor = FLOOR * trace.mean() if len(trace) else 0.0
    return np.asarray(_POINT_SHARE * np.maximum(trace, floor if floor > 0 else 1.0))


def _inverse_root(V: FloatArray, damping: float) -> FloatArray:
    """L^-1 of the damped V = L L^T: [6, M] to [6, M], both lower triangles by rows."""
    more = damping * _point_damping(V)
    tiny = np.finfo(float).tiny
    l00 = np.sqrt(np.maximum(V[0] + more, tiny))
    l10, l20 = V[1] / l00, V[3] / l00
    l11 = np.sqrt(np.maximum(V[2] + more - l10**2, more))
    l21 = (V[4] - l20 * l10) / l11
    l22 = np.sqrt(np.maximum(V[5] + more - l20**2 - l21**2, more))
    i00, i11, i22 = 1 / l00, 1 / l11, 1 / l22
    i10, i21 = -l10 * i00 * i11, -l21 * i11 * i22
    return np.stack([i00, i10, i11, -(l20 * i00 + l21 * i10) * i22, i21, i22])


def _times(lower: FloatArray, x: FloatArray) -> FloatArray:
    """Products [3, ...] of lower triangles [6, ...] and vectors [3, ...]."""
    return np.stack(
        [lower[0] * x[0], lower[1] * x[0] + lower[2] * x[1], lower[3] * x[0] + lower[4] * x[1] + lower[5] * x[2]]
    )


def _transposed_times(lower: FloatArray, x: FloatArray) -> FloatArray:
    """Products [3, ...] of transposed lower triangles [6, ...] and vectors [3, ...]."""
    return np.stack(
        [lower[0] * x[0] + lower[1] * x[1] + lower[3] * x[2], lower[2] * x[1] + lower[4] * x[2], lower[5] * x[2]]
    )
