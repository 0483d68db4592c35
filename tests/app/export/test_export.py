import csv
import json
import os
import shutil
from pathlib import Path

import cv2
import numpy as np
import plyfile
import pytest
from evo.tools import file_interface

from stream_recon.app.core import output_file
from stream_recon.app.export import depth as depth_export
from stream_recon.app.export.formats import FORMATS, default_target, export
from stream_recon.app.export.job import ExportOptions
from stream_recon.configs.errors import ConfigError, InputError, OutputError
from tests.app.export.rooms import FORMATS_HERE, SIZE, off_the_walls, pixel_grid, room_frames, write_room, write_splats

FOLDERS = [name for name, form in FORMATS.items() if not form.suffixes]


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("room") / "out"
    write_room(folder)
    write_splats(folder)
    return folder


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def target_for(tmp_path: Path, name: str) -> Path:
    return tmp_path / f"there{(*FORMATS[name].suffixes, '')[0]}"


@pytest.mark.parametrize("name", FORMATS_HERE)
def test_every_readme_has_units_axes_and_camera(room: Path, tmp_path: Path, name: str) -> None:
    target, report = export(room, name, target_for(tmp_path, name))
    text = " ".join(next(tmp_path.rglob("*README.txt")).read_text().split())
    for word in ("Unit:", "World:", "y down", "walk.mp4", report.summary):
        assert word in text
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(
        [target.name, *([f"{target.name}.README.txt"] if target.is_file() else [])]
    )


def test_poses_are_read_alike_by_evo_from_all_three_forms(room: Path, tmp_path: Path) -> None:
    target, _ = export(room, "trajectory", tmp_path / "there")
    truth = np.array([result.T_world_camera for result in room_frames(8)])
    tum = file_interface.read_tum_trajectory_file(target / "trajectory_tum.txt")
    kitti = file_interface.read_kitti_poses_file(target / "trajectory_kitti.txt")
    euroc = file_interface.read_euroc_csv_trajectory(target / "trajectory_euroc.csv")
    for path in (tum, kitti, euroc):
        assert np.array(path.poses_se3) == pytest.approx(truth, abs=1e-6)
    times = [result.timestamp for result in room_frames(8)]
    assert tum.timestamps == pytest.approx(times)
    assert euroc.timestamps == pytest.approx(times)
    assert np.loadtxt(target / "times_kitti.txt") == pytest.approx(times)


def test_depth_images_are_in_the_stated_unit(room: Path, tmp_path: Path) -> None:
    target, _ = export(room, "depth", tmp_path / "there", ExportOptions(frames="3"))
    names = sorted(p.name for p in (target / "depth").iterdir())
    assert names == ["frame_000000.png", "frame_000003.png", "frame_000006.png"]
    stored = cv2.imread(str(target / "depth" / names[1]), cv2.IMREAD_UNCHANGED)
    assert stored.dtype == np.uint16 and "1000 steps a unit" in " ".join((target / "README.txt").read_text().split())
    assert stored / 1000 == pytest.approx(room_frames(4)[3].depth, abs=0.004)  # half floats within 8 units
    table = (target / "cameras.csv").read_text().splitlines()
    row = dict(zip(table[0].split(","), table[2].split(","), strict=True))
    assert row["file"] == "depth/frame_000003.png" and (int(row["width"]), int(row["height"])) == SIZE
    assert float(row["fx"]) == pytest.approx(0.8 * SIZE[0]) and float(row["cx"]) == SIZE[0] / 2


