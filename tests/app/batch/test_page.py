import dataclasses
import re
from pathlib import Path
from typing import Any

from stream_recon.app.batch.page import write_page
from stream_recon.app.batch.store import LocalStore
from stream_recon.app.batch.summary import Row, Totals


def done(name: str, verdict: dict[str, str] | None) -> Row:
    record: dict[str, Any] = {
        "frames": 30, "keyframes": 29, "seconds": 12.3, "damaged": 0, "warnings": [], "metric": True, "figures": None,
        "plot": {"estimate": [[0, 0], [1, 1]], "ground_truth": []},
    }  # fmt: skip
    return Row(name, "video", name, "done", result=record if verdict is None else {**record, "verdict": verdict})


def page_of(rows: list[Row], folder: Path) -> str:
    record = {
        "root": "/data", "totals": {"scenes": len(rows), **dataclasses.asdict(Totals.from_rows(rows, {}))}, "means": {},
        "preset": {"name": "small"}, "weights_sha256": "0" * 64, "protocol": {}, "version": "1", "written": "now",
    }  # fmt: skip
    write_page(LocalStore(folder), record, rows)
    return (folder / "index.html").read_text()


def test_verdicts_are_shown_and_views_of_failed_results_are_marked(tmp_path: Path) -> None:
    rows = [
        done("kitchen", {"level": "good", "reason": "30 of 30 frames", "advice": ""}),
        done("campus", {"level": "doubtful", "reason": "7 < 30", "advice": "Film more"}),
        done("drone", {"level": "failed", "reason": "no", "advice": ""}),
        done("old", None),
        done("odd", {"level": "splendid"}),
        Row("broken", "video", "broken", "failed", reason="no image"),
    ]
    page = page_of(rows, tmp_path)
    articles = re.findall(r'<article(?: class="(\w+)")? id="scene-\d">(?:<h2>)(?:<b>([\w ]+)</b>)?', page)
    assert articles == [
        ("good", "good"), ("doubtful", "doubtful"), ("wrong", "failed"), ("", ""), ("", ""), ("failed", "no result"),
    ]  # fmt: skip
    assert "verdicts: 1 good, 1 doubtful, 1 failed" in page
    assert "7 &lt; 30. Film more" in page
    assert ".wrong img" in page, "the picture of a failed result is marked"


def test_without_verdicts_the_head_has_no_counts_of_them(tmp_path: Path) -> None:
    assert "verdicts:" not in page_of([done("old", None)], tmp_path)
