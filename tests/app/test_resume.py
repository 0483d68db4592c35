"""A run that was killed goes on where its folder ends."""

import itertools
import json
import re
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import cv2
import numpy as np
import pytest
from plyfile import PlyData

from stream_recon.app.core.types import FrameRevision, Revision
from stream_recon.app.engine.engine import load_engine
from stream_recon.app.engine.model_choice import ModelChoice
from stream_recon.app.result.cloud import POINTS_NAME
from stream_recon.app.result.depth import depth_path
from stream_recon.app.result.files import temporary_name
from stream_recon.app.result.folder import read_result
from stream_recon.app.result.resume import read_partial_result
from stream_recon.app.result.run_record import RunInfo, RunSummary
from stream_recon.app.result.writer import ResultWriter
from stream_recon.app.run.pipeline import reconstruct
from stream_recon.app.sources.frame_choice import FrameChoice
from stream_recon.app.sources.source import open_source
from stream_recon.configs.errors import ConfigError, OutputError
from tests.app.fake_engine import FakeEngine, fake_result, frames, pose_at, prepared, run_info, trajectory_of
from tests.app.media import write_broken_avi, write_images, write_video
from tests.app.program import exit_code
from tests.app.test_odd_surroundings import end, start

Run = Callable[..., int]
SAMPLE = Path(__file__).parents[2] / "app" / "sample" / "walkthrough.mp4"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ModelChoice, "load", lambda _: FakeEngine())
    return partial(exit_code, monkeypatch)


def cut_off(folder: Path, count: int) -> None:
    """Make a finished result one that was killed after so many frames, in the middle of the next one."""
    lines = (folder / "cameras.json").read_text().splitlines(keepends=True)
    indices = [json.loads(line.rstrip().rstrip(","))["index"] for line in lines[2:-1]]
    kept = "".join(lines[: 2 + count]).rstrip().rstrip(",")
    (folder / "cameras.json").write_text(kept + "\n]}\n")
    lines = (folder / "trajectory.txt").read_text().splitlines(keepends=True)
    (folder / "trajectory.txt").write_text("".join(lines[:count]))
    for index in indices[count + 1 :]:
        depth_path(folder, index).unlink()
    temporary_name(depth_path(folder, 999)).write_bytes(b"half")
    record = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(record | {"interrupted": True}))


