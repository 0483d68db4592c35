from pathlib import Path

import numpy as np
import pytest

from stream_recon.app.core.transforms import FloatArray, rotation_matrix
from stream_recon.app.core.types import Intrinsics
from stream_recon.app.evaluation import metrics
from stream_recon.app.evaluation.metrics import depth_errors, pose_errors


def walk(frames: int, seed: int = 0, noise: float = 0.0) -> FloatArray:
    """A smooth trajectory [frames, 4, 4] with rotation about all axes; ``noise`` of positions and rotations."""
    rng = np.random.default_rng(seed)
    t = np.linspace(0, 2, frames)
    poses = np.tile(np.eye(4), (frames, 1, 1))
    quaternions = np.stack([0.3 * np.sin(t), 0.4 * np.sin(0.7 * t), 0.2 * t, np.ones_like(t)], axis=1)
    disturbance = np.random.default_rng(99).normal(size=(2, frames, 4)) * noise
    poses[:, :3, :3] = rotation_matrix(quaternions + disturbance[0])
    poses[:, :3, 3] = np.stack([t, np.sin(2 * t), 0.3 * t**2], axis=1) + rng.normal(size=3)
    poses[:, :3, 3] += disturbance[1, :, :3]
    return poses


def moved(poses: FloatArray, scale: float, T: FloatArray) -> FloatArray:
    """The same trajectory in another world frame and unit."""
    scaled = poses.copy()
    scaled[:, :3, 3] *= scale
    return T @ scaled


def neighbours(poses: FloatArray) -> np.ndarray:
    return np.ones(len(poses) - 1, bool)


def test_a_trajectory_in_another_frame_and_unit_has_no_error() -> None:
    truth = walk(20)
    T = np.eye(4)
    T[:3, :3], T[:3, 3] = rotation_matrix(np.array([0.5, -0.2, 0.8, 0.3])), (5, -7, 2)
    errors = pose_errors(moved(truth, 0.03, T), truth, neighbours(truth))
    assert errors.ate_m == pytest.approx(0, abs=1e-12)
    assert errors.rpe_trans_m == pytest.approx(0, abs=1e-12)
    assert errors.rpe_rot_deg == pytest.approx(0, abs=1e-9)
    assert errors.trans_dir_deg == pytest.approx(0, abs=1e-6)
    assert errors.path_m == pytest.approx(np.linalg.norm(np.diff(truth[:, :3, 3], axis=0), axis=1).sum())


def test_a_camera_that_stands_still_is_placed_at_the_mean_of_the_path() -> None:
    truth = walk(10)
    positions = truth[:, :3, 3]
    errors = pose_errors(np.tile(truth[4], (10, 1, 1)), truth, neighbours(truth))
    spread = np.sqrt(np.square(positions - positions.mean(axis=0)).sum(axis=1).mean())
    steps = np.linalg.norm(np.diff(positions, axis=0), axis=1)
    assert errors.ate_m == pytest.approx(spread)
    assert errors.rpe_trans_m == pytest.approx(np.sqrt(np.square(steps).mean()))
    assert errors.rpe_rot_deg == pytest.approx(errors.gt_rot_deg)
    assert errors.trans_dir_deg is None


def test_a_known_rotation_and_direction_are_measured_in_degrees() -> None:
    truth = np.tile(np.eye(4), (5, 1, 1))
    truth[:, 0, 3] = np.arange(5)
    turned = truth.copy()
    for i in range(5):
        angle = np.radians(2.0 * i)
        turned[i, :3, :3] = [[np.cos(angle), 0, np.sin(angle)], [0, 1, 0], [-np.sin(angle), 0, np.cos(angle)]]
    assert pose_errors(turned, truth, neighbours(truth)).rpe_rot_deg == pytest.approx(2.0)
    sideways = truth.copy()
    sideways[:, :3, 3] = np.outer(np.arange(5), [np.cos(0.5), np.sin(0.5), 0])
    errors = pose_errors(sideways, truth, neighbours(truth))
    assert errors.trans_dir_deg == pytest.approx(np.degrees(0.5))
    assert errors.ate_m == pytest.approx(0, abs=1e-12)