def test_upsampled_depth_has_the_given_size_and_lies_on_the_walls(room: Path, tmp_path: Path) -> None:
    target, _ = export(room, "depth", tmp_path / "there", ExportOptions(frames="3", max_side=2 * max(SIZE)))
    with (target / "cameras.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["index"]) for row in rows] == [0, 3, 6]
    for row, result in zip(rows, [room_frames(8)[index] for index in (0, 3, 6)], strict=True):
        depth = cv2.imread(str(target / row["file"]), cv2.IMREAD_UNCHANGED) / 1000
        assert depth.shape == (2 * SIZE[1], 2 * SIZE[0]) == (int(row["height"]), int(row["width"]))
        pixels = pixel_grid(*depth.shape[::-1])
        x, y = ((pixels[..., i] - float(row[f"c{'xy'[i]}"])) / float(row[f"f{'xy'[i]}"]) for i in (0, 1))
        local = (np.stack([x, y, np.ones_like(x)], axis=-1) * depth[..., None]).reshape(-1, 3)
        world = local @ result.T_world_camera[:3, :3].T + result.T_world_camera[:3, 3]
        assert np.quantile(off_the_walls(world), 0.99) < 0.02


def test_depth_beyond_sixteen_bits_is_unknown() -> None:
    depth = np.array([[0.0, 0.0004, 1.0, 65.535, 65.6, 1e9]], np.float32)
    assert depth_export.depth_units(depth).tolist() == [[0, 0, 1000, 65535, 0, 0]]


def test_depth_of_transforms_lies_on_the_walls_by_its_own_numbers(room: Path, tmp_path: Path) -> None:
    """Points lie on the walls only if poses, axes, intrinsics and the depth unit are right."""
    target, _ = export(room, "transforms", tmp_path / "there")
    meta = json.loads((target / "transforms.json").read_text())
    assert [frame["file_path"] for frame in meta["frames"]] == [f"images/frame_00000{i}.jpg" for i in (0, 2, 4, 6)]
    for frame in meta["frames"]:
        image = cv2.imread(str(target / frame["file_path"]))
        assert (image.shape[1], image.shape[0]) == (meta["w"], meta["h"]) == (2 * SIZE[0], 2 * SIZE[1])
        units = cv2.imread(str(target / frame["depth_file_path"]), cv2.IMREAD_UNCHANGED)
        depth = units * meta["depth_unit_scale_factor"]
        height, width = depth.shape
        pixels = pixel_grid(width, height) * (meta["w"] / width, meta["h"] / height)
        x = (pixels[..., 0] - meta["cx"]) / meta["fl_x"]
        y = (pixels[..., 1] - meta["cy"]) / meta["fl_y"]
        opengl = np.stack([x, -y, -np.ones_like(x)], axis=-1) * depth[..., None]
        T = np.array(frame["transform_matrix"])
        world = opengl.reshape(-1, 3) @ T[:3, :3].T + T[:3, 3]
        assert np.quantile(off_the_walls(world), 0.99) < 0.01
    points = plyfile.PlyData.read(str(target / meta["ply_file_path"]))["vertex"]
    assert len(points) > 1000
    assert off_the_walls(np.stack([points[axis] for axis in "xyz"], axis=1)).max() < 0.03


def test_images_come_from_the_source_or_else_from_the_result(tmp_path: Path) -> None:
    write_room(tmp_path / "out", 4)
    large, report = export(tmp_path / "out", "transforms", tmp_path / "large")
    assert not report.warnings
    shutil.rmtree(tmp_path / "out-source")
    small, report = export(tmp_path / "out", "transforms", tmp_path / "small")
    assert "cannot be read again" in report.warnings[0]
    metas = [json.loads((folder / "transforms.json").read_text()) for folder in (large, small)]
    assert [meta["w"] for meta in metas] == [2 * SIZE[0], SIZE[0]]
    assert metas[0]["fl_x"] / metas[0]["w"] == pytest.approx(metas[1]["fl_x"] / metas[1]["w"])
    images = [cv2.imread(str(folder / "images/frame_000002.jpg")) for folder in (large, small)]
    shrunk = cv2.resize(images[0], SIZE, interpolation=cv2.INTER_AREA).astype(int)
    assert np.abs(shrunk - images[1]).mean() < 10


def test_a_changed_source_is_noticed(tmp_path: Path) -> None:
    write_room(tmp_path / "out", 4)
    for path in (tmp_path / "out-source").iterdir():
        cv2.imwrite(str(path), 255 - cv2.imread(str(path)))
    _, report = export(tmp_path / "out", "transforms", tmp_path / "there")
    assert "has changed" in report.warnings[0]


@pytest.mark.parametrize("name", FORMATS_HERE)
def test_an_unfinished_run_is_exported(tmp_path: Path, name: str) -> None:
    write_room(tmp_path / "out", 4, finish=False)
    if name == "splats":
        write_splats(tmp_path / "out")
    target, _ = export(tmp_path / "out", name, target_for(tmp_path, name))
    assert target.exists()
    assert "not finished" in " ".join(next(tmp_path.rglob("*README.txt")).read_text().split())


@pytest.mark.parametrize("name", FOLDERS)
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_nothing_is_left_of_an_export_that_failed(room: Path, tmp_path: Path, name: str, error: BaseException) -> None:
    def fail(done: int, total: int) -> None:
        if done == 2:
            raise error

    with pytest.raises(OutputError if isinstance(error, OSError) else KeyboardInterrupt):
        export(room, name, tmp_path / "there", progress=fail)
    assert not list(tmp_path.iterdir())


def test_a_full_disk_leaves_no_half_glb(room: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "scene.glb").write_bytes(b"old")

    real = output_file.open_new

    def full(path: Path, permissions: int = 0o644) -> int:
        if "README" in path.name:
            raise OSError(28, os.strerror(28))
        return real(path, permissions)

    monkeypatch.setattr(output_file, "open_new", full)
    with pytest.raises(OutputError, match="No space left"):
        export(room, "glb", tmp_path / "scene.glb", overwrite=True)
    assert [p.name for p in tmp_path.iterdir()] == ["scene.glb"]
    assert (tmp_path / "scene.glb").read_bytes() == b"old"


def test_other_files_at_the_target_are_kept(room: Path, tmp_path: Path) -> None:
    target = tmp_path / "there"
    target.mkdir()
    (target / "mine.txt").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(OutputError, match="-o"):
            export(room, "trajectory", target, overwrite=overwrite)
    (target / "mine.txt").unlink()
    export(room, "trajectory", target)
    with pytest.raises(OutputError, match="--overwrite"):
        export(room, "trajectory", target)
    before = files_of(target)
    export(room, "trajectory", target, overwrite=True)
    assert files_of(target) == before
    (target / "trained").mkdir()
    (target / "trained" / "splat.ply").write_text("mine")
    with pytest.raises(OutputError, match=r"splat\.ply"):
        export(room, "trajectory", target, overwrite=True)
    assert (target / "trained" / "splat.ply").exists()


def test_bad_input_is_refused(room: Path, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="no such result folder"):
        export(tmp_path / "nothing", "trajectory", tmp_path / "there")
    with pytest.raises(ConfigError, match="--frames"):
        export(room, "trajectory", tmp_path / "there", ExportOptions(frames="some"))
    with pytest.raises(ConfigError, match=r"NAME\.glb"):
        export(room, "glb", tmp_path / "scene.gltf")
    with pytest.raises(OutputError, match="no folder"):
        export(room, "trajectory", tmp_path / "a" / "b")
    assert not list(tmp_path.iterdir())


def test_a_result_without_frames_has_nothing_to_export(tmp_path: Path) -> None:
    write_room(tmp_path / "out", 1)
    cameras = tmp_path / "out" / "cameras.json"
    lines = cameras.read_text().splitlines()
    cameras.write_text("\n".join([*lines[:2], *lines[3:]]))
    for name in FORMATS_HERE:
        with pytest.raises(InputError, match="no frames"):
            export(tmp_path / "out", name, target_for(tmp_path, name))


@pytest.mark.parametrize("name", ["depth", "transforms"])
def test_a_damaged_depth_file_costs_its_frame(tmp_path: Path, name: str) -> None:
    write_room(tmp_path / "out", 6)
    (tmp_path / "out" / "depth" / "000002.npz").write_bytes(b"damage")
    target, report = export(tmp_path / "out", name, tmp_path / "there")
    assert report.warnings == ["1 frames are left out: their files are missing or damaged"]
    assert not (target / "depth" / "frame_000002.png").exists()
    assert (target / "depth" / "frame_000004.png").exists()


def test_the_result_itself_stays_as_it_was(room: Path, tmp_path: Path) -> None:
    before = files_of(room)
    for name in FORMATS_HERE:
        export(room, name, target_for(tmp_path / name, name) if (tmp_path / name).mkdir() is None else None)
    assert files_of(room) == before
    assert default_target(room, FORMATS["transforms"]).parent == room.parent


@pytest.mark.parametrize("name", FORMATS_HERE)
def test_an_export_can_be_made_anew_in_its_place(room: Path, tmp_path: Path, name: str) -> None:
    target, _ = export(room, name, target_for(tmp_path, name))
    before = files_of(tmp_path)
    export(room, name, target, overwrite=True)
    assert files_of(tmp_path).keys() == before.keys()
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []
