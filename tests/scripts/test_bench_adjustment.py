"""The measurement of the solver, on small problems."""

import re

import pytest


def test_every_part_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    from bench.adjustment import bench_adjustment

    bench_adjustment([(6, 600, 4), (90, 2_700, 5)], 30)
    printed = capsys.readouterr().out
    assert re.search(
        r"\| bundle adjustment, 90 cameras, 2700 observations \| [\d.]+ ms an iteration, 0\.\d+ px", printed
    )
    assert len(re.findall(r"\| [\d.]+ ms", printed)) == 5
    assert "540 tracks" in printed and "30 nodes" in printed
