"""Splats of a result folder: training, files, record, verdict, going on, and what is refused."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from stream_recon.app.cli.main import app
from stream_recon.app.core.box import Box
from stream_recon.app.core.splats import read_splats
from stream_recon.app.export.formats import export
from stream_recon.app.export.job import ExportOptions
from stream_recon.app.result.folder import CHECKPOINT_NAME, SPLATS_NAME, current_splats, read_result
from stream_recon.app.result.verdict import judge
from stream_recon.app.splat.job import SplatEvents, SplatOptions, SplatReport, make_splats
from stream_recon.app.splat.rasterizer import require_gsplat
from stream_recon.app.splat.scene import SceneOptions, scene_of
from stream_recon.app.splat.trainer import TrainOptions, TrainProgress
from stream_recon.configs.errors import ConfigError, OutputError, ResourceError
from tests.app.export.rooms import write_room
from tests.app.splat.plain import draw_plainly

OPTIONS = SplatOptions(
    TrainOptions(steps=6, max_splats=60, sh_degree=1), SceneOptions(frames="all", max_side=32, points=40)
)


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("room") / "out"
    write_room(folder, 10, source=False)
    return folder


def trained(folder: Path, options: SplatOptions = OPTIONS, until: int = 99) -> SplatReport:
    steps: list[int] = []

    class Events(SplatEvents):
        def on_step(self, progress: TrainProgress) -> None:
            steps.append(progress.step)

    return make_splats(folder, options, Events(), lambda: steps[-1] >= until, torch.device("cpu"), draw_plainly)


def test_the_scene_has_what_the_result_has(room: Path) -> None:
    result = read_result(room)
    scene = scene_of(result, OPTIONS.scene)
    assert len(scene.frames) == 10 and max(scene.size) == 32 and scene.images.any()
    assert np.allclose(scene.T_world_camera[3], result.cameras[3].T_world_camera)
    assert (scene.depths > 0).mean() > 0.5 and ((scene.certainties > 0) == (scene.depths > 0)).all()
    assert len(scene.points) == len(scene.colours) <= 40
    few = scene_of(result, replace(OPTIONS.scene, max_images=4))
    assert len(few.frames) == 4 and not few.held_out.any()


def test_splats_are_recorded_exported_and_shown(room: Path, tmp_path: Path) -> None:
    report = trained(room)
    assert report.is_complete and report.images == 10 and report.held_out == 2 and report.psnr is not None
    record = json.loads((room / "run.json").read_text())["splats"]
    assert record["steps"] == 6 and record["psnr"] == report.psnr and record["peak_memory_mb"]["host"] > 0
    result = read_result(room)
    path = current_splats(result)
    assert path == room / SPLATS_NAME and len(read_splats(path)) == report.splats
    assert not (room / CHECKPOINT_NAME).exists()
    for name in ("x.ply", "x.spz"):
        target, told = export(room, "splats", tmp_path / name)
        assert target.stat().st_size > 100 and f"{report.splats} splats" in told.summary
    assert np.array_equal(read_splats(tmp_path / "x.ply").means, read_splats(path).means)
    box = Box((0, -9, -9), (9, 9, 9))
    export(room, "splats", tmp_path / "cut.ply", ExportOptions(box=box))
    assert 0 < len(read_splats(tmp_path / "cut.ply")) < report.splats
    _, told = export(room, "html", tmp_path / "x.html")
    assert f"{report.splats} splats" in told.summary


def test_splats_of_other_poses_do_not_count(room: Path, tmp_path: Path) -> None:
    trained(room)
    changed = read_result(room)
    changed.run["revisions"] = {"cameras": 9, "trajectory": 9, "points": 9}
    assert current_splats(changed) is None and current_splats(read_result(room)) is not None


def test_a_stopped_training_is_kept_and_goes_on(room: Path) -> None:
    stopped = trained(room, until=3)
    assert stopped.steps == 3 and not stopped.is_complete
    assert (room / SPLATS_NAME).is_file() and (room / CHECKPOINT_NAME).is_file()
    with pytest.raises(ConfigError, match="other options"):
        trained(room, replace(OPTIONS, resume=True, train=replace(OPTIONS.train, sh_degree=0)))
    content = (room / CHECKPOINT_NAME).read_bytes()
    (room / CHECKPOINT_NAME).write_bytes(content[: len(content) // 2])
    with pytest.raises(OutputError, match="damaged"):
        trained(room, replace(OPTIONS, resume=True))
    (room / CHECKPOINT_NAME).write_bytes(content)
    done = trained(room, replace(OPTIONS, resume=True))
    assert done.is_complete and not (room / CHECKPOINT_NAME).exists()
    with pytest.raises(ConfigError, match="no training to continue"):
        trained(room, replace(OPTIONS, resume=True))


def test_splats_that_show_another_scene_make_a_result_doubtful() -> None:
    record = {
        "frames": {"reconstructed": 20},
        "revisions": {"cameras": 2},
        "refinement": {"keyframes": 9, "disagreement": 0.1, "reprojection_px": 0.5, "id": "a"},
        "splats": {"psnr": 9.0, "steps": 70, "wanted_steps": 70, "revision": 2},
    }
    assert judge(record).level == "doubtful" and "9 dB" in judge(record).reason
    for change in ({"psnr": 21.0}, {"steps": 20}, {"revision": 1}, {"psnr": None}):
        assert judge({**record, "splats": {**record["splats"], **change}}).level == "good"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_a_line_names_what_serves_instead(room: Path, tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match="colmap"):
        require_gsplat()
    for arguments in (["splat", str(room)], [str(tmp_path / "no.mp4"), "--splat"]):
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 2
    done = CliRunner().invoke(app, ["splat", str(room), "-o", str(tmp_path / "x.obj")])
    assert done.exit_code == 2
    assert CliRunner().invoke(app, ["splat", str(tmp_path / "none")]).exit_code == 2
