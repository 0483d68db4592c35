"""Scenes with the calibration in their files: undistorted frames and ground truth."""

import json
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest

from stream_recon.app.core.ground_truth import DepthMap, DepthPoints
from stream_recon.app.datasets.find import find_scenes
from stream_recon.app.datasets.scene import CALIBRATED, Scene
from stream_recon.app.sources.calibration import Calibration
from stream_recon.app.sources.undistort import Undistorter
from stream_recon.configs.errors import InputError

WIDTH, HEIGHT = 160, 120
LENS = Calibration(100, 104, 70, 66, "perspective", (-0.2, 0.04, 0.001, -0.001), (WIDTH, HEIGHT))


def write_images(folder: Path, count: int = 3) -> None:
    folder.mkdir(parents=True)
    for number in range(count):
        image = np.random.default_rng(number).integers(0, 255, (HEIGHT, WIDTH, 3)).astype(np.uint8)
        cv2.imwrite(str(folder / f"{number:06d}.png"), image)


def colmap(folder: Path) -> Path:
    write_images(folder / "images")
    model = folder / "sparse" / "0"
    model.mkdir(parents=True)
    c = LENS
    numbers = " ".join(str(value) for value in (c.fx, c.fy, c.cx, c.cy, *c.coefficients))
    (model / "cameras.txt").write_text(f"1 OPENCV {WIDTH} {HEIGHT} {numbers}\n")
    rows = [f"{n + 1} 1 0 0 0 {-0.1 * n} 0 0 1 {n:06d}.png\n80 60 1\n" for n in range(3)]
    (model / "images.txt").write_text("".join(rows))
    (model / "points3D.txt").write_text("1 0 0 4 9 9 9 0.1 1 0 2 0 3 0\n")
    return folder


def nerfstudio(folder: Path) -> Path:
    write_images(folder / "images")
    c = LENS
    frames = [{"file_path": f"images/{n:06d}.png", "transform_matrix": np.eye(4).tolist()} for n in range(3)]
    content = {"fl_x": c.fx, "fl_y": c.fy, "cx": c.cx, "cy": c.cy, "w": WIDTH, "h": HEIGHT, "frames": frames}
    names = dict(zip(("k1", "k2", "p1", "p2"), c.coefficients, strict=True))
    (folder / "transforms.json").write_text(json.dumps({**content, **names, "camera_model": "OPENCV"}))
    return folder


def euroc(folder: Path) -> Path:
    write_images(folder / "mav0/cam0/data")
    cam = folder / "mav0/cam0"
    (cam / "data.csv").write_text("#t,file\n" + "".join(f"{n * 50_000_000},{n:06d}.png\n" for n in range(3)))
    c = LENS
    (cam / "sensor.yaml").write_text(
        f"T_BS:\n  rows: 4\n  cols: 4\n  data: {np.eye(4).ravel().tolist()}\n"
        "camera_model: pinhole\ndistortion_model: radial-tangential\n"
        f"intrinsics: [{c.fx}, {c.fy}, {c.cx - 0.5}, {c.cy - 0.5}]\ndistortion_coefficients: {list(c.coefficients)}\n"
    )
    return folder


@pytest.mark.parametrize("write", [colmap, nerfstudio, euroc])
def test_layouts_have_calibrations(tmp_path: Path, write) -> None:  # type: ignore[no-untyped-def]
    (scene,) = find_scenes(write(tmp_path / "scene"))
    with scene.open() as source:
        raw = next(iter(source))
        assert source.intrinsics is None
    with replace(scene, camera=CALIBRATED).open() as source:
        frame = next(iter(source))
        assert source.intrinsics is not None
    rectifier = Undistorter(LENS, (WIDTH, HEIGHT))
    assert source.intrinsics.fx == pytest.approx(rectifier.intrinsics.fx)
    assert np.array_equal(frame.rgb, rectifier(raw.rgb))
    truth = replace(scene, camera=CALIBRATED).truth()
    assert truth is not None and truth.intrinsics == source.intrinsics


