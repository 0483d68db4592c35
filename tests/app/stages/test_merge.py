"""Merging of results: one world, joint refinement, what shares nothing, and that the inputs stay."""

import hashlib
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from stream_recon.app.core.transforms import align
from stream_recon.app.core.types import Intrinsics
from stream_recon.app.export.source_images import source_of
from stream_recon.app.result.folder import read_result
from stream_recon.app.run.listeners import RunObserver
from stream_recon.app.run.options import RunOptions
from stream_recon.app.stages.joined_frames import MergeInput
from stream_recon.app.stages.merge import merge_results
from stream_recon.app.stages.place import OntoStage, put_onto
from stream_recon.configs.errors import InputError, OutputError
from tests.app.localization.places import to_truth, write_refined
from tests.app.slam.room import SIZE, look_down, walk
from tests.app.stages.chains import ONLY_FRAMES, run_stage

JOINT = RunOptions(dense_side=None, mesh=False)
WALK = walk(20)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results ``one`` and ``two``, whose walks overlap, and ``floor``, which shows nothing of theirs."""
    folder = tmp_path_factory.mktemp("places")
    write_refined(folder / "one", WALK[:12])
    write_refined(folder / "two", WALK[8:], draw=1)
    write_refined(folder / "floor", look_down(8), draw=2)
    return folder


def contents(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_the_camera_of_a_result_has_the_median_of_its_focal_lengths() -> None:
    cameras = [SimpleNamespace(intrinsics=Intrinsics(f, 1.02 * f, 160.0, 120.0)) for f in (350.0, 330.0, 336.0)]
    result: Any = SimpleNamespace(cameras=cameras)
    k = MergeInput(result).camera
    assert (k.fx, k.cx, k.cy) == (336.0, 160.0, 120.0)
    assert k.fy == pytest.approx(1.02 * 336.0)


@pytest.mark.slow
def test_two_walks_become_one(places: Path, tmp_path: Path) -> None:
    before = {name: contents(places / name) for name in ("one", "two", "floor")}
    folders = [places / name for name in ("one", "floor", "two")]
    heard: list[str] = []
    observer = RunObserver()
    observer.on_message = lambda line, *, warning=False: heard.append(line)  # type: ignore[method-assign]
    report = merge_results(folders, tmp_path / "all", JOINT, observer)
    assert "floor shares no view with the others: it is left out" in heard
    merge_results(folders, tmp_path / "again", JOINT)
    assert report is not None and report.merged == ["one", "two"] and report.left_out == ["floor"]
    merged = read_result(tmp_path / "all")
    assert [camera.segment for camera in merged.cameras] == [0] * 12 + [1] * 12
    assert [camera.index for camera in merged.cameras] == list(range(24))
    truth = np.concatenate([WALK[:12], WALK[8:]])[:, :3, 3]
    found = np.array([camera.T_world_camera[:3, 3] for camera in merged.cameras])
    error = np.linalg.norm(align(found, truth).apply(found) - truth, axis=1)
    path = np.linalg.norm(np.diff(WALK[:, :3, 3], axis=0), axis=1).sum()
    assert np.sqrt((error**2).mean()) < 0.005 * path
    seam = np.linalg.norm(found[8:12] - found[12:16], axis=1)
    assert seam.max() < 0.01 * np.linalg.norm(np.diff(found[:12], axis=0), axis=1).sum()
    assert merged.run["refinement"]["segments"] == 1
    assert [part["name"] for part in merged.run["options"]["parts"]] == ["one", "two"]
    assert len(set(merged.run["revisions"].values())) == 1
    assert {name: contents(places / name) for name in before} == before
    assert not list(tmp_path.glob("*.part"))
    first, second = contents(tmp_path / "all"), contents(tmp_path / "again")
    assert {"trajectory.txt", "cameras.json", "tracks.npz", "map.npz", "points.ply"} <= first.keys() == second.keys()
    assert {name for name in first if first[name] != second[name]} <= {"run.json"}, "times of day and of work"


@pytest.mark.slow
def test_the_merged_result_reads_the_images_of_all_sources(places: Path, tmp_path: Path) -> None:
    merge_results([places / "one", places / "two"], tmp_path / "all", ONLY_FRAMES)
    merged = read_result(tmp_path / "all")
    open_again = source_of(merged)
    assert open_again is not None
    with open_again() as source:
        frames = [(frame.index, frame.segment) for frame in source]
    assert frames == [(camera.index, camera.segment) for camera in merged.cameras]


@pytest.mark.slow
def test_results_that_share_nothing_stay_apart(places: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="share no view"):
        merge_results([places / "one", places / "floor"], tmp_path / "all", JOINT)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_result_is_not_merged_with_itself_or_over_another(places: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="different"):
        merge_results([places / "one", places / "one"], tmp_path / "all", JOINT)
    with pytest.raises(OutputError, match="exists"):
        merge_results([places / "one", places / "two"], places / "floor", JOINT)
    before = {path: path.stat().st_mtime_ns for path in places.rglob("*")}
    for inside in ("all", "depth/all", "../one/all"):
        with pytest.raises(OutputError, match="inside a result"):
            merge_results([places / "one", places / "two"], places / "one" / inside, JOINT)
    assert {path: path.stat().st_mtime_ns for path in places.rglob("*")} == before


@pytest.mark.slow
def test_a_new_walk_is_put_into_the_world_of_a_known_place(places: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(places / "two", tmp_path / "later")
    S = to_truth(places / "one", WALK[:12])
    run_stage(folder, OntoStage(places / "one"))
    later = read_result(folder)
    off = [
        np.linalg.norm(S.move_pose(c.T_world_camera)[:3, 3] - T[:3, 3])
        for c, T in zip(later.cameras, WALK[8:], strict=True)
    ]
    assert np.median(off) < 0.03
    assert later.run["onto"]["result"] == str((places / "one").resolve())
    again = read_result(folder)
    with pytest.raises(InputError, match="shows nothing"):
        put_onto(again, places / "floor")
    assert [c.to_json() for c in read_result(folder).cameras] == [c.to_json() for c in again.cameras]


@pytest.mark.slow
def test_results_of_different_cameras_are_merged(places: Path, tmp_path: Path) -> None:
    folder = tmp_path / "small"
    later = WALK[8:16]
    write_refined(folder, later, draw=4, zoom=0.75)
    merge_results([places / "one", folder], tmp_path / "all", JOINT)
    merged = read_result(tmp_path / "all")
    truth = np.concatenate([WALK[:12], later])[:, :3, 3]
    found = np.array([camera.T_world_camera[:3, 3] for camera in merged.cameras])
    error = np.linalg.norm(align(found, truth).apply(found) - truth, axis=1)
    assert np.sqrt((error**2).mean()) < 0.01 * np.linalg.norm(np.diff(WALK[:16, :3, 3], axis=0), axis=1).sum()
    assert {camera.source_size for camera in merged.cameras} == {SIZE}
    assert merged.run["refinement"]["segments"] == 1


@pytest.mark.slow
def test_a_kill_leaves_the_inputs_and_no_half_result(places: Path, tmp_path: Path) -> None:
    before = {name: contents(places / name) for name in ("one", "two")}
    target = tmp_path / "all"
    command = [sys.executable, "-m", "stream_recon", "merge", str(places / "one"), str(places / "two"), "-o"]
    for writes in (1, 20):
        process = subprocess.Popen([*command, str(target), "--dense", "off", "--no-mesh"], stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 120
        while process.poll() is None and len(list(tmp_path.glob("*.part/depth/*.npz"))) < writes:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.kill()
        process.wait()
        assert not target.exists()
        assert {name: contents(places / name) for name in before} == before
    merge_results([places / "one", places / "two"], target, ONLY_FRAMES)
    assert [path.name for path in tmp_path.iterdir()] == ["all"], "what was killed is cleared away"
