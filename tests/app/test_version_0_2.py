"""Results of version 0.2 are read, shown and exported; those of 0.1 are refused by their version."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stream_recon.app.cli.view import show_result
from stream_recon.app.export.formats import export
from stream_recon.app.export.job import ExportOptions
from stream_recon.app.result.cameras import iterate_cameras
from stream_recon.app.result.folder import read_result
from stream_recon.app.result.resume import read_partial_result
from stream_recon.app.result.tracks import read_tracks
from stream_recon.configs.errors import OutputError
from tests.app.page import Page
from tests.app.result.test_writer import write_run

FINISHED = Path(__file__).parents[1] / "data" / "results-0.2" / "finished"
OPENGL_CAMERA = np.diag([1.0, -1.0, -1.0, 1.0])


class Shown(Page):
    """A viewer that never waits."""

    def has_room(self) -> bool:
        return True


def stored() -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Frames and run.json as version 0.2 wrote them."""
    frames = json.loads((FINISHED / "cameras.json").read_bytes())["frames"]
    return frames, json.loads((FINISHED / "run.json").read_bytes())


def test_cameras_and_record_are_read() -> None:
    result, (frames, record) = read_result(FINISHED), stored()
    assert result.run == record and record["version"] == "0.2.0"
    for camera, frame in zip(result.cameras, frames, strict=True):
        np.testing.assert_array_equal(camera.T_world_camera, frame["T_world_camera"])
        np.testing.assert_array_equal(camera.T_world_camera_causal, frame["T_world_camera_causal"])
        np.testing.assert_array_equal(camera.as_network.T_world_camera, frame["network"]["T_world_camera"])
        assert json.loads(camera.to_json()) == frame
    tracks = read_tracks(FINISHED)
    assert tracks is not None and len(tracks.points) == record["refinement"]["tracks"]


def test_the_metric_scale_is_read() -> None:
    result, (_, record) = read_result(FINISHED), stored()
    scale = result.metric_scale
    assert scale is not None and scale.given == "frames:0,9,1.85"
    assert result.points.voxel == pytest.approx(record["metric_scale"]["scale"] * record["preset"]["points"]["voxel"])
    first, fourth = (camera.T_world_camera[:3, 3] for camera in (result.cameras[0], result.cameras[3]))
    assert np.linalg.norm(first - fourth) == pytest.approx(1.85)


def test_results_are_shown() -> None:
    page, damaged = Shown(), list[OutputError]()
    assert show_result(page, read_result(FINISHED), damaged.append) == 6 and not damaged  # type: ignore[arg-type]
    (revision,) = page.revisions
    for frame, camera in zip(revision.frames, stored()[0], strict=True):
        np.testing.assert_array_equal(frame.T_world_camera, camera["T_world_camera"])


def test_results_are_exported(tmp_path: Path) -> None:
    target, _ = export(FINISHED, "transforms", tmp_path / "out", ExportOptions(frames="all"))
    exported = json.loads((target / "transforms.json").read_bytes())["frames"]
    for frame, camera in zip(exported, stored()[0], strict=True):
        np.testing.assert_allclose(frame["transform_matrix"], np.array(camera["T_world_camera"]) @ OPENGL_CAMERA)


def of_version_0_1(folder: Path) -> None:
    """What version 0.1 would have left."""
    shutil.copytree(FINISHED, folder)
    record = {**stored()[1], "version": "0.1.0"}
    (folder / "run.json").write_text(json.dumps(record))
    text = (folder / "cameras.json").read_text().replace('"format": 3', '"format": 2', 1)
    (folder / "cameras.json").write_text(text.replace("_causal", "_first"))


def test_a_result_of_version_0_1_is_refused_and_may_be_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "old"
    of_version_0_1(folder)
    for read in (read_result, read_partial_result):
        with pytest.raises(OutputError, match=r"old is of version 0\.1\.0, .*--overwrite"):
            read(folder)
    with pytest.raises(OutputError, match=r"is of version 0\.1"):
        next(iterate_cameras(folder / "cameras.json"))
    write_run(folder, overwrite=True)
    assert {path.stem for path in (folder / "depth").iterdir()} <= {
        f"{c.index:06d}" for c in read_result(folder).cameras
    }
