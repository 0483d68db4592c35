"""Symmetric positive definite systems of small blocks, solved dense, banded or sparse, whichever costs least."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import scipy.linalg as dense
import scipy.sparse as sparse
import scipy.sparse.linalg as sparse_linalg
from scipy.sparse.csgraph import reverse_cuthill_mckee

from stream_recon.app.slam.ba.levenberg import SingularError
from stream_recon.app.slam.ba.problem import FloatArray, IntArray

Solve = Callable[[FloatArray], FloatArray]
"""Maps right-hand sides [n, k] to solutions [n, k]."""

_SMALL = 500
"""Unknowns up to which a dense factorization is fastest."""
_WORK = 4e10
"""Multiplications (about 1 s) from which a general sparse factorization replaces LAPACK's."""
FLOOR = 1e-9
"""Damping of an unconstrained unknown, as a share of the mean of its kind."""


@dataclass(frozen=True)
class SymbolicFactorization:
    """Method and order of a factorization."""

    method: Literal["dense", "band", "sparse"]
    order: IntArray  # [blocks], of the band
    band: int
    """Half bandwidth in blocks."""

    @classmethod
    def from_matrix(cls, matrix: Any) -> "SymbolicFactorization":
        """Cheapest method for ``matrix``, BSR with square blocks."""
        size, blocks = matrix.blocksize[0], matrix.shape[0] // matrix.blocksize[0]
        order = np.arange(blocks)
        unknowns = matrix.shape[0]
        if unknowns <= _SMALL:
            return cls("dense", order, blocks)
        pattern = sparse.csr_matrix((np.ones(len(matrix.indices), np.int8), matrix.indices, matrix.indptr))
        order = np.asarray(reverse_cuthill_mckee(pattern, symmetric_mode=True), np.intp)
        rank = np.empty(blocks, np.intp)
        rank[order] = np.arange(blocks)
        rows = np.repeat(np.arange(blocks), np.diff(matrix.indptr))
        band = int(np.abs(rank[rows] - rank[matrix.indices]).max())
        banded, full = unknowns * float((band + 1) * size) ** 2, unknowns**3 / 3
        if min(banded, full) > _WORK:
            return cls("sparse", order, band)
        return cls("band" if banded < full else "dense", order, band)


def factorised(matrix: Any, plan: SymbolicFactorization | None = None) -> Solve:
    """Solver for ``matrix``, an array or BSR, symmetric. Raises SingularError unless it is positive definite."""
    try:
        if isinstance(matrix, np.ndarray):
            return _dense(matrix)
        if not np.isfinite(matrix.data).all():
            raise SingularError
        # For each matrix, at next to no cost: zero blocks come and go as points pass behind cameras.
        plan = plan or SymbolicFactorization.from_matrix(matrix)
        if plan.method == "dense":
            return _dense(matrix.toarray())
        if plan.method == "band":
            return _banded(matrix, plan)
        # A positive definite matrix can keep its pivots on the diagonal.
        lu = sparse_linalg.splu(
            matrix.tocsc(), permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True}
        )
        return lambda rhs: lu.solve(np.ascontiguousarray(rhs))
    except (dense.LinAlgError, RuntimeError) as error:
        raise SingularError from error


def _dense(matrix: FloatArray) -> Solve:
    if not np.isfinite(matrix).all():
        raise SingularError
    factor = dense.cho_factor(matrix, lower=True, check_finite=False)
    return lambda rhs: dense.cho_solve(factor, rhs, check_finite=False)


def _banded(matrix: Any, plan: SymbolicFactorization) -> Solve:
    size, n = matrix.blocksize[0], matrix.shape[0]
    rank = np.empty(len(plan.order), np.intp)
    rank[plan.order] = np.arange(len(plan.order))
    rows, columns = rank[np.repeat(np.arange(len(rank)), np.diff(matrix.indptr))], rank[matrix.indices]
    lower = rows >= columns
    rows, columns, blocks = rows[lower], columns[lower], matrix.data[lower]
    i, j = np.arange(size)[:, None], np.arange(size)
    below = (rows - columns)[:, None, None] * size + (i - j)
    at = np.broadcast_to((columns * size)[:, None, None] + j, below.shape)
    kept = below >= 0
    # Column-major for LAPACK.
    band = np.zeros(((plan.band + 1) * size, n), order="F")
    band[below[kept], at[kept]] = blocks[kept]
    factor = dense.cholesky_banded(band, lower=True, overwrite_ab=True, check_finite=False)
    to = (plan.order[:, None] * size + np.arange(size)).reshape(-1)

    def solve(rhs: FloatArray) -> FloatArray:
        out = np.empty_like(rhs)
        out[to] = dense.cho_solve_banded((factor, True), rhs[to], check_finite=False)
        return out

    return solve


def damping_diagonal(blocks: FloatArray) -> FloatArray:
    """Scaling of the damping of ``blocks`` [C, D, D]: means over rotation (3), translation (3) and scale (1 or 0)."""
    # Means make it independent of the world's axes.
    out = np.zeros_like(blocks)
    for kind in (slice(0, 3), slice(3, 6), slice(6, 7)):
        entries = np.arange(blocks.shape[1])[kind]
        if len(entries):
            mean = np.einsum("cii->c", blocks[:, kind, kind]) / len(entries)
            floor = FLOOR * mean.mean() if len(mean) else 0.0
            mean = np.maximum(mean, floor if floor > 0 else 1.0)
            out[:, entries, entries] = mean[:, None]
    return out


def block_diagonal(blocks: FloatArray) -> Any:
    """BSR matrix with ``blocks`` [C, D, D] on its diagonal."""
    count, size = blocks.shape[:2]
    shape = (count * size, count * size)
    return sparse.bsr_matrix((blocks, np.arange(count), np.arange(count + 1)), shape=shape, blocksize=(size, size))


def off_diagonal(first: IntArray, second: IntArray, blocks: FloatArray, count: int) -> Any:
    """Symmetric BSR matrix with ``count`` blocks a side: the sum of ``blocks`` [E, D, D] at (first, second)."""
    size = blocks.shape[1]
    rows, columns = np.concatenate([first, second]), np.concatenate([second, first])
    order = np.argsort(rows, kind="stable")
    starts = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=count))])
    data = np.concatenate([blocks, blocks.transpose(0, 2, 1)])[order]
    shape = (count * size, count * size)
    return sparse.bsr_matrix((data, columns[order], starts), shape=shape, blocksize=(size, size))
