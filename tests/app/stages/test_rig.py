"""Results with the views of a rig: one world, one pose a frame, and what is not done with them."""

import json
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pycolmap
import pytest

from stream_recon.app.api.result import open_result
from stream_recon.app.core.rig import VIEW_STRIDE, Rig, view_of
from stream_recon.app.core.transforms import Similarity, invert_pose
from stream_recon.app.engine.model_choice import ModelChoice
from stream_recon.app.export.formats import export
from stream_recon.app.export.job import ExportOptions
from stream_recon.app.result.folder import read_result
from stream_recon.app.result.run_record import RIG, RunInfo, RunSummary
from stream_recon.app.result.writer import ResultWriter
from stream_recon.app.run.options import RunJob, RunOptions
from stream_recon.app.stages.chain import RunPlan, run_stages
from stream_recon.app.stages.joined_frames import MergeInput
from stream_recon.app.stages.stage import StageContext
from stream_recon.configs.errors import ConfigError, InputError, OutputError
from tests.app.fake_engine import FakeEngine, run_info
from tests.app.slam.room import Video, walk
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
    rig = Rig(("front", "side"), np.array([np.eye(3), TURN]))
    info = run_info()
    info = RunInfo(info.source, info.preset, info.weights_sha256, info.device, {RIG: rig.to_json()})
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


def test_what_is_for_one_camera_is_refused_by_name(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="views of a rig"):
        MergeInput.open(folder)
    record = json.loads((folder / "run.json").read_text())
    record["options"][RIG][1]["R_body_view"][0][0] = 2
    (folder / "run.json").write_text(json.dumps(record))
    with pytest.raises(OutputError, match="damaged rig"):
        run_stages(RunPlan(()), StageContext(folder))


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
