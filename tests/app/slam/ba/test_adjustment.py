"""Bundle adjustment: derivatives, ground truth, outliers, gauge and fixed parameters."""

from dataclasses import replace

import numpy as np
import pytest

from stream_recon.app.core import so3
from stream_recon.app.core.camera_model import CameraModel
from stream_recon.app.slam.ba.adjustment import Solution, _Adjustment, adjust, intrinsics_information
from stream_recon.app.slam.ba.problem import INTRINSICS_SIZE, BAScene, Observations, Priors, Problem
from tests.app.slam.synthetic import LENS, World, aligned_errors, steps, walk


def seen(world: World, depths: bool = True) -> Observations:
    return world.observations if depths else replace(world.observations, depth=None)


def without(world: World, cameras: list[int]) -> Observations:
    return world.observations.take(~np.isin(world.observations.camera, cameras))


@pytest.mark.parametrize("fisheye", [False, True])
@pytest.mark.parametrize("depths", [True, False])
def test_gradient_agrees_with_finite_differences(depths: bool, fisheye: bool) -> None:
    world = walk(6, 30, 4)
    rng = np.random.default_rng(1)
    observations = replace(seen(world, depths), sigma=rng.uniform(0.5, 2, len(world.observations)))
    if observations.depth is not None:
        observations.depth[::3] = 0
    lens = replace(LENS, focal=410.0, k1=0.03, k2=-0.01, fisheye=fisheye)
    scene = replace(world.start, camera_model=lens, log_depth_scale=np.linspace(-0.1, 0.1, 6))
    fixed = np.arange(6) == 2
    problem = Problem(scene, observations, steps(world.truth.T_world_camera), fixed, priors=Priors(focal=420.0))
    model = _Adjustment(problem, 3.0)
    linear = model.linearise(model.start)
    gradient = np.concatenate(
        [linear.camera_gradient.reshape(-1), linear.point_gradient.reshape(-1), linear.intrinsics_gradient]
    )
    cameras = linear.camera_gradient.size
    h = 1e-6

    def cost(step: np.ndarray) -> float:
        return model.cost(
            model.start.stepped(
                step[:cameras].reshape(linear.camera_gradient.shape),
                step[cameras:-INTRINSICS_SIZE].reshape(3, -1),
                step[-INTRINSICS_SIZE:],
            )
        )

    units = h * np.eye(len(gradient))
    measured = np.array([(cost(unit) - cost(-unit)) / (2 * h) for unit in units])
    assert np.abs(gradient).max() > 100
    assert np.allclose(measured, gradient, rtol=1e-5, atol=1e-3)


def test_derivatives_of_relative_poses_agree_with_finite_differences() -> None:
    world = walk(5, 20, 3)
    problem = Problem(world.start, seen(world), steps(world.truth.T_world_camera))
    model = _Adjustment(problem, 1.0)
    assert model.relative is not None
    # Without the loss's weight the rows are the residuals' derivatives.
    links = replace(model.relative, loss_scale=1e9)
    _, J_first, J_second = links.linearised(model.start, 7)
    h = 1e-6
    for camera in range(4):
        for unknown in range(7):
            step = np.zeros((4, 7))
            step[camera, unknown] = h
            ahead, behind = (
                links.linearised(model.start.stepped(sign * step, np.zeros((3, 20)), np.zeros(INTRINSICS_SIZE)), 7)[0]
                for sign in (1, -1)
            )
            expected = np.zeros_like(ahead)
            expected[links.first == camera] += J_first[links.first == camera, :, unknown]
            expected[links.second == camera] += J_second[links.second == camera, :, unknown]
            assert np.allclose((ahead - behind) / (2 * h), expected, atol=1e-4)


