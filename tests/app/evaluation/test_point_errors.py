import numpy as np
import pytest
from numpy.typing import NDArray

from stream_recon.app.evaluation.point_errors import point_errors


@pytest.fixture
def corner() -> NDArray[np.float64]:
    """Points on three walls of 2 m that meet in a corner: a shape that holds an alignment in place."""
    noise = np.random.default_rng(0)
    flat = noise.uniform(0, 2, (6000, 3))
    flat[np.arange(6000), np.arange(6000) % 3] = 0
    return flat


def test_the_truth_in_another_world_and_unit_is_perfect(corner: NDArray[np.float64]) -> None:
    turn = np.linalg.qr(np.random.default_rng(1).normal(size=(3, 3)))[0]
    turn *= np.sign(np.linalg.det(turn))
    errors = point_errors(0.3 * corner @ turn.T + [5, 6, 7], corner)
    assert errors is not None and errors.f1 == 1
    assert errors.accuracy_m < 5e-3 and errors.completeness_m < 5e-3, "but for the voxels"


def test_a_wall_off_by_more_than_5_cm_costs_its_share(corner: NDArray[np.float64]) -> None:
    ours = corner.copy()
    ours[2::3, 2] -= 0.4
    errors = point_errors(ours, corner)
    assert errors is not None and 0.45 < errors.precision < 0.85 and 0.45 < errors.recall < 0.85
    assert errors.chamfer_m == pytest.approx((errors.accuracy_m + errors.completeness_m) / 2)
    assert errors.f1 == pytest.approx(2 * errors.precision * errors.recall / (errors.precision + errors.recall))


def test_accuracy_measures_wrong_and_completeness_missing_points(corner: NDArray[np.float64]) -> None:
    ours = corner.copy()
    ours[2::3] = ours[0::3]  # a wall seen as another one: nothing wrong, but a wall is missing
    pulled = point_errors(ours, corner)
    assert pulled is not None and pulled.accuracy_m < pulled.completeness_m and pulled.precision > pulled.recall


def test_a_cloud_is_brought_closer_by_icp(corner: NDArray[np.float64]) -> None:
    # Half of the points slide along their walls: they lie on the true surface, yet pull the first alignment off.
    ours = corner.copy()
    ours[0::6, 1] += 0.5
    errors = point_errors(ours, corner)
    assert errors is not None and errors.accuracy_m < 0.06


def test_points_without_extent_or_nan_have_no_metrics(corner: NDArray[np.float64]) -> None:
    assert point_errors(np.zeros_like(corner), corner) is None
    assert point_errors(corner[:2], corner[:2]) is None
    broken = corner.copy()
    broken[7] = np.inf
    assert point_errors(broken, corner) is None
