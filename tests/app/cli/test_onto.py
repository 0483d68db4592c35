"""Option ``--onto``: the result goes on in the known world, ends in it, and survives a kill."""

import dataclasses
import hashlib
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from stream_recon.app.core.transforms import Similarity
from stream_recon.app.core.types import FrameResult, PreparedFrame
from stream_recon.app.engine.model_choice import ModelChoice
from stream_recon.app.result.feature_map import MAP_NAME
from stream_recon.app.result.folder import read_result
from tests.app.fake_engine import FakeEngine
from tests.app.localization.places import to_truth, write_refined
from tests.app.program import exit_code
from tests.app.slam.room import FOCAL, SIZE, Video, drifting, network_result, picture, pose, walk

KNOWN = walk(14)
TRUTH = walk(40)[10:30]
OWN = Similarity(1.6, pose((0, 0, 0), 0.7, 0.2)[:3, :3], np.array([2.0, 1.0, 0.0]))
"""From the true world to the new run's."""
CAMERA = f"{FOCAL},{FOCAL},{SIZE[0] / 2 - 0.5},{SIZE[1] / 2 - 0.5}"
FAST = ("--no-viewer", "--no-mesh", "--dense", "off", "--intrinsics", CAMERA)


class RoomEngine(FakeEngine):
    """Returns poses and depth of the walk in a world of its own, with drift."""

    def push(self, frame: PreparedFrame) -> Sequence[FrameResult]:
        return [self._in_room(result) for result in super().push(frame)]

    def finish(self) -> Sequence[FrameResult]:
        return [self._in_room(result) for result in super().finish()]

    def _in_room(self, result: FrameResult) -> FrameResult:
        rgb, depth = picture(TRUTH[result.index], draw=8)
        T = OWN.move_pose(drifting(TRUTH, turn_deg=0.2, move=0.02)[result.index])
        found = network_result(result.index, T, FOCAL, rgb, depth * OWN.scale)
        return dataclasses.replace(found, timestamp=result.timestamp)


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("onto") / "room"
    write_refined(folder, KNOWN)
    return folder


@pytest.fixture
def images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(ModelChoice, "load", lambda choice: RoomEngine())
    folder = tmp_path / "images"
    Video(TRUTH, TRUTH, draw=8).write_images(folder)
    return folder


def positions(folder: Path, *, causal: bool) -> np.ndarray:
    cameras = read_result(folder).cameras
    return np.array([(c.T_world_camera_causal if causal else c.T_world_camera)[:3, 3] for c in cameras])


@pytest.mark.slow
def test_a_run_goes_on_and_ends_in_the_known_world(
    room: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "new"
    assert exit_code(monkeypatch, str(images), "-o", str(target), "--onto", str(room), *FAST) == 0
    assert "keyframes agree" in capfd.readouterr().out
    S, truth = to_truth(room, KNOWN), TRUTH[:, :3, 3]
    assert np.linalg.norm(S.apply(positions(target, causal=False)) - truth, axis=1).max() < 0.06
    # The poses that were first returned lie there, too, from the first frame that was recognized.
    off = np.linalg.norm(S.apply(positions(target, causal=True)) - truth, axis=1)
    assert off[12:].max() < 0.15 < np.linalg.norm(OWN.apply(truth) - truth, axis=1).min()
    run = read_result(target).run
    assert run["onto"]["result"] == str(room.resolve())
    assert run["online_mapping"]["recognized"] >= 1
    assert (target / MAP_NAME).exists()


@pytest.mark.slow
def test_a_result_without_a_map(room: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "bare"
    for path in sorted(images.iterdir())[8:]:
        path.unlink()
    assert exit_code(monkeypatch, str(images), "-o", str(target), "--no-map", *FAST) == 0
    assert not (target / MAP_NAME).exists()
    assert exit_code(monkeypatch, "localize", str(target), str(images)) == 2
    assert exit_code(monkeypatch, str(images), "-o", str(tmp_path / "x"), "--onto", str(target), *FAST) == 2
    assert not (tmp_path / "x").exists()


def test_options_that_contradict_each_other_are_refused(
    room: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for options in (("--no-map",), ("--scale-from", "height:1.5"), ("--mapping", "off")):
        command = (str(images), "-o", str(tmp_path / "x"), "--onto", str(room), *FAST, *options)
        assert exit_code(monkeypatch, *command) == 2
        assert "--onto" in capfd.readouterr().err
    assert not (tmp_path / "x").exists()


STEP = """
import sys, time
from pathlib import Path
from stream_recon.app.stages.chain import RunPlan, run_stages
from stream_recon.app.stages.place import OntoStage
from stream_recon.app.stages.stage import StageContext
print("begin", flush=True)
run_stages(RunPlan((OntoStage(Path(sys.argv[2])),), again=True), StageContext(Path(sys.argv[1])))
"""


def contents(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.slow
def test_a_kill_leaves_the_known_result_and_a_complete_new_one(room: Path, tmp_path: Path) -> None:
    fresh = tmp_path / "fresh"
    write_refined(fresh, walk(24)[8:20], draw=9)
    before, old = contents(room), positions(fresh, causal=False)

    def step(folder: Path, kill_after: float | None) -> float:
        process = subprocess.Popen([sys.executable, "-c", STEP, str(folder), str(room)], stdout=subprocess.PIPE)
        assert process.stdout is not None and process.stdout.readline() == b"begin\n"
        begun = time.monotonic()
        if kill_after is not None:
            time.sleep(kill_after)
            process.kill()
        process.wait()
        process.stdout.close()
        return time.monotonic() - begun

    whole = tmp_path / "whole"
    shutil.copytree(fresh, whole)
    seconds = step(whole, None)
    new = positions(whole, causal=False)
    assert not np.allclose(old, new, atol=1e-3)
    for share in (0.6,):
        folder = tmp_path / f"killed-{share}"
        shutil.copytree(fresh, folder)
        step(folder, share * seconds)
        assert contents(room) == before
        found = positions(folder, causal=False)
        assert np.array_equal(found, old) or np.allclose(found, new, atol=1e-6)
        step(folder, None)
        assert np.allclose(positions(folder, causal=False), new, atol=1e-3)