def test_without_noise_the_truth_is_found() -> None:
    world = walk(noise_px=0, k1=0.05)
    found = adjust(Problem(world.start, seen(world), free_k1=True, priors=Priors(k1_sigma=1.0)), 1.0, 100, 1e-14)
    assert found.converged and found.rms_px < 1e-3
    assert aligned_errors(found.scene.T_world_camera, world.truth.T_world_camera) == pytest.approx((0, 0), abs=1e-4)
    assert found.scene.camera_model.focal == pytest.approx(400, abs=0.1)
    assert found.scene.camera_model.k1 == pytest.approx(0.05, abs=1e-3)
    assert np.allclose(found.scene.points, world.truth.points, atol=2e-3)
    assert np.allclose(found.depth, world.observations.depth, rtol=1e-3)


def test_with_noise_the_residuals_are_the_noise() -> None:
    world = walk(noise_px=0.5, views=8)
    found = adjust(Problem(world.start, seen(world, False), steps(world.truth.T_world_camera)), 20.0, 50, 1e-8)
    # 16 numbers a point, of which it takes 3.
    assert found.rms_px == pytest.approx(0.5 * np.sqrt(2 * 13 / 16), rel=0.05)
    assert found.cost < found.cost_before
    rmse, turn = aligned_errors(found.scene.T_world_camera, world.truth.T_world_camera)
    assert rmse < 0.003 and turn < 0.006


def narrowed(problem: Problem) -> tuple[Solution, np.ndarray]:
    """Adjusted with ever narrower losses; with the numbers of the observations that stayed."""
    kept = np.arange(len(problem.observations))
    for scale, limit in ((20.0, 40.0), (6.0, 12.0), (2.0, 6.0), (1.0, 3.0)):
        found = adjust(problem, scale, 30, 1e-4)
        stays = found.distances < limit
        kept = kept[stays]
        problem = replace(problem, scene=found.scene, observations=problem.observations.take(stays))
    return adjust(problem, 1.0, 30, 1e-6), kept


def test_one_wrong_observation_in_five_does_no_harm() -> None:
    world = walk(15, 500, 8, seed=2)
    rng = np.random.default_rng(3)
    wrong = rng.random(len(world.observations)) < 0.2
    pixel = world.observations.pixel.copy()
    pixel[wrong] += rng.uniform(-80, 80, (wrong.sum(), 2))
    depth = world.observations.depth * np.exp(0.2 * rng.normal(size=len(pixel)))
    observations = replace(world.observations, pixel=pixel, depth=depth)
    priors = Priors(focal=world.start.camera_model.focal)
    problem = Problem(world.start, observations, steps(world.start.T_world_camera), priors=priors)
    found, kept = narrowed(problem)
    clean = adjust(replace(problem, observations=world.observations.take(~wrong)), 1.0, 100, 1e-8)
    rmse, turn = aligned_errors(found.scene.T_world_camera, world.truth.T_world_camera)
    best, best_turn = aligned_errors(clean.scene.T_world_camera, world.truth.T_world_camera)
    assert rmse < 1.5 * best + 1e-4 and turn < 1.5 * best_turn + 1e-4
    assert wrong[kept].mean() < 0.01 and np.isin(np.flatnonzero(~wrong), kept).mean() > 0.97


@pytest.mark.parametrize("depths", [True, False])
def test_the_result_does_not_depend_on_world_and_scale(depths: bool) -> None:
    world = walk(noise_px=1.0)
    links = steps(world.start.T_world_camera)
    scale, R, t = 7.3, so3.exp(np.array([0.4, -1.2, 0.8])), np.array([5.0, -2.0, 30.0])
    T = world.start.T_world_camera.copy()
    T[:, :3, :3], T[:, :3, 3] = R @ T[:, :3, :3], scale * T[:, :3, 3] @ R.T + t
    scaled = links.T_first_second.copy()
    scaled[:, :3, 3] *= scale
    observations = seen(world, depths)
    moved_observations = observations
    if observations.depth is not None:
        moved_observations = replace(observations, depth=scale * observations.depth)
    here = adjust(Problem(world.start, observations, links), 2.0, 60, 1e-12)
    there = adjust(
        Problem(
            BAScene(T, scale * world.start.points @ R.T + t, world.start.camera_model),
            moved_observations,
            replace(links, T_first_second=scaled),
        ),
        2.0,
        60,
        1e-12,
    )
    assert there.cost_before == pytest.approx(here.cost_before, rel=1e-9)
    assert there.cost == pytest.approx(here.cost, rel=1e-9)
    assert there.scene.camera_model.focal == pytest.approx(here.scene.camera_model.focal, abs=1e-3)
    assert np.allclose(there.scene.points, scale * here.scene.points @ R.T + t, atol=1e-2)
    assert np.allclose(
        there.scene.T_world_camera[:, :3, 3], scale * here.scene.T_world_camera[:, :3, 3] @ R.T + t, atol=1e-3
    )
    assert np.allclose(there.scene.T_world_camera[:, :3, :3], R @ here.scene.T_world_camera[:, :3, :3], atol=1e-5)


