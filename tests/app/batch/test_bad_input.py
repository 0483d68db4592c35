"""The batch command with bad data sets and full disks: one line, the right exit code, nothing lost."""

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from stream_recon.app.batch.store import output_lock
from stream_recon.app.result import depth as depth_files
from stream_recon.app.result import files as output_files
from stream_recon.app.result.folder import read_result
from tests.app.batch.conftest import Run
from tests.app.batch.fakes import SIZE
from tests.app.boxroom import walk_pose
from tests.app.datasets.folders import write_lines
from tests.app.media import write_images

FRAMES = 8


def tum(folder: Path, frames: int = FRAMES) -> Path:
    """The walk through the room in the layout of TUM, at ten frames a second."""
    write_images(folder / "rgb", [f"{n / 10:.6f}.png" for n in range(frames)], SIZE)
    write_lines(folder / "rgb.txt", *(f"{n / 10:.6f} rgb/{n / 10:.6f}.png" for n in range(frames)))
    write_lines(folder / "groundtruth.txt", *(pose_line(n) for n in range(frames)))
    return folder


def pose_line(number: int) -> str:
    """Line of groundtruth.txt. Only positions are compared, so the rotation is the identity."""
    position = " ".join(f"{x:.9f}" for x in walk_pose(number / 10)[:3, 3])
    return f"{number / 10:.6f} {position} 0 0 0 1"


def scenes_of(out: Path) -> list[dict[str, Any]]:
    scenes: list[dict[str, Any]] = json.loads((out / "summary.json").read_text())["scenes"]
    return scenes


def last_line(capfd: pytest.CaptureFixture[str]) -> str:
    line = capfd.readouterr().err.splitlines()[-1]
    assert line.startswith("stream-recon: error: ")
    return line


def test_an_unknown_layout_names_the_known_ones(run: Run, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_lines(tmp_path / "data" / "readme.txt", "nothing here")
    assert run("batch", "data", "-o", "out") == 2
    printed = last_line(capfd)
    assert (
        "no scene under" in printed and "tum" in printed and "kitti" in printed and "'stream-recon datasets'" in printed
    )
    assert run("batch", "data", "-o", "out", "--dataset", "tum") == 2
    assert "looked for rgb.txt" in last_line(capfd)
    assert not (tmp_path / "out").exists()


def test_a_missing_line_of_groundtruth_costs_that_frame_alone(run: Run, tmp_path: Path) -> None:
    folder = tum(tmp_path / "data" / "room")
    write_lines(folder / "groundtruth.txt", *(pose_line(n) for n in range(FRAMES) if n != 3))
    assert run("batch", "data", "-o", "out") == 0
    (scene,) = scenes_of(tmp_path / "out")
    assert scene["frames"] == FRAMES and scene["figures"]["ate_m"] == pytest.approx(0, abs=1e-6)


def test_timestamps_out_of_order_are_sorted_and_reported(run: Run, tmp_path: Path) -> None:
    folder = tum(tmp_path / "data" / "room")
    lines = (folder / "rgb.txt").read_text().splitlines()
    write_lines(folder / "rgb.txt", *lines[4:], *lines[:4])
    assert run("batch", "data", "-o", "out") == 0
    (scene,) = scenes_of(tmp_path / "out")
    assert "out of order" in scene["warnings"][0] and scene["figures"]["ate_m"] == pytest.approx(0, abs=1e-6)
    times = [camera.timestamp for camera in read_result(tmp_path / "out" / "room").cameras]
    assert times == sorted(times) and len(times) == FRAMES
    assert "out of order" in (tmp_path / "out" / "index.html").read_text()


def test_a_scene_of_two_frames_is_a_result_without_ate(run: Run, tmp_path: Path) -> None:
    tum(tmp_path / "data" / "room", 2)
    assert run("batch", "data", "-o", "out", "--split", "2") == 0
    (scene,) = scenes_of(tmp_path / "out")
    assert scene["frames"] == 2 and scene["figures"]["ate_m"] is None, "two positions always fit"
    assert len(read_result(tmp_path / "out" / "room")) == 2


@pytest.mark.slow
def test_names_with_spaces_and_unicode_stay(run: Run, tmp_path: Path) -> None:
    for name in ("a b", "größe", "日本 [1]", "it's 50%"):
        tum(tmp_path / "my data" / name)
    assert run("batch", "my data", "-o", "my out", "--workers", "2") == 0
    assert {scene["name"] for scene in scenes_of(tmp_path / "my out")} == {"a b", "größe", "日本 [1]", "it's 50%"}
    for name in ("a b", "größe", "日本 [1]", "it's 50%"):
        assert len(read_result(tmp_path / "my out" / name)) == FRAMES
    assert 'href="it%27s%2050%25/"' in (tmp_path / "my out" / "index.html").read_text()


def test_a_read_only_root_is_enough(run: Run, tmp_path: Path) -> None:
    root = tmp_path / "data"
    tum(root / "room")
    folders = [root, *(path for path in root.rglob("*") if path.is_dir())]
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    for path in folders:
        path.chmod(0o555)
    try:
        assert run("batch", "data", "-o", "out") == 0
    finally:
        for path in folders:
            path.chmod(0o755)
    # Root can write to read-only folders, so times are compared.
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before


def test_a_full_disk_stops_the_batch_which_goes_on_later(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b", "c"):
        tum(tmp_path / "data" / name)
    written: list[Path] = []
    real = output_files.replace_file

    def until_full(path: Path, write: Callable[[BinaryIO], object]) -> None:
        written.append(path)
        if len(written) > FRAMES + 3:
            with output_files.output_errors(path):
                raise OSError(errno.ENOSPC, "No space left on device")
        real(path, write)

    with monkeypatch.context() as full:
        full.setattr(depth_files, "replace_file", until_full)
        assert run("batch", "data", "-o", "out") == 4
    printed = last_line(capfd)
    assert "finished frames are kept. The disk is full: make room, then run the same command to continue" in printed
    assert [scene["status"] for scene in scenes_of(tmp_path / "out")] == ["done", "not run", "not run"]
    assert run("batch", "data", "-o", "out") == 0
    assert [scene["resumed"] for scene in scenes_of(tmp_path / "out")] == [True, False, False]


def test_the_second_batch_on_one_output_refuses(run: Run, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tum(tmp_path / "data" / "room")
    with output_lock(tmp_path / "out"):
        assert run("batch", "data", "-o", "out") == 2
        assert "another batch is writing to" in last_line(capfd)
        assert [path.name for path in (tmp_path / "out").iterdir()] == [".batch.lock"]
