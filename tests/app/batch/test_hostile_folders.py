"""Batches over hostile folders: links, deeply nested records, names that are not text."""

import json
import os
from pathlib import Path

import pytest

from stream_recon.app.batch.store import output_lock
from stream_recon.configs.errors import OutputError
from tests.app.batch.conftest import Run
from tests.app.batch.fakes import SIZE
from tests.app.batch.test_bad_input import last_line, scenes_of, tum
from tests.app.media import write_video

DEEP = "[" * 100_000


def victim(folder: Path) -> Path:
    """A folder of another program with file names that this one uses, too."""
    (folder / "depth").mkdir(parents=True)
    for name in ("run.json", "points.ply", "cameras.json", "manifest.json", "depth/000000.npz"):
        (folder / name).write_text('{"program": "another"}')
    return folder


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_nothing_is_deleted_through_a_link(run: Run, tmp_path: Path) -> None:
    tum(tmp_path / "data" / "room")
    precious = victim(tmp_path / "victim")
    before = files(precious)
    for number, link in enumerate((".work/evil", ".work", ".work/mine/depth")):
        out = tmp_path / f"out{number}"
        (out / link).parent.mkdir(parents=True)
        (out / link).symlink_to(precious / "depth" if link.endswith("depth") else precious)
        code = run("batch", "data", "-o", out.name)
        assert code in (0, 2) and files(precious) == before, link


def test_an_own_remainder_of_a_killed_worker_is_removed(run: Run, tmp_path: Path) -> None:
    tum(tmp_path / "data" / "room")
    left = victim(tmp_path / "out" / ".work" / "tmpabc")
    (left / ".stream-recon.lock").write_text("process 1")
    assert run("batch", "data", "-o", "out") == 0
    assert not (tmp_path / "out" / ".work").exists()


def test_a_deeply_nested_manifest_is_a_damaged_one(run: Run, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tum(tmp_path / "data" / "room")
    assert run("batch", "data", "-o", "out") == 0
    manifest = tmp_path / "out" / "room" / "manifest.json"
    content = json.loads(manifest.read_text())
    name = next(iter(content["files"]))
    for text in (DEEP, json.dumps(content | {"files": {name: [1e999, "x"]}}), "5"):
        manifest.write_text(text)
        assert run("batch", "data", "-o", "out") == 0
        assert [scene["status"] for scene in scenes_of(tmp_path / "out")] == ["done"]
    (tmp_path / "other.json").write_text(DEEP)
    assert run("batch", "data", "-o", "out", "--compare", "other.json") == 2
    assert "cannot be read as a summary.json" in last_line(capfd)


def test_one_odd_scene_stops_no_other(run: Run, tmp_path: Path) -> None:
    data = tmp_path / "data"
    tum(data / "room")
    write_video(data / "good.mp4", 8, size=SIZE).rename(data / os.fsdecode(b"bad\xff.mp4"))
    write_video(data / "good.mp4", 8, size=SIZE)
    (data / "deep").mkdir()
    (data / "deep" / "transforms.json").write_text(DEEP)
    (data / "pipe").mkdir()
    os.mkfifo(data / "pipe" / "1.png")
    (data / "pipe" / "rgb.txt").write_text("0.1 1.png\n0.2 1.png\n")
    assert run("batch", "data", "-o", "out") == 1
    states = {scene["name"].partition("~")[0]: scene["status"] for scene in scenes_of(tmp_path / "out")}
    assert states == {"room": "done", "good.mp4": "done", "bad_.mp4": "done", "deep": "failed", "pipe": "failed"}


def test_the_lock_of_a_batch_is_free_again(tmp_path: Path) -> None:
    with output_lock(tmp_path / "out"), pytest.raises(OutputError, match="another batch is writing to"):
        output_lock(tmp_path / "out")
    output_lock(tmp_path / "out").release()
