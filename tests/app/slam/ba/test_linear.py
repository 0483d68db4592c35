import numpy as np
import pytest

from stream_recon.app.slam.ba.levenberg import SingularError
from stream_recon.app.slam.ba.linear import SymbolicFactorization, block_diagonal, factorised, off_diagonal


def loop(blocks: int, size: int = 7) -> object:
    """A positive definite matrix of a chain whose ends meet, numbered at random."""
    rng = np.random.default_rng(0)
    number = rng.permutation(blocks)
    first, second = number, np.roll(number, 1)
    J = rng.normal(size=(blocks, 6, 2 * size))
    H = J.transpose(0, 2, 1) @ J
    diagonal = np.tile(0.1 * np.eye(size), (blocks, 1, 1))
    np.add.at(diagonal, first, H[:, :size, :size])
    np.add.at(diagonal, second, H[:, size:, size:])
    return block_diagonal(diagonal) + off_diagonal(first, second, H[:, :size, size:], blocks)


@pytest.mark.parametrize("method", ["dense", "band", "sparse"])
def test_every_method_solves(method: str) -> None:
    matrix = loop(90)
    plan = SymbolicFactorization.from_matrix(matrix)
    assert plan.method == "band" and plan.band <= 3
    rhs = np.random.default_rng(1).normal(size=(matrix.shape[0], 3))
    solved = factorised(matrix, SymbolicFactorization(method, plan.order, plan.band))(rhs)
    assert np.allclose(matrix @ solved, rhs, atol=1e-8)


@pytest.mark.parametrize("method", ["dense", "band"])
def test_a_matrix_that_is_not_positive_definite_raises(method: str) -> None:
    matrix = loop(90)
    plan = SymbolicFactorization.from_matrix(matrix)
    with pytest.raises(SingularError):
        factorised(-matrix, SymbolicFactorization(method, plan.order, plan.band))
    matrix.data[3, 2, 1] = np.nan
    with pytest.raises(SingularError):
        factorised(matrix, SymbolicFactorization(method, plan.order, plan.band))


def test_small_systems_are_dense() -> None:
    assert SymbolicFactorization.from_matrix(loop(20)).method == "dense"
