import cv2
import numpy as np
import pytest

from stream_recon.app.core.transforms import FloatArray, rotation_matrix
from stream_recon.app.core.types import Frame, Intrinsics
from stream_recon.app.evaluation import baselines
from stream_recon.app.evaluation.baselines import TwoViewOdometry
from stream_recon.app.evaluation.metrics import PoseErrors, pose_errors

SIZE = (320, 240)
CAMERA = Intrinsics(fx=260, fy=260, cx=160, cy=120)
ROOM = np.array([3.0, 1.5, 5.0])
"""Half the extent of a box, seen from inside."""


def render_room(pose: FloatArray) -> np.ndarray:
    """A picture [240, 320, 3] from inside a box with spotted walls."""
    texture = np.random.default_rng(0).integers(0, 256, (3, 128, 128), dtype=np.uint8)
    u, v = np.meshgrid(np.arange(SIZE[0]) + 0.5, np.arange(SIZE[1]) + 0.5)
    rays = np.stack([(u - CAMERA.cx) / CAMERA.fx, (v - CAMERA.cy) / CAMERA.fy, np.ones_like(u)], axis=-1)
    rays = rays @ pose[:3, :3].T
    distances = (np.sign(rays) * ROOM - pose[:3, 3]) / np.where(rays == 0, 1e-9, rays)  # [H, W, 3] to the walls
    wall = distances.argmin(axis=-1)
    points = pose[:3, 3] + rays * distances.min(axis=-1, keepdims=True)
    grey = np.zeros(SIZE[::-1], np.uint8)
    for axis in range(3):
        x, y = (points[..., i] * 10 + 64 for i in range(3) if i != axis)
        spots = cv2.remap(texture[axis], x.astype(np.float32), y.astype(np.float32), cv2.INTER_CUBIC)
        grey = np.where(wall == axis, spots, grey)
    return np.repeat(grey[..., None], 3, axis=-1)


def camera_walk(sway: FloatArray, forward: FloatArray, turn_deg: FloatArray) -> FloatArray:
    half = np.radians(turn_deg) / 2
    poses = np.tile(np.eye(4), (len(sway), 1, 1))
    zero = np.zeros_like(half)
    poses[:, :3, :3] = rotation_matrix(np.stack([zero, np.sin(half), zero, np.cos(half)], axis=1))
    poses[:, 0, 3], poses[:, 2, 3] = sway, forward
    return poses


def errors_of(predicted: FloatArray, truth: FloatArray) -> PoseErrors:
    return pose_errors(predicted, truth, np.ones(len(truth) - 1, bool))


def two_view(truth: FloatArray, size: tuple[int, int] = SIZE) -> FloatArray:
    frames = (Frame(i, i / 30, cv2.resize(render_room(pose), size)) for i, pose in enumerate(truth))
    scale = size[0] / SIZE[0]
    camera = Intrinsics(*(scale * value for value in (CAMERA.fx, CAMERA.fy, CAMERA.cx, CAMERA.cy)))
    return baselines.two_view(frames, camera, size)


def test_trivial_trajectories() -> None:
    assert (baselines.static(4) == np.eye(4)).all()
    line = baselines.straight_line(4)
    assert line[:, :3, 3].tolist() == [[0, 0, 0], [0, 0, 1], [0, 0, 2], [0, 0, 3]]
    assert (line[:, :3, :3] == np.eye(3)).all()


def test_constant_velocity_is_right_for_a_camera_on_a_circle() -> None:
    truth = camera_walk(1 - np.cos(np.arange(8) * 0.2), np.sin(np.arange(8) * 0.2), np.degrees(np.arange(8) * 0.2))
    guess = baselines.constant_velocity(8, np.linalg.inv(truth[0]) @ truth[1])
    errors = errors_of(guess, truth)
    assert errors.ate_m == pytest.approx(0, abs=1e-9)
    assert errors.rpe_rot_deg == pytest.approx(0, abs=1e-9)
    assert errors_of(baselines.straight_line(8), truth).ate_over_path > 0.02


def test_the_ramp_is_far_above_and_near_below() -> None:
    ramp = baselines.ramp_depth(168)
    assert (ramp[0], ramp[-1], len(ramp)) == (2.0, 0.7, 168)
    assert (np.diff(ramp) < 0).all()


def test_two_views_follow_a_walk_through_a_room() -> None:
    t = np.linspace(0, 1, 12)
    truth = camera_walk(0.8 * np.sin(3 * t), 1.2 * t, 20 * np.sin(4 * t))
    errors = errors_of(two_view(truth), truth)
    line = errors_of(baselines.straight_line(len(truth)), truth)
    assert errors.ate_over_path < 0.04
    assert errors.ate_over_path < line.ate_over_path / 3
    assert errors.rpe_rot_deg < 0.1 * errors.gt_rot_deg
    assert errors.trans_dir_deg < 3


def test_two_views_keep_the_scale_when_the_camera_slows_down() -> None:
    speed = np.concatenate([np.full(5, 0.2), np.full(8, 0.02), np.full(4, 0.2)])
    sway = np.concatenate([[0], np.cumsum(speed)]) - 1
    truth = camera_walk(sway, 0.3 * sway, np.zeros_like(sway))
    errors = errors_of(two_view(truth), truth)
    assert errors.ate_over_path < 0.02
    assert errors.rpe_trans_m < 0.02


def test_two_views_shrink_large_images_to_the_same_motion() -> None:
    t = np.linspace(0, 1, 5)
    truth = camera_walk(0.8 * t, 0.3 * t, 8 * t)
    large = two_view(truth, (1280, 960))
    assert max(1280, 960) > TwoViewOdometry.max_side
    errors = errors_of(large, truth)
    assert errors.ate_over_path < 0.03
    assert errors.rpe_rot_deg < 0.2


def test_images_without_features_repeat_the_last_motion_and_are_counted() -> None:
    t = np.linspace(0, 1, 5)
    truth = camera_walk(0.8 * t, 0.3 * t, 0 * t)
    odometry = TwoViewOdometry(CAMERA, SIZE)
    seen = [odometry.push(render_room(pose)) for pose in truth]
    blank = odometry.push(np.full((*SIZE[::-1], 3), 128, np.uint8))
    assert odometry.failures == 1
    step = np.linalg.inv(seen[-2]) @ seen[-1]
    np.testing.assert_allclose(np.linalg.inv(seen[-1]) @ blank, step, atol=1e-9)


def test_two_views_are_the_same_every_time() -> None:
    t = np.linspace(0, 1, 4)
    truth = camera_walk(0.8 * t, 0.3 * t, 8 * t)
    np.testing.assert_array_equal(two_view(truth), two_view(truth))