def assert_same(folder: Path, whole: Path) -> None:
    # The first frame after a cut has no neighbour to be held against.
    cameras = [re.sub(r', "health": [0-9.]+', "", (place / "cameras.json").read_text()) for place in (folder, whole)]
    assert cameras[0] == cameras[1]
    assert (folder / "trajectory.txt").read_bytes() == (whole / "trajectory.txt").read_bytes()
    # Depth files are rounded to half precision, so a point near a voxel's edge may have another neighbour.
    counts = [len(PlyData.read(str(place / POINTS_NAME))["vertex"]) for place in (folder, whole)]
    assert counts[0] == pytest.approx(counts[1], rel=0.05, abs=4)
    assert sorted(p.name for p in folder.rglob("*")) == sorted(p.name for p in whole.rglob("*"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [["--stride", "3", "--start", "0.7"], ["--fps", "4", "--max-frames", "17"]], ids=" ".join
)
def test_it_ends_with_the_result_of_an_uninterrupted_run(run: Run, tmp_path: Path, options: list[str]) -> None:
    shutil.copy(SAMPLE, tmp_path / "v.mp4")
    arguments = ["v.mp4", "--no-viewer", "--mapping", "off", *options]
    assert run(*arguments, "-o", "whole") == 0
    for count in (5, len(read_result(tmp_path / "whole"))):
        shutil.copytree(tmp_path / "whole", tmp_path / "cut")
        cut_off(tmp_path / "cut", count)
        assert run(*arguments, "-o", "cut", "--resume") == 0
        assert_same(tmp_path / "cut", tmp_path / "whole")
        record = read_result(tmp_path / "cut").run
        assert not record["interrupted"] and len(record["resumed"]) == 1
        assert record["frames"]["reconstructed"] == len(read_result(tmp_path / "whole"))
        shutil.rmtree(tmp_path / "cut")


@pytest.mark.parametrize("kind", ["images", "damaged"])
def test_other_sources(run: Run, tmp_path: Path, kind: str) -> None:
    if kind == "images":
        folder = write_images(tmp_path / "v", [f"{n}.png" for n in range(20)])
        (folder / "7.png").write_bytes(b"nothing")
    else:
        write_broken_avi(tmp_path / "v.avi")
    arguments = ["v" if kind == "images" else "v.avi", "--no-viewer", "--mapping", "off", "--stride", "2"]
    assert run(*arguments, "-o", "whole") == 0
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    cut_off(tmp_path / "cut", 3)
    assert run(*arguments, "-o", "cut", "--resume") == 0
    assert_same(tmp_path / "cut", tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize(("count", "seen"), [(12, 0), (16, 8)], ids=["before", "after"])
def test_a_black_stretch_before_or_after_the_kill_is_told_as_ever(
    run: Run, tmp_path: Path, count: int, seen: int
) -> None:
    """Frames 12 to 19 show nothing; what follows is a new stretch, and stays the one it was."""
    with open_source(str(SAMPLE), FrameChoice(stride=4)) as source:
        pictures = [cv2.cvtColor(frame.rgb, cv2.COLOR_RGB2BGR) for frame in source]
    pictures[12:20] = [np.zeros_like(pictures[0])] * 8
    pictures[20:] = [255 - picture[::-1, ::-1] for picture in pictures[20:]]
    (tmp_path / "v").mkdir()
    for number, picture in enumerate(pictures):
        cv2.imwrite(str(tmp_path / "v" / f"{number:02}.png"), picture)
    arguments = ["v", "--no-viewer", "--mapping", "off"]
    assert run(*arguments, "-o", "whole") == 0
    whole = read_result(tmp_path / "whole")
    assert [camera.segment for camera in whole.cameras] == [0] * 12 + [1] * 10
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    cut_off(tmp_path / "cut", count)
    record = json.loads((tmp_path / "cut" / "run.json").read_text())
    record["frames"]["blank"] = seen
    record["warnings"] = record["warnings"] if seen else []
    (tmp_path / "cut" / "run.json").write_text(json.dumps(record))
    assert run(*arguments, "-o", "cut", "--resume") == 0
    again = read_result(tmp_path / "cut")
    assert [camera.segment for camera in again.cameras] == [camera.segment for camera in whole.cameras]
    for key in ("segments", "warnings", "submaps"):
        assert again.run[key] == whole.run[key]
    assert again.run["frames"] == whole.run["frames"] | {"read": 22}


@pytest.mark.slow
def test_killed_at_random_moments(tmp_path: Path) -> None:
    """Twice in a row, each run at another moment; what was listed before is there after, unchanged."""
    write_video(tmp_path / "v.mp4", 40)
    arguments = ["v.mp4", "--no-viewer", "--mapping", "off", "-o"]
    assert end(start(tmp_path, *arguments, "whole"))[0] == 0
    noise = np.random.default_rng(5)
    for attempt in range(2):
        name = f"out{attempt}"
        known: list[int] = []
        for kill in range(2):
            process = start(tmp_path, *arguments, name, *(["--resume"] if kill else []), seconds=0.05)
            deadline = time.monotonic() + 30
            while not (tmp_path / name / "run.json").exists() and time.monotonic() < deadline:
                time.sleep(0.01)
            time.sleep(float(noise.uniform(0, 1.2)))
            process.send_signal(signal.SIGKILL)
            process.communicate()
            if (tmp_path / name / "cameras.json").exists():
                now = [result.index for result in read_result(tmp_path / name)]
                assert now[: len(known)] == known
                known = now
        code, _, err = end(start(tmp_path, *arguments, name, "--resume"))
        assert code == 0, err
        assert_same(tmp_path / name, tmp_path / "whole")


def test_only_the_same_run_goes_on(run: Run, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_video(tmp_path / "v.mp4", 12)
    write_video(tmp_path / "w.mp4", 12)
    assert run("v.mp4", "-o", "out", "--no-viewer", "--mapping", "off", "--resume") == 0, (
        "nothing there yet: from the beginning"
    )
    assert run("v.mp4", "-o", "out", "--no-viewer", "--mapping", "off", "--resume") == 0
    assert "it is complete: nothing is left to do" in capfd.readouterr().out
    assert run("w.mp4", "-o", "out", "--no-viewer", "--mapping", "off", "--resume") == 2
    assert "out was made with other source (v.mp4 there): give" in capfd.readouterr().err
    cut_off(tmp_path / "out", 6)
    before = (tmp_path / "out" / "cameras.json").read_bytes()
    for arguments, what in ((["w.mp4"], "source (v.mp4 there)"), (["v.mp4", "--stride", "2"], "stride (1 there)")):
        assert run(*arguments, "-o", "out", "--no-viewer", "--mapping", "off", "--resume") == 2
        assert f"out was made with other {what}: give the same ones" in capfd.readouterr().err
    assert run("v.mp4", "-o", "out", "--no-viewer", "--mapping", "off") == 2, "without --resume as ever"
    assert (tmp_path / "out" / "cameras.json").read_bytes() == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "x").write_text("x")
    assert run("v.mp4", "-o", "mine", "--no-viewer", "--mapping", "off", "--resume") == 0, (
        "beside other files, as with --overwrite"
    )
    assert (tmp_path / "mine" / "x").read_text() == "x"
    (tmp_path / "out" / "cameras.json").write_text("damaged")
    assert run("v.mp4", "-o", "out", "--no-viewer", "--mapping", "off", "--resume") == 2
    assert depth_path(tmp_path / "out", 3).exists()


def test_revisions_of_before_stay_and_new_ones_are_counted_on(tmp_path: Path) -> None:
    results = [fake_result(prepared(frame)) for frame in frames(8)]
    moved = pose_at(2)
    moved[1, 3] += 0.5
    revision = Revision((FrameRevision(2, moved, 1.5),))
    whole = ResultWriter(tmp_path / "whole", run_info())
    for result in results:
        whole.add(result)
    whole.revise(revision)
    whole.finish(RunSummary(interrupted=False))
    cut = ResultWriter(tmp_path / "cut", run_info())
    for result in results[:6]:
        cut.add(result)
    cut.revise(revision)
    cut.checkpoint(RunSummary())
    cut.close()
    unfinished = read_partial_result(tmp_path / "cut")
    assert unfinished is not None and unfinished.last.index == 5
    damaged = replace(
        unfinished, record={**unfinished.record, "revisions": {"camera": "1"}, "reference_frames": [[0], None]}
    )
    ResultWriter(tmp_path / "cut", run_info(), resume=damaged).close()
    assert len(damaged.last_submap(4, 8)[0]) == 4
    again = ResultWriter(tmp_path / "cut", run_info(), resume=unfinished)
    for result in results[6:]:
        again.add(result)
    again.finish(RunSummary(interrupted=False))
    np.testing.assert_allclose(trajectory_of(tmp_path / "cut"), trajectory_of(tmp_path / "whole"))
    record = json.loads((tmp_path / "cut" / "run.json").read_text())
    assert record["revisions"] == {"cameras": 1, "trajectory": 1, "points": 1}
    with pytest.raises(OutputError, match="is complete"):
        read_partial_result(tmp_path / "cut")


def test_other_weights_or_presets_are_refused(tmp_path: Path) -> None:
    writer = ResultWriter(tmp_path, run_info())
    writer.add(fake_result(prepared(frames(1)[0])))
    writer.close()
    unfinished = read_partial_result(tmp_path)
    assert unfinished is not None
    info = run_info()
    other = RunInfo(info.source, info.preset, "cd" * 32, info.device, info.options)
    with pytest.raises(ConfigError, match="made with other weights: "):
        ResultWriter(tmp_path, other, resume=unfinished)
    ResultWriter(tmp_path, info, resume=unfinished).close()


@pytest.mark.slow
def test_the_network_goes_on_in_the_same_world(tmp_path: Path) -> None:
    """The sample with the embedded weights, cut in the middle: the seam is small, and so is what follows from it."""
    engine = load_engine(device="cpu")
    info = RunInfo.from_engine(engine, "sample", {})
    with open_source(str(SAMPLE), FrameChoice(stride=4, max_frames=16)) as source:
        reconstruct(source, engine, ResultWriter(tmp_path / "whole", info))
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    cut_off(tmp_path / "cut", 12)
    unfinished = read_partial_result(tmp_path / "cut")
    assert unfinished is not None
    engine.reset()
    scale_frames = engine.preset.stream.scale_frames
    unknown = replace(unfinished, record={**unfinished.record, "reference_frames": []})
    first, later = unknown.last_submap(scale_frames, 64)
    assert len(first) == scale_frames and not later and all(known.is_keyframe for _, known in first)
    seam = engine.resume(first)
    assert seam.rotation_deg < 1 and seam.position < 0.03 and seam.depth < 0.1
    engine.reset()
    first, later = unfinished.last_submap(scale_frames, 64)
    assert [known.index for _, known in first] == list(range(0, 32, 4))
    assert later and all(known.is_keyframe for _, known in later)
    seam = engine.resume(first, later)
    assert engine.reference_frames == tuple(range(0, 32, 4))
    assert seam.rotation_deg < 0.05 and seam.position < 1e-3 and seam.depth < 2e-3
    with open_source(str(SAMPLE), FrameChoice(stride=4, max_frames=16)) as source:
        assert source.resume(unfinished.last.index, unfinished.last.timestamp, 12)
        reconstruct(source, engine, ResultWriter(tmp_path / "cut", info, resume=unfinished))
    whole, cut = (trajectory_of(tmp_path / name)[:, 1:4] for name in ("whole", "cut"))
    assert len(whole) == len(cut) == 16
    path = np.linalg.norm(np.diff(whole, axis=0), axis=1).sum()
    assert np.linalg.norm(whole - cut, axis=1).max() < 0.005 * path, "nearly as if it had not been cut"
    steps = [np.linalg.norm(np.diff(p, axis=0), axis=1) for p in (whole, cut)]
    assert steps[1][11] < 3 * np.median(steps[0]), "no jump at the seam"
    assert len(list(itertools.islice(read_result(tmp_path / "cut"), 100))) == 16
