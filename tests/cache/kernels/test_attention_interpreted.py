"""The attention kernel, under Triton's interpreter, against torch."""

from pathlib import Path

from tests.interpreted import check_interpreted


def test_span_attention_agrees_with_torch_at_any_gain() -> None:
    check_interpreted(Path(__file__).with_name("compare_attention.py"))
