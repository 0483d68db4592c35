"""Levenberg-Marquardt for any sum of squares; damping after Nielsen (IMM-REP-1999-05)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np

StateT = TypeVar("StateT")
LinearT = TypeVar("LinearT")

StopTest = Callable[[int, float], bool]
"""Called with the number of iterations done and the cost; True ends the search with the best state so far."""

_FIRST_DAMPING = 1e-4
"""Initial damping, as a share of the diagonal: nearly Gauss-Newton."""
_LEAST_DAMPING = 1e-9
"""Lower limit, so that unconstrained unknowns stay solvable."""
_MOST_DAMPING = 1e6
"""Damping at which no step lowers the cost: the state is a minimum to rounding."""
_NOISE = 1e-15
"""Least predicted decrease as a share of the cost; smaller ones are lost in rounding."""


class SingularError(Exception):
    """The damped system has no unique solution."""


class LinearizedModel(Protocol[StateT, LinearT]):
    """Sum of squares over states, with its linearization."""

    def cost(self, state: StateT) -> float: ...

    def linearise(self, state: StateT) -> LinearT: ...

    def step(self, state: StateT, linear: LinearT, damping: float) -> tuple[StateT, float]:
        """The next state, and the decrease of cost that the linear model predicts. Raises SingularError."""
        ...


@dataclass(frozen=True)
class Minimum(Generic[StateT]):
    """Result of a minimization."""

    state: StateT
    cost_before: float
    cost: float
    iterations: int
    """Number of linearizations."""
    converged: bool


def minimise(
    model: LinearizedModel[StateT, LinearT],
    state: StateT,
    iterations: int,
    tolerance: float,
    should_stop: StopTest | None = None,
) -> Minimum[StateT]:
    """Minimum near ``state``; ends when a step lowers the cost by a share below ``tolerance``."""
    before = cost = model.cost(state)
    damping, growth, done, converged = _FIRST_DAMPING, 2.0, 0, False
    while done < iterations and not converged and not (should_stop and should_stop(done, cost)):
        linear = model.linearise(state)
        done += 1
        while True:
            try:
                candidate, predicted = model.step(state, linear, damping)
                reached = model.cost(candidate)
            except SingularError:
                predicted, reached = np.inf, np.inf
            if predicted <= _NOISE * cost:
                converged = True
                break
            if reached < cost:
                gain = (cost - reached) / predicted
                damping = max(damping * max(1 / 3, 1 - (2 * gain - 1) ** 3), _LEAST_DAMPING)
                converged = cost - reached <= tolerance * cost
                state, cost, growth = candidate, reached, 2.0
                break
            damping, growth = damping * growth, growth * 2
            if damping > _MOST_DAMPING:
                converged = True
                break
    return Minimum(state, before, cost, done, converged)
