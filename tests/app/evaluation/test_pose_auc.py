from dataclasses import astuple

import numpy as np
import pytest
from numpy.typing import NDArray

from stream_recon.app.evaluation.metrics import MAX_POSES, PoseAUC, pair_errors_deg, pose_auc
from tests.app.boxroom import walk_pose


def walk(count: int = 12) -> NDArray[np.float64]:
    return np.stack([walk_pose(index / 10) for index in range(count)])


def turned(pose: NDArray[np.float64], degrees: float) -> NDArray[np.float64]:
    """The camera rotated about its vertical axis."""
    angle = np.radians(degrees)
    turn = np.eye(4)
    turn[:3, :3] = [[np.cos(angle), 0, np.sin(angle)], [0, 1, 0], [-np.sin(angle), 0, np.cos(angle)]]
    return np.asarray(pose @ turn)


def test_the_truth_in_another_world_and_unit_is_perfect() -> None:
    truth = walk()
    other = truth.copy()
    other[:, :3, 3] *= 7.5
    world = turned(np.eye(4), 40)
    world[:3, 3] = (3, -2, 5)
    assert astuple(pose_auc(world @ other, truth)) == pytest.approx((1, 1, 1, 1), abs=1e-6)


def test_a_pair_is_judged_by_the_larger_of_its_two_angles() -> None:
    truth = walk(2)
    # Turning the second camera leaves the direction from the first one alone.
    ours = np.stack([truth[0], turned(truth[1], 2.0)])
    assert pair_errors_deg(ours, truth) == pytest.approx([2.0])
    assert astuple(pose_auc(ours, truth)) == pytest.approx((1 / 3, 3 / 5, 13 / 15, 28 / 30))
    # Turning the first one also turns the direction to the second as it sees it, by up to as much.
    sideways = np.stack([truth[0], truth[1]])
    sideways[1, :3, 3] = truth[0, :3, 3] - (truth[1, :3, 3] - truth[0, :3, 3])
    assert pair_errors_deg(sideways, truth) == pytest.approx([180.0]), "backwards is not forwards"


def test_an_estimate_without_translation_counts_as_a_guess() -> None:
    truth = walk(3)
    still = truth.copy()
    still[:, :3, 3] = 0
    assert pair_errors_deg(still, truth) == pytest.approx([90, 90, 90])
    assert pair_errors_deg(truth, still) == pytest.approx([0, 0, 0], abs=1e-6)


def test_all_pairs_count_up_to_a_bound() -> None:
    assert len(pair_errors_deg(walk(12), walk(12))) == 66
    many = np.repeat(np.eye(4)[None], MAX_POSES + 500, axis=0)
    assert len(pair_errors_deg(many, many)) == MAX_POSES * (MAX_POSES - 1) // 2


def test_one_pose_or_nan_has_no_auc() -> None:
    assert pose_auc(walk(1), walk(1)) == PoseAUC()
    broken = walk(3)
    broken[1, 0, 3] = np.nan
    assert pose_auc(broken, walk(3)) == PoseAUC()
