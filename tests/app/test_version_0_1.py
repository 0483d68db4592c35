"""Results of version 0.1 are read, shown, refined, exported and resumed."""

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stream_recon.app.cli.view import show_result
from stream_recon.app.core.transforms import Similarity
from stream_recon.app.engine.engine import load_engine
from stream_recon.app.export.formats import export
from stream_recon.app.export.job import ExportOptions
from stream_recon.app.export.pose_formats import KITTI
from stream_recon.app.result.folder import read_result
from stream_recon.app.result.resume import read_partial_result
from stream_recon.app.result.tracks import read_tracks
from stream_recon.app.sources.frame_choice import FrameChoice
from stream_recon.app.sources.source import open_source
from stream_recon.app.stages.refinement import refine_result
from stream_recon.app.viewer.viewer import Viewer
from stream_recon.configs.errors import OutputError
from tests.app.page import Page
from tests.app.program import exit_code

DATA = Path(__file__).parents[1] / "data" / "results-0.1"
SAMPLE = Path(__file__).parents[2] / "app" / "sample" / "walkthrough.mp4"
RESULTS = ("finished", "interrupted", "metric")
OLD_KEYS = {"streams", "stands_on", "stretches", "stream", "mapping", "unit", "unseen", "left_to_network"}
INTRINSICS = ("fx", "fy", "cx", "cy")
OPENGL_CAMERA = np.diag([1.0, -1.0, -1.0, 1.0])


