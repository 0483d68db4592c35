"""Hierarchical and blockwise adjustment, against joint adjustment."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from stream_recon.app.core.transforms import align, invert_pose
from stream_recon.app.slam.ba import robust_ba
from stream_recon.app.slam.ba.problem import BAScene, Priors
from stream_recon.app.slam.ba.robust_ba import BAState
from stream_recon.app.slam.offline import hierarchical_ba
from stream_recon.app.slam.offline.hierarchical_ba import HierarchyConfig
from tests.app.slam.room import drifting
from tests.app.slam.synthetic import World, walk

FloatArray = NDArray[np.float64]


def perturbed(cameras: int) -> tuple[World, BAState]:
    """A long walk with initial poses that drift."""
    world = walk(cameras=cameras, points=30 * cameras, noise_px=0.3)
    guess = drifting(world.truth.T_world_camera, turn_deg=0.3, move=0.05)
    scene = BAScene(guess, world.start.points, world.start.camera_model, np.zeros(cameras))
    scene = replace(scene, points=robust_ba.backprojected(scene, world.observations))
    return world, robust_ba.with_errors(scene, world.observations, np.arange(len(world.observations)))


def error(world: World, T: FloatArray) -> float:
    ours, truth = T[:, :3, 3], world.truth.T_world_camera[:, :3, 3]
    return float(np.sqrt(np.mean(np.square(align(ours, truth).apply(ours) - truth).sum(axis=1))))


def test_few_keyframes_are_all_adjusted_together() -> None:
    config = HierarchyConfig(max_at_once=50, min_skeletal=10)
    assert (hierarchical_ba.skeletal_set(19, config) == np.arange(19)).all()
    many = hierarchical_ba.skeletal_set(507, config)
    assert len(many) <= 51 and many[0] == 0 and many[-1] == 506


@pytest.mark.parametrize("at_once", [1000, 40], ids=["all at the end", "by blocks"])
def test_it_is_as_accurate_as_joint_adjustment(at_once: int) -> None:
    world, start = perturbed(90)
    steps = robust_ba.network_motion_priors(start.scene.T_world_camera)
    priors = Priors(focal=world.start.camera_model.focal, depth_sigma=1.0)
    joint = robust_ba.solve(start, steps, robust_ba.STANDARD_ROUNDS, priors)
    config = HierarchyConfig(max_at_once=at_once, min_skeletal=20, block=30, block_step=15)
    found = hierarchical_ba.solve(start, steps, robust_ba.STANDARD_ROUNDS, priors, config=config)
    before, best = error(world, start.scene.T_world_camera), error(world, joint.scene.T_world_camera)
    assert best < 0.1 * before
    assert error(world, found.scene.T_world_camera) < 0.15 * before
    assert len(found.observations) > 0.97 * len(joint.observations)
    assert np.median(found.errors) < 1.1 * np.median(joint.errors)


def test_motions_between_distant_keyframes_are_composed() -> None:
    _, start = perturbed(20)
    T = start.scene.T_world_camera
    single = robust_ba.network_motion_priors(T)
    joined = hierarchical_ba.composed(single, np.array([0, 3, 4, 9]))
    assert joined is not None
    ends = T[[0, 3, 4, 9]]
    assert np.allclose(joined.T_first_second, invert_pose(ends[:-1]) @ ends[1:])
    assert joined.rotation_sigma == pytest.approx(single.rotation_sigma[0] * np.sqrt([3, 1, 5]))


def test_a_part_has_only_what_its_cameras_see() -> None:
    _, start = perturbed(20)
    cameras = np.array([2, 5, 6])
    some = hierarchical_ba.subset(start, cameras)
    views = np.bincount(some.observations.point)
    assert (views >= 2).all() and len(views) == len(some.scene.points)
    assert (some.scene.T_world_camera == start.scene.T_world_camera[cameras]).all()
    again = robust_ba.with_errors(some.scene, some.observations, some.feature)
    assert np.allclose(again.errors, some.errors)
