"""The Triton kernels, under Triton's interpreter, against their torch twin."""

from pathlib import Path

import pytest

from tests.interpreted import check_interpreted

_COMPARE = Path(__file__).with_name("compare_kernels.py")


@pytest.mark.slow
def test_kernels_agree_with_the_twin() -> None:
    check_interpreted(_COMPARE)
