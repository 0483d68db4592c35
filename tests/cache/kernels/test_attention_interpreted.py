"""The attention kernel, under Triton's interpreter, against torch."""

from pathlib import Path

import pytest

from tests.interpreted import check_interpreted


@pytest.mark.slow
def test_span_attention_agrees_with_torch_at_any_gain() -> None:
    check_interpreted(Path(__file__).with_name("compare_attention.py"))


def test_random_steps_by_kernels_give_what_lists_of_kept_frames_give() -> None:
    check_interpreted(Path(__file__).with_name("compare_random_steps.py"))
