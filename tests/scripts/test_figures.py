"""Recorded figures: README.md shows them all, and a benchmark's table is stored with its origin."""

from pathlib import Path

import pytest


def test_readme_holds_the_tables_of_the_recorded_figures() -> None:
    from bench import figures

    shown = figures.README.read_text().partition(figures.BEGIN)[2].partition(figures.END)[0]
    assert shown == figures.tables()


def test_a_printed_table_is_recorded_with_its_origin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from bench import figures

    monkeypatch.setattr(figures, "FILE", tmp_path / "figures.json")
    monkeypatch.setattr(figures, "README", tmp_path / "README.md")
    monkeypatch.setattr(figures, "FRONT", tmp_path / "FRONT.md")
    figures.FRONT.write_text(f"# Project\n{figures.BEGIN}{figures.END}after\n")
    monkeypatch.setattr(figures.comparison, "FILE", tmp_path / "runs.json")
    figures.FILE.write_text("{}")
    figures.README.write_text(f"# Scripts\n{figures.BEGIN}old\n{figures.END}after\n")
    printed = "warming up\n| frames | MiB |\n|---|---|\n| 200 | 594 |\n| 500 | 631 |\n"
    figures.record("memory", printed, ["python", "scripts/bench", "memory"])
    entry = figures.read()["memory"]
    assert entry["rows"] == [["frames", "MiB"], ["200", "594"], ["500", "631"]]
    assert entry["command"] == "python scripts/bench memory" and entry["date"] and entry["commit"] and entry["machine"]
    page = figures.README.read_text()
    assert "| 500 | 631 |" in page and "old" not in page and page.endswith("after\n")


def test_rows_without_a_header_get_a_general_one() -> None:
    from bench import figures

    assert figures.parse_rows("| step | 98 ms |") == [["what", "figure"], ["step", "98 ms"]]
    assert figures.parse_rows("no table") == []


def test_front_page_shows_what_is_recorded() -> None:
    from bench import figures

    shown = figures.FRONT.read_text().partition(figures.BEGIN)[2].partition(figures.END)[0]
    assert shown == figures.front_table()


def test_front_page_gets_rows_without_their_spread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from bench import figures

    for name, file in (("FILE", "figures.json"), ("README", "README.md"), ("FRONT", "FRONT.md")):
        monkeypatch.setattr(figures, name, tmp_path / file)
        (tmp_path / file).write_text("{}" if name == "FILE" else f"before\n{figures.BEGIN}{figures.END}after\n")
    monkeypatch.setattr(figures.comparison, "FILE", tmp_path / "runs.json")
    printed = "| what | seconds |\n|---|---|\n| first pose | 3.41 s (3.3 to 3.6) |\n| first points | 5 s |\n"
    figures.record("start", printed, ["python", "scripts/bench", "start"])
    page = figures.FRONT.read_text()
    assert "| command to first pose | 3.41 s |" in page and figures.machine() in page
    assert "first points" not in page and page.startswith("before\n") and page.endswith("after\n")
