"""Exports that a box cuts."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from stream_recon.app.core.box import Box
from stream_recon.app.core.gltf import read_glb
from stream_recon.app.core.ply import positions
from stream_recon.app.export.formats import FORMATS, export
from stream_recon.app.export.job import ExportOptions
from stream_recon.app.export.view import gltf_axes
from stream_recon.app.result.files import stored_points
from stream_recon.app.result.folder import read_result
from stream_recon.configs.errors import ConfigError, OutputError
from tests.app.export.rooms import write_room

trimesh = pytest.importorskip("trimesh")
BOX = Box((-2.0, -1.0, -6.0), (1.0, 0.6, 1.0), 15.0)


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("room") / "out"
    write_room(folder, 8, tilt=0.3)
    return folder


def axes(folder: Path) -> NDArray[np.float64]:
    return gltf_axes(read_result(folder), "auto")


def beyond(xyz: NDArray[np.floating], R: NDArray[np.float64]) -> float:
    """How far the furthest of points [N, 3] is outside the box."""
    planes = BOX.planes(R)
    return float(-(np.asarray(xyz, np.float64) @ planes[:, :3].T + planes[:, 3]).min())


def test_points_as_glb_are_exactly_those_in_the_box(room: Path, tmp_path: Path) -> None:
    target, report = export(room, "glb", tmp_path / "cut.glb", ExportOptions(box=BOX))
    (points,) = (part for part in read_glb(target.read_bytes()) if part.name == "points")
    stored = positions(stored_points(room / "points.ply"))
    inside = BOX.contains(stored, axes(room))
    assert 100 < inside.sum() < 0.8 * len(stored) and len(points.xyz) == inside.sum()
    assert beyond(points.xyz, np.eye(3)) < 1e-5 and "--format mesh" in report.summary


def test_a_mesh_is_cut_along_the_box(room: Path, tmp_path: Path) -> None:
    whole, _ = export(room, "mesh", tmp_path / "whole.ply")
    cut, _ = export(room, "mesh", tmp_path / "cut.ply", ExportOptions(box=BOX))
    before, after = trimesh.load(whole), trimesh.load(cut)
    R = axes(room)
    assert 0.05 * before.area < after.area < 0.9 * before.area and beyond(after.vertices, R) < 1e-5
    # Of the triangles that are whole within the box, none is missing.
    planes = BOX.planes(R)
    full = ((before.triangles @ planes[:, :3].T + planes[:, 3]) >= 0).all(axis=(1, 2))
    assert before.area_faces[full].sum() <= after.area * (1 + 1e-6)
    textured, _ = export(room, "mesh", tmp_path / "cut.glb", ExportOptions(box=BOX))
    assert all(beyond(part.xyz, np.eye(3)) < 1e-5 for part in read_glb(textured.read_bytes()))


def test_formats_that_a_box_cannot_cut_say_so(room: Path, tmp_path: Path) -> None:
    for name, form in FORMATS.items():
        if not form.concerns("box"):
            with pytest.raises(ConfigError, match="--box cuts"):
                export(room, name, tmp_path / name, ExportOptions(box=BOX))
    with pytest.raises(OutputError, match="no points in the box"):
        export(room, "html", tmp_path / "none.html", ExportOptions(box=Box((90, 90, 90), (91, 91, 91))))
    assert not list(tmp_path.iterdir())


def test_a_page_that_needs_no_server_is_cut(room: Path, tmp_path: Path) -> None:
    whole, _ = export(room, "html", tmp_path / "whole.html")
    cut, report = export(room, "html", tmp_path / "cut.html", ExportOptions(box=BOX))
    points = int(report.summary.split()[0])
    assert 0 < points < int(export(room, "html", tmp_path / "w.html")[1].summary.split()[0])
    assert cut.stat().st_size < whole.stat().st_size


def test_a_room_has_no_subject_which_is_said_at_once(room: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="do not look at one place: give the borders"):
        export(room, "mesh", tmp_path / "cut.ply", ExportOptions(box="subject"))
    assert not list(tmp_path.iterdir())
