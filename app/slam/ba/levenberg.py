"""Levenberg-Marquardt for any sum of squares; damping after Nielsen (IMM-REP-1999-05), or by a factor."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np

StateT = TypeVar("StateT")
LinearT = TypeVar("LinearT")

StopTest = Callable[[int, float], bool]
"""Called with the number of iterations done and the cost; True ends the search with the best state so far."""

_NOISE = 1e-15
"""Least predicted decrease as a share of the cost; smaller ones are lost in rounding."""


class SingularError(Exception):
    """The damped system has no unique solution."""


@dataclass(frozen=True)
class Damping:
    """Damping of the steps, as a share of the normal matrix's diagonal."""

    first: float = 1e-4
    """Nearly Gauss-Newton."""
    min: float = 1e-9
    """Unconstrained unknowns stay solvable."""
    max: float = 1e6
    """No step lowers the cost: the state is a minimum to rounding."""
    factor: float | None = None
    """Ratio of the damping after and before a step that fails, and before and after one that succeeds; None: after
    Nielsen, by the ratio of the decrease of cost to that which the linear model predicts."""
    counts_failures: bool = False
    """Steps that fail count as iterations."""

    def after_success(self, damping: float, gain: float) -> float:
        """Damping after a step that lowers the cost by ``gain`` times the predicted decrease."""
        if self.factor is not None:
            return max(damping / self.factor, self.min)
        return max(damping * max(1 / 3, 1 - (2 * gain - 1) ** 3), self.min)


NIELSEN = Damping()


class LinearizedModel(Protocol[StateT, LinearT]):
    """Sum of squares over states, with its linearization."""

    def cost(self, state: StateT) -> float: ...

    def linearise(self, state: StateT) -> LinearT: ...

    def step(self, state: StateT, linear: LinearT, damping: float) -> tuple[StateT, float]:
        """The next state, and the decrease of cost that the linear model predicts; inf if it is not needed, as for
        damping by a factor. Raises SingularError."""
        ...


@dataclass(frozen=True)
class LeastSquaresResult(Generic[StateT]):
    """State of least cost that was found, and its cost."""

    state: StateT
    cost_before: float
    cost: float
    iterations: int
    """Number of linearizations, and of failed steps if these count."""
    converged: bool


def minimise(
    model: LinearizedModel[StateT, LinearT],
    state: StateT,
    iterations: int,
    tolerance: float,
    should_stop: StopTest | None = None,
    rule: Damping = NIELSEN,
) -> LeastSquaresResult[StateT]:
    """Minimum near ``state``; ends when a step lowers the cost by a share below ``tolerance``."""
    before = cost = model.cost(state)
    damping, growth, done, converged = rule.first, rule.factor or 2.0, 0, False
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
                damping = rule.after_success(damping, (cost - reached) / predicted)
                converged = cost - reached <= tolerance * cost
                state, cost, growth = candidate, reached, rule.factor or 2.0
                break
            damping, growth = damping * growth, growth * (2 if rule.factor is None else 1)
            if damping > rule.max:
                converged = True
                break
            if rule.counts_failures:
                if done == iterations:
                    break
                done += 1
    return LeastSquaresResult(state, before, cost, done, converged)
