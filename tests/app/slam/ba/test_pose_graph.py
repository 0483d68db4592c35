"""Sim(3) pose graphs: loops close, consistent graphs stay, false loops are rejected."""

from dataclasses import replace

import numpy as np
import pytest

from stream_recon.app.core import so3
from stream_recon.app.slam.ba.pose_graph import Edges, _Graph, _Nodes, solve_pose_graph


def circle(count: int) -> np.ndarray:
    """Nodes [count, 4, 4] once round a circle of radius 5, looking along it; their scales vary."""
    angle = np.linspace(0, 2 * np.pi, count, endpoint=False)
    zero = np.zeros(count)
    S = np.tile(np.eye(4), (count, 1, 1))
    scale = np.exp(0.2 * np.sin(angle))
    S[:, :3, :3] = scale[:, None, None] * so3.exp(np.stack([zero, angle, zero], axis=1))
    S[:, :3, 3] = np.stack([5 * np.cos(angle), 0.2 * np.sin(3 * angle), 5 * np.sin(angle)], axis=1)
    return S


def measured(S: np.ndarray, first: np.ndarray, second: np.ndarray, sigma: float = 0.003) -> Edges:
    """Right ones; robust but between neighbours."""
    sigmas = np.full(len(first), sigma)
    return Edges(first, second, np.linalg.inv(S[first]) @ S[second], sigmas, sigmas, sigmas, second != first + 1)


def ring(S: np.ndarray) -> Edges:
    """From each node to the next and, last, from the last one to the first."""
    return measured(S, np.arange(len(S)), np.roll(np.arange(len(S)), -1))


def drifting(S: np.ndarray, turn: float = 0.0006, growth: float = 0.0005) -> tuple[np.ndarray, Edges]:
    """Odometry whose errors add up, and a right loop: the start that it makes, and the edges."""
    rng = np.random.default_rng(0)
    edges = ring(S)
    count = len(S) - 1
    # As uncertain as it is.
    drift = np.append(np.full(count, 0.0005 + turn + growth), 0.003)
    edges = replace(edges, rotation_sigma=drift, translation_sigma=drift, log_scale_sigma=drift)
    noise = np.tile(np.eye(4), (count, 1, 1))
    scale = np.exp(0.0003 * rng.normal(size=count) + growth)
    noise[:, :3, :3] = scale[:, None, None] * so3.exp(0.0003 * rng.normal(size=(count, 3)) + (0, turn, 0))
    noise[:, :3, 3] = 0.0003 * rng.normal(size=(count, 3))
    steps = edges.S_first_second.copy()
    steps[:-1] = steps[:-1] @ noise
    start = [S[0]]
    for step in steps[:-1]:
        start.append(start[-1] @ step)
    return np.array(start), replace(edges, S_first_second=steps)


def rmse(S: np.ndarray, truth: np.ndarray) -> float:
    return float(np.sqrt(((S[:, :3, 3] - truth[:, :3, 3]) ** 2).sum(axis=1).mean()))


