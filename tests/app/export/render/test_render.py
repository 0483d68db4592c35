"""Videos of the box room."""

from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest

from stream_recon.app.core.transforms import upright_axes
from stream_recon.app.core.types import Intrinsics
from stream_recon.app.export.job import ExportJob, ExportOptions
from stream_recon.app.export.render.camera_path import CAMERA_PATHS, camera_keypoints
from stream_recon.app.export.render.film import FilmOptions, render_film
from stream_recon.app.export.render.raster import BACKGROUND, Points, RenderScene, draw, render_scene
from stream_recon.app.export.view import world_up
from stream_recon.app.result.cameras import FrameCamera
from stream_recon.app.result.folder import read_result
from stream_recon.configs.errors import ConfigError, OutputError
from tests.app.export.rooms import off_the_walls, write_room

K = Intrinsics(100.0, 100.0, 50.0, 40.0)
SIZE = (100, 80)


def points(xyz: list[tuple[float, float, float]], side: tuple[float, float, float] = (0, 0, 0)) -> Points:
    rgb = np.array([[250, 0, 0], [0, 250, 0], [0, 0, 250]], np.uint8)[: len(xyz)]
    size = np.full(len(xyz), 0.1, np.float32)
    return Points(
        np.array(xyz, np.float32).reshape(-1, 3), rgb, size, np.tile(np.array(side, np.float32), (len(xyz), 1))
    )


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("render") / "out"
    write_room(folder, 8, source=False)
    return folder


@pytest.fixture(scope="module")
def scene(room: Path) -> RenderScene:
    return render_scene(
        ExportJob(read_result(room), ExportOptions(frames="keyframes")), 10**6, lambda done, total: None
    )


def test_a_point_is_drawn_where_it_is_and_as_wide() -> None:
    image = draw(points([(0.1, 0.2, 2.0)]), np.eye(4), K, SIZE, 0.1)
    rows, columns = np.nonzero((image == (250, 0, 0)).all(axis=2))
    assert (rows.mean(), columns.mean()) == (50, 55)  # 100 * 0.2 / 2 + 40
    assert 4 <= np.ptp(rows) <= 6 and (image[0, 0] == BACKGROUND).all()


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_nearer_hides_the_farther(order: tuple[int, int]) -> None:
    both = points([(0, 0, 1.0), (0, 0, 3.0)])
    turned = Points(*(getattr(both, name)[list(order)] for name in ("xyz", "rgb", "size", "side")))
    assert draw(turned, np.eye(4), K, SIZE, 0.1)[40, 50].tolist() == [250, 0, 0]
    assert draw(turned, np.eye(4), K, SIZE, 2.0)[40, 50].tolist() == [0, 250, 0]


def test_points_behind_or_seen_from_behind_are_not_drawn() -> None:
    assert (draw(points([(0, 0, 2.0)], (0, 0, -1)), np.eye(4), K, SIZE, 0.1) != BACKGROUND).any()
    for hidden in (points([(0, 0, 2.0)], (0, 0, 1)), points([(0, 0, -2.0)]), points([(9, 0, 2.0)]), points([])):
        assert (draw(hidden, np.eye(4), K, SIZE, 0.1) == BACKGROUND).all()
    for corner in ((-0.999, -0.799), (0.999, 0.799)):  # squares that reach beyond the image
        assert (draw(points([(*corner, 2.0)]), np.eye(4), K, SIZE, 0.1) != BACKGROUND).any()


def test_points_come_with_the_frame_that_brought_them(scene: RenderScene) -> None:
    assert len(scene.points.xyz) == scene.point_ends[-1] and (np.diff(scene.point_ends) >= 0).all()
    assert off_the_walls(scene.points.xyz).max() < 0.03
    assert (np.einsum("ni,ni->n", scene.points.side, scene.points.xyz) < 0).mean() > 0.9


