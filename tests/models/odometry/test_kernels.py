"""Odometry's Triton kernels, under Triton's interpreter, against torch."""

from pathlib import Path

import pytest

from tests.interpreted import check_interpreted

_COMPARE = Path(__file__).with_name("compare_kernels.py")


@pytest.mark.slow
def test_a_batched_step_by_kernels_says_what_torch_says() -> None:
    check_interpreted(_COMPARE)
