from dataclasses import replace

import numpy as np
import pytest

from stream_recon.app.core import so3
from stream_recon.app.slam.ba.pose_only import batched_pose_only_ba
from stream_recon.app.slam.ba.problem import Observations
from tests.app.slam.synthetic import LENS, World, walk


def turned(world: World, angle: float, shift: float) -> np.ndarray:
    """Guesses that are off by ``angle`` rad and ``shift``."""
    rng = np.random.default_rng(4)
    T = world.truth.T_world_camera.copy()
    axes = rng.normal(size=(2, len(T), 3))
    axes /= np.linalg.norm(axes, axis=2, keepdims=True)
    T[:, :3, :3] = T[:, :3, :3] @ so3.exp(angle * axes[0])
    T[:, :3, 3] += shift * axes[1]
    return T


def test_each_camera_finds_its_pose() -> None:
    world = walk(12, 400, 6, noise_px=0.0)
    found = batched_pose_only_ba(turned(world, 0.1, 0.1), world.truth.points, world.observations, LENS)
    assert np.allclose(found.T_world_camera, world.truth.T_world_camera, atol=1e-5)
    assert found.distances.max() < 0.01


def test_one_wrong_match_in_three_does_no_harm() -> None:
    world = walk(12, 600, 6, noise_px=0.5)
    rng = np.random.default_rng(5)
    wrong = rng.random(len(world.observations)) < 0.33
    pixel = world.observations.pixel.copy()
    pixel[wrong] = rng.uniform(0, 1, (int(wrong.sum()), 2)) * (640, 480)
    observations = replace(world.observations, pixel=pixel)
    found = batched_pose_only_ba(turned(world, 0.03, 0.03), world.truth.points, observations, LENS)
    error = found.T_world_camera[:, :3, 3] - world.truth.T_world_camera[:, :3, 3]
    assert np.linalg.norm(error, axis=1).max() < 0.01
    assert np.mean(found.distances[~wrong] < 2) > 0.98 and np.mean(found.distances[wrong] > 2) > 0.98


def test_cameras_share_nothing() -> None:
    world = walk(6, 200, 4)
    start = turned(world, 0.02, 0.02)
    together = batched_pose_only_ba(start, world.truth.points, world.observations, LENS)
    own = world.observations.take(world.observations.camera == 3)
    alone = batched_pose_only_ba(start[3:4], world.truth.points, replace(own, camera=np.zeros(len(own), np.intp)), LENS)
    assert np.allclose(alone.T_world_camera[0], together.T_world_camera[3], atol=1e-6)
    assert np.allclose(alone.distances, together.distances[world.observations.camera == 3], atol=1e-4)


def test_a_camera_that_sees_nothing_stays() -> None:
    world = walk(6, 200, 4)
    start = turned(world, 0.02, 0.02)
    seen = world.observations.take(world.observations.camera != 2)
    found = batched_pose_only_ba(start, world.truth.points, seen, LENS)
    assert np.array_equal(found.T_world_camera[2], start[2]) and not found.information[2].any()
    assert np.linalg.eigvalsh(found.information[3])[0] > 0
    nothing = Observations(np.zeros(0, np.intp), np.zeros(0, np.intp), np.zeros((0, 2)))
    assert np.array_equal(batched_pose_only_ba(start, world.truth.points, nothing, LENS).T_world_camera, start)


def test_information_is_the_certainty_of_a_pose() -> None:
    world = walk(3, 40, 3, noise_px=0.0)
    errors, said = [], []
    for seed in range(40):
        noise = np.random.default_rng(seed).normal(size=world.observations.pixel.shape)
        seen = replace(world.observations, pixel=world.observations.pixel + noise)
        found = batched_pose_only_ba(world.truth.T_world_camera, world.truth.points, seen, LENS, (100.0,))
        errors.append(found.T_world_camera[1, :3, 3] - world.truth.T_world_camera[1, :3, 3])
        said.append(np.linalg.inv(found.information[1])[3:, 3:])
    spread = np.sqrt(np.mean(np.square(errors), axis=0))
    assert spread == pytest.approx(np.sqrt(np.diag(np.mean(said, axis=0))), rel=0.35)
