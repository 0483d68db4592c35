"""Results with the views of a rig: one world, one pose a frame, and what is not done with them."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import cv2
import numpy as np
import pycolmap
import pytest
from numpy.typing import NDArray

from stream_recon.app.api.reconstruct import reconstruct
from stream_recon.app.api.result import open_result
from stream_recon.app.core.rig import VIEW_STRIDE, Rig, view_of
from stream_recon.app.core.transforms import Similarity, invert_pose
from stream_recon.app.engine.model_choice import ModelChoice
from stream_recon.app.export.formats import export
from stream_recon.app.export.job import ExportOptions
from stream_recon.app.localization.localize import Localization, LocalizationMap
from stream_recon.app.result.folder import read_result
from stream_recon.app.result.run_record import METRIC_SCALE, RIG, VIEWS, RunInfo, RunSummary
from stream_recon.app.result.writer import ResultWriter
from stream_recon.app.run.options import RunJob, RunOptions
from stream_recon.app.sources.frame_choice import FrameChoice
from stream_recon.app.sources.source import Source, open_source
from stream_recon.app.stages.again import plan_refinement
from stream_recon.app.stages.chain import RunPlan, run_stages
from stream_recon.app.stages.refine import RefineStage
from stream_recon.app.stages.stage import StageContext
from stream_recon.configs.errors import ConfigError, OutputError
from tests.app.fake_engine import FakeEngine, run_info
from tests.app.media import quick_preset
from tests.app.slam.room import FOCAL, SIZE, Video, picture, walk
from tests.app.sources.test_panorama import around
from tests.app.stages.test_source_run import Noted

TURN = np.array([[0, 0, 1], [0, 1, 0], [-1, 0, 0]], np.float64)
SCALE = 0.4
"""Of the second view's world."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A result of two views, the second one in a world of its own."""
    T = walk(5)
    turned = T.copy()
    turned[:, :3, :3] = turned[:, :3, :3] @ TURN
    S = Similarity(SCALE, T[2, :3, :3], np.array([3.0, -1, 2]))
    video = Video(np.concatenate([T, turned]), np.concatenate([T, [S.move_pose(pose) for pose in turned]]))
    rig = Rig.of_turns(("front", "side"), np.array([np.eye(3), TURN]))
    info = run_info()
    info = RunInfo(info.source, info.preset, info.weights_sha256, info.device, {VIEWS: rig.to_json()})
    writer = ResultWriter(tmp_path / "out", info)
    for k, result in enumerate(video.results):
        view, frame = divmod(k, 5)
        writer.add(replace(result, index=view * VIEW_STRIDE + frame, timestamp=frame / 10, segment=view))
    writer.finish(RunSummary(interrupted=False))
    return tmp_path / "out"


def test_the_views_of_a_result_are_brought_into_one_world(folder: Path) -> None:
    before = read_result(folder).cameras
    assert run_stages(RunPlan(()), StageContext(folder)).is_complete
    result = read_result(folder)
    for camera, other in zip(result.cameras[:5], result.cameras[5:], strict=True):
        expected = camera.T_world_camera.copy()
        expected[:3, :3] = expected[:3, :3] @ TURN
        np.testing.assert_allclose(other.T_world_camera, expected, atol=1e-6)
    scales = [camera.depth_scale / old.depth_scale for camera, old in zip(result.cameras, before, strict=True)]
    np.testing.assert_allclose(scales, 5 * [1] + 5 * [1 / SCALE], rtol=1e-6)
    written = (folder / "points.ply").stat().st_mtime_ns
    assert run_stages(RunPlan(()), StageContext(folder)).is_complete
    assert (folder / "points.ply").stat().st_mtime_ns == written, "once is enough"


BASELINE = 0.25
STEREO = np.array([[1, 0, 0, BASELINE], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]], np.float64)


