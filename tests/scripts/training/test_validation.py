import numpy as np
import pytest
import torch

from stream_recon.models.pose import inverse_pose, matrix_to_quaternion
from tests.scripts.training.planes import plane_clips
from training.synthetic import ClipBatch
from training.validation import FIELDS, ClipPrediction, clip_errors, prediction_from, summarise


def truth(batch: ClipBatch) -> ClipPrediction:
    height, width = batch.depth.shape[-2:]
    T = inverse_pose(batch.T_world_camera[:, :1]) @ batch.T_world_camera
    fov = torch.stack(
        [2 * torch.atan(height / 2 / batch.intrinsics[:, 1]), 2 * torch.atan(width / 2 / batch.intrinsics[:, 0])], -1
    )
    pose = torch.cat(
        [T[..., :3, 3], matrix_to_quaternion(T[..., :3, :3]), fov[:, None].expand(*T.shape[:2], 2)], dim=-1
    )
    return prediction_from(pose, batch.depth.log())


def column(rows: np.ndarray, name: str) -> np.ndarray:  # type: ignore[type-arg]
    return np.asarray(rows[:, 1 + FIELDS.index(name)])


@pytest.fixture
def batch() -> ClipBatch:
    return plane_clips(0, 6, 5, 28, 42)


def test_the_truth_has_no_error_in_any_unit(batch: ClipBatch) -> None:
    exact = truth(batch)
    T = exact.T_world_camera.clone()
    T[..., :3, 3] *= 3
    rows = clip_errors(ClipPrediction(T, exact.depth * 5, exact.fov), batch)
    for name, limit in {
        "rot_step_deg": 0.05,
        "tdir_deg": 0.1,
        "ate_over_path": 1e-3,
        "absrel": 1e-4,
        "fov_deg": 1e-3,
    }.items():
        assert (column(rows, name) < limit).all(), name
    assert (column(rows, "delta1") == 1).all()
    for name in ("rot_still_deg", "ate_straight", "absrel_constant"):
        assert (column(rows, name) > 1e-3).all(), name


def test_a_known_rotation_error_is_found(batch: ClipBatch) -> None:
    exact = truth(batch)
    angle = np.radians(2.0)
    turn = torch.eye(4)
    turn[0, 0] = turn[2, 2] = float(np.cos(angle))
    turn[0, 2], turn[2, 0] = float(np.sin(angle)), -float(np.sin(angle))
    T = exact.T_world_camera.clone()
    T[:, 2:] = T[:, 2:] @ turn  # one of four steps is off
    rows = clip_errors(ClipPrediction(T, exact.depth, exact.fov + np.radians(3.0)), batch)
    assert column(rows, "rot_step_deg") == pytest.approx(np.full(6, 0.5), abs=0.02)
    assert column(rows, "fov_deg") == pytest.approx(np.full(6, 3.0), abs=0.01)


def test_clips_without_motion_say_nothing_about_directions() -> None:
    still = plane_clips(1, 3, 5, 28, 42, motion=1e-5)
    rows = clip_errors(truth(still), still)
    assert np.isnan(column(rows, "tdir_deg")).all() and np.isnan(column(rows, "ate_over_path")).all()
    assert (column(rows, "absrel") < 1e-4).all()
    assert "tdir_deg_median" not in summarise(rows)["all"]


def test_figures_are_told_for_all_and_for_each_kind(batch: ClipBatch) -> None:
    rows = clip_errors(truth(batch), batch)
    rows[:, 1 + FIELDS.index("absrel")] = [0.1, 0.2, 0.3, 0.3, 0.2, float("nan")]
    figures = summarise(rows)
    assert figures["room"]["absrel"] == pytest.approx(0.2)
    assert figures["clutter"]["absrel"] == pytest.approx(0.3)
    assert figures["all"]["absrel"] == pytest.approx(0.22)
    assert figures["all"]["clips"] == 6 and figures["outdoor"]["clips"] == 2
