"""Levenberg-Marquardt's outer loop, for any sum of squares; damping after Nielsen (IMM-REP-1999-05)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

StateT = TypeVar("StateT")
LinearT = TypeVar("LinearT")

StopTest = Callable[[int, float], bool]
"""Given the iterations done and the cost; True ends the search with the best state so far."""

_FIRST_DAMPING = 1e-4
_LEAST_DAMPING = 1e-9
_MOST_DAMPING = 1e6
_NOISE = 1e-15
"""A step that promises less than this share of the cost is lost in rounding."""


class SingularError(Exception):
    """The damped system has no unique solution."""


class LinearizedModel(Protocol[StateT, LinearT]):
    """A sum of squares over states."""

    def cost(self, state: StateT) -> float: ...

    def linearise(self, state: StateT) -> LinearT: ...

    def step(self, state: StateT, linear: LinearT, damping: float) -> tuple[StateT, float]:
        """The next state, and by how much the linear model says it lowers the cost. Raises SingularError."""
        ...


@dataclass(frozen=True)
class Minimum(Generic[StateT]):
    state: StateT
    cost_before: float
    cost: float
    iterations: int
    """Times that the sum was linearised."""
    converged: bool


def minimise(
    model: LinearizedModel[StateT, LinearT],
    state: StateT,
    iterations: int,
    tolerance: float,
    should_stop: StopTest | None = None,
) -> Minimum[StateT]:
    """From ``state`` downhill until a step lowers the cost by a share below ``tolerance``."""
    before = cost = model.cost(state)
    damping, growth, done, converged = _FIRST_DAMPING, 2.0, 0, False
    while done < iterations and not converged and not (should_stop and should_stop(done, cost)):
        linear = model.linearise(state)
        done += 1
        while True:
            try:
                candidate, promised = model.step(state, linear, damping)
                reached = model.cost(candidate)
            except SingularError:
                promised, reached = np.inf, np.inf
            if promised <= _NOISE * cost:
                converged = True
                break
            if reached < cost:
                gain = (cost - reached) / promised
                damping = max(damping * max(1 / 3, 1 - (2 * gain - 1) ** 3), _LEAST_DAMPING)
                converged = cost - reached <= tolerance * cost
                state, cost, growth = candidate, reached, 2.0
                break
            damping, growth = damping * growth, growth * 2
            if damping > _MOST_DAMPING:
                converged = True
                break
    return Minimum(state, before, cost, done, converged)


class Many(Protocol):
    """Many small sums of squares at once, K of them in d unknowns each, which share nothing."""

    def costs(self, state: FloatArray) -> FloatArray:
        """[K], of a state [K, ...]."""
        ...

    def normals(self, state: FloatArray) -> tuple[FloatArray, FloatArray]:
        """H [K, d, d] and g [K, d]."""
        ...

    def stepped(self, state: FloatArray, steps: FloatArray) -> FloatArray:
        """After ``steps`` [K, d]."""
        ...


def minimise_each(
    model: Many, state: FloatArray, iterations: int, tolerance: float, damping: float = _FIRST_DAMPING
) -> tuple[FloatArray, FloatArray]:
    """The states [K, ...] reached from ``state``, and their costs [K]; each with a damping of its own."""
    costs = model.costs(state)
    dampings = np.full(len(state), damping)
    for _ in range(iterations):
        H, g = model.normals(state)
        d = H.shape[1]
        diagonal = H[:, range(d), range(d)]
        # Where nothing is known of an unknown it stays.
        floor = np.maximum(_NOISE * diagonal.max(axis=1, initial=0.0, keepdims=True), np.finfo(float).tiny)
        added = dampings[:, None] * np.maximum(diagonal, floor) + floor
        steps = -np.linalg.solve(H + added[:, :, None] * np.eye(d), g[..., None])[..., 0]
        candidate = model.stepped(state, steps)
        reached = model.costs(candidate)
        better = reached < costs
        settled = costs - reached <= tolerance * costs
        state = np.where(better.reshape(-1, *[1] * (state.ndim - 1)), candidate, state)
        costs = np.where(better, reached, costs)
        dampings = np.where(better, np.maximum(dampings / 10, _LEAST_DAMPING), dampings * 10)
        if bool(np.all((better & settled) | (dampings > _MOST_DAMPING) | (np.abs(steps).max(axis=1) == 0))):
            break
    return state, costs