def test_observations_in_any_order_are_the_same_problem() -> None:
    world = walk()
    order = np.random.default_rng(0).permutation(len(world.observations))
    here = adjust(Problem(world.start, world.observations))
    there = adjust(Problem(world.start, world.observations.take(order)))
    assert there.cost == pytest.approx(here.cost, rel=1e-9)
    assert np.allclose(there.errors, here.errors[order], atol=1e-6)


def test_fixed_cameras_and_a_fixed_lens_stay() -> None:
    world = walk()
    fixed = np.isin(np.arange(12), [4, 5])
    scale = np.linspace(-0.05, 0.05, 12)
    scene = replace(world.start, log_depth_scale=scale)
    found = adjust(Problem(scene, seen(world), steps(world.truth.T_world_camera), fixed, free_focal=False))
    T = found.scene.T_world_camera
    assert np.array_equal(T[fixed], world.start.T_world_camera[fixed])
    assert np.all(np.abs(T[~fixed] - world.start.T_world_camera[~fixed]).max(axis=(1, 2)) > 1e-4)
    assert found.scene.camera_model == world.start.camera_model
    assert found.scene.log_depth_scale is not None
    assert np.array_equal(found.scene.log_depth_scale[fixed], scale[fixed])


def test_without_fixed_cameras_the_first_one_stays() -> None:
    world = walk()
    found = adjust(Problem(world.start, seen(world)))
    assert np.array_equal(found.scene.T_world_camera[0], world.start.T_world_camera[0])


def test_depth_scales_are_found_and_can_be_held() -> None:
    world = walk(noise_px=0.2)
    true_scale = 0.1 * np.sin(np.arange(12))
    true_scale -= true_scale.mean()
    depth = world.observations.depth * np.exp(-true_scale[world.observations.camera])
    observations = replace(world.observations, depth=depth)
    priors = Priors(depth_sigma=0.1, log_depth_scale_sigma=1.0)
    found = adjust(Problem(world.start, observations, priors=priors), 1.0, 100, 1e-10)
    assert found.scene.log_depth_scale is not None
    error = found.scene.log_depth_scale - true_scale
    assert np.abs(error - error.mean())[1:].max() < 0.02
    held = adjust(Problem(world.start, observations, priors=priors, free_depth_scales=False))
    assert held.scene.log_depth_scale is not None and not held.scene.log_depth_scale.any()
    assert held.cost > found.cost


def test_relative_poses_place_cameras_without_tracks() -> None:
    world = walk()
    blind = [5, 6, 7]
    links = steps(world.truth.T_world_camera)
    found = adjust(Problem(world.start, without(world, blind), links), 1.0, 60, 1e-8)
    error, turn = aligned_errors(found.scene.T_world_camera, world.truth.T_world_camera)
    before, _ = aligned_errors(world.start.T_world_camera, world.truth.T_world_camera)
    assert error < 0.3 * before and turn < 0.02


def test_a_wrong_relative_pose_gives_way() -> None:
    world = walk()
    links = steps(world.truth.T_world_camera)
    links.T_first_second[4, :3, :3] = so3.exp(np.array([0.0, 1.0, 0.0]))
    found = adjust(Problem(world.start, seen(world), links), 1.0, 60, 1e-8)
    error, turn = aligned_errors(found.scene.T_world_camera, world.truth.T_world_camera)
    assert error < 0.005 and turn < 0.01