def test_many_points_are_thinned_evenly(room: Path, scene: RenderScene) -> None:
    job = ExportJob(read_result(room), ExportOptions(frames="keyframes"))
    few = render_scene(job, len(scene.points.xyz) // 3, lambda done, total: None)
    assert len(few.points.xyz) <= len(scene.points.xyz) // 3
    assert few.points.size[0] > scene.points.size[0]
    share = np.diff(few.point_ends, prepend=0) / np.maximum(np.diff(scene.point_ends, prepend=0), 1)
    assert share.max() < 3 * share.min() + 0.05


@pytest.mark.parametrize("path", CAMERA_PATHS)
def test_a_camera_path_is_smooth_and_looks_at_the_scene(scene: RenderScene, path: str) -> None:
    keypoints = list(camera_keypoints(scene, path, 24, 12.0))  # type: ignore[arg-type]
    poses = np.array([keypoint.T_world_camera for keypoint in keypoints])
    assert len(poses) == 24
    assert np.allclose(poses[:, :3, :3] @ poses[:, :3, :3].transpose(0, 2, 1), np.eye(3), atol=1e-9)
    assert np.allclose(np.linalg.det(poses[:, :3, :3]), 1)
    steps = np.linalg.norm(np.diff(poses[:, :3, 3], axis=0), axis=1)
    assert steps.max() <= 3 * np.median(steps) + 1e-9
    to_centre = scene.centre - poses[:, :3, 3]
    assert (np.einsum("ni,ni->n", poses[:, :3, 2], to_centre) > 0).mean() > 0.9
    shown = [keypoint.shown for keypoint in keypoints]
    assert shown == sorted(shown) and shown[-1] >= len(scene.cameras)
    assert (shown[0] < len(scene.cameras)) == (path == "top-down")


def test_up_is_found_where_cameras_look_down(room: Path) -> None:
    camera = read_result(room).cameras[0]

    def turned(yaw: float, pitch: float) -> FrameCamera:
        cy, sy, cp, sp = np.cos(yaw), np.sin(yaw), np.cos(pitch), np.sin(pitch)
        T = np.eye(4)
        T[:3, :3] = np.array([[cy, 0, sy], [0, 1, 0], [-sy, 0, cy]]) @ np.array([[1, 0, 0], [0, cp, -sp], [0, sp, cp]])
        return replace(camera, T_world_camera=T)

    assert world_up([turned(yaw, -0.6) for yaw in np.linspace(0, 2, 9)]) == pytest.approx([0, -1, 0], abs=1e-6)
    assert world_up([turned(0, 0.0)]) == pytest.approx([0, -1, 0])
    axes = upright_axes(np.array([0.0, -1, 0]), np.array([1.0, 0.5, 0]))
    assert axes == pytest.approx(np.array([[0, 0, -1], [0, 1, 0], [1, 0, 0]]), abs=1e-9)
    assert np.linalg.det(upright_axes(np.array([0.0, -1, 0]), np.array([0.0, 1, 0]))) == pytest.approx(1)


@pytest.mark.parametrize("path", CAMERA_PATHS)
def test_a_video_has_all_its_frames(room: Path, tmp_path: Path, path: str) -> None:
    seen: list[tuple[str, int, int]] = []
    options = FilmOptions(path, (160, 90), 0.5, 12.0)  # type: ignore[arg-type]
    report = render_film(room, tmp_path / "f.mp4", options, progress=lambda *step: seen.append(step))
    assert "6 frames of 160x90" in report and seen[-1] == ("frames", 6, 6)
    capture = cv2.VideoCapture(str(tmp_path / "f.mp4"))
    images = [capture.read()[1] for _ in range(6)]
    assert all(image is not None for image in images) and images[-1].std() > 5
    assert [file.name for file in tmp_path.iterdir()] == ["f.mp4"]


def test_nothing_is_left_of_a_video_that_was_not_finished(room: Path, tmp_path: Path) -> None:
    def stop(what: str, done: int, total: int) -> None:
        if what == "frames" and done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        render_film(room, tmp_path / "f.mp4", FilmOptions(size=(160, 90), seconds=0.5, fps=12), progress=stop)
    assert not list(tmp_path.iterdir())
    with pytest.raises(ConfigError, match="mp4"):
        render_film(room, tmp_path / "f.avi", FilmOptions())
    (tmp_path / "mine.mp4").write_text("mine")
    with pytest.raises(OutputError, match="exists"):
        render_film(room, tmp_path / "mine.mp4", FilmOptions())
