import json
import os
import re
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from stream_recon.app.batch import jobs
from stream_recon.app.engine.model_choice import ModelChoice
from stream_recon.app.result.folder import read_result
from tests.app.batch.conftest import Run
from tests.app.batch.fakes import SIZE, RoomLoader
from tests.app.boxroom import room_result, walk_pose
from tests.app.media import write_images, write_video


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A video and a folder of images."""
    (tmp_path / "my data").mkdir()
    write_video(tmp_path / "my data" / "walk one.mp4", 12, size=SIZE)
    write_images(tmp_path / "my data" / "straße [1]", [f"{n}.png" for n in range(7)], SIZE)
    return tmp_path / "my data"


def scenes_of(out: Path) -> dict[str, Any]:
    return {scene["path"]: scene for scene in json.loads((out / "summary.json").read_text())["scenes"]}


def test_one_argument_is_enough(run: Run, data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run("batch", str(data)) == 0
    out = tmp_path / "my data-batch"
    scenes = scenes_of(out)
    assert {path: scene["frames"] for path, scene in scenes.items()} == {"walk one.mp4": 12, "straße [1]": 7}
    for scene in scenes.values():
        assert len(read_result(out / scene["name"])) == scene["frames"]
    printed = capfd.readouterr().out
    assert "2 scenes: 2 done; 19 frames" in printed and f"page: {out}/index.html" in printed
    assert run("batch", str(data)) == 0
    assert "2 scenes: 2 done, 2 of them earlier; 0 frames" in capfd.readouterr().out


def test_options_reach_the_engine_the_frames_and_the_summary(
    run: Run, data: Path, tmp_path: Path, loaders: list[tuple[Any, ...]]
) -> None:
    options = ["--stride", "2", "--max-frames", "5", "--preset", "lingbot-map", "--weights", "w.safetensors"]
    options += ["--device", "cpu", "--attention", "sdpa", "--keyframes", "3", "--cache", "fp8"]
    assert run("batch", str(data), "-o", "out", *options) == 0
    assert loaders == [(ModelChoice("lingbot-map", Path("w.safetensors"), "cpu", "sdpa", "3", "fp8"),)]
    assert {path: s["frames"] for path, s in scenes_of(tmp_path / "out").items()} == {
        "walk one.mp4": 5,
        "straße [1]": 4,
    }
    recorded = json.loads((tmp_path / "out" / "summary.json").read_text())["options"]
    assert recorded["stride"] == 2 and recorded["max_frames"] == 5 and recorded["keyframes"] == "3"
    assert recorded["cache"] == "fp8"


def test_a_dry_run_lists_and_writes_nothing(
    run: Run, data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run("batch", str(data), "-o", "out", "--dry-run", "--stride", "2") == 0
    printed = capfd.readouterr().out
    assert "2 scenes, 10 frames; nothing was run" in printed and "straße [1]" in printed
    assert not (tmp_path / "out").exists()


def test_a_named_dataset_is_the_only_one_looked_for(
    run: Run, data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run("batch", str(data), "-o", "out", "--dataset", "video") == 0
    assert set(scenes_of(tmp_path / "out")) == {"walk one.mp4"}
    assert run("batch", str(data), "--dataset", "nonsense") == 2
    assert "nonsense" in capfd.readouterr().err


def test_exit_code_1_means_that_a_scene_failed(run: Run, data: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_images(data / "small", ["0.png", "1.png"], (64, 48))
    assert run("batch", str(data), "-o", "out") == 1
    captured = capfd.readouterr()
    assert "failed: small: ZeroDivisionError: a picture that breaks the engine" in captured.out
    assert "3 scenes: 2 done, 1 failed" in captured.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere"),
        (["my data", "--workers", "0"], "--workers must be at least 1"),
        (["my data", "--split", "0"], "--split must be at least 1"),
        (["my data", "--stride", "0"], "--stride must be at least 1"),
        (["my data", "--max-frames", "0"], "--max-frames must be at least 1"),
        (["my data", "--compare", "nothing.json"], "nothing.json cannot be read"),
        (["my data", "-o", "my data/walk one.mp4"], "is a file"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    run: Run, data: Path, capfd: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert run("batch", *arguments) == 2
    (line,) = capfd.readouterr().err.splitlines()[-1:]
    assert line.startswith("stream-recon: error: ") and message in line


@pytest.mark.slow
def test_workers_and_split_give_the_same_scenes(run: Run, data: Path, tmp_path: Path) -> None:
    write_video(data / "long.mp4", 60, size=SIZE)
    assert run("batch", str(data), "-o", "out", "--workers", "2", "--split", "2") == 0
    scenes = scenes_of(tmp_path / "out")
    assert {path: scene["frames"] for path, scene in scenes.items()} == {
        "walk one.mp4": 12,
        "straße [1]": 7,
        "long.mp4": 60,
    }
    assert len(scenes["long.mp4"]["overlaps"]) == 1 and "overlaps" not in scenes["walk one.mp4"]


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["1", "2"])
def test_ctrl_c_is_exit_code_130_and_the_same_command_goes_on(
    run: Run, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: str
) -> None:
    monkeypatch.setattr(jobs, "EngineLoader", lambda *_: RoomLoader(seconds=0.1))

    def interrupt() -> None:
        while not list((tmp_path / "out").glob(".work/*/trajectory.txt")):
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    assert run("batch", str(data), "-o", "out", "--workers", workers) == 130
    thread.join()
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["interrupted"] and summary["totals"]["not_run"] == 2
    monkeypatch.setattr(jobs, "EngineLoader", lambda *_: RoomLoader())
    assert run("batch", str(data), "-o", "out", "--workers", workers) == 0


def sequence(folder: Path) -> None:
    """The room in the layout of the evaluation: poses and intrinsics."""
    write_images(folder / "rgb", [f"{n:06d}.png" for n in range(9)], SIZE)
    rows = [f"{n} " + " ".join(f"{x:.9g}" for x in walk_pose(n / 10).ravel()) for n in range(9)]
    (folder / "poses.txt").write_text("\n".join(rows) + "\n")
    k = room_result(0).intrinsics
    (folder / "intrinsics.txt").write_text(f"{k.fx} {k.fy} {k.cx} {k.cy} {SIZE[0]} {SIZE[1]}\n")


def test_two_summaries_are_compared(run: Run, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    sequence(tmp_path / "data" / "room")
    assert run("batch", "data", "-o", "first") == 0
    capfd.readouterr()
    assert run("batch", "data", "-o", "second", "--stride", "2", "--compare", "first/summary.json") == 0
    printed = capfd.readouterr().out
    assert "this batch | the other: 1 scenes in both" in printed
    assert "note: --stride was 2 here and 1 there" in printed and "weights differ" not in printed
    assert "0.0000 | 0.0000" in printed and "1.000 | 1.000" in printed
    assert "ATE 0.0000" in printed, "the means"
    means = [[cell.strip() for cell in line.split("│")[1:-1]] for line in printed.splitlines() if line.count("│") == 5]
    assert ["AUC@3", "1.000", "1.000", "1"] in means and ["ATE/path", "0.0000", "0.0000", "1"] in means
    assert {"ATE", "RPE trans", "RPE rot °", "AUC@5", "AUC@15", "AUC@30"} < {cells[0] for cells in means}


def test_the_page_needs_no_other_file(run: Run, tmp_path: Path) -> None:
    sequence(tmp_path / "data" / "room <1> & co")
    write_images(tmp_path / "data" / "small", ["0.png", "1.png"], (64, 48))
    assert run("batch", "data", "-o", "out") == 1
    page = (tmp_path / "out" / "index.html").read_text()
    assert re.search(r'<a href="#scene-0">room [^<]*&amp; co[^<]*</a></td><td>9</td>', page)
    assert '<a href="#scene-1">small</a></td><td>failed</td>' in page and page.count('id="scene-0"') == 1
    assert page.count('src="data:image/jpeg;base64,') == 1 and page.count("<svg") == 1
    assert not re.findall(r'(?:src|href)="(?:https?:)?//', page)
    assert "room &lt;1&gt; &amp; co" in page and "room <1>" not in page
    lines = re.findall(r'<polyline class="(\w+)" points="([^"]+)"', page)
    assert [name for name, _ in lines] == ["truth", "ours"]
    plots = [[tuple(map(float, point.split(","))) for point in points.split()] for _, points in lines]
    assert len(plots[0]) == len(plots[1]) == 9
    assert all(0 <= value <= 220 for points in plots for point in points for value in point)
    assert all(abs(a - b) < 1.5 for p, q in zip(*plots, strict=True) for a, b in zip(p, q, strict=True))
    assert "a picture that breaks the engine" in page and "AUC@3" in page


def test_datasets_are_listed(run: Run, capfd: pytest.CaptureFixture[str]) -> None:
    assert run("datasets") == 0
    printed = capfd.readouterr().out
    assert "--dataset" in printed and "video" in printed and "groundtruth.txt" in printed
    assert "mav0/state_groundtruth_estimate0" in printed and "…" not in printed
