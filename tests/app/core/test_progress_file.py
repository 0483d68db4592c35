"""State that a command leaves for the server that started it."""

from pathlib import Path

import pytest

from stream_recon.app.core.progress_file import VARIABLE, ProgressFile, read_progress


def test_what_is_noted_stays_beside_the_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "progress.json"
    monkeypatch.setenv(VARIABLE, str(path))
    assert read_progress(path) == {}
    ProgressFile.from_environment().note(port=8081)
    ProgressFile.from_environment().write("frames", 3, 10, None, 12.5)
    state = read_progress(path)
    assert (state["port"], state["step"], state["done"], state["total"], state["fps"]) == (8081, "frames", 3, 10, 12.5)
    ProgressFile.from_environment().write("frames", 4, 10, 1.0)
    assert read_progress(path)["done"] == 3, "the same step was written a moment ago"
    ProgressFile.from_environment().write("frames", 10, 10, 0.0)
    ProgressFile.from_environment().note(error="it is broken")
    assert read_progress(path) == {**state, "done": 10, "left": 0.0, "fps": None, "error": "it is broken"}
    assert [file.name for file in tmp_path.iterdir()] == ["progress.json"]


def test_nothing_is_written_where_the_environment_names_no_file(tmp_path: Path) -> None:
    ProgressFile(None).note(port=1)
    (tmp_path / "progress.json").write_text("[")
    assert read_progress(tmp_path / "progress.json") == {}
