from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pycolmap
import pytest

from stream_recon.app.core.transforms import invert_pose
from stream_recon.app.core.types import FrameResult
from stream_recon.app.export.formats import export
from stream_recon.app.export.job import ExportOptions
from stream_recon.app.export.observations import no_observations
from stream_recon.app.result.cameras import FrameCamera, select_cameras
from stream_recon.app.result.tracks import SparseTracks
from tests.app.export.rooms import SIZE, off_the_walls, pixel_grid, room_frames, write_room
from tests.app.result_files import write_tracks

WIDTH, HEIGHT = 2 * SIZE[0], 2 * SIZE[1]
FOCAL = 2 * 0.8 * SIZE[0]


def exact_tracks(frames: list[FrameResult], k1: float = 0.0) -> SparseTracks:
    """Points on the walls where frames see them through a lens, to the last digit; seen[0] of each is a wrong match."""
    first = frames[0]
    xyz = first.camera_points.reshape(-1, 3)[::7].astype(np.float64)
    world = xyz @ first.T_world_camera[:3, :3].T + first.T_world_camera[:3, 3]
    lens = pycolmap.Camera(model="SIMPLE_RADIAL", width=WIDTH, height=HEIGHT, params=[FOCAL, WIDTH / 2, HEIGHT / 2, k1])
    frame, point, pixel = [], [], []
    for result in frames:
        T = invert_pose(result.T_world_camera)
        local = world @ T[:3, :3].T + T[:3, 3]
        ahead = np.flatnonzero(local[:, 2] > 0.1)
        at = lens.img_from_cam(local[ahead])
        shown = ((at >= 0) & (at < (WIDTH, HEIGHT))).all(axis=1)
        frame.append(np.full(shown.sum(), result.index))
        point.append(ahead[shown])
        pixel.append(at[shown])
    order = np.argsort(np.concatenate(point), kind="stable")
    return SparseTracks(
        points=world,
        errors=np.zeros(len(world), np.float32),
        frame=np.concatenate(frame)[order].astype(np.int32),
        point=np.concatenate(point)[order].astype(np.int32),
        pixel=np.concatenate(pixel)[order].astype(np.float32),
        lens=np.array([FOCAL, WIDTH / 2, HEIGHT / 2, k1]),
        source_size=np.array([WIDTH, HEIGHT], np.int32),
        loops=np.empty((0, 2), np.int32),
    )


def refined_room(folder: Path, k1: float = 0.0) -> SparseTracks:
    write_room(folder, 6)
    tracks = exact_tracks(room_frames(6)[::2], k1)
    write_tracks(folder, tracks)
    return tracks


def test_pycolmap_reads_what_was_written(tmp_path: Path) -> None:
    refined_room(tmp_path / "out")
    target, report = export(tmp_path / "out", "colmap", tmp_path / "there", ExportOptions(dense=100))
    model = pycolmap.Reconstruction(target / "sparse/0")
    (camera,) = model.cameras.values()
    assert camera.params == pytest.approx([FOCAL, FOCAL, WIDTH / 2, HEIGHT / 2]) and camera.model.name == "PINHOLE"
    poses = {f"frame_{result.index:06d}.jpg": invert_pose(result.T_world_camera) for result in room_frames(6)}
    for image in model.images.values():
        assert image.cam_from_world().matrix() == pytest.approx(poses[image.name][:3], abs=1e-9)
    elements = 0
    for number, point in model.points3D.items():
        for element in point.track.elements:
            assert model.images[element.image_id].points2D[element.point2D_idx].point3D_id == number
        elements += point.track.length()
    assert elements == model.compute_num_observations() == sum(len(i.points2D) for i in model.images.values())
    errors = [point.error for point in model.points3D.values()]
    assert f"{np.mean(errors):.2f} px" in report.summary and f"{len(errors)} points" in report.summary
    model.update_point_3d_errors()
    assert errors == pytest.approx([point.error for point in model.points3D.values()], abs=1e-9)


@pytest.mark.parametrize("k1", [0.0, -0.05, 0.03])
def test_tracked_points_land_on_their_pixels(tmp_path: Path, k1: float) -> None:
    tracks = refined_room(tmp_path / "out", k1)
    target, report = export(tmp_path / "out", "colmap", tmp_path / "there")
    model = pycolmap.Reconstruction(target / "sparse/0")
    assert {p.name for p in (target / "sparse/0").iterdir()} == {
        f"{name}.bin" for name in ("cameras", "images", "points3D")
    }
    assert model.num_images() == 3 and model.num_points3D() > 0.5 * len(tracks.points)
    # Were a pixel's centre taken to be a whole number, this would be 0.7.
    assert model.compute_mean_reprojection_error() < 1e-3
    for number, image in model.images.items():
        for seen in image.get_observation_points2D()[::29]:
            xyz = model.points3D[seen.point3D_id].xyz
            assert image.project_point(xyz) == pytest.approx(seen.xy, abs=0.01), number
    assert min(point.track.length() for point in model.points3D.values()) >= 2
    assert off_the_walls(np.array([point.xyz for point in model.points3D.values()])).max() < 1e-5
    assert "were tracked" in (target / "README.txt").read_text() and not report.warnings


