import json
import time
from pathlib import Path

import pytest

from stream_recon.app.batch.jobs import StageTimer
from tests.app.batch.fakes import batch_of, room_scene, run


def test_phases_add_up_to_the_time_since_they_began() -> None:
    begun = time.monotonic() - 1
    phases = StageTimer("a", begun)
    phases.enter("b")
    phases.enter("a")
    seconds = phases.seconds
    assert list(seconds) == ["a", "b"] and seconds["a"] >= 1
    assert sum(seconds.values()) == pytest.approx(time.monotonic() - begun, abs=0.05)


def test_a_batch_tells_where_its_time_went(tmp_path: Path) -> None:
    scene = room_scene(tmp_path / "data" / "a")
    summary = run(batch_of(tmp_path / "data", tmp_path / "out", [scene]))
    totals, (row,) = summary["totals"], summary["scenes"]
    assert totals["seconds"] == pytest.approx(sum(totals["phases"].values()), abs=0.01)
    assert {"start", "hash the weights", "work", "tidy"} <= totals["phases"].keys()
    assert {"load", "open", "first frames", "frames", "publish"} <= row["phases"].keys()
    told = json.loads((tmp_path / "out" / "a" / "run.json").read_text())["phases"]
    assert told.keys() == row["phases"].keys() and sum(told.values()) <= totals["seconds"]


def test_depth_files_are_marked_as_they_come_and_none_is_missing(tmp_path: Path) -> None:
    scene = room_scene(tmp_path / "data" / "a")
    batch = batch_of(tmp_path / "data", tmp_path / "out", [scene])
    run(batch)
    folder = tmp_path / "out" / "a"
    files = json.loads((folder / "manifest.json").read_text())["files"]
    assert sum(name.startswith("depth/") for name in files) == 12
    assert run(batch)["totals"]["resumed"] == 1
    damaged = folder / "depth" / "000003.npz"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    assert run(batch)["totals"]["resumed"] == 0
