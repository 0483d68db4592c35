"""Batch output of version 0.1, in tests/data/batch-0.1: its finished scenes count, and its summary can be compared.

Made by version 0.1, in a copy of that folder:

    stream-recon batch clips -o off --preset small-image.toml --mapping off
    stream-recon batch clips/hall.mp4 -o scaled --preset small-image.toml --scale-from frames:0,1,0.3

Pages and CSV files were removed.
"""

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from stream_recon.app.batch import jobs
from stream_recon.app.batch.jobs import Model
from stream_recon.app.engine.model_choice import ModelChoice
from tests.app.batch.conftest import Run
from tests.app.batch.fakes import RoomEngine, RoomLoader

DATA = Path(__file__).parents[2] / "data" / "batch-0.1"
OPTIONS = {
    "off": ["clips", "--mapping", "off"],
    "scaled": ["clips/hall.mp4", "--scale-from", "frames:0,1,0.3"],
}


@dataclass(frozen=True)
class OldWeights(RoomLoader):
    """Loader that describes the model of the old batch, whatever weights are embedded, and loads none."""

    model: ModelChoice = field(default_factory=ModelChoice)

    def describe(self) -> Model:
        recorded = json.loads((DATA / "off" / "summary.json").read_text())
        return Model(self.model.load_preset(), recorded["weights_sha256"])

    def load(self, weights_sha256: str | None = None) -> RoomEngine:
        raise AssertionError("a finished scene is done again")


@pytest.fixture
def old(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the old batches, in the working directory."""
    shutil.copytree(DATA, tmp_path, dirs_exist_ok=True)
    monkeypatch.setattr(jobs, "EngineLoader", lambda choice: OldWeights(model=choice))
    return tmp_path


def scenes_of(out: Path) -> dict[str, dict[str, Any]]:
    return {scene["name"]: scene for scene in json.loads((out / "summary.json").read_text())["scenes"]}


@pytest.mark.parametrize("name", list(OPTIONS))
def test_no_finished_scene_is_done_again(run: Run, old: Path, name: str) -> None:
    files = {
        path: path.read_bytes() for path in (old / name).rglob("*") if path.parent != old / name and path.is_file()
    }
    before = scenes_of(old / name)
    root, *options = OPTIONS[name]
    assert run("batch", root, "-o", name, "--preset", "small-image.toml", *options) == 0
    after = scenes_of(old / name)
    assert after.keys() == before.keys()
    for scene, entry in after.items():
        assert entry["status"] == "done" and entry["resumed"]
        assert all(entry[name] == before[scene][name] for name in ("frames", "seconds"))
    assert all(path.read_bytes() == content for path, content in files.items())


def test_records_have_the_keys_of_this_version(run: Run, old: Path) -> None:
    root, *options = OPTIONS["scaled"]
    recorded = scenes_of(old / "scaled")["hall.mp4"]["metres"]
    assert run("batch", root, "-o", "scaled", "--preset", "small-image.toml", *options) == 0
    scene = scenes_of(old / "scaled")["hall.mp4"]
    assert scene["metric_scale"] == recorded and "metres" not in scene


@pytest.mark.parametrize("change", [["--stride", "2"], ["--mapping", "full"], ["--keyframes", "every"]])
def test_other_options_make_another_result(run: Run, old: Path, change: list[str]) -> None:
    root, *options = OPTIONS["off"]
    with pytest.raises(AssertionError, match="done again"):
        run("batch", root, "-o", "off", "--preset", "small-image.toml", *options, *change)


def test_the_old_summary_is_compared(run: Run, old: Path, capfd: pytest.CaptureFixture[str]) -> None:
    shutil.copy(old / "off" / "summary.json", old / "old.json")
    ate = scenes_of(old / "off")["walk"]["figures"]["ate_m"]
    root, *options = OPTIONS["off"]
    arguments = ["-o", "off", "--preset", "small-image.toml", *options, "--compare", "old.json"]
    assert run("batch", root, *arguments) == 0
    printed = capfd.readouterr().out
    assert "1 scenes in both" in printed and f"{ate:.4f} | {ate:.4f}" in printed
    means = [[cell.strip() for cell in line.split("│")[1:-1]] for line in printed.splitlines() if line.count("│") == 5]
    headings = {"ATE", "ATE/path", "RPE trans", "RPE rot °", "AUC@3", "AUC@5", "AUC@15", "AUC@30", "FoV °"}
    assert {cells[0] for cells in means} == headings
    assert all(ours == theirs and scenes == "1" for _, ours, theirs, scenes in means)
    assert "weights differ" not in printed and "presets differ" not in printed