def test_images_are_those_that_the_one_pinhole_camera_is_for(tmp_path: Path) -> None:
    refined_room(tmp_path / "out", -0.05)
    target, _ = export(tmp_path / "out", "colmap", tmp_path / "there", ExportOptions(max_side=150))
    model = pycolmap.Reconstruction(target / "sparse/0")
    (camera,) = model.cameras.values()
    assert camera.model.name == "PINHOLE" and max(camera.width, camera.height) == 150
    names = sorted(image.name for image in model.images.values())
    assert names == sorted(p.name for p in (target / "images").iterdir())
    for name in names:
        assert name.count(".") == 1 and "/" not in name
        assert cv2.imread(str(target / "images" / name)).shape[:2] == (camera.height, camera.width)


def test_points_have_the_colours_of_their_pixels(tmp_path: Path) -> None:
    refined_room(tmp_path / "out")
    target, _ = export(tmp_path / "out", "colmap", tmp_path / "there", ExportOptions(frames="all"))
    model = pycolmap.Reconstruction(target / "sparse/0")
    off = []
    for image in model.images.values():
        rgb = cv2.imread(str(target / "images" / image.name))[..., ::-1].astype(int)
        for seen in image.get_observation_points2D():
            column, row = seen.xy.astype(int)
            off.append(np.abs(rgb[row, column] - model.points3D[seen.point3D_id].color).mean())
    assert np.median(off) < 6


def test_dense_points_are_seen_where_depth_agrees(tmp_path: Path) -> None:
    write_room(tmp_path / "out", 8)
    target, report = export(tmp_path / "out", "colmap", tmp_path / "there", ExportOptions(dense=500))
    model = pycolmap.Reconstruction(target / "sparse/0")
    assert 400 < model.num_points3D() <= 500
    lengths = [point.track.length() for point in model.points3D.values()]
    assert min(lengths) >= 2 and max(lengths) == 4
    assert model.compute_mean_reprojection_error() < 1e-3
    assert off_the_walls(np.array([point.xyz for point in model.points3D.values()])).max() < 0.03
    frames = {f"frame_{result.index:06d}.jpg": result for result in room_frames(8)}
    for image in model.images.values():
        depth = frames[image.name].depth
        for seen in image.get_observation_points2D()[::11]:
            column, row = (seen.xy / 2).astype(int)
            z = (image.cam_from_world() * model.points3D[seen.point3D_id].xyz)[2]
            assert z == pytest.approx(depth[row, column], rel=0.021)
    assert "refine" in report.warnings[0]


def test_occluded_points_are_not_observed(tmp_path: Path) -> None:
    write_room(tmp_path / "out", 8)
    half = tmp_path / "out" / "depth" / "000004.npz"
    with np.load(half) as arrays:
        content = dict(arrays)
    content["depth"] = content["depth"] / 2  # as if something stood before that camera
    np.savez(half, **content)
    target, _ = export(tmp_path / "out", "colmap", tmp_path / "there", ExportOptions(dense=300))
    images = {image.name: image for image in pycolmap.Reconstruction(target / "sparse/0").images.values()}
    assert images["frame_000004.jpg"].num_points3D < 0.02 * images["frame_000002.jpg"].num_points3D


def test_wrong_matches_and_frames_left_out_cost_no_more_than_their_observations(tmp_path: Path) -> None:
    tracks = refined_room(tmp_path / "out")
    pixel = tracks.pixel.copy()
    pixel[::10] = (3.0, 3.0)
    write_tracks(tmp_path / "out", replace(tracks, pixel=pixel))
    (tmp_path / "out-source" / "004.png").write_bytes(b"damage")
    target, report = export(tmp_path / "out", "colmap", tmp_path / "there")
    model = pycolmap.Reconstruction(target / "sparse/0")
    assert sorted(image.name for image in model.images.values()) == ["frame_000000.jpg", "frame_000002.jpg"]
    assert model.num_points3D() > 500 and model.compute_mean_reprojection_error() < 0.1
    assert all(point.track.length() == 2 for point in model.points3D.values())
    assert report.warnings == ["1 frames are left out: their files are missing or damaged"]


def test_keyframes_are_the_refinements_and_the_networks_where_it_left_gaps() -> None:
    cameras = [FrameCamera.from_result(result) for result in room_frames(40)]
    chosen = [camera.index for camera in select_cameras(cameras, "keyframes", np.array([1, 3, 6, 8, 30, 33]))]
    assert chosen == [1, 3, 6, 8, 16, 18, 20, 22, 30, 33]
    assert [camera.index for camera in select_cameras(cameras, "keyframes")] == list(range(0, 40, 2))


def test_no_points_are_points_too() -> None:
    nothing = no_observations()
    assert len(nothing.filtered(np.empty(0, bool)).joined(nothing).xyz) == 0
    assert pixel_grid(2, 1).tolist() == [[[0.5, 0.5], [1.5, 0.5]]]
