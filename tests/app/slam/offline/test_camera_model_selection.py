"""Choice of the lens by held-out tracks, from tracks alone."""

from dataclasses import replace

import numpy as np
import pytest

from stream_recon.app.core import so3
from stream_recon.app.core.camera_model import CameraModel
from stream_recon.app.slam.ba import robust_ba
from stream_recon.app.slam.ba.problem import BAScene, Observations
from stream_recon.app.slam.ba.robust_ba import BAState
from stream_recon.app.slam.offline.camera_model_selection import CameraModelFit, best_camera_model, focal_error
from tests.app.slam.synthetic import LENS, walk


def state(lens: CameraModel, seed: int = 0) -> BAState:
    """State before adjustment of a walk past points that this lens sees, with errors of poses and focal length."""
    world = walk(16, 500, 6, noise_px=0.3, seed=seed)
    seen, T = world.observations, world.truth.T_world_camera
    local = np.einsum("nji,nj->ni", T[seen.camera, :3, :3], world.truth.points[seen.point] - T[seen.camera, :3, 3])
    noise = 0.3 * np.random.default_rng(seed).normal(size=(len(local), 2))
    seen = replace(seen, pixel=lens.pixels(local[:, :2] / local[:, 2:]) + noise, depth=local[:, 2].copy())
    scene = replace(
        world.start, camera_model=CameraModel(1.1 * lens.focal, lens.cx, lens.cy), log_depth_scale=np.zeros(16)
    )
    return robust_ba.with_errors(scene, seen, np.arange(len(seen)))


@pytest.mark.parametrize(
    "lens",
    [
        CameraModel(400.0, 240.0, 180.0),
        CameraModel(400.0, 220.0, 170.0, -0.2),
        CameraModel(260.0, 140.0, 110.0, 0.02, fisheye=True),
    ],
)
def test_the_field_of_view_is_found(lens: CameraModel) -> None:
    size = round(2 * lens.cx), round(2 * lens.cy)
    start = state(lens)
    best = best_camera_model(start, None, robust_ba.first_pass_priors(start.scene.camera_model.focal, 0.1), size)
    assert best is not None
    found = best.state.scene.camera_model
    assert found.straightened(size).is_straight == lens.is_straight
    assert found.field_of_view_deg(size[0]) == pytest.approx(lens.field_of_view_deg(size[0]), rel=0.03)


def turning(lens: CameraModel, count: int = 14) -> BAState:
    """State before adjustment of a camera that only turns, with errors of poses, depth and focal length."""
    random = np.random.default_rng(0)
    T = np.tile(np.eye(4), (count, 1, 1))
    t = np.linspace(-1, 1, count)
    T[:, :3, :3] = so3.exp(np.stack([0.2 * np.sin(5 * t), 0.9 * t, 0 * t], axis=1))
    T[:, :3, 3] = 0.001 * random.normal(size=(count, 3))
    bearing, z = random.uniform((-1.5, -0.7), (1.5, 0.7), (700, 2)), random.uniform(2, 5, 700)
    points = z[:, None] * np.stack([np.sin(bearing[:, 0]), np.tan(bearing[:, 1]), np.cos(bearing[:, 0])], axis=1)
    local = np.einsum("kji,knj->kni", T[:, :3, :3], points - T[:, None, :3, 3])
    ahead = local[..., 2] > 0.2
    uv = np.full((*ahead.shape, 2), -1.0)
    uv[ahead] = lens.pixels(local[ahead, :2] / local[ahead, 2:])
    camera, point = np.nonzero(((uv > 0) & (uv < (2 * lens.cx, 2 * lens.cy))).all(axis=-1))
    depth = local[camera, point, 2] * np.exp(0.05 * random.normal(size=len(camera)))
    pixel = uv[camera, point] + 0.4 * random.normal(size=(len(camera), 2))
    used, point = np.unique(point, return_inverse=True)
    seen = Observations(camera, point, pixel, np.ones(len(camera)), depth)
    guess = T.copy()
    guess[:, :3, :3] = T[:, :3, :3] @ so3.exp(0.003 * random.normal(size=(count, 3)))
    wrong = CameraModel(1.1 * lens.focal, lens.cx, lens.cy)
    scene = BAScene(guess, points[used], wrong, np.zeros(count))
    return robust_ba.with_errors(scene, seen, np.arange(len(seen)))


@pytest.mark.slow
@pytest.mark.parametrize(
    "lens", [CameraModel(250.0, 160.0, 120.0, -0.15), CameraModel(175.0, 160.0, 120.0, fisheye=True)]
)
def test_turning_alone_shows_that_a_lens_bends_lines(lens: CameraModel) -> None:
    # Without parallax, points of a wrong lens must not look better because a wrong motion gives them depth.
    start = turning(lens)
    motions = robust_ba.network_motion_priors(start.scene.T_world_camera)
    best = best_camera_model(
        start, motions, robust_ba.first_pass_priors(start.scene.camera_model.focal, 0.1), (320, 240)
    )
    assert best is not None
    assert best.state.scene.camera_model.field_of_view_deg(320) == pytest.approx(lens.field_of_view_deg(320), rel=0.03)


def test_a_lens_with_more_terms_must_be_better_by_more_than_chance() -> None:
    random = np.random.default_rng(0)
    fit = state(LENS)
    priors = robust_ba.first_pass_priors(400.0, 0.1)
    losses = random.uniform(0.05, 0.1, 20)
    same, better = losses + random.normal(0, 0.01, 20), losses - random.uniform(0.012, 0.02, 20)
    first, second, third = (CameraModelFit(fit, priors, each) for each in (losses, same, better))
    assert not second.is_better(first) and third.is_better(first)
    # One keyframe that went astray does not decide.
    astray = better.copy()
    astray[3] = 0.9
    assert CameraModelFit(fit, priors, astray).is_better(first)


def test_the_focal_length_is_measured_sideways() -> None:
    world = walk(10, 200, 5)
    seen = replace(world.observations, depth=None)
    feature = np.arange(len(seen))
    priors = robust_ba.first_pass_priors(400.0, 0.1)
    sideways = focal_error(robust_ba.with_errors(world.truth, seen, feature), priors)
    T = np.tile(np.eye(4), (10, 1, 1))
    T[:, 2, 3] = 0.1 * np.arange(10)
    scene = replace(world.truth, T_world_camera=T, points=world.truth.points * (1, 1, 2) + (0, 0, 3))
    ahead = focal_error(robust_ba.with_errors(scene, seen, feature), priors)
    assert sideways is not None and (ahead is None or ahead > 3 * sideways)
