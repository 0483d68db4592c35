"""Whether depth jumps where it should."""

import numpy as np
import pytest

from stream_recon.app.evaluation.point_errors import boundary_f1


def square(shift: int = 0, near: float = 1.0) -> np.ndarray:
    depth = np.full((60, 80), 3.0)
    depth[20:40, 30 + shift : 50 + shift] = near
    return depth


def test_ground_truth_has_f1_of_one_in_any_unit() -> None:
    everywhere = np.ones((60, 80), bool)
    assert boundary_f1(square(), square(), everywhere) == 1
    assert boundary_f1(7 * square(), square(), everywhere) == 1


def test_a_jump_at_another_pixel_or_of_the_other_sign_is_wrong() -> None:
    everywhere = np.ones((60, 80), bool)
    assert boundary_f1(np.full((60, 80), 2.0), square(), everywhere) == 0
    assert boundary_f1(square(near=9.0), square(), everywhere) == 0
    # The upper and lower edges overlap in 19 of 20 places, the others not at all.
    assert boundary_f1(square(shift=1), square(), everywhere) == pytest.approx(38 / 80)


def test_only_valid_pairs_count() -> None:
    valid = np.zeros((60, 80), bool)
    valid[:, :25] = True
    assert boundary_f1(square(), square(), valid) == 0, "there is no jump"
    valid[:, :40] = True
    wrong = square()
    wrong[:, 60:] = 0
    assert boundary_f1(wrong, square(), valid) == 1


def test_small_jumps_count_as_far_as_they_are_jumps() -> None:
    everywhere = np.ones((60, 80), bool)
    small = square(near=3.0 / 1.12)  # above the first two of five ratios
    assert boundary_f1(small, small, everywhere) == pytest.approx((1.05 + 1.10) / 5.75)