def old(name: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Frames and run.json as version 0.1 wrote them."""
    frames = json.loads((DATA / name / "cameras.json").read_bytes())["frames"]
    return frames, json.loads((DATA / name / "run.json").read_bytes())


def old_poses(name: str, key: str = "T_world_camera") -> np.ndarray:
    return np.array([frame[key] for frame in old(name)[0]])


class Shown(Page):
    """A viewer that never waits."""

    def has_room(self) -> bool:
        return True


def index_of(name: str) -> int:
    """Frame index in the name of an exported image."""
    return int(Path(name).stem.removeprefix("frame_"))


def copied(name: str, tmp_path: Path) -> Path:
    return Path(shutil.copytree(DATA / name, tmp_path / name))


@pytest.mark.parametrize("name", RESULTS)
def test_cameras_are_read(name: str) -> None:
    cameras, (frames, _) = read_result(DATA / name).cameras, old(name)
    assert len(cameras) == len(frames)
    for camera, frame in zip(cameras, frames, strict=True):
        np.testing.assert_array_equal(camera.T_world_camera, frame["T_world_camera"])
        np.testing.assert_array_equal(camera.T_world_camera_causal, frame["T_world_camera_first"])
        causal = frame.get("intrinsics_first", frame)
        assert [getattr(camera.intrinsics, key) for key in INTRINSICS] == [frame[key] for key in INTRINSICS]
        assert [getattr(camera.intrinsics_causal, key) for key in INTRINSICS] == [causal[key] for key in INTRINSICS]
        assert camera.segment == frame.get("stretch", 0)
        assert (camera.index, camera.depth_scale) == (frame["index"], frame["depth_scale"])
        assert camera.depth_scale_causal == frame.get("depth_scale_first", 1.0)
        network = frame.get("network", {"T_world_camera": frame["T_world_camera_first"]})
        np.testing.assert_array_equal(camera.as_network.T_world_camera, network["T_world_camera"])
        if "depth_field" in frame:
            np.testing.assert_allclose(camera.depth_field, frame["depth_field"], rtol=1e-3)


@pytest.mark.parametrize("name", RESULTS)
def test_the_record_is_read(name: str) -> None:
    run, (_, record) = read_result(DATA / name).run, old(name)
    assert not OLD_KEYS & (set(run) | set(run["frames"]) | set(run["online_mapping"]))
    assert (run["submaps"], run["reference_frames"]) == (record["streams"], record["stands_on"])
    assert run["segments"] == record["stretches"]
    assert run["frames"]["blank"] == record["frames"]["unseen"]
    assert run["online_mapping"]["fallback_segments"] == record["stream"]["left_to_network"]
    if "mapping" in record:
        assert run["refinement"]["fallback_segments"] == record["mapping"]["left_to_network"]
        assert run["refinement"]["segments"] == record["mapping"]["stretches"]


def test_the_metric_scale_is_read() -> None:
    result, (_, record) = read_result(DATA / "metric"), old("metric")
    found = result.metric_scale
    assert found is not None and found.given == "frames:0,3,1.85"
    np.testing.assert_allclose(found.T_metric_own.matrix, record["unit"]["own_to_metres"])
    assert result.points.voxel == pytest.approx(record["unit"]["scale"] * record["preset"]["points"]["voxel"])
    first, fourth = (camera.T_world_camera[:3, 3] for camera in (result.cameras[0], result.cameras[3]))
    assert np.linalg.norm(first - fourth) == pytest.approx(1.85)
    assert read_result(DATA / "finished").metric_scale is None


@pytest.mark.parametrize("name", RESULTS)
def test_results_are_shown(name: str) -> None:
    result, page, damaged = read_result(DATA / name), Shown(), list[OutputError]()
    with Viewer(result.points, port=0) as viewer:
        count = show_result(viewer, result, damaged.append)
        assert viewer.flush() and viewer.points_shown > 0
    assert not damaged and count == len(list((DATA / name / "depth").iterdir()))
    show_result(page, result, damaged.append)  # type: ignore[arg-type]
    frames = {frame["index"]: frame for frame in old(name)[0]}
    scale = old(name)[1].get("unit", {}).get("scale", 1.0)
    for shown in page.added:
        causal = Similarity.of_scale(scale).move_pose(np.array(frames[shown.index]["T_world_camera_first"]))
        np.testing.assert_allclose(shown.T_world_camera, causal)
    (revision,) = page.revisions
    for frame in revision.frames:
        np.testing.assert_array_equal(frame.T_world_camera, frames[frame.index]["T_world_camera"])
        assert frame.depth_scale * scale == pytest.approx(frames[frame.index]["depth_scale"])
    assert bool(page.maps) == (name == "finished")


def test_a_result_is_refined_again(tmp_path: Path) -> None:
    folder = copied("finished", tmp_path)
    report = refine_result(read_result(folder), partial(open_source, str(SAMPLE), FrameChoice(stride=3, max_frames=6)))
    assert report.tracks == pytest.approx(old("finished")[1]["mapping"]["tracks"], rel=0.05)
    tracks, again = read_tracks(folder), read_result(folder)
    assert tracks is not None and len(tracks.points) == report.tracks
    causal = [camera.T_world_camera_causal for camera in again.cameras]
    np.testing.assert_array_equal(causal, old_poses("finished", "T_world_camera_first"))
    np.testing.assert_allclose([c.T_world_camera for c in again.cameras], old_poses("finished"), atol=0.01)
    record = json.loads((folder / "run.json").read_bytes())
    assert not OLD_KEYS & set(record) and record["refinement"]["tracks"] == report.tracks
    assert "T_world_camera_first" not in (folder / "cameras.json").read_text()


@pytest.mark.parametrize("name", ["finished", "interrupted"])
def test_results_are_exported_to_transforms(name: str, tmp_path: Path) -> None:
    target, _ = export(DATA / name, "transforms", tmp_path / "out", ExportOptions(frames="all"))
    content = json.loads((target / "transforms.json").read_bytes())
    poses = {frame["index"]: np.array(frame["T_world_camera"]) for frame in old(name)[0]}
    assert len(content["frames"]) == len(list((DATA / name / "depth").iterdir()))
    for frame in content["frames"]:
        pose = poses[index_of(frame["file_path"])]
        np.testing.assert_allclose(frame["transform_matrix"], pose @ OPENGL_CAMERA)


def test_a_metric_result_is_exported_to_trajectories(tmp_path: Path) -> None:
    target, _ = export(DATA / "metric", "trajectory", tmp_path / "out")
    kitti = np.loadtxt(target / KITTI).reshape(-1, 3, 4)
    np.testing.assert_allclose(kitti, old_poses("metric")[:, :3], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["finished", "interrupted"])
def test_results_are_exported_to_colmap(name: str, tmp_path: Path) -> None:
    pycolmap = pytest.importorskip("pycolmap")
    target, _ = export(DATA / name, "colmap", tmp_path / "out", ExportOptions(frames="all"))
    model = pycolmap.Reconstruction(next(target.rglob("cameras.bin")).parent)
    poses = {frame["index"]: np.array(frame["T_world_camera"]) for frame in old(name)[0]}
    assert len(model.images) > 2 and len(model.points3D) > 100
    for image in model.images.values():
        center = poses[index_of(image.name)][:3, 3]
        np.testing.assert_allclose(image.projection_center(), center, atol=1e-6)


def test_an_interrupted_result_has_the_frames_to_resume_from() -> None:
    partial_result = read_partial_result(DATA / "interrupted")
    assert partial_result is not None
    np.testing.assert_array_equal(
        [camera.T_world_camera for camera in partial_result.cameras], old_poses("interrupted")
    )
    scale_frames, later = partial_result.last_submap(4, 8, network_poses=True)
    assert [frame.index for frame, _ in scale_frames] == old("interrupted")[1]["stands_on"]
    assert all(result.is_keyframe for _, result in later)


def test_an_interrupted_result_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frames, record = old("interrupted")
    folder = copied("interrupted", tmp_path)
    shutil.copy(SAMPLE, tmp_path / SAMPLE.name)
    shutil.copy(DATA / "tiny.toml", tmp_path)
    monkeypatch.chdir(tmp_path)
    if load_engine("tiny.toml").weights_sha256 != record["weights_sha256"]:
        pytest.skip("the embedded weights are not those of version 0.1")
    options = ["--resume", "--no-viewer", "--preset", "tiny.toml", "--stride", "6", "--max-frames", "12"]
    assert exit_code(monkeypatch, SAMPLE.name, "-o", folder.name, *options, "--mapping", "stream") == 0
    cameras, run = read_result(folder).cameras, read_result(folder).run
    assert [camera.index for camera in cameras] == list(range(0, 72, 6))
    causal = [camera.T_world_camera_causal for camera in cameras[: len(frames)]]
    np.testing.assert_array_equal(causal, old_poses("interrupted", "T_world_camera_first"))
    assert run["interrupted"] is False and len(run["resumed"]) == 1
    written = json.loads((folder / "run.json").read_bytes())
    assert not OLD_KEYS & (set(written) | set(written["frames"]))