def stereo_result(
    tmp_path: Path, frames: int, drift: float = 1.0
) -> tuple[Path, Callable[[], Source], NDArray[np.float64]]:
    """A result of two cameras side by side, each in a world and unit of its own; its source; true poses of view 0.

    ``drift``: factor of all depth from the middle of the film on.
    """
    T = walk(2 * frames)[:frames]
    true = np.concatenate([T, T @ STEREO])
    scale, S = np.repeat([0.5, 1.7], frames), Similarity(1.7, T[1, :3, :3], np.array([3.0, -1, 2]))
    worlds = [Similarity.of_scale(0.5)] * frames + [S] * frames
    video = Video(true, np.array([world.move_pose(pose) for world, pose in zip(worlds, true, strict=True)]), FOCAL)
    names = {"camera_model": "pinhole", "intrinsics": [FOCAL, FOCAL, 159.5, 119.5], "resolution": list(SIZE)}
    cameras = {f"cam{k}": {**names, "distortion_model": "none", "distortion_coeffs": []} for k in range(2)}
    cameras["cam1"]["T_cn_cnm1"] = invert_pose(STEREO).tolist()
    (tmp_path / "rig.json").write_text(json.dumps(cameras))
    for k, rgb in enumerate(video.pictures):
        (tmp_path / f"film/cam{k // frames}").mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(tmp_path / f"film/cam{k // frames}/{k % frames:03d}.png"), rgb)
    rig, info = Rig(("cam0", "cam1"), np.array([np.eye(4), STEREO])), run_info()
    info = RunInfo(info.source, info.preset, info.weights_sha256, info.device, {VIEWS: rig.to_json()})
    writer = ResultWriter(tmp_path / "out", info)
    for k, result in enumerate(video.results):
        view, frame = divmod(k, frames)
        depth = result.depth * np.float32(scale[k] * (drift if frame >= frames // 2 else 1))
        place = {"index": view * VIEW_STRIDE + frame, "timestamp": frame / 10, "segment": view}
        writer.add(replace(result, depth=depth, **place))
    writer.finish(RunSummary(interrupted=False))
    choice = FrameChoice(rig=str(tmp_path / "rig.json"))
    return tmp_path / "out", partial(open_source, str(tmp_path / "film"), choice), T


def path_length(T: NDArray[np.float64]) -> float:
    return float(np.linalg.norm(np.diff(T[:, :3, 3], axis=0), axis=1).sum())


def test_cameras_that_are_apart_give_metres(tmp_path: Path) -> None:
    folder, open_again, truth = stereo_result(tmp_path, 6)
    assert run_stages(RunPlan(()), StageContext(folder, open_again)).is_complete
    result = read_result(folder)
    T = np.array([camera.T_world_camera for camera in result.cameras])
    unit = result.metric_scale
    assert unit is not None and unit.error is not None and unit.T_metric_own.scale == pytest.approx(2, rel=0.05)
    assert path_length(T[:6]) == pytest.approx(path_length(truth), rel=max(0.02, 3 * unit.error))
    np.testing.assert_allclose(np.linalg.inv(T[:6]) @ T[6:], np.tile(STEREO, (6, 1, 1)), atol=1e-6)


def test_the_error_of_metres_is_that_of_parts_of_the_film_whose_unit_is_another_one(tmp_path: Path) -> None:
    folder, open_again, _ = stereo_result(tmp_path, 6, drift=1.5)
    run_stages(RunPlan(()), StageContext(folder, open_again))
    plan, _ = plan_refinement(folder, RunOptions())
    assert [stage.name for stage in plan.stages if stage.name == "metric scale"] == [], "the rig gives metres"
    result = read_result(folder)
    assert result.metric_scale is not None and 0.15 < result.metric_scale.error < 0.55


@pytest.mark.slow
def test_a_refined_pair_of_cameras_is_in_metres(tmp_path: Path) -> None:
    folder, open_again, truth = stereo_result(tmp_path, 12)
    run_stages(RunPlan((RefineStage(),)), StageContext(folder, open_again)).check()
    result = read_result(folder)
    T = np.array([camera.T_world_camera for camera in result.cameras])
    assert result.run["refinement"]["reprojection_px"] is not None and result.run[METRIC_SCALE]["error"] < 0.03
    assert path_length(T[:12]) == pytest.approx(path_length(truth), rel=0.01)
    np.testing.assert_allclose(np.linalg.inv(T[:12]) @ T[12:], np.tile(STEREO, (12, 1, 1)), atol=1e-6)


@pytest.mark.slow
def test_a_pair_of_euroc_goes_through_the_whole_program_and_is_a_map(tmp_path: Path) -> None:
    T, base = walk(24)[:12], tmp_path / "mav0"
    for name, own in (("cam0", np.eye(4)), ("cam1", STEREO)):
        (base / name / "data").mkdir(parents=True)
        for k, pose in enumerate(T @ own):
            file = base / name / f"data/{1403636579763555584 + 50_000_000 * k}.png"
            cv2.imwrite(str(file), picture(pose)[0])
        stated = {"camera_model": "pinhole", "intrinsics": [FOCAL, FOCAL, 159.5, 119.5], "resolution": list(SIZE)}
        bends = {"distortion_model": "none", "distortion_coefficients": [], "T_BS": own.tolist()}
        (base / name / "sensor.yaml").write_text(json.dumps(stated | bends))
    done = reconstruct(base, tmp_path / "out", rig=base, preset=quick_preset(tmp_path), dense="off", mesh=False)
    assert done.trajectory.length == pytest.approx(path_length(T), rel=0.01)
    own = {camera.index: camera.T_world_camera for camera in read_result(tmp_path / "out").cameras}
    place = LocalizationMap.open(tmp_path / "out")
    for view, seen in enumerate((T[5], T[5] @ STEREO)):
        found = place.localize(picture(seen, draw=7)[0])
        assert isinstance(found, Localization)
        assert np.linalg.norm(found.T_world_camera[:3, 3] - own[view * VIEW_STRIDE + 5][:3, 3]) < 0.02


def test_a_rig_has_one_pose_a_frame(folder: Path) -> None:
    lines = [line for line in (folder / "trajectory.txt").read_text().splitlines() if not line.startswith("#")]
    assert [float(line.split()[0]) for line in lines] == [0.0, 0.1, 0.2, 0.3, 0.4]
    result = open_result(folder)
    assert len(result.trajectory) == 5 and len(result.cameras) == 10


def test_colmap_reads_a_rig(folder: Path, tmp_path: Path) -> None:
    run_stages(RunPlan(()), StageContext(folder))
    target, _ = export(folder, "colmap", tmp_path / "there", ExportOptions(frames="all", dense=50))
    model = pycolmap.Reconstruction(target / "sparse/0")
    (rig,) = model.rigs.values()
    assert rig.num_sensors() == 2 == len(model.cameras) and len(model.frames) == 5
    poses = {camera.index: invert_pose(camera.T_world_camera) for camera in read_result(folder).cameras}
    for image in model.images.values():
        index = int(image.name.removeprefix("frame_").removesuffix(".jpg"))
        assert image.camera_id == 1 + view_of(index)
        assert image.cam_from_world().matrix() == pytest.approx(poses[index][:3], abs=1e-6)


def test_a_damaged_rig_is_refused(folder: Path) -> None:
    record = json.loads((folder / "run.json").read_text())
    record["options"][VIEWS][1]["T_body_view"][0][0] = 2
    (folder / "run.json").write_text(json.dumps(record))
    with pytest.raises(OutputError, match="damaged rig"):
        run_stages(RunPlan(()), StageContext(folder))


def test_a_rig_that_gives_metres_needs_no_other_scale() -> None:
    options = RunOptions(scale_from="height:1.5")
    turned, apart = (
        Rig.of_turns(("front", "side"), np.array([np.eye(3), TURN])),
        Rig(("a", "b"), np.array([np.eye(4), STEREO])),
    )
    for given in (options, RunOptions(onto=Path("other"))):
        given.check_rig(turned, "film")
    with pytest.raises(ConfigError, match="--onto is for one camera"):
        RunOptions(onto=Path("other")).check_rig(apart, "film")
    with pytest.raises(ConfigError, match="use --rig or --scale-from"):
        options.check_rig(apart, "film")


@pytest.mark.parametrize("damage", [{"scales": ["a"]}, {"scales": [1.0]}, {"scales": [1.0, float("nan")]}, {}, 3])
def test_a_damaged_record_of_a_rig_is_refused(tmp_path: Path, damage: object) -> None:
    folder, open_again, _ = stereo_result(tmp_path, 3)
    record = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**record, RIG: damage}))
    with pytest.raises(OutputError, match="damaged rig"):
        run_stages(RunPlan((RefineStage(),)), StageContext(folder, open_again))