def test_relative_poses_alone_are_a_problem() -> None:
    world = walk()
    nothing = np.zeros(0, np.intp)
    observations = Observations(nothing, nothing, np.zeros((0, 2)))
    scene = BAScene(world.start.T_world_camera, np.zeros((0, 3)), LENS)
    found = adjust(Problem(scene, observations, steps(world.truth.T_world_camera)), 1.0, 60, 1e-12)
    assert np.allclose(found.scene.T_world_camera, world.truth.T_world_camera, atol=1e-6)
    assert np.isnan(found.rms_px) and found.scene.camera_model.focal == pytest.approx(LENS.focal)


def test_points_alone_are_a_problem() -> None:
    world = walk(noise_px=0)
    scene = replace(world.truth, points=world.start.points)
    found = adjust(Problem(scene, seen(world, False), fixed=np.ones(12, bool), free_focal=False), 5.0, 60, 1e-14)
    assert np.allclose(found.scene.points, world.truth.points, atol=1e-4)


def test_unobserved_points_and_cameras_stay() -> None:
    world = walk()
    observations = world.observations.take((world.observations.point != 7) & (world.observations.camera != 4))
    found = adjust(Problem(world.start, observations))
    assert np.allclose(found.scene.points[7], world.start.points[7])
    assert np.allclose(found.scene.T_world_camera[4], world.start.T_world_camera[4])
    assert found.rms_px < 1


def test_points_behind_their_camera_are_reported_and_have_no_effect() -> None:
    world = walk(noise_px=0)
    observations = world.observations
    behind = np.array([-10.0, 0.0, -5.0])
    points = np.vstack([world.truth.points, behind])
    extra = Observations(
        np.append(observations.camera, [3, 4]),
        np.append(observations.point, [300, 300]),
        np.vstack([observations.pixel, [[300.0, 200.0], [310.0, 200.0]]]),
        depth=np.append(observations.depth, [2.0, 2.0]),
    )
    found = adjust(Problem(replace(world.truth, points=points), extra))
    assert np.isinf(found.distances[-2:]).all() and np.isfinite(found.distances[:-2]).all()
    assert np.allclose(found.scene.T_world_camera, world.truth.T_world_camera, atol=1e-3)
    assert found.rms_px < 0.01 and (found.depth[-2:] < 0).all()


def test_it_can_be_stopped_at_every_iteration() -> None:
    world = walk()
    costs: list[float] = []

    def stop(iterations: int, cost: float) -> bool:
        assert iterations == len(costs)
        costs.append(cost)
        return iterations == 2

    found = adjust(Problem(world.start, seen(world)), should_stop=stop)
    assert found.iterations == 2 and not found.converged
    assert costs == sorted(costs, reverse=True) and found.cost == costs[-1] < found.cost_before


def test_information_on_the_focal_length_is_its_certainty() -> None:
    """The variance of estimates over many draws of the noise is the inverse information."""
    estimates, information = [], []
    for seed in range(30):
        world = walk(8, 100, 5, noise_px=0.0, off=0.0, focal_off=1.0)
        seen = world.observations
        rng = np.random.default_rng(seed)
        pixel = seen.pixel + 0.2 * rng.normal(size=seen.pixel.shape)
        observations = Observations(seen.camera, seen.point, pixel, np.full(len(seen), 0.2))
        problem = Problem(world.start, observations)
        found = adjust(problem, 100.0, 50, 1e-8)
        estimates.append(np.log(found.scene.camera_model.focal))
        known = intrinsics_information(replace(problem, scene=found.scene), 100.0)
        information.append(known.log_focal())
    assert np.std(estimates) == pytest.approx(np.mean(information) ** -0.5, rel=0.35)


