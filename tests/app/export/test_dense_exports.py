"""Exports of a result with dense depth maps, and of results whose depth files were not kept."""

import json
from pathlib import Path

import cv2
import numpy as np
import plyfile
import pytest
from numpy.typing import NDArray

from stream_recon.app.export.formats import export
from stream_recon.app.export.job import ExportJob, ExportOptions
from stream_recon.app.export.points import ordered_points
from stream_recon.app.result.amend import rebuild_cloud
from stream_recon.app.result.folder import read_result
from stream_recon.app.result.run_record import RunSummary
from stream_recon.app.result.writer import ResultWriter
from tests.app.export.rooms import write_room
from tests.app.fake_engine import run_info
from tests.app.rendered import NetworkErrors, Scene, furnished_room, network_results, write_dense_maps

SCENE = furnished_room(12, (80, 60))
FACTOR = 2.0
"""Sides of the dense maps as a multiple of the network's."""


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A result of poor network depth with good dense depth, without its source."""
    folder = tmp_path_factory.mktemp("dense") / "out"
    writer = ResultWriter(folder, run_info())
    for result in network_results(SCENE, NetworkErrors(smooth=0.05, scale=0.05)):
        writer.add(result)
    writer.finish(RunSummary(interrupted=False))
    write_dense_maps(folder, SCENE, FACTOR)
    rebuild_cloud(read_result(folder))
    return folder


def distances(scene: Scene, xyz: NDArray[np.floating]) -> NDArray[np.float64]:
    """Distances [N] of a result's points from the scene's surfaces."""
    T = scene.cameras[0]
    return scene.distance(np.asarray(xyz, np.float64) @ T[:3, :3].T + T[:3, 3])


def test_depth_images_are_the_dense_maps(dense: Path, tmp_path: Path) -> None:
    target, _ = export(dense, "depth", tmp_path / "there")
    truth = [depth for depth, _, _ in SCENE.at(FACTOR).views]
    for index, depth in enumerate(truth):
        stored = cv2.imread(str(target / f"depth/frame_{index:06d}.png"), cv2.IMREAD_UNCHANGED)
        level = cv2.imread(str(target / f"confidence/frame_{index:06d}.png"), cv2.IMREAD_UNCHANGED)
        assert stored.shape == level.shape == depth.shape
        assert np.median(np.abs(stored / 1000 / depth - 1)) < 0.01
        assert set(np.unique(level)) == {round(255 * share) for share in (0.3, 0.7, 0.95)}


def test_transforms_have_dense_depth_and_sharp_images(dense: Path, tmp_path: Path) -> None:
    target, _ = export(dense, "transforms", tmp_path / "there")
    meta = json.loads((target / "transforms.json").read_text())
    assert (meta["w"], meta["h"]) == tuple(int(FACTOR * side) for side in SCENE.size)
    frame = meta["frames"][3]
    depth = cv2.imread(str(target / frame["depth_file_path"]), cv2.IMREAD_UNCHANGED) / 1000
    truth = SCENE.at(FACTOR).views[3][0]
    assert depth.shape == truth.shape and np.median(np.abs(depth / truth - 1)) < 0.01
    points = plyfile.PlyData.read(str(target / "points.ply"))["vertex"]
    assert (distances(SCENE, np.stack([points[axis] for axis in "xyz"], axis=1)) < 0.12).mean() > 0.99


def test_points_in_pages_and_films_are_of_dense_depth(dense: Path) -> None:
    job = ExportJob(read_result(dense))
    found = ordered_points(job, 10**6, lambda done, total: None)
    assert (distances(SCENE, found.xyz) < 0.12).mean() > 0.99


def test_colmap_has_depth_maps_of_the_view_of_its_images(dense: Path, tmp_path: Path) -> None:
    pytest.importorskip("pycolmap")
    target, report = export(dense, "colmap", tmp_path / "there", ExportOptions(dense=500))
    data = (target / "stereo/depth_maps/frame_000002.jpg.geometric.bin").read_bytes()
    width, height, channels, rest = data.split(b"&", 3)
    depth = np.frombuffer(rest, "<f4").reshape(int(height), int(width), int(channels))[..., 0]
    truth = SCENE.at(FACTOR).views[2][0]
    assert depth.shape == truth.shape
    assert (depth > 0).mean() > 0.8 and np.median(np.abs(depth / truth - 1)[depth > 0]) < 0.01
    assert (target / "fused.ply").read_bytes() == (dense / "points.ply").read_bytes()
    assert any("stereo/depth_maps" in note for note in report.notes)
    # The export can be made anew in its place.
    export(dense, "colmap", target, ExportOptions(dense=500), overwrite=True)


def test_an_export_has_its_own_confidence_and_voxel(dense: Path, tmp_path: Path) -> None:
    counts = []
    for options in (ExportOptions(), ExportOptions(confidence=0.9), ExportOptions(voxel=0.1)):
        target, _ = export(dense, "transforms", tmp_path / str(len(counts)), options)
        counts.append(len(plyfile.PlyData.read(str(target / "points.ply"))["vertex"]))
    assert 0.2 * counts[0] < counts[1] < 0.8 * counts[0] and counts[2] < 0.2 * counts[0]


@pytest.mark.parametrize("form", ["transforms", "colmap", "depth", "glb", "html"])
@pytest.mark.parametrize("source", [True, False])
def test_exports_work_where_the_first_depth_files_were_not_kept(tmp_path: Path, form: str, source: bool) -> None:
    if form == "colmap":
        pytest.importorskip("pycolmap")
    folder = tmp_path / "out"
    write_room(folder, 8, source=source)
    for index in range(4):
        (folder / "depth" / f"{index:06d}.npz").unlink()
    record = json.loads((folder / "run.json").read_text())
    record["frames"]["without_depth"] = 4
    (folder / "run.json").write_text(json.dumps(record))
    suffix = {"glb": ".glb", "html": ".html"}.get(form, "")
    target, report = export(folder, form, tmp_path / f"there{suffix}")
    if form == "transforms" and source:
        frames = json.loads((target / "transforms.json").read_text())["frames"]
        assert len(frames) == 4 and not any("depth_file_path" in frame for frame in frames)
        assert "did not keep those of 2 of 4 frames" in report.warnings[0]
    if form in ("transforms", "colmap") and not source:
        assert "cannot be read again" in report.warnings[0]


def test_a_run_without_any_depth_has_the_images_of_its_source(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    write_room(folder, 8)
    for path in (folder / "depth").iterdir():
        path.unlink()
    target, _ = export(folder, "transforms", tmp_path / "there")
    assert len(list((target / "images").iterdir())) == 4 and not (target / "depth").exists()
