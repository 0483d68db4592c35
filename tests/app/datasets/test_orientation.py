"""Cameras, poses, masks and depth of images that their EXIF orientation turns for display."""

import json
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest

from stream_recon.app.core.ground_truth import DepthPoints
from stream_recon.app.datasets.colmap import load_colmap
from stream_recon.app.datasets.find import find_scenes
from stream_recon.app.datasets.scene import CALIBRATED, Scene
from stream_recon.app.sources.calibration import Calibration
from stream_recon.app.sources.frame_choice import FrameChoice
from stream_recon.app.sources.image_decoding import oriented, read_image
from stream_recon.app.sources.source import open_source
from stream_recon.app.sources.undistort import Undistorter
from stream_recon.configs.errors import InputError
from tests.app.sources.exif_files import jpeg, tiff

WIDTH, HEIGHT = 96, 64


def picture() -> np.ndarray:
    """Image whose four corners have different colours."""
    image = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    image[:32, :48], image[:32, 48:], image[32:, :48] = (200, 30, 30), (30, 200, 30), (30, 30, 200)
    return image


def write_images(folder: Path, orientation: int, count: int = 3) -> None:
    folder.mkdir(parents=True)
    for number in range(count):
        jpeg(folder / f"{number:06d}.jpg", picture(), tiff(orientation=orientation))


def colmap(folder: Path, orientation: int, size: tuple[int, int] = (WIDTH, HEIGHT)) -> Scene:
    write_images(folder / "images", orientation)
    model = folder / "sparse/0"
    model.mkdir(parents=True)
    (model / "cameras.txt").write_text(f"1 PINHOLE {size[0]} {size[1]} 80 80 {size[0] / 2} {size[1] / 2}\n")
    rows = [f"{n + 1} 1 0 0 0 {-0.1 * n} 0 0 1 {n:06d}.jpg\n20 10 1\n" for n in range(3)]
    (model / "images.txt").write_text("".join(rows))
    (model / "points3D.txt").write_text("1 0 0 4 9 9 9 0.1 1 0 2 0 3 0\n")
    (scene,) = find_scenes(folder)
    return scene


def nerfstudio(folder: Path, orientation: int) -> Scene:
    write_images(folder / "images", orientation)
    frames = [{"file_path": f"images/{n:06d}.jpg", "transform_matrix": np.eye(4).tolist()} for n in range(3)]
    camera = {"fl_x": 80, "cx": 48, "cy": 32, "w": WIDTH, "h": HEIGHT}
    (folder / "transforms.json").write_text(json.dumps({**camera, "frames": frames}))
    (scene,) = find_scenes(folder)
    return scene


def sequence(folder: Path, orientation: int) -> Scene:
    write_images(folder / "rgb", orientation)
    pose = " ".join(str(value) for value in np.eye(4).ravel())
    (folder / "poses.txt").write_text("".join(f"{n} {pose}\n" for n in range(3)))
    (folder / "intrinsics.txt").write_text(f"80 80 48 32 {WIDTH} {HEIGHT}\n")
    (scene,) = find_scenes(folder)
    return scene


@pytest.mark.parametrize("orientation", [3, 6, 8])
@pytest.mark.parametrize("write", [colmap, nerfstudio, sequence])
def test_poses_and_camera_of_stored_images_meet_stored_images(tmp_path: Path, write, orientation: int) -> None:  # type: ignore[no-untyped-def]
    scene = write(tmp_path / "scene", orientation)
    with replace(scene, camera=CALIBRATED).open() as source:
        frames = list(source)
    assert len(frames) == 3 and frames[0].rgb.shape == (HEIGHT, WIDTH, 3)
    assert np.abs(frames[0].rgb.astype(int) - picture()).mean() < 8
    truth = scene.truth()
    assert truth is not None and truth.source_size == (WIDTH, HEIGHT)
    assert truth.intrinsics is not None and (truth.intrinsics.cx, truth.intrinsics.cy) == (48, 32)


def test_sparse_points_are_those_of_the_stored_image(tmp_path: Path) -> None:
    truth = colmap(tmp_path / "scene", 6).truth()
    assert truth is not None
    points = truth.depth(0)
    assert isinstance(points, DepthPoints) and points.uvz[0, :2] == pytest.approx((20, 10))


def test_a_model_of_the_displayed_images_meets_displayed_images(tmp_path: Path) -> None:
    scene = colmap(tmp_path / "scene", 6, (HEIGHT, WIDTH))
    with replace(scene, camera=CALIBRATED).open() as source:
        assert next(iter(source)).rgb.shape == (WIDTH, HEIGHT, 3)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_turning_is_that_of_the_decoder(tmp_path: Path, orientation: int) -> None:
    path = jpeg(tmp_path / "a.jpg", picture(), tiff(orientation=orientation))
    stored, shown = read_image(path, as_stored=True), read_image(path)
    assert stored is not None and shown is not None
    assert np.array_equal(oriented(stored, orientation), shown)


@pytest.mark.parametrize(("orientation", "centre"), [(6, (64 - 20.5, 50.5)), (8, (20.5, 96 - 50.5))])
def test_a_calibration_of_stored_images_turns_with_them(
    tmp_path: Path, orientation: int, centre: tuple[float, float]
) -> None:
    write_images(tmp_path / "photos", orientation)
    (tmp_path / "cameras.txt").write_text(f"1 PINHOLE {WIDTH} {HEIGHT} 80 80 50.5 20.5\n")
    camera = tmp_path / "cameras.txt"
    with open_source(str(tmp_path / "photos"), FrameChoice(camera=str(camera))) as source:
        frame = next(iter(source))
    shown = read_image(tmp_path / "photos/000000.jpg")
    assert shown is not None
    # Undistortion moves the principal point to the centre.
    undistorted = Undistorter(Calibration(80, 80, *centre), (HEIGHT, WIDTH))(shown)
    assert frame.rgb.shape == (WIDTH, HEIGHT, 3) and np.array_equal(frame.rgb, undistorted)


def test_a_calibration_of_stored_images_without_orientation_is_refused(tmp_path: Path) -> None:
    write_images(tmp_path / "photos", 1)
    (tmp_path / "cameras.txt").write_text(f"1 PINHOLE {HEIGHT} {WIDTH} 80 80 32 48\n")
    with (
        open_source(str(tmp_path / "photos"), FrameChoice(camera=str(tmp_path / "cameras.txt"))) as source,
        pytest.raises(InputError, match="aspect ratio"),
    ):
        next(iter(source))


def test_masks_of_stored_images_turn_with_them(tmp_path: Path) -> None:
    write_images(tmp_path / "photos", 6)
    mask = np.full((HEIGHT, WIDTH), 255, np.uint8)
    mask[:16, :24] = 0
    (tmp_path / "masks").mkdir()
    cv2.imwrite(str(tmp_path / "masks/000000.png"), mask)
    with open_source(str(tmp_path / "photos"), FrameChoice(masks=str(tmp_path / "masks"))) as source:
        frame = next(iter(source))
    assert frame.mask is not None and np.array_equal(frame.mask, oriented(mask, 6) < 128)


def test_cameras_per_image_that_disagree_are_told(tmp_path: Path) -> None:
    scene = colmap(tmp_path / "scene", 1)
    model = tmp_path / "scene/sparse/0"
    (model / "cameras.txt").write_text("1 PINHOLE 96 64 80 80 48 32\n2 PINHOLE 96 64 120 120 48 32\n")
    text = (model / "images.txt").read_text().replace("0 0 1 000002.jpg", "0 0 2 000002.jpg")
    (model / "images.txt").write_text(text)
    with pytest.raises(InputError, match="different cameras"):
        replace(scene, camera=CALIBRATED).open()


def test_lenses_per_image_that_agree_are_applied(tmp_path: Path) -> None:
    scene = colmap(tmp_path / "scene", 1)
    model = tmp_path / "scene/sparse/0"
    rows = [f"{n} SIMPLE_RADIAL 96 64 {80 + 0.1 * n} 48 32 -0.1\n" for n in (1, 2, 3)]
    (model / "cameras.txt").write_text("".join(rows))
    text = (model / "images.txt").read_text()
    for n in (1, 2):
        text = text.replace(f"0 0 1 {n:06d}.jpg", f"0 0 {n + 1} {n:06d}.jpg")
    (model / "images.txt").write_text(text)
    with replace(scene, camera=CALIBRATED).open() as source:
        frame = next(iter(source))
    assert load_colmap(scene.path).known_camera(scene.name).coefficients[0] == -0.1
    assert np.abs(frame.rgb.astype(int) - picture()).mean() > 1


def test_a_model_that_cannot_be_applied_is_named(tmp_path: Path) -> None:
    scene = colmap(tmp_path / "scene", 1)
    (tmp_path / "scene/sparse/0/cameras.txt").write_text("1 FOV 96 64 80 80 48 32 0.9\n")
    with pytest.raises(InputError, match="FOV"):
        replace(scene, camera=CALIBRATED).open()


def test_files_of_windows_name_folders_by_a_backslash(tmp_path: Path) -> None:
    scene = nerfstudio(tmp_path / "scene", 1)
    table = tmp_path / "scene/transforms.json"
    table.write_text(table.read_text().replace("images/", "images\\\\"))
    with scene.open() as source:
        assert len(list(source)) == 3
    table.write_text(table.read_text().replace("images\\\\", "pictures\\\\"))
    with pytest.raises(InputError, match=r"first missing one is .*pictures"):
        scene.truth()
