"""The user's own files in a batch's folder, cells of the table, and manifests that were tampered with."""

import json
from pathlib import Path
from typing import Any

import pytest

from stream_recon.app.batch.manifest import ALWAYS_RECORDED, check_files, checked_result
from stream_recon.app.batch.store import LocalStore
from stream_recon.app.batch.summary import check_summary_files, csv_text, read_summary
from stream_recon.configs.errors import InputError, OutputError

RESULT: dict[str, Any] = {
    "frames": 10,
    "keyframes": 3,
    "damaged": 0,
    "seconds": 1.5,
    "device": "cpu",
    "warnings": [],
    "metric": True,
    "figures": {"ate_m": 0.1, "absrel": None},
    "phases": {"frames": 1.0},
    "plot": {"estimate": [[0, 0]], "ground_truth": None},
}


@pytest.mark.parametrize("name", ["index.html", "summary.csv", "summary.json"])
def test_the_users_files_are_not_replaced(tmp_path: Path, name: str) -> None:
    store = LocalStore(tmp_path)
    check_summary_files(store)
    (tmp_path / name).write_text("<p>my page</p>")
    with pytest.raises(OutputError, match=f"{name} was not written by stream-recon"):
        check_summary_files(store)


def test_files_of_an_earlier_batch_are(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text(json.dumps({"program": "stream-recon"}))
    (tmp_path / "summary.csv").write_text(csv_text([]))
    (tmp_path / "index.html").write_text("<title>stream-recon</title>")
    check_summary_files(LocalStore(tmp_path))


def test_batches_of_version_0_1_are_refused_by_their_version(tmp_path: Path) -> None:
    record = {"program": "stream-recon", "means": {}, "weights_sha256": "", "preset": {}, "options": {}, "protocol": {}}
    (tmp_path / "summary.json").write_text(json.dumps({**record, "version": "0.1.0", "scenes": []}))
    with pytest.raises(OutputError, match=r"was written by stream-recon 0\.1\.0, whose batches are not read"):
        check_summary_files(LocalStore(tmp_path))
    with pytest.raises(OutputError, match=r"stream-recon 0\.1\.0"):
        read_summary(tmp_path / "summary.json")


def test_no_cell_is_a_formula() -> None:
    text = csv_text([{"name": "=cmd|'/c calc'!A1", "dataset": "@x", "path": "+1", "status": "done", "reason": "-2"}])
    assert text.splitlines()[1].startswith("'=cmd|'/c calc'!A1,'@x,'+1,done,'-2")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("frames", "10"),
        ("frames", -1),
        ("frames", True),
        ("seconds", None),
        ("seconds", float("nan")),
        ("warnings", 5),
        ("warnings", [5]),
        ("figures", []),
        ("figures", {"ate_m": "x"}),
        ("phases", [1]),
        ("phases", {"frames": "x"}),
        ("plot", []),
        ("overlaps", [1]),
        ("metric_scale", 3),
    ],
)
def test_a_tampered_manifest_is_made_anew_and_ends_nothing(name: str, value: Any) -> None:
    manifest = {"key": {}, "result": {**RESULT, name: value}, "files": {}}
    found = check_files(json.dumps(manifest).encode(), {}, {}, lambda file: "")
    assert found.result is None and found.reason == "its manifest is damaged"
    with pytest.raises((ValueError, TypeError)):
        checked_result({**RESULT, name: value})


def test_a_manifest_with_too_little_is_made_anew() -> None:
    for name in ALWAYS_RECORDED:
        result = {key: value for key, value in RESULT.items() if key != name}
        found = check_files(json.dumps({"key": {}, "result": result, "files": {}}).encode(), {}, {}, lambda file: "")
        assert found.reason == "its manifest is damaged"


def test_a_true_manifest_counts() -> None:
    manifest = {"key": {}, "result": RESULT, "files": {}}
    assert check_files(json.dumps(manifest).encode(), {}, {}, lambda file: "").result == RESULT


def test_a_tampered_summary_is_refused(tmp_path: Path) -> None:
    record = {"program": "stream-recon", "means": {}, "weights_sha256": "", "preset": {}, "options": {}, "protocol": {}}
    for scenes in (5, [5], [{"path": 1}], [{"path": "a", "figures": 5}]):
        (tmp_path / "summary.json").write_text(json.dumps({**record, "scenes": scenes}))
        with pytest.raises(InputError):
            read_summary(tmp_path / "summary.json")
