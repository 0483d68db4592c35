"""The measurement of refinement, on a short walk."""

import re

import pytest


@pytest.mark.slow
def test_a_walk_is_refined_and_measured(capsys: pytest.CaptureFixture[str]) -> None:
    from bench.refine import measure

    measure(120)
    printed = capsys.readouterr().out
    found = re.search(
        r"refining 120 frames, 30 keyframes.* peak \d+ MiB, ATE / path ([\d.]+) before, ([\d.]+)", printed
    )
    assert found and float(found[2]) < 0.8 * float(found[1])
