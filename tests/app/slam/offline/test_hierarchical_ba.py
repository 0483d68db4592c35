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
from tests.app.slam.room import drifting
from tests.app.slam.synthetic import World, walk

FloatArray = NDArray[np.float64]


def perturbed(cameras: int) -> tuple[World, BAState]:
    """A long walk with initial poses that drift."""
    world = walk(cameras=cameras, points=30 * cameras, noise_px=0.3)
    guess = drifting(world.truth.T_world_camera, turn_deg=0.3, move=0.05)
    scene = BAScene(guess, world.start.points, world.start.lens, np.zeros(cameras))
    scene = replace(scene, points=robust_ba.backprojected(scene, world.observations))
    return world, robust_ba.with_errors(scene, world.observations, np.arange(len(world.observations)))


def error(world: World, T: FloatArray) -> float:
    ours, truth = T[:, :3, 3], world.truth.T_world_camera[:, :3, 3]
    return float(np.sqrt(np.mean(np.square(align(ours, truth).apply(ours) - truth).sum(axis=1))))


def test_few_keyframes_are_all_adjusted_together() -> None:
    assert (
        hierarchical_ba.skeletal_set(2 * hierarchical_ba.MIN_SKELETAL - 1)
        == np.arange(2 * hierarchical_ba.MIN_SKELETAL - 1)
    ).all()
    many = hierarchical_ba.skeletal_set(10 * hierarchical_ba.MAX_AT_ONCE + 7)
    assert len(many) <= hierarchical_ba.MAX_AT_ONCE + 1
    assert many[0] == 0 and many[-1] == 10 * hierarchical_ba.MAX_AT_ONCE + 6


@pytest.mark.parametrize("at_once", [1000, 40], ids=["all at the end", "by blocks"])
def test_it_is_as_accurate_as_joint_adjustment(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    world, start = perturbed(90)
    steps = robust_ba.network_motion_priors(start.scene.T_world_camera)
    priors = Priors(focal=world.start.lens.focal, depth_sigma=1.0)
    joint = robust_ba.solve(start, steps, robust_ba.STANDARD_ROUNDS, priors)
    monkeypatch.setattr(hierarchical_ba, "MIN_SKELETAL", 20)
    monkeypatch.setattr(hierarchical_ba, "MAX_AT_ONCE", at_once)
    monkeypatch.setattr(hierarchical_ba, "BLOCK", 30)
    monkeypatch.setattr(hierarchical_ba, "BLOCK_STEP", 15)
    found = hierarchical_ba.solve(start, steps, robust_ba.STANDARD_ROUNDS, priors)
    before, best = error(world, start.scene.T_world_camera), error(world, joint.scene.T_world_camera)
    assert best < 0.1 * before
    assert error(world, found.scene.T_world_camera) < 0.15 * before
    assert len(found.observations) > 0.97 * len(joint.observations)
    assert np.median(found.errors) < 1.1 * np.median(joint.errors)


def test_motions_between_distant_keyframes_are_composed() -> None:
    _, start = perturbed(20)
    T = start.scene.T_world_camera
    joined = hierarchical_ba.composed(robust_ba.network_motion_priors(T), np.array([0, 3, 4, 9]))
    assert joined is not None
    ends = T[[0, 3, 4, 9]]
    assert np.allclose(joined.T_first_second, invert_pose(ends[:-1]) @ ends[1:])
    assert joined.rotation_sigma == pytest.approx(robust_ba.ROTATION_SIGMA * np.sqrt([3, 1, 5]))


def test_a_part_has_only_what_its_cameras_see() -> None:
    _, start = perturbed(20)
    cameras = np.array([2, 5, 6])
    some = hierarchical_ba.subset(start, cameras)
    views = np.bincount(some.observations.point)
    assert (views >= 2).all() and len(views) == len(some.scene.points)
    assert (some.scene.T_world_camera == start.scene.T_world_camera[cameras]).all()
    again = robust_ba.with_errors(some.scene, some.observations, some.feature)
    assert np.allclose(again.errors, some.errors)
