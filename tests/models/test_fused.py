"""Triton kernels of encoder, aggregator and camera head, under Triton's interpreter, against torch."""

from pathlib import Path

import pytest

from tests.interpreted import check_interpreted


@pytest.mark.slow
@pytest.mark.parametrize("part", ["trunk", "camera"])
def test_a_part_by_kernels_says_what_torch_says(part: str) -> None:
    check_interpreted(Path(__file__).with_name(f"compare_{part}.py"))
