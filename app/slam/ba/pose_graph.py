"""Sim(3) pose graph, which distributes loop errors along the trajectory (Strasdat et al., RSS 2010).

A similarity is a 4x4 matrix [[s R, t], [0, 1]]; `transforms.Similarity` converts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from stream_recon.app.core import so3
from stream_recon.app.slam.ba.levenberg import SingularError, minimise
from stream_recon.app.slam.ba.linear import block_diagonal, damping_diagonal, factorised, off_diagonal
from stream_recon.app.slam.ba.problem import FloatArray, IntArray, Mask
from stream_recon.app.slam.ba.residuals import cauchy

_TOLERANCE = 1e-6
"""Share of the cost below which a decrease ends the search; far below what changes a pose visibly."""


@dataclass(frozen=True)
class Edges:
    """Measured similarities between nodes."""

    first: IntArray  # [E]
    second: IntArray  # [E]
    S_first_second: FloatArray  # [E, 4, 4]
    """From the second node's axes and scale to the first's."""
    rotation_sigma: FloatArray  # [E]
    """In rad."""
    translation_sigma: FloatArray  # [E]
    """In the first node's scale."""
    log_scale_sigma: FloatArray  # [E]
    robust: Mask  # [E]
    """Edges with a Cauchy loss, such as loops, which may be wrong. Edges between neighbours are not robust, or all
    drift would go to one of them; their sigmas have to be as large as their drift.
    """


@dataclass(frozen=True)
class GraphSolution:
    """Result of a pose graph."""

    S_world_node: FloatArray  # [N, 4, 4]
    distances: FloatArray  # [E]
    """Errors of the edges in sigmas; robust ones far above the loss scale were rejected."""


def solve_pose_graph(
    S_world_node: FloatArray,
    edges: Edges,
    fixed: Mask | None = None,
    loss_scales: Sequence[float] = (1000.0, 30.0, 3.0),
    iterations: int = 30,
) -> GraphSolution:
    """Solution near the nodes [N, 4, 4] (similarities).

    Args:
        fixed: [N], nodes that stay; None: the first one.
        loss_scales: of the Cauchy loss on robust edges, in sigmas; the first one is wide, as loops have large errors.
        iterations: limit for each loss scale.
    """
    count = len(S_world_node)
    moves = np.ones(count, bool) if fixed is None else ~np.asarray(fixed, bool)
    if fixed is None and count:
        moves[0] = False
    graph = _Graph(edges, moves)
    state = _Nodes.from_matrices(np.asarray(S_world_node, np.float64))
    for graph.loss_scale in loss_scales:
        if moves.any() and len(edges.first):
            state = minimise(graph, state, iterations, _TOLERANCE).state
    nodes = np.where(moves[:, None, None], state.matrices(), S_world_node)
    return GraphSolution(nodes, graph.distances(state))


@dataclass(frozen=True)
class _Nodes:
    """Nodes by component. A step rotates a node in its axes, translates it along them in its scale, and scales it."""

    log_scale: FloatArray  # [N]
    rotation: FloatArray  # [N, 3, 3]
    translation: FloatArray  # [N, 3]

    @classmethod
    def from_matrices(cls, S: FloatArray) -> "_Nodes":
        log_scale = np.log(np.linalg.det(S[:, :3, :3])) / 3
        return cls(log_scale, S[:, :3, :3] * np.exp(-log_scale)[:, None, None], S[:, :3, 3])

    def matrices(self) -> FloatArray:
        S = np.tile(np.eye(4), (len(self.rotation), 1, 1))
        # Products of many small rotations lose orthonormality.
        S[:, :3, :3] = np.exp(self.log_scale)[:, None, None] * so3.nearest(self.rotation)
        S[:, :3, 3] = self.translation
        return S

    def stepped(self, moves: IntArray, steps: FloatArray) -> "_Nodes":
        """Nodes after ``steps`` [n, 7] of the nodes ``moves`` [n]."""
        log_scale, rotation, translation = self.log_scale.copy(), self.rotation.copy(), self.translation.copy()
        along = np.einsum("nij,nj->ni", rotation[moves], steps[:, 3:6])
        translation[moves] += np.exp(log_scale[moves])[:, None] * along
        rotation[moves] = rotation[moves] @ so3.exp(steps[:, :3])
        log_scale[moves] += steps[:, 6]
        return replace(self, log_scale=log_scale, rotation=rotation, translation=translation)