def test_lists_of_images_give_one_pose_a_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ModelChoice, "load", lambda choice: FakeEngine())
    turned = np.eye(4)
    turned[:3, :3] = TURN
    names = {"camera_model": "pinhole", "intrinsics": [FOCAL, FOCAL, 159.5, 119.5], "resolution": list(SIZE)}
    camera = {**names, "distortion_model": "none", "distortion_coeffs": []}
    (tmp_path / "rig.json").write_text(json.dumps({"cam0": camera, "cam1": camera | {"T_cn_cnm1": turned.tolist()}}))
    moments = [(0.25 * k, [picture(T)[0][..., ::-1], picture(T @ turned)[0]]) for k, T in enumerate(walk(4))]
    result = reconstruct(moments, tmp_path / "out", rig=tmp_path / "rig.json", mapping="off", mesh=False)
    assert result.trajectory.timestamps.tolist() == [0, 0.25, 0.5, 0.75]
    assert [view_of(camera.index) for camera in result.cameras] == [0, 0, 0, 0, 1, 1, 1, 1]
    first, other = np.split(np.array([camera.T_world_camera for camera in result.cameras]), 2)
    np.testing.assert_allclose(np.linalg.inv(first) @ other, np.tile(invert_pose(turned), (4, 1, 1)), atol=1e-6)


def test_a_film_of_360_degrees_is_run_view_by_view(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ModelChoice, "load", lambda choice: FakeEngine())
    (tmp_path / "film").mkdir()
    for number in range(3):
        cv2.imwrite(str(tmp_path / "film" / f"{number}.png"), around(seed=number))
    job = RunJob(str(tmp_path / "film"), RunOptions(mapping="off", mesh=False), tmp_path / "out", resume=True)
    run = Noted(job)
    assert run.run()
    result = read_result(job.folder)
    assert [view_of(camera.index) for camera in result.cameras] == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert result.rig is not None and result.has_known_camera and RIG in result.run
    assert not result.run["segments"], "a view is no cut"
    again = Noted(job)
    assert again.run() and again.steps == ["was complete"]
    (tmp_path / "poses.txt").write_text("0 0 0 0 0 0 0 1\n1 1 0 0 0 0 0 1\n")
    for option in ({"publish": ("foxglove",)}, {"poses": f"scale:{tmp_path / 'poses.txt'}"}):
        other = replace(job, options=replace(job.options, **option), folder=tmp_path / "other")
        with pytest.raises(ConfigError, match=f"--{next(iter(option))} is for one camera"):
            Noted(other).run()
        assert not (tmp_path / "other").exists()
