"""Changes of configurations that the benchmark of mechanisms makes."""

import json
from pathlib import Path

import pytest

from bench.ablation import Ablation, Clip, Run, Tuning, mechanisms, switches


def test_each_mechanism_is_one_change_of_a_configuration() -> None:
    found = mechanisms([], ["online.map.active=20"])
    assert {"online.loops", "online.local_ba", "stereo.fill", "online.map.active=20"} <= found.keys()
    for text in found.values():
        assert Tuning().changed(text) != Tuning()
    assert list(mechanisms(["online.loops"], [])) == ["online.loops"]


def test_a_change_sets_one_value_alone() -> None:
    changed = Tuning().changed("online.loops.is_enabled=false")
    assert not changed.online.loops.is_enabled and changed.online.local_ba == Tuning().online.local_ba
    assert "online.loops.is_enabled" in switches(Tuning()) and "online.loops.is_enabled" not in switches(changed)


@pytest.mark.parametrize("wrong", ["online.loop.is_enabled=false", "online.loops.is_enabled=3", "online.loops", "a=b"])
def test_what_is_no_change_is_refused(wrong: str) -> None:
    with pytest.raises(SystemExit, match="no change of a configuration"):
        Tuning().changed(wrong)


def test_a_run_begins_with_the_first_stage_that_differs() -> None:
    texts = "", "stereo.fill.is_enabled=false", "offline.min_keyframes=4"
    stages = [Run(Clip("room", 0, Path(), 8, 1, Path()), text).first_stage for text in texts]
    assert stages == [0, 2, 1]


def test_the_table_compares_finished_runs_of_the_same_clips(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clips = [Clip("room", seed, tmp_path, 8, 1, tmp_path) for seed in range(3)]
    change = "online.loops.is_enabled=false"
    runs = [(clip, text, error) for clip in clips for text, error in (("", 0.1), (change, 0.2))]
    lines = [
        {"key": Run(clip, text).key, "errors": {"stream": error, "final": None}, "seconds": {"stream": 10 * error}}
        for clip, text, error in runs[:-1]
    ]
    (tmp_path / "runs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    Ablation(clips, {"online.loops": change}, tmp_path / "runs.jsonl").show()
    assert "| online.loops | 2 | 2.000 ± 0.000 | - | - | - | - | 2.000 ± 0.000 |" in capsys.readouterr().out
