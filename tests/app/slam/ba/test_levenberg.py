"""Levenberg-Marquardt on a small problem."""

import numpy as np
import pytest
from numpy.typing import NDArray

from stream_recon.app.slam.ba.levenberg import NIELSEN, Damping, SingularError, minimise

FloatArray = NDArray[np.float64]
START = np.array([-1.2, 1.0])


class Valley:
    """Rosenbrock's function as a sum of two squares; its minimum is at (1, 1)."""

    def __init__(self) -> None:
        self.trials = 0

    def residual(self, x: FloatArray) -> FloatArray:
        return np.array([10 * (x[1] - x[0] ** 2), 1 - x[0]])

    def cost(self, x: FloatArray) -> float:
        return 0.5 * float(np.square(self.residual(x)).sum())

    def linearise(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        J = np.array([[-20 * x[0], 10.0], [-1.0, 0.0]])
        return J.T @ J, J.T @ self.residual(x)

    def step(self, x: FloatArray, linear: tuple[FloatArray, FloatArray], damping: float) -> tuple[FloatArray, float]:
        self.trials += 1
        H, g = linear
        added = damping * np.diag(np.diag(H))
        step = -np.linalg.solve(H + added, g)
        return x + step, 0.5 * float(step @ added @ step - g @ step)


@pytest.mark.parametrize("rule", [NIELSEN, Damping(factor=10.0), Damping(first=1.0, factor=3.0)])
def test_the_minimum_is_found_under_each_rule(rule: Damping) -> None:
    found = minimise(Valley(), START, 100, 1e-12, rule=rule)
    assert found.converged and found.cost < 1e-12 < found.cost_before
    assert np.allclose(found.state, 1, atol=1e-5)


def test_steps_that_fail_count_where_they_are_to() -> None:
    for counts in (False, True):
        valley = Valley()
        found = minimise(valley, START, 5, 0.0, rule=Damping(factor=10.0, counts_failures=counts))
        assert found.iterations == 5 and not found.converged
        assert (valley.trials == 5) == counts


def test_a_system_without_solution_leaves_the_state() -> None:
    class Singular(Valley):
        def step(
            self, x: FloatArray, linear: tuple[FloatArray, FloatArray], damping: float
        ) -> tuple[FloatArray, float]:
            raise SingularError

    found = minimise(Singular(), START, 5, 1e-6)
    assert found.converged and np.array_equal(found.state, START)
