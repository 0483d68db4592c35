"""``batch --merge``: the results of a folder of videos of one place become one, once."""

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from stream_recon.app.cli import batch_run
from stream_recon.app.result.folder import read_result
from tests.app.localization.places import write_refined
from tests.app.program import exit_code
from tests.app.slam.room import walk

WALK = walk(14)
PARTS = {"first": WALK[:9], "second": WALK[5:]}
QUICK = ("--dense", "off", "--no-mesh")


@pytest.fixture
def videos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two scenes; the runs of a batch are replaced by refined results of them."""

    def run_batch(batch: Any, *_: Any) -> dict[str, Any]:
        for scene in batch.scenes:
            folder = batch.store.folder / scene.name
            if not folder.exists():
                folder.parent.mkdir(exist_ok=True)
                write_refined(folder, PARTS[scene.name], draw=len(scene.name))
        done = [{"name": scene.name, "status": "done"} for scene in batch.scenes]
        return {"scenes": done, "interrupted": False, "totals": {"failed": 0}}

    monkeypatch.setattr(batch_run, "run_batch", run_batch)
    monkeypatch.setattr(batch_run, "print_report", lambda *_: None)
    for name in PARTS:
        folder = tmp_path / "videos" / name
        folder.mkdir(parents=True)
        for k in range(3):
            cv2.imwrite(str(folder / f"{k}.png"), np.full((24, 32, 3), 40 * k, np.uint8))
    return tmp_path / "videos"


@pytest.mark.slow
def test_results_of_one_place_are_merged(
    videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    command = ("batch", str(videos), "-o", str(tmp_path / "out"), "--merge", *QUICK)
    assert exit_code(monkeypatch, *command) == 0
    merged = read_result(tmp_path / "out" / batch_run.MERGED_NAME)
    assert [part["name"] for part in merged.run["options"]["parts"]] == ["first", "second"]
    assert len(merged) == sum(map(len, PARTS.values()))
    before = (merged.folder / "cameras.json").read_bytes()
    assert exit_code(monkeypatch, *command) == 0
    assert "not made again" in capfd.readouterr().out
    assert (merged.folder / "cameras.json").read_bytes() == before


def test_results_that_are_not_refined_or_elsewhere_are_refused(
    videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for options in (("-o", str(tmp_path / "out"), "--mapping", "off"), ("-o", "memory://out")):
        assert exit_code(monkeypatch, "batch", str(videos), "--merge", *options) == 2
        assert "--merge needs" in capfd.readouterr().err
