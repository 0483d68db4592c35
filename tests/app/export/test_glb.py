from pathlib import Path

import numpy as np
import pytest

from stream_recon.app.core.gltf import read_glb
from stream_recon.app.core.ply import uniform_indices
from stream_recon.app.export.formats import export
from stream_recon.app.export.job import ExportOptions
from tests.app.export.rooms import off_the_walls, room_frames, write_room

trimesh = pytest.importorskip("trimesh")


def test_trimesh_reads_points_cameras_and_path(tmp_path: Path) -> None:
    write_room(tmp_path / "out", 6)
    target, _ = export(tmp_path / "out", "glb", tmp_path / "scene.glb", ExportOptions(points=2000, up="keep"))
    scene = trimesh.load(target)
    assert set(scene.geometry) == {"points", "cameras", "path"}
    points = scene.geometry["points"]
    assert points.vertices.shape == (2000, 3)
    assert off_the_walls(points.vertices * (1, -1, -1)).max() < 0.03
    ends = scene.geometry["path"].vertices * (1, -1, -1)
    centres = np.array([result.T_world_camera[:3, 3] for result in room_frames(6)])
    assert np.linalg.norm(ends[:, None] - centres, axis=2).min(axis=0) == pytest.approx(0, abs=1e-5)
    assert len(ends) == 2 * 5
    assert len(scene.geometry["cameras"].vertices) == 3 * 8 * 2


def test_some_points_are_spread_over_all() -> None:
    chosen = uniform_indices(10_000, 1000)
    assert len(chosen) == 1000 and (np.diff(chosen) > 0).all()
    assert np.histogram(chosen, 10, (0, 10_000))[0].tolist() == [100] * 10
    assert uniform_indices(5, 1000).tolist() == [0, 1, 2, 3, 4]


def test_a_file_is_upright_where_the_camera_was_tilted(tmp_path: Path) -> None:
    write_room(tmp_path / "out", 8, tilt=0.4)
    target, _ = export(tmp_path / "out", "glb", tmp_path / "scene.glb", ExportOptions(points=4000))
    xyz = trimesh.load(target).geometry["points"].vertices
    # The room's floor and ceiling are level again: whole sheets of points lie at one height.
    share = np.histogram(xyz[:, 1], bins=np.arange(-2, 2, 0.02))[0].max() / len(xyz)
    kept, _ = export(tmp_path / "out", "glb", tmp_path / "kept.glb", ExportOptions(points=4000, up="keep"))
    slanted = trimesh.load(kept).geometry["points"].vertices
    assert share > 3 * np.histogram(slanted[:, 1], bins=np.arange(-2, 2, 0.02))[0].max() / len(xyz)
    assert "multiplied by the rotation" in " ".join((tmp_path / "scene.glb.README.txt").read_text().split())


def test_points_and_cameras_are_exported_also_where_the_result_has_a_mesh(tmp_path: Path) -> None:
    write_room(tmp_path / "out", 4, source=False)
    (tmp_path / "out" / "mesh.glb").write_bytes(b"glTF")
    target, report = export(tmp_path / "out", "glb", tmp_path / "scene.glb")
    assert [part.name for part in read_glb(target.read_bytes())] == ["points", "cameras", "path"]
    assert "--format mesh" in report.summary
