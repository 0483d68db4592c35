"""Results of films whose frames are views of one centre: merged, and put into another one's world."""

import dataclasses
import json
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from stream_recon.app.core.rig import VIEW_STRIDE, Rig
from stream_recon.app.core.so3 import exp
from stream_recon.app.core.transforms import Similarity, align, invert_pose
from stream_recon.app.export.source_images import source_of
from stream_recon.app.localization.localize import LocalizationMap
from stream_recon.app.result.folder import ResultFolder, read_result
from stream_recon.app.result.run_record import RIG, VIEWS, RunSummary
from stream_recon.app.result.writer import ResultWriter
from stream_recon.app.run.options import RunOptions
from stream_recon.app.stages.merge import merge_results
from stream_recon.app.stages.place import OntoStage
from stream_recon.app.stages.refine import RefineStage
from stream_recon.configs.errors import InputError
from tests.app.fake_engine import run_info
from tests.app.localization.places import write_refined
from tests.app.slam.room import FOCAL, SIZE, Video, walk
from tests.app.stages.chains import ONLY_FRAMES, run_stage

WALK = walk(20)
VIEW_POSES = Rig.of_turns(("cam0", "cam1"), exp(np.array([[0, 0, 0], [0, 0.9, 0]]))).T_body_view
JOINT = RunOptions(dense_side=None, mesh=False)


def write(folder: Path, truth: NDArray[np.float64], T_second: NDArray[np.float64], draw: int = 0) -> None:
    """A refined result of two cameras on a walk [N, 4, 4], the second one in a world of its own, and its film."""
    count, S = len(truth), Similarity(1.7, truth[1, :3, :3], np.array([3.0, -1, 2]))
    true = np.concatenate([truth, truth @ T_second])
    guessed = np.concatenate([truth, [S.move_pose(pose) for pose in true[count:]]])
    video, film = Video(true, guessed, FOCAL, draw=draw), folder.with_name(f"{folder.name}-film")
    names = {"camera_model": "pinhole", "intrinsics": [FOCAL, FOCAL, 159.5, 119.5], "resolution": list(SIZE)}
    cameras = {f"cam{k}": {**names, "distortion_model": "none", "distortion_coeffs": []} for k in range(2)}
    cameras["cam1"]["T_cn_cnm1"] = invert_pose(T_second).tolist()
    for k, rgb in enumerate(video.pictures):
        (film / f"cam{k // count}").mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(film / f"cam{k // count}/{k % count:03d}.png"), rgb)
    file = film / "rig.json"
    file.write_text(json.dumps(cameras))
    views = Rig(("cam0", "cam1"), np.array([np.eye(4), T_second])).to_json()
    options = {"source": str(film), "rig": str(file), VIEWS: views}
    writer = ResultWriter(folder, dataclasses.replace(run_info(), options=options, source=film.name))
    for k, result in enumerate(video.results):
        view, frame = divmod(k, count)
        depth = result.depth * np.float32(1.7 if view else 1)
        index, time = view * VIEW_STRIDE + frame, frame / 10
        writer.add(dataclasses.replace(result, depth=depth, index=index, timestamp=time, segment=view))
    writer.finish(RunSummary(interrupted=False, frames_read=2 * count, frames_reconstructed=2 * count))
    run_stage(folder, RefineStage())


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results ``one`` and ``two``, whose walks overlap."""
    folder = tmp_path_factory.mktemp("places")
    write(folder / "one", WALK[:8], VIEW_POSES[1])
    write(folder / "two", WALK[4:12], VIEW_POSES[1], draw=1)
    return folder


def poses(result: ResultFolder) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Of the first and of the second view [N, 4, 4]."""
    first, second = np.split(np.array([camera.T_world_camera for camera in result.cameras]), 2)
    return first, second


@pytest.mark.slow
def test_a_later_walk_is_put_into_the_world_of_an_earlier_one(places: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(places / "two", tmp_path / "later")
    run_stage(folder, OntoStage(places / "one"))
    (first, second), known = poses(read_result(folder)), poses(read_result(places / "one"))[0]
    np.testing.assert_allclose(np.linalg.inv(first) @ second, np.tile(VIEW_POSES[1], (8, 1, 1)), atol=1e-6)
    S = align(known[:, :3, 3], WALK[:8, :3, 3])
    assert np.linalg.norm(S.apply(first[:, :3, 3]) - WALK[4:12, :3, 3], axis=1).max() < 0.03


@pytest.mark.slow
def test_two_walks_become_one(places: Path, tmp_path: Path) -> None:
    report = merge_results([places / "one", places / "two"], tmp_path / "all", JOINT)
    assert report.merged == ["one", "two"] and report.frames == 32
    merged = read_result(tmp_path / "all")
    assert [camera.index for camera in merged.cameras] == [view * VIEW_STRIDE + k for view in (0, 1) for k in range(16)]
    assert [camera.segment for camera in merged.cameras] == [0] * 8 + [1] * 8 + [2] * 8 + [3] * 8
    first, second = poses(merged)
    np.testing.assert_allclose(np.linalg.inv(first) @ second, np.tile(VIEW_POSES[1], (16, 1, 1)), atol=1e-6)
    truth = np.concatenate([WALK[:8], WALK[4:12]])[:, :3, 3]
    error = np.linalg.norm(align(first[:, :3, 3], truth).apply(first[:, :3, 3]) - truth, axis=1)
    assert error.max() < 0.005 * np.linalg.norm(np.diff(WALK[:12, :3, 3], axis=0), axis=1).sum()
    assert merged.run["refinement"]["segments"] == 1 and RIG in merged.run and merged.has_known_camera
    assert len(LocalizationMap.open(tmp_path / "all")) > 4
    lines = [line for line in (tmp_path / "all/trajectory.txt").read_text().splitlines() if line[0] != "#"]
    assert len(lines) == 16, "one pose a frame"


@pytest.mark.slow
def test_the_images_of_all_views_are_read_again_in_their_order(places: Path, tmp_path: Path) -> None:
    merge_results([places / "one", places / "two"], tmp_path / "all", ONLY_FRAMES)
    merged = read_result(tmp_path / "all")
    open_again = source_of(merged)
    assert open_again is not None
    with open_again() as source:
        frames = [(frame.index, frame.segment, round(frame.timestamp, 6)) for frame in source]
        at = [camera.index for camera in merged.cameras[5::7]]
    assert [each[:2] for each in frames] == [(camera.index, camera.segment) for camera in merged.cameras]
    with open_again() as source:
        assert [frame.index for frame in source.frames_at(at)] == at


@pytest.mark.slow
def test_other_views_are_not_merged(places: Path, tmp_path: Path) -> None:
    write_refined(tmp_path / "plain", WALK[:4])
    with pytest.raises(InputError, match="one and plain have different views"):
        merge_results([places / "one", tmp_path / "plain"], tmp_path / "all", JOINT)
    apart = np.eye(4)
    apart[0, 3] = 0.25
    write(tmp_path / "pair", WALK[:4], apart)
    with pytest.raises(InputError, match="pair is in metres by the distance of its cameras"):
        merge_results([places / "one", tmp_path / "pair"], tmp_path / "all", JOINT)
