"""Pose-only bundle adjustment: truth, outliers, certainty, and the full adjustment with fixed points."""

from dataclasses import replace

import numpy as np
import pytest

from stream_recon.app.core import so3
from stream_recon.app.slam.ba.adjustment import adjust
from stream_recon.app.slam.ba.pose_only import LossSchedule, pose_only_ba, pose_only_ba_each
from stream_recon.app.slam.ba.problem import Observations, Problem
from tests.app.slam.synthetic import LENS, World, walk


def perturbed(world: World, angle: float, distance: float) -> np.ndarray:
    """Initial poses with errors of ``angle`` rad and ``distance``."""
    rng = np.random.default_rng(4)
    T = world.truth.T_world_camera.copy()
    axes = rng.normal(size=(2, len(T), 3))
    axes /= np.linalg.norm(axes, axis=2, keepdims=True)
    T[:, :3, :3] = T[:, :3, :3] @ so3.exp(angle * axes[0])
    T[:, :3, 3] += distance * axes[1]
    return T


@pytest.mark.parametrize("k1", [0.0, 0.1, -0.1])
def test_each_camera_finds_its_pose(k1: float) -> None:
    world = walk(12, 400, 6, noise_px=0.0, k1=k1)
    lens = replace(LENS, k1=k1)
    T, distances = pose_only_ba_each(perturbed(world, 0.1, 0.1), world.truth.points, world.observations, lens)
    assert np.allclose(T, world.truth.T_world_camera, atol=1e-5)
    assert distances.max() < 0.01


def test_one_wrong_match_in_three_does_no_harm() -> None:
    world = walk(12, 600, 6, noise_px=0.5)
    rng = np.random.default_rng(5)
    wrong = rng.random(len(world.observations)) < 0.33
    pixel = world.observations.pixel.copy()
    pixel[wrong] = rng.uniform(0, 1, (int(wrong.sum()), 2)) * (640, 480)
    observations = replace(world.observations, pixel=pixel)
    T, distances = pose_only_ba_each(perturbed(world, 0.03, 0.03), world.truth.points, observations, LENS)
    error = T[:, :3, 3] - world.truth.T_world_camera[:, :3, 3]
    assert np.linalg.norm(error, axis=1).max() < 0.01
    assert np.mean(distances[~wrong] < 2) > 0.98 and np.mean(distances[wrong] > 2) > 0.98


@pytest.mark.parametrize("k1", [0.0, 0.05])
def test_it_is_the_minimum_of_the_full_adjustments_cost(k1: float) -> None:
    world = walk(2, 300, 2, k1=k1)
    lens, start = replace(LENS, k1=k1), perturbed(world, 0.02, 0.02)
    seen = world.observations.take(world.observations.camera == 1)
    sigma = np.where(np.arange(len(seen)) % 3, 1.0, 4.0)
    found = pose_only_ba(
        start[1], world.truth.points[seen.point], seen.pixel, sigma, lens, LossSchedule((2.0,), 50, 1e-12)
    )
    own = Observations(np.zeros(len(seen), np.intp), seen.point, seen.pixel, sigma)

    def cost(T: np.ndarray) -> float:
        return adjust(Problem(replace(world.truth, T_world_camera=T[None], camera_model=lens), own), 2.0, 0).cost

    least = cost(found.T_world_camera)
    for step in 1e-4 * np.vstack([np.eye(6), -np.eye(6)]):
        T = found.T_world_camera.copy()
        T[:3, :3], T[:3, 3] = T[:3, :3] @ so3.exp(step[:3]), T[:3, 3] + step[3:]
        assert cost(T) > least


def test_cameras_share_nothing() -> None:
    world = walk(6, 200, 4)
    start = perturbed(world, 0.02, 0.02)
    T, distances = pose_only_ba_each(start, world.truth.points, world.observations, LENS)
    own = world.observations.take(world.observations.camera == 3)
    alone = pose_only_ba_each(start[3:4], world.truth.points, replace(own, camera=np.zeros(len(own), np.intp)), LENS)
    assert np.array_equal(alone[0][0], T[3])
    assert np.array_equal(alone[1], distances[world.observations.camera == 3])


def test_a_camera_that_sees_nothing_stays() -> None:
    world = walk(6, 200, 4)
    start = perturbed(world, 0.02, 0.02)
    seen = world.observations.take(world.observations.camera != 2)
    assert np.array_equal(pose_only_ba_each(start, world.truth.points, seen, LENS)[0][2], start[2])
    nothing = Observations(np.zeros(0, np.intp), np.zeros(0, np.intp), np.zeros((0, 2)))
    assert np.array_equal(pose_only_ba_each(start, world.truth.points, nothing, LENS)[0], start)


def test_points_behind_the_camera_leave_it_alone() -> None:
    points = np.random.default_rng(0).uniform((-2, -1.5, -6), (2, 1.5, -3), (40, 3))
    found = pose_only_ba(np.eye(4), points, np.full((40, 2), 200.0), np.ones(40), LENS, LossSchedule())
    assert np.allclose(found.T_world_camera, np.eye(4)) and np.isinf(found.distances).all()


def test_information_is_the_certainty_of_a_pose() -> None:
    world = walk(3, 40, 3, noise_px=0.0)
    seen = world.observations.take(world.observations.camera == 1)
    truth = world.truth.T_world_camera[1]
    errors, predicted = [], []
    for seed in range(40):
        noise = np.random.default_rng(seed).normal(size=seen.pixel.shape)
        points, schedule = world.truth.points[seen.point], LossSchedule((100.0,))
        found = pose_only_ba(truth, points, seen.pixel + noise, np.ones(len(seen)), LENS, schedule)
        errors.append(found.T_world_camera[:3, 3] - truth[:3, 3])
        predicted.append(np.linalg.inv(found.information)[3:, 3:])
    spread = np.sqrt(np.mean(np.square(errors), axis=0))
    assert spread == pytest.approx(np.sqrt(np.diag(np.mean(predicted, axis=0))), rel=0.35)