def test_ground_truth_is_undistorted(tmp_path: Path) -> None:
    (scene,) = find_scenes(colmap(tmp_path / "scene"))
    bent, straight = scene.truth(), replace(scene, camera=CALIBRATED).truth()
    assert bent is not None and straight is not None
    before, after = bent.depth(0), straight.depth(0)
    assert isinstance(before, DepthPoints) and isinstance(after, DepthPoints)
    rectifier = Undistorter(LENS, (WIDTH, HEIGHT))
    k = rectifier.intrinsics
    rays = (after.uvz[:, :2] - (k.cx, k.cy)) / k.fx
    assert rectifier.to_source(rays) == pytest.approx(before.uvz[:, :2], abs=1e-4)
    assert after.uvz[:, 2] == pytest.approx(before.uvz[:, 2])


@pytest.mark.parametrize("distortion", ["perspective", "fisheye"])
def test_pixels_there_and_back(distortion: str) -> None:
    lens = replace(LENS, distortion=distortion, coefficients=(0.05, -0.01, 0.001, 0.0005))
    rectifier = Undistorter(lens, (WIDTH, HEIGHT))
    pixels = np.array([[80.0, 60], [60, 40], [100, 90]])
    k = rectifier.intrinsics
    rays = (rectifier.from_source(pixels) - (k.cx, k.cy)) / (k.fx, k.fy)
    assert rectifier.to_source(rays) == pytest.approx(pixels, abs=1e-3)


def test_dense_depth_is_resampled_like_the_images(tmp_path: Path) -> None:
    scene = tmp_path / "seq"
    write_images(scene / "rgb")
    (scene / "depth").mkdir()
    depth = np.tile(np.arange(WIDTH // 2, dtype=np.uint16) * 10 + 500, (HEIGHT // 2, 1))
    cv2.imwrite(str(scene / "depth" / "000000.png"), depth)
    (scene / "intrinsics.txt").write_text(f"100 104 70 66 {WIDTH} {HEIGHT}\n")
    found = Scene("seq", "sequence", scene, None)
    straight = replace(found, camera=CALIBRATED).truth()
    assert straight is not None
    dense = straight.depth(0)
    assert isinstance(dense, DepthMap)
    rectifier = Undistorter(Calibration(100, 104, 70, 66, size=(WIDTH, HEIGHT)), (WIDTH, HEIGHT))
    at = rectifier.shown_at[60, 80]
    assert dense.metres[60, 80] == pytest.approx((500 + 10 * int(at[0] / 2)) / 1000, abs=0.011)


def test_a_scene_without_calibration_is_refused(tmp_path: Path) -> None:
    write_images(tmp_path / "scene")
    (scene,) = find_scenes(tmp_path / "scene")
    with pytest.raises(InputError, match="have no camera in common"):
        replace(scene, camera=CALIBRATED).open()


def test_every_coefficient_of_euroc_is_applied_or_refused(tmp_path: Path) -> None:
    (scene,) = find_scenes(euroc(tmp_path / "scene"))
    sensor = tmp_path / "scene/mav0/cam0/sensor.yaml"
    text = sensor.read_text()
    sensor.write_text(text.replace("-0.001]", "-0.001, 0.02]"))
    with replace(scene, camera=CALIBRATED).open() as source:
        frame = next(iter(source))
    with scene.open() as source:
        raw = next(iter(source))
    lens = replace(LENS, coefficients=(*LENS.coefficients, 0.02))
    assert np.array_equal(frame.rgb, Undistorter(lens, (WIDTH, HEIGHT))(raw.rgb))
    sensor.write_text(text.replace("radial-tangential", "fov"))
    with pytest.raises(InputError, match="distortion model fov"):
        replace(scene, camera=CALIBRATED).open()
