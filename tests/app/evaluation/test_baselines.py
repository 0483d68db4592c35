import numpy as np
import pytest

from stream_recon.app.core.transforms import FloatArray, rotation_matrix
from stream_recon.app.evaluation import baselines
from stream_recon.app.evaluation.metrics import PoseErrors, pose_errors


def camera_walk(sway: FloatArray, forward: FloatArray, turn_deg: FloatArray) -> FloatArray:
    half = np.radians(turn_deg) / 2
    poses = np.tile(np.eye(4), (len(sway), 1, 1))
    zero = np.zeros_like(half)
    poses[:, :3, :3] = rotation_matrix(np.stack([zero, np.sin(half), zero, np.cos(half)], axis=1))
    poses[:, 0, 3], poses[:, 2, 3] = sway, forward
    return poses


def errors_of(predicted: FloatArray, truth: FloatArray) -> PoseErrors:
    return pose_errors(predicted, truth, np.ones(len(truth) - 1, bool))


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
