import json
import time
from pathlib import Path

import pytest

from stream_recon.app.batch.jobs import StageTimer
from tests.app.batch.fakes import batch_of, room_scene, run


def test_stages_add_up_to_the_total_time() -> None:
    begun = time.monotonic() - 1
    timer = StageTimer("a", begun)
    timer.enter("b")
    timer.enter("a")
    seconds = timer.seconds
    assert list(seconds) == ["a", "b"] and seconds["a"] >= 1
    assert sum(seconds.values()) == pytest.approx(time.monotonic() - begun, abs=0.05)


def test_a_batch_records_its_time_by_stage(tmp_path: Path) -> None:
    scene = room_scene(tmp_path / "data" / "a")
    summary = run(batch_of(tmp_path / "data", tmp_path / "out", [scene]))
    totals, (row,) = summary["totals"], summary["scenes"]
    assert totals["seconds"] == pytest.approx(sum(totals["phases"].values()), abs=0.01)
    assert {"start", "hash the weights", "work", "tidy"} <= totals["phases"].keys()
    assert {"load", "open", "first frames", "frames", "publish"} <= row["phases"].keys()
    recorded = json.loads((tmp_path / "out" / "a" / "run.json").read_text())["phases"]
    assert recorded.keys() == row["phases"].keys() and sum(recorded.values()) <= totals["seconds"]


def test_the_manifest_has_the_checksums_of_all_depth_files(tmp_path: Path) -> None:
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