@dataclass(frozen=True)
class _Normal:
    blocks: FloatArray  # [n, 7, 7]
    off_diagonal: Any  # BSR [7 n, 7 n]
    gradient: FloatArray  # [n, 7]


class _Graph:
    """`levenberg.LinearizedModel` over `_Nodes`."""

    loss_scale = 1.0

    def __init__(self, edges: Edges, moves: Mask) -> None:
        self._first, self._second, self._robust = edges.first, edges.second, np.asarray(edges.robust, bool)
        self._measured = _Nodes.from_matrices(np.asarray(edges.S_first_second, np.float64))
        sigmas = (edges.rotation_sigma, edges.translation_sigma, edges.log_scale_sigma)
        self._inverse_sigma = 1 / np.repeat(np.stack(sigmas, axis=1), (3, 3, 1), axis=1)
        self._moving = np.flatnonzero(moves)
        self._rank = np.full(len(moves), -1)
        self._rank[self._moving] = np.arange(len(self._moving))

    def distances(self, state: _Nodes) -> FloatArray:
        """Errors [E] in sigmas."""
        return np.asarray(np.linalg.norm(self.residual(state)[0], axis=1))

    def residual(self, state: _Nodes) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """Residuals [E, 7] in sigmas; relative rotations [E, 3, 3], translations [E, 3] and scales [E]."""
        i, j, measured = self._first, self._second, self._measured
        R_first = state.rotation[i].transpose(0, 2, 1)
        relative = R_first @ state.rotation[j]
        away = (state.translation[j] - state.translation[i]) * np.exp(-state.log_scale[i])[:, None]
        moved = np.einsum("eij,ej->ei", R_first, away)
        log_scale = state.log_scale[j] - state.log_scale[i]
        rotation = so3.log(measured.rotation.transpose(0, 2, 1) @ relative)
        error = np.column_stack([rotation, moved - measured.translation, log_scale - measured.log_scale])
        return error * self._inverse_sigma, relative, moved, np.exp(log_scale)

    def cost(self, state: _Nodes) -> float:
        square = (self.residual(state)[0] ** 2).sum(axis=1)
        return cauchy(square[self._robust], self.loss_scale) + 0.5 * float(square[~self._robust].sum())

    def linearise(self, state: _Nodes) -> _Normal:
        residual, relative, moved, scale = self.residual(state)
        J_first, J_second = np.zeros((2, len(residual), 7, 7))
        by_rotation = so3.inverse_right_jacobian(residual[:, :3] / self._inverse_sigma[:, :3])
        J_second[:, :3, :3], J_first[:, :3, :3] = by_rotation, -by_rotation @ relative.transpose(0, 2, 1)
        J_second[:, 3:6, 3:6], J_first[:, 3:6, 3:6] = scale[:, None, None] * relative, -np.eye(3)
        J_first[:, 3:6, :3], J_first[:, 3:6, 6] = so3.skew(moved), -moved
        J_second[:, 6, 6], J_first[:, 6, 6] = 1, -1
        square = (residual**2).sum(axis=1, keepdims=True) * self._robust[:, None]
        weight = 1 / np.sqrt(1 + square / self.loss_scale**2)
        residual = residual * weight
        J_first *= (weight * self._inverse_sigma)[:, :, None]
        J_second *= (weight * self._inverse_sigma)[:, :, None]

        count = len(self._moving)
        blocks, gradient = np.zeros((count, 7, 7)), np.zeros((count, 7))
        i, j = self._rank[self._first], self._rank[self._second]
        for rank, J in ((i, J_first), (j, J_second)):
            own = rank >= 0
            np.add.at(blocks, rank[own], J[own].transpose(0, 2, 1) @ J[own])
            np.add.at(gradient, rank[own], np.einsum("eki,ek->ei", J[own], residual[own]))
        both = (i >= 0) & (j >= 0)
        shared = J_first[both].transpose(0, 2, 1) @ J_second[both]
        return _Normal(blocks, off_diagonal(i[both], j[both], shared, count), gradient)

    def step(self, state: _Nodes, linear: _Normal, damping: float) -> tuple[_Nodes, float]:
        added = damping * damping_diagonal(linear.blocks)
        matrix = block_diagonal(linear.blocks + added) + linear.off_diagonal
        steps = -factorised(matrix)(linear.gradient.reshape(-1, 1)).reshape(-1, 7)
        if not np.isfinite(steps).all():
            raise SingularError
        predicted = 0.5 * float(np.einsum("nij,ni,nj->", added, steps, steps) - (linear.gradient * steps).sum())
        return state.stepped(self._moving, steps), predicted
