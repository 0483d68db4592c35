"""Time of the solvers behind refinement, on synthetic problems of typical sizes."""

import resource
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core import so3
from stream_recon.app.core.camera_model import CameraModel
from stream_recon.app.slam.ba.adjustment import adjust
from stream_recon.app.slam.ba.pose_graph import Edges, solve_pose_graph
from stream_recon.app.slam.ba.pose_only import pose_only_ba_each
from stream_recon.app.slam.ba.problem import BAScene, Observations, Priors, Problem, RelativePoses
from stream_recon.app.slam.ba.triangulation import triangulate

SIZES = ((10, 3_000, 5), (20, 12_000, 5), (150, 100_000, 5), (300, 200_000, 6), (2_000, 400_000, 6))
"""Cameras, observations, views of a point."""
ITERATIONS = 6


def bench_adjustment(sizes: Sequence[tuple[int, int, int]] = SIZES, nodes: int = 500) -> None:
    for cameras, count, views in sizes:
        problem = walk(cameras, count // views, views)
        begin = time.perf_counter()
        # A tolerance of 0, so that all sizes take the same number of iterations.
        found = adjust(problem, 2.0, ITERATIONS, tolerance=0.0)
        spent = 1e3 * (time.perf_counter() - begin) / found.iterations
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        name = f"bundle adjustment, {cameras} cameras, {count} observations"
        print(f"| {name} | {spent:.1f} ms an iteration, {found.rms_px:.2f} px rms, peak {peak:.0f} MiB |", flush=True)
    scene, seen = problem.scene, problem.observations
    count = len(scene.points)
    tracks = timed(lambda: triangulate(scene.T_world_camera, scene.lens, seen, count))
    print(f"| triangulation of {count} tracks | {1e3 * tracks:.0f} ms |")
    own = seen.take(seen.camera == len(scene.T_world_camera) // 2)
    one = replace(own, camera=np.zeros(len(own), np.intp))
    start = scene.T_world_camera[len(scene.T_world_camera) // 2][None]
    pose = timed(lambda: pose_only_ba_each(start, scene.points, one, scene.lens))
    print(f"| a pose against {len(one)} known points | {1e3 * pose:.1f} ms |")
    S, edges = drifting_loop(nodes)
    graph = timed(lambda: solve_pose_graph(S, edges))
    print(f"| pose graph, {nodes} nodes and a loop | {1e3 * graph:.0f} ms |")


def timed(function: Callable[[], object]) -> float:
    """Median seconds of five calls."""
    spent = []
    for _ in range(5):
        begin = time.perf_counter()
        function()
        spent.append(time.perf_counter() - begin)
    return median(spent)


def walk(cameras: int, points: int, views: int) -> Problem:
    """Problem of cameras 0.1 apart that rotate, points at depths of 1.5 to 5, pixel noise of 0.5, a perturbed start."""
    rng = np.random.default_rng(0)
    n = np.arange(cameras)
    T = np.tile(np.eye(4), (cameras, 1, 1))
    T[:, :3, :3] = so3.exp(np.stack([0.05 * np.sin(0.2 * n), 0.1 * np.sin(0.1 * n), 0.02 * np.cos(0.3 * n)], axis=1))
    T[:, :3, 3] = np.stack([0.1 * n, 0.1 * np.sin(0.3 * n), 0.1 * np.cos(0.2 * n)], axis=1)
    first = rng.integers(0, cameras - views + 1, points)
    camera = (first[:, None] + np.arange(views)).reshape(-1)
    point = np.repeat(np.arange(points), views)
    z = rng.uniform(1.5, 5, (points, 1))
    local = np.hstack([rng.uniform(-0.6, 0.6, (points, 2)) * z, z])
    middle = T[first + views // 2]
    X = np.einsum("nij,nj->ni", middle[:, :3, :3], local) + middle[:, :3, 3]
    xyz = np.einsum("nji,nj->ni", T[camera, :3, :3], X[point] - T[camera, :3, 3])
    pixel = 400 * xyz[:, :2] / xyz[:, 2:] + (320, 240) + 0.5 * rng.normal(size=(len(point), 2))
    depth = xyz[:, 2] * np.exp(0.1 * rng.normal(size=len(point)))
    off = T.copy()
    off[:, :3, :3] = T[:, :3, :3] @ so3.exp(0.01 * rng.normal(size=(cameras, 3)))
    off[:, :3, 3] += 0.02 * rng.normal(size=(cameras, 3))
    hops = [(a, a + hop) for hop in (1, 2) for a in range(cameras - hop)]
    before, after = np.array(hops).T
    relative = np.linalg.inv(off[before]) @ off[after]
    poses = RelativePoses(before, after, relative, np.full(len(before), 0.017), np.full(len(before), 0.3))
    scene = BAScene(off, X * (1 + 0.03 * rng.normal(size=(points, 1))), CameraModel(420.0, 320.0, 240.0))
    return Problem(scene, Observations(camera, point, pixel, depth=depth), poses, priors=Priors(focal=420.0))


def drifting_loop(count: int) -> tuple[NDArray[np.float64], Edges]:
    """Poses of a circle with drift in length, rotation and scale, and the edges, the last of which closes the loop."""
    rng = np.random.default_rng(0)
    angle = np.linspace(0, 2 * np.pi, count, endpoint=False)
    S = np.tile(np.eye(4), (count, 1, 1))
    S[:, :3, :3] = so3.exp(np.stack([0 * angle, angle, 0 * angle], axis=1))
    S[:, :3, 3] = 5 * np.stack([np.cos(angle), 0 * angle, np.sin(angle)], axis=1)
    second = np.roll(np.arange(count), -1)
    steps = np.linalg.inv(S) @ S[second]
    grown = np.exp(5e-4 + 5e-4 * rng.normal(size=count - 1))[:, None, None]
    steps[:-1, :3, :3] @= grown * so3.exp(5e-4 * rng.normal(size=(count - 1, 3)) + (0, 5e-4, 0))
    start = [S[0]]
    for step in steps[:-1]:
        start.append(start[-1] @ step)
    sigma = np.full(count, 1e-3)
    return np.array(start), Edges(np.arange(count), second, steps, sigma, sigma, sigma, second == 0)


def add_options(parser: ArgumentParser) -> None:
    """No options."""


def run(_: Namespace) -> None:
    bench_adjustment()
