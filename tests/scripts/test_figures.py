"""Recorded figures: README.md shows them all, and a benchmark's table is stored with its origin."""

from pathlib import Path
from typing import Any


def test_readme_holds_the_tables_of_the_recorded_figures() -> None:
    from bench import figures

    shown = figures.PAGES.readme.read_text().partition(figures.BEGIN)[2].partition(figures.END)[0]
    assert shown == figures.tables()


def empty_pages(folder: Path) -> Any:
    from bench import figures

    pages = figures.Pages(*(folder / name for name in ("figures.json", "runs.json", "README.md", "FRONT.md")))
    pages.figures.write_text("{}")
    for page in (pages.readme, pages.front):
        page.write_text(f"before\n{figures.BEGIN}old\n{figures.END}after\n")
    return pages


def test_a_printed_table_is_recorded_with_its_origin(tmp_path: Path) -> None:
    from bench import figures

    pages = empty_pages(tmp_path)
    printed = "warming up\n| frames | MiB |\n|---|---|\n| 200 | 594 |\n| 500 | 631 |\n"
    figures.record("memory", printed, ["python", "scripts/bench", "memory"], pages)
    entry = figures.read(pages)["memory"]
    assert entry["rows"] == [["frames", "MiB"], ["200", "594"], ["500", "631"]]
    assert entry["command"] == "python scripts/bench memory" and entry["date"] and entry["commit"] and entry["machine"]
    page = pages.readme.read_text()
    assert "| 500 | 631 |" in page and "old" not in page and page.endswith("after\n")


def test_rows_without_a_header_get_a_general_one() -> None:
    from bench import figures

    assert figures.parse_rows("| step | 98 ms |") == [["what", "figure"], ["step", "98 ms"]]
    assert figures.parse_rows("no table") == []


def test_front_page_shows_what_is_recorded() -> None:
    from bench import figures

    shown = figures.PAGES.front.read_text().partition(figures.BEGIN)[2].partition(figures.END)[0]
    assert shown == figures.front_table()


def test_front_page_gets_rows_without_their_spread(tmp_path: Path) -> None:
    from bench import figures

    pages = empty_pages(tmp_path)
    printed = "| what | seconds |\n|---|---|\n| first pose | 3.41 s (3.3 to 3.6) |\n| first points | 5 s |\n"
    figures.record("start", printed, ["python", "scripts/bench", "start"], pages)
    page = pages.front.read_text()
    assert "| command to first pose | 3.41 s |" in page and figures.machine() in page
    assert "first points" not in page and page.startswith("before\n") and page.endswith("after\n")