def test_steps_over_a_gap_do_not_count() -> None:
    truth = walk(9)
    wrong = truth.copy()
    wrong[5:] = np.diag([-1.0, -1.0, 1.0, 1.0]) @ wrong[5:]  # half a turn between frames 4 and 5
    adjacent = neighbours(truth)
    assert pose_errors(wrong, truth, adjacent).rpe_rot_deg == pytest.approx(180 / 8)
    adjacent[4] = False
    assert pose_errors(wrong, truth, adjacent).rpe_rot_deg == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("frames", [0, 1, 2])
def test_too_few_poses_have_no_metrics(frames: int) -> None:
    truth = walk(3)[:frames]
    assert pose_errors(truth, truth, np.ones(max(frames - 1, 0), bool)) == metrics.PoseErrors()


def test_a_prediction_that_is_not_a_number_has_no_errors() -> None:
    truth = walk(6)
    broken = truth.copy()
    broken[3, 0, 3] = np.nan
    assert pose_errors(broken, truth, neighbours(truth)).ate_m is None
    assert depth_errors(np.array([1.0, np.nan]), np.array([1.0, 2.0])).absrel is None


def test_depth_is_compared_after_one_median_scale() -> None:
    truth = np.array([1.0, 2.0, 4.0, 8.0, 10.0])
    assert depth_errors(truth * 7, truth) == metrics.DepthErrors(absrel=0.0, delta1=1.0)
    errors = depth_errors(truth * np.array([3, 3, 3, 3, 6]), truth)
    assert errors.absrel == pytest.approx(1 / 5)
    assert errors.delta1 == pytest.approx(4 / 5)
    assert depth_errors(truth[:0], truth[:0]) == metrics.DepthErrors()


def test_field_of_view_is_the_angle_between_opposite_borders() -> None:
    camera = Intrinsics(fx=320, fy=240, cx=320, cy=240)
    assert metrics.field_of_view_deg(camera, (640, 480)) == pytest.approx((90, 90))
    shifted = metrics.field_of_view_deg(Intrinsics(fx=320, fy=240, cx=0, cy=240), (320, 480))
    assert shifted == pytest.approx((45, 90))
    narrow = Intrinsics(fx=320, fy=240 / np.tan(np.radians(40)), cx=320, cy=240)
    assert metrics.field_of_view_error_deg(narrow, camera, (640, 480)) == pytest.approx(10)


@pytest.mark.parametrize("noise", [0.002, 0.05, 0.5])
def test_evo_agrees(tmp_path: Path, noise: float) -> None:
    pytest.importorskip("evo")
    from evo.core.metrics import APE, RPE, PoseRelation, StatisticsType, Unit
    from evo.core.trajectory import PosePath3D

    truth, predicted = walk(40), moved(walk(40, noise=noise), 0.2, walk(3)[2])
    reference, estimate = PosePath3D(poses_se3=list(truth)), PosePath3D(poses_se3=list(predicted))
    estimate.align(reference, correct_scale=True)
    ours = pose_errors(predicted, truth, neighbours(truth))

    ape = APE(PoseRelation.translation_part)
    ape.process_data((reference, estimate))
    assert ours.ate_m == pytest.approx(ape.get_statistic(StatisticsType.rmse), rel=1e-9)
    for relation, statistic, figure in (
        (PoseRelation.translation_part, StatisticsType.rmse, ours.rpe_trans_m),
        (PoseRelation.rotation_angle_deg, StatisticsType.mean, ours.rpe_rot_deg),
    ):
        rpe = RPE(relation, delta=1, delta_unit=Unit.frames)
        rpe.process_data((reference, estimate))
        assert figure == pytest.approx(rpe.get_statistic(statistic), rel=1e-6)
    assert ours.path_m == pytest.approx(reference.path_length)


def test_drift_of_the_depth_scale_shows_in_the_ratio_and_in_its_jump() -> None:
    noise = np.random.default_rng(0)
    truth = noise.uniform(1, 5, 300)
    predicted = truth * np.exp(noise.normal(0, 0.05, 300))
    steady = depth_errors(predicted, truth, [100, 100, 100])
    assert steady.one_scale_ratio is not None and 1 <= steady.one_scale_ratio < 1.05
    assert steady.scale_jump is not None and steady.scale_jump < 0.05
    jumping = depth_errors(predicted * np.repeat([1, 1, 1.3], 100), truth, [100, 100, 100])
    assert jumping.one_scale_ratio is not None and jumping.one_scale_ratio > 2
    assert jumping.scale_jump == pytest.approx(0.3, abs=0.05)
    assert depth_errors(predicted, truth).scale_jump is None, "without the frames' numbers of pixels"
