"""The measurement of the solver, on small problems."""

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_every_part_is_measured(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    monkeypatch.delitem(sys.modules, "bench_adjustment", raising=False)
    from bench_adjustment import bench_adjustment

    bench_adjustment([(6, 600, 4), (90, 2_700, 5)], 30)
    printed = capsys.readouterr().out
    assert re.search(
        r"\| bundle adjustment, 90 cameras, 2700 observations \| [\d.]+ ms an iteration, 0\.\d+ px", printed
    )
    assert len(re.findall(r"\| [\d.]+ ms", printed)) == 5
    assert "540 tracks" in printed and "30 nodes" in printed