def test_gradient_agrees_with_finite_differences() -> None:
    S = circle(6)
    rng = np.random.default_rng(0)
    edges = replace(ring(S), robust=np.arange(6) > 2)
    sigmas = 0.01 * rng.uniform(0.5, 2, (3, 6))
    edges = replace(edges, rotation_sigma=sigmas[0], translation_sigma=sigmas[1], log_scale_sigma=sigmas[2])
    model = _Graph(edges, np.arange(6) > 0)
    model.loss_scale = 5.0
    state = _Nodes.from_matrices(S).stepped(np.arange(6), 0.02 * rng.normal(size=(6, 7)))
    gradient = model.linearise(state).gradient.reshape(-1)
    h = 1e-6

    def cost(step: np.ndarray) -> float:
        return model.cost(state.stepped(np.arange(1, 6), step.reshape(5, 7)))

    differences = [(cost(h * unit) - cost(-h * unit)) / (2 * h) for unit in np.eye(35)]
    assert np.allclose(differences, gradient, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("count", [20, 500])
def test_a_drifting_loop_closes(count: int) -> None:
    truth = circle(count)
    start, edges = drifting(truth, 0.3 / count, 0.25 / count)
    found = solve_pose_graph(start, edges)
    assert rmse(start, truth) > 0.5
    assert rmse(found.S_world_node, truth) < 0.3 * rmse(start, truth)
    gap = np.linalg.norm(found.S_world_node[-1, :3, 3] - found.S_world_node[0, :3, 3])
    true_gap = np.linalg.norm(truth[-1, :3, 3] - truth[0, :3, 3])
    assert gap == pytest.approx(true_gap, abs=0.03)
    assert np.array_equal(found.S_world_node[0], start[0])
    assert solve_pose_graph(start, edges, iterations=0).distances[-1] > 50 and found.distances[-1] < 3


def test_a_consistent_graph_stays() -> None:
    truth = circle(60)
    found = solve_pose_graph(truth, ring(truth))
    assert np.allclose(found.S_world_node, truth, atol=1e-9)
    assert found.distances.max() < 1e-6


def test_a_disturbed_start_comes_back() -> None:
    truth = circle(60)
    noise = np.random.default_rng(1).normal(size=(60, 7)) * 0.1
    start = _Nodes.from_matrices(truth).stepped(np.arange(1, 60), noise[1:]).matrices()
    start[0] = truth[0]
    assert np.allclose(solve_pose_graph(start, ring(truth)).S_world_node, truth, atol=1e-4)


def test_a_false_loop_is_rejected() -> None:
    truth = circle(100)
    start, edges = drifting(truth, 0.003, 0.0025)
    loops = measured(truth, np.array([0, 5, 10, 15]), np.array([98, 93, 52, 60]), 0.01)
    wrong = measured(truth, np.array([20]), np.array([70]), 0.01)
    wrong.S_first_second[0, :3, 3] += (3, 0, 2)
    joined = Edges(*(np.concatenate([getattr(each, name) for each in (edges, loops, wrong)]) for name in vars(edges)))
    found = solve_pose_graph(start, joined)
    without = solve_pose_graph(
        start, Edges(*(np.concatenate([getattr(each, name) for each in (edges, loops)]) for name in vars(edges)))
    )
    assert found.distances[-1] > 30 and found.distances[:-1].max() < 10
    assert np.allclose(found.S_world_node, without.S_world_node, atol=0.05)


def test_the_result_does_not_depend_on_world_and_scale() -> None:
    start, edges = drifting(circle(50), 0.005, 0.005)
    move = np.eye(4)
    move[:3, :3] = 4.0 * so3.exp(np.array([0.3, 1.0, -0.5]))
    move[:3, 3] = (10, -3, 2)
    here, there = solve_pose_graph(start, edges), solve_pose_graph(move @ start, edges)
    assert np.allclose(there.distances, here.distances, atol=1e-4)
    assert np.allclose(there.S_world_node, move @ here.S_world_node, atol=1e-5)


def test_fixed_nodes_stay() -> None:
    start, edges = drifting(circle(50), 0.005, 0.005)
    fixed = np.isin(np.arange(50), [10, 30])
    found = solve_pose_graph(start, edges, fixed)
    assert np.array_equal(found.S_world_node[fixed], start[fixed])
    assert not np.allclose(found.S_world_node[0], start[0], atol=1e-4)


def test_nothing_to_solve() -> None:
    nothing = np.zeros(0, np.intp)
    edges = Edges(nothing, nothing, np.zeros((0, 4, 4)), *np.zeros((3, 0)), np.zeros(0, bool))
    start = circle(3)
    assert np.allclose(solve_pose_graph(start, edges).S_world_node, start, atol=1e-12)
    assert np.array_equal(solve_pose_graph(start, ring(start), np.ones(3, bool)).S_world_node, start)
