"""One camera's pose: the same as by what does it for many."""

import numpy as np

from stream_recon.app.slam.ba.pose_only import batched_pose_only_ba
from stream_recon.app.slam.ba.problem import CameraModel, Observations
from stream_recon.app.slam.frame_data import project_points
from stream_recon.app.slam.online.pose_only import pose_only_ba
from tests.app.slam.room import pose

LENS = CameraModel(500.0, 320.0, 240.0)
LOSSES = (10.0, 3.0, 1.0)


def test_it_is_what_many_would_get_with_points_that_miss_and_points_behind() -> None:
    random = np.random.default_rng(0)
    points = random.uniform((-2, -1.5, 3), (2, 1.5, 6), (300, 3))
    true, guess = pose((0.1, 0, 0), 0.05, 0.02), pose((0.13, 0.02, 0.05), 0.04, 0.01)
    uv = project_points(LENS, (points - true[:3, 3]) @ true[:3, :3]) + random.normal(0, 0.5, (300, 2))
    uv[:60] += random.normal(0, 40, (60, 2))
    points[-5:, 2] = -4
    sigma = np.where(np.arange(300) % 3, 1.0, 4.0)
    found = pose_only_ba(guess, points, uv, sigma, LENS, LOSSES, 8, 1e-3)
    seen = Observations(np.zeros(300, np.intp), np.arange(300), uv, sigma)
    many = batched_pose_only_ba(guess[None], points, seen, LENS, LOSSES, 8, 1e-3)
    assert np.allclose(found.T_world_camera, many.T_world_camera[0], atol=1e-10)
    assert np.allclose(found.distances, many.distances, atol=1e-8)
    assert np.allclose(found.information, many.information[0], rtol=1e-8)
    assert np.isinf(found.distances[-5:]).all()
    assert np.linalg.norm(found.T_world_camera[:3, 3] - true[:3, 3]) < 0.01


def test_who_sees_nothing_ahead_stays() -> None:
    points = np.random.default_rng(0).uniform((-2, -1.5, -6), (2, 1.5, -3), (40, 3))
    found = pose_only_ba(np.eye(4), points, np.full((40, 2), 200.0), np.ones(40), LENS, LOSSES, 8, 1e-3)
    assert np.allclose(found.T_world_camera, np.eye(4)) and np.isinf(found.distances).all()
