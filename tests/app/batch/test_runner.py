import csv
import errno
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import pytest

from stream_recon.app.batch.scene import read_partial_scene
from stream_recon.app.batch.store import LocalStore, output_lock
from stream_recon.app.core.types import FrameResult
from stream_recon.app.evaluation.evaluator import Evaluator
from stream_recon.app.result import depth as depth_files
from stream_recon.app.result import files as output_files
from stream_recon.app.result.folder import read_result
from stream_recon.app.result.lock import LOCK_NAME
from stream_recon.app.result.writer import ResultWriter
from stream_recon.configs.errors import OutputError
from tests.app.batch.fakes import (
    RoomEngine,
    RoomLoader,
    assert_same_result,
    batch_of,
    result_files,
    room_scene,
    run,
    states,
)
from tests.app.fake_engine import fake_result, frames, prepared, run_info


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def test_every_scene_gets_its_folder_and_the_batch_its_summary(root: Path, out: Path) -> None:
    scenes = [room_scene(root / "a b"), room_scene(root / "größe", 9, known=False), room_scene(root / "two", 2)]
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    summary = run(batch_of(root, out, scenes))
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before, "nothing is written to the root"
    assert states(summary) == {"a b": ("done", False), "größe": ("done", False), "two": ("done", False)}
    assert [len(read_result(out / name)) for name in ("a b", "größe", "two")] == [12, 9, 2]
    assert {path.name for path in out.iterdir()} == {
        "a b", "größe", "two", "summary.json", "summary.csv", "index.html",
    }  # fmt: skip
    assert json.loads((out / "summary.json").read_text()) == summary
    assert summary["weights_sha256"] == "cd" * 32 and summary["preset"]["name"] == "fake"
    assert summary["protocol"]["points"] and not summary["interrupted"]
    first, second, _ = summary["scenes"]
    assert first["figures"]["ate_m"] < 1e-6 and first["figures"]["f1"] > 0.999 and second["figures"] is None
    assert summary["means"]["ate_m"]["scenes"] == 1, "of two frames no trajectory can be judged"
    with (out / "summary.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert [line["name"] for line in lines] == ["a b", "größe", "two"]
    assert float(lines[0]["auc_3"]) == pytest.approx(1, abs=1e-3) and lines[1]["auc_3"] == ""


def test_finished_scenes_are_kept_and_changed_ones_redone(root: Path, out: Path) -> None:
    scenes = [room_scene(root / name) for name in ("kept", "cut", "unfinished")]
    run(batch_of(root, out, scenes))
    before = result_files(out / "kept"), result_files(out / "cut")
    stamp = (out / "kept" / "points.ply").stat().st_mtime_ns
    ply = out / "cut" / "points.ply"
    ply.write_bytes(ply.read_bytes()[:-1] + b"x")
    (out / "unfinished" / "manifest.json").unlink()
    (out / "unfinished" / "notes.txt").write_text("mine")
    summary = run(batch_of(root, out, scenes))
    assert states(summary) == {"kept": ("done", True), "cut": ("done", False), "unfinished": ("done", False)}
    assert (out / "kept" / "points.ply").stat().st_mtime_ns == stamp
    assert (result_files(out / "kept"), result_files(out / "cut")) == before
    assert (out / "unfinished" / "notes.txt").read_text() == "mine"
    assert summary["totals"]["resumed"] == 1 and summary["totals"]["frames"] == 24
    assert summary["means"]["ate_m"]["scenes"] == 3, "figures of finished scenes count"


def test_lengths_are_averaged_over_metric_truth_alone(root: Path, out: Path) -> None:
    metric, own_unit = room_scene(root / "metric"), replace(room_scene(root / "own unit"), metric=False)
    summary = run(batch_of(root, out, [metric, own_unit]))
    assert [scene["metric"] for scene in summary["scenes"]] == [True, False]
    assert summary["scenes"][1]["figures"]["ate_m"] is not None
    scenes = {name: entry["scenes"] for name, entry in summary["means"].items()}
    assert scenes["ate_m"] == scenes["rpe_trans_m"] == 1 and scenes["ate_over_path"] == scenes["auc_30"] == 2
    assert set(summary["protocol"]) == {"trajectory", "pose_auc", "depth", "points"}
    assert "Lengths are in the unit of the ground truth" in (out / "index.html").read_text()


def test_other_options_make_another_result(root: Path, out: Path) -> None:
    scenes = [room_scene(root / "a")]
    run(batch_of(root, out, scenes))
    summary = run(batch_of(root, out, scenes, stride=3))
    assert states(summary) == {"a": ("done", False)}
    assert [camera.index for camera in read_result(out / "a").cameras] == [0, 3, 6, 9]
    assert sorted(path.name for path in (out / "a" / "depth").iterdir()) == [f"00000{n}.npz" for n in (0, 3, 6, 9)]
    assert len(read_result(out / "a")) == 4
    summary = run(batch_of(root, out, scenes, stride=3, max_frames=2))
    assert len(read_result(out / "a")) == 2


def test_a_broken_scene_is_recorded_and_the_others_go_on(root: Path, out: Path) -> None:
    broken = room_scene(root / "broken", size=(64, 48))
    empty = room_scene(root / "gone")
    for image in (root / "gone").iterdir():
        image.unlink()
    summary = run(batch_of(root, out, [broken, empty, room_scene(root / "good")]))
    reasons = {scene["name"]: scene["reason"] for scene in summary["scenes"] if scene["status"] == "failed"}
    assert reasons["broken"] == "ZeroDivisionError: a picture that breaks the engine"
    assert "no images in" in reasons["gone"]
    assert states(summary)["good"] == ("done", False) and summary["totals"]["failed"] == 2
    assert not (out / "broken").exists() and not (out / ".work").exists()
    assert "a picture that breaks the engine" in (out / "index.html").read_text()


def test_other_files_in_the_way_are_left_alone(root: Path, out: Path) -> None:
    (out / "a").mkdir(parents=True)
    (out / "a" / "points.ply").write_text("somebody's")
    summary = run(batch_of(root, out, [room_scene(root / "a")]))
    assert "holds other files" in summary["scenes"][0]["reason"]
    assert [path.name for path in (out / "a").iterdir()] == ["points.ply"]
    assert (out / "a" / "points.ply").read_text() == "somebody's"


def test_what_a_killed_batch_left_is_cleared(root: Path, out: Path) -> None:
    left = out / ".work" / "abc"
    (left / "depth").mkdir(parents=True)
    (left / "depth" / "000000.npz").write_bytes(b"half")
    (left / "points.ply").write_bytes(b"half")
    summary = run(batch_of(root, out, [room_scene(root / "a")]))
    assert states(summary) == {"a": ("done", False)} and not (out / ".work").exists()


def test_a_second_batch_on_the_same_output_refuses(root: Path, out: Path) -> None:
    batch = batch_of(root, out, [room_scene(root / "a")])
    with output_lock(out), pytest.raises(OutputError, match=rf"another batch is writing to .*process {os.getpid()}"):
        run(batch)
    assert states(run(batch)) == {"a": ("done", False)}, "the lock ends with its holder"


def test_a_full_disk_ends_the_batch_and_the_next_one_goes_on(
    root: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenes = [room_scene(root / "a", 12), room_scene(root / "b", 11), room_scene(root / "c", 10)]
    written: list[Path] = []
    real = output_files.replace_file

    def until_full(path: Path, write: Callable[[BinaryIO], object]) -> None:
        written.append(path)
        if len(written) > 15:
            with output_files.output_errors(path):
                raise OSError(errno.ENOSPC, "No space left on device")
        real(path, write)

    monkeypatch.setattr(depth_files, "replace_file", until_full)
    with pytest.raises(OutputError, match="The disk is full"):
        run(batch_of(root, out, scenes))
    assert len(written) == 16, "the scene after the full one is not tried"
    summary = json.loads((out / "summary.json").read_text())
    assert states(summary) == {"a": ("done", False), "b": ("not run", False), "c": ("not run", False)}
    assert summary["interrupted"] and not (out / "b").exists()
    monkeypatch.undo()
    summary = run(batch_of(root, out, scenes))
    assert states(summary) == {"a": ("done", True), "b": ("done", False), "c": ("done", False)}


@pytest.mark.slow
def test_ctrl_c_stops_between_frames_and_what_is_done_of_the_scene_is_gone_on_with(root: Path, out: Path) -> None:
    scenes = [room_scene(root / "a", 31), room_scene(root / "b", 30)]
    loader = RoomLoader(seconds=0.04)

    def interrupt() -> None:
        while not (out / "a" / "manifest.json").exists():
            time.sleep(0.02)
        while not list(out.glob(".work/*/trajectory.txt")):
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    summary = run(batch_of(root, out, scenes), loader)
    thread.join()
    assert summary["interrupted"] and states(summary) == {"a": ("done", False), "b": ("not run", False)}
    assert not (out / "b").exists()
    (work,) = (out / ".work").iterdir()
    done = len(read_result(work))
    assert 4 <= done < 30
    assert states(run(batch_of(root, out, scenes))) == {"a": ("done", True), "b": ("done", False)}
    (overlap,) = read_result(out / "b").run["resumed"]
    assert overlap["index"] == done - 1 and not (out / ".work").exists()
    run(batch_of(root, root / "plain", scenes))
    assert_same_result(out / "b", root / "plain" / "b")


def test_what_is_left_of_a_scene_with_other_options_is_cleared(root: Path, out: Path) -> None:
    scenes = [room_scene(root / "a", 30)]
    store = LocalStore(out)
    out.mkdir()
    job = batch_of(root, out, scenes).jobs(RoomLoader().describe())[0]
    with pytest.raises(KeyboardInterrupt), store.job_workspace(job.name, job.key) as lock:
        writer = ResultWriter(lock.folder, run_info(), lock=lock)
        for frame in frames(6):
            writer.add(fake_result(prepared(frame)))
        writer.close()
        raise KeyboardInterrupt
    (work,) = (out / ".work").iterdir()
    with store.job_workspace(job.name, job.key) as lock, store.job_workspace(job.name, job.key) as other:
        assert lock.folder == work != other.folder, "one at a time"
        assert (work / "cameras.json").exists() and list(other.folder.iterdir()) == [other.folder / LOCK_NAME]
        # It is of another source: the run begins anew in it.
        info = replace(run_info(), source="another.mp4")
        left = read_partial_scene(work, info, lambda: Evaluator(None))
        assert left.unfinished is None and list(work.iterdir()) == [work / LOCK_NAME]
    assert not work.exists()
    with pytest.raises(KeyboardInterrupt), store.job_workspace(job.name, job.key):
        raise KeyboardInterrupt
    store.clear_workspaces([(job.name, {**job.key, "options": {}})])
    assert not (out / ".work").exists()


@pytest.mark.parametrize("damage", ["depth", "cameras", "record"])
def test_a_damaged_remainder_of_a_scene_costs_only_its_frames(
    root: Path, out: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    scenes = [room_scene(root / "a", 20)]
    real = ResultWriter.add

    def interrupted(writer: ResultWriter, result: FrameResult) -> None:
        real(writer, result)
        if result.index == 9:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(ResultWriter, "add", interrupted)
    assert run(batch_of(root, out, scenes), RoomLoader(seconds=0.02))["interrupted"]
    monkeypatch.undo()
    (work,) = (out / ".work").iterdir()
    file = {"depth": "depth/000003.npz", "cameras": "cameras.json", "record": "run.json"}[damage]
    (work / file).write_bytes(b"[" * 5000)
    assert states(run(batch_of(root, out, scenes))) == {"a": ("done", False)}
    assert read_result(out / "a").run["resumed"] == [] and len(read_result(out / "a")) == 20


def test_a_scene_killed_before_it_was_published_is_not_run_again(
    root: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenes = [room_scene(root / "a", 9)]

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(LocalStore, "publish", killed)
    with pytest.raises(KeyboardInterrupt):
        run(batch_of(root, out, scenes))
    monkeypatch.undo()
    monkeypatch.setattr(RoomEngine, "push", killed)
    summary = run(batch_of(root, out, scenes))
    assert states(summary) == {"a": ("done", False)}
    monkeypatch.undo()
    run(batch_of(root, root / "plain", scenes))
    assert_same_result(out / "a", root / "plain" / "a")
    (scene,) = summary["scenes"]
    assert scene["figures"]["ate_over_path"] < 1e-3 and scene["frames"] == 9