def test_forward_motion_hardly_constrains_the_focal_length() -> None:
    world = walk(10, 200, 5)
    sideways = intrinsics_information(Problem(world.truth, seen(world, False)))
    T = np.tile(np.eye(4), (10, 1, 1))
    T[:, 2, 3] = 0.1 * np.arange(10)
    ahead_scene = replace(world.truth, T_world_camera=T, points=world.truth.points * (1, 1, 2) + (0, 0, 3))
    ahead = intrinsics_information(Problem(ahead_scene, seen(world, False)), 1e6)
    assert ahead.log_focal() < 0.1 * sideways.log_focal()
    assert sideways.log_focal(k1_sigma=1.0) <= sideways.log_focal(k1_sigma=1e-3) <= sideways.log_focal()
    assert sideways.log_focal(1.0, 1.0) <= sideways.log_focal(1.0)


def test_arrays_that_do_not_fit_are_named() -> None:
    world = walk()
    with pytest.raises(ValueError, match=r"sigma is \(3,\), not \(1800,\)"):
        Problem(world.start, replace(world.observations, sigma=np.ones(3)))
    with pytest.raises(ValueError, match="camera is not below 11"):
        Problem(replace(world.start, T_world_camera=world.start.T_world_camera[:11]), world.observations)


def test_many_cameras_are_solved_with_a_banded_matrix() -> None:
    world = walk(90, 900, 5, off=0.3)
    found = adjust(Problem(world.start, seen(world), steps(world.truth.T_world_camera)), 2.0, 40, 1e-8)
    error, turn = aligned_errors(found.scene.T_world_camera, world.truth.T_world_camera)
    assert found.rms_px < 0.7 and error < 0.02 and turn < 0.02


def test_points_may_come_in_front_of_distant_cameras() -> None:
    """A loop's points that start behind its cameras link them only once they have passed to the front."""
    world = walk(90, 900, 5, noise_px=0.2, off=0.0, focal_off=1.0)
    T = world.truth.T_world_camera.copy()
    # The last camera is where the tenth is, and sees what that one sees; at first it looks the other way.
    T[89] = T[10]
    own = world.observations.take(world.observations.camera == 10)
    rest = without(world, [89])
    observations = Observations(
        np.concatenate([rest.camera, np.full(len(own), 89)]),
        np.concatenate([rest.point, own.point]),
        np.concatenate([rest.pixel, own.pixel]),
    )
    start = T.copy()
    start[89, :3, :3] = T[89, :3, :3] @ so3.exp(np.array([0.0, 2.0, 0.0]))
    links = steps(T, (1,))
    found = adjust(Problem(replace(world.truth, T_world_camera=start), observations, links), 1.0, 60)
    assert np.isfinite(found.distances).all() and found.rms_px < 1
    assert np.allclose(found.scene.T_world_camera[89], T[89], atol=0.05)


def test_a_weak_prior_determines_an_unobserved_focal_length() -> None:
    nothing = np.zeros(0, np.intp)
    scene = BAScene(np.eye(4)[None], np.zeros((0, 3)), CameraModel(500.0, 320, 240, 0.02))
    problem = Problem(scene, Observations(nothing, nothing, np.zeros((0, 2))), free_k1=True, priors=Priors(focal=450.0))
    found = adjust(problem, tolerance=1e-12)
    assert found.scene.camera_model.focal == pytest.approx(450, rel=1e-6)
    assert found.scene.camera_model.k1 == pytest.approx(0, abs=1e-6)


def test_relative_poses_follow_the_scale_of_depths() -> None:
    """Depths and baselines that are both 10 % too long come in with a scale, not with a contradiction."""
    world = walk(noise_px=0)
    links = steps(world.truth.T_world_camera)
    links.T_first_second[:, :3, 3] *= 1.1
    observations = replace(world.observations, depth=1.1 * world.observations.depth)
    fixed = np.isin(np.arange(12), [0, 11])
    scene = replace(world.truth, log_depth_scale=np.full(12, -np.log(1.1)))
    priors = Priors(log_depth_scale_sigma=10.0)
    found = adjust(Problem(scene, observations, links, fixed, priors=priors))
    assert found.cost_before < 1e-3 and found.cost <= found.cost_before
