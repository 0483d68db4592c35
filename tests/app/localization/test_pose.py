"""Pose and focal length from matches: right with wrong matches and uncertain depths, and the same each time."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from stream_recon.app.core import so3
from stream_recon.app.core.camera_model import CameraModel
from stream_recon.app.core.transforms import rotation_angle_deg, transform_each
from stream_recon.app.localization.pose import Correspondences, agreeing_share, fit_pose, ransac_pose
from stream_recon.app.slam.frame_data import project_world

LENSES = [
    CameraModel(400.0, 160.0, 120.0),
    CameraModel(400.0, 160.0, 120.0, -0.1, 0.02),
    CameraModel(300.0, 160.0, 120.0, 0.01, 0.0, fisheye=True),
]
POSE = np.eye(4)
POSE[:3, :3], POSE[:3, 3] = so3.exp(np.array([0.1, 0.25, -0.1])), (0.4, 0.1, -0.3)


def matches(
    lens: CameraModel, count: int = 200, wrong: float = 0.0, depth_error: float = 0.0, seed: int = 3
) -> Correspondences:
    """Matches of which a share is wrong; the points' depths from a keyframe at the origin have errors."""
    random = np.random.default_rng(seed)
    truth = random.uniform((-1.5, -1.2, 3), (2.5, 1.2, 6), (count, 3))
    uv = project_world(lens, POSE, truth) + 0.4 * random.normal(size=(count, 2))
    bad = random.random(count) < wrong
    uv[bad] = random.uniform((0, 0), (320, 240), (int(bad.sum()), 2))
    points = truth * np.exp(depth_error * random.normal(size=(count, 1)))
    spread = np.maximum(depth_error, 0.01) * points
    return Correspondences(np.arange(count), uv, points, spread, np.zeros(count, np.intp))


def errors(T: NDArray[np.float64]) -> tuple[float, float]:
    return float(np.linalg.norm(T[:3, 3] - POSE[:3, 3])), float(rotation_angle_deg(T[:3, :3].T @ POSE[:3, :3]))


@pytest.mark.parametrize("lens", LENSES)
def test_pose_and_focal_length_with_wrong_matches(lens: CameraModel) -> None:
    found = matches(lens, wrong=0.6)
    start = ransac_pose(found, [lens])
    assert start is not None
    again = ransac_pose(found, [lens])
    assert again is not None and np.array_equal(start.inliers, again.inliers), "the same each time"
    fit = fit_pose(found.take(start.inliers), start.T_world_camera, replace(lens, focal=1.1 * lens.focal), 0.3)
    moved, turned = errors(fit.T_world_camera)
    assert moved < 0.03 and turned < 0.3
    assert moved < 2 * fit.sigmas[0] and turned < 2 * fit.sigmas[1]
    assert fit.camera_model.focal == pytest.approx(lens.focal, rel=0.02)
    assert abs(np.log(fit.camera_model.focal / lens.focal)) < 2 * fit.focal_sigma


def test_a_seventh_of_the_matches_is_enough() -> None:
    start = ransac_pose(matches(LENSES[0], wrong=0.85), [LENSES[0]])
    assert start is not None and errors(start.T_world_camera)[0] < 0.1


def test_uncertain_depths_count_across_their_rays_only() -> None:
    weighted, alike, sigmas = [], [], []
    for seed in range(12):
        found = matches(LENSES[0], depth_error=0.1, seed=seed)
        fit = fit_pose(found, POSE, LENSES[0], None)
        weighted.append(errors(fit.T_world_camera)[0])
        sigmas.append(fit.sigmas[0])
        alike.append(errors(fit_pose(replace(found, spread=0 * found.spread), POSE, LENSES[0], None).T_world_camera)[0])
    assert np.mean(weighted) < 0.9 * np.mean(alike)
    assert (np.array(weighted) < 2 * np.array(sigmas)).all()


@pytest.mark.parametrize("apart", [0.0, 0.3])
def test_all_views_of_a_rig_tell_its_pose(apart: float) -> None:
    turns = np.array([[0.0, angle, 0.0] for angle in (0.0, np.pi / 2, np.pi, -np.pi / 2)])
    T_view_body = np.tile(np.eye(4), (4, 1, 1))
    T_view_body[:, :3, :3], T_view_body[:, 0, 3] = so3.exp(turns), apart
    random, lens = np.random.default_rng(2), replace(LENSES[0], focal=120.0)
    points = random.uniform((-5, -2, -5), (5, 2, 5), (400, 3))
    view = random.integers(0, 4, 400)
    T = T_view_body[view] @ np.linalg.inv(POSE)
    uv = lens.project(transform_each(T, points)) + 0.4 * random.normal(size=(400, 2))
    shown = np.isfinite(uv).all(axis=1) & ((uv > 0) & (uv < (320, 240))).all(axis=1)
    uv[:40] = random.uniform((0, 0), (320, 240), (40, 2))
    found = Correspondences(np.arange(400), uv, points, 0.01 * points, view).take(np.flatnonzero(shown))
    start = POSE.copy()
    start[:3, 3] += 0.2
    start[:3, :3] = start[:3, :3] @ so3.exp(np.array([0.0, 0.05, 0.0]))
    fit = fit_pose(found, start, lens, None, T_view_body=T_view_body[view[shown]])
    moved, turned = errors(fit.T_world_camera)
    assert moved < min(0.03, 3 * fit.sigmas[0]) and turned < min(0.2, 3 * fit.sigmas[1])


def test_a_pose_that_loses_its_matches_is_noticed() -> None:
    found = matches(LENSES[0])
    fit = fit_pose(found, POSE, LENSES[0], None)
    assert agreeing_share(found, fit) == 1
    T = np.array(POSE)
    T[:3, 3] += (0, 0.6, 0)
    assert agreeing_share(found, replace(fit, T_world_camera=T)) < 0.1
