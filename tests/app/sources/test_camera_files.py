"""What a calibration file states is applied as OpenCV does, or refused by name."""

import json
from pathlib import Path

import cv2
import numpy as np
import pytest

from stream_recon.app.sources.calibration import Calibration, one_camera, parse_camera
from stream_recon.app.sources.undistort import Undistorter
from stream_recon.configs.errors import ConfigError, InputError

SIZE = (384, 288)
K = np.array([[300.0, 0, 191.5], [0, 300, 143.5], [0, 0, 1]])
RATIONAL = (6.2, 3.1, 0.0003, -0.0002, 0.35, 6.4, 4.9, 1.2)
PRISM = (-0.2, 0.05, 0.001, -0.002, 0.01, 0.02, 0.01, 0.0, 0.001, -0.0005, 0.002, 0.0003)
TILTED = (*PRISM, 0.01, -0.02)
RAYS = np.stack(np.meshgrid(np.linspace(-0.5, 0.5, 5), np.linspace(-0.4, 0.4, 5)), axis=-1).reshape(-1, 2)


def yaml(
    coefficients: tuple[float, ...], extra: str = "", matrix: str = "300, 0, 191.5, 0, 300, 143.5, 0, 0, 1"
) -> str:
    return (
        f"image_width: {SIZE[0]}\nimage_height: {SIZE[1]}\n{extra}camera_matrix:\n  rows: 3\n  cols: 3\n"
        f"  data: [{matrix}]\ndistortion_coefficients:\n  rows: 1\n  cols: {len(coefficients)}\n"
        f"  data: [{', '.join(map(str, coefficients))}]\n"
    )


def read(tmp_path: Path, text: str, name: str = "camera.yml") -> Calibration:
    (tmp_path / name).write_text(text)
    return parse_camera(str(tmp_path / name))


def projected(coefficients: tuple[float, ...]) -> np.ndarray:
    """Pixels by OpenCV, whose first pixel has its centre at (0, 0), in this program's convention."""
    points = np.concatenate([RAYS, np.ones((len(RAYS), 1))], axis=1)
    pixels, _ = cv2.projectPoints(points, np.zeros(3), np.zeros(3), K, np.array(coefficients))
    return pixels.reshape(-1, 2) + 0.5


@pytest.mark.parametrize("coefficients", [PRISM[:4], PRISM[:5], RATIONAL, PRISM, TILTED])
def test_every_coefficient_of_opencv_is_applied(tmp_path: Path, coefficients: tuple[float, ...]) -> None:
    lens = Undistorter(read(tmp_path, yaml(coefficients)), SIZE)
    expected = projected(coefficients)
    assert np.abs(lens.to_source(RAYS) - expected).max() < 0.1
    k = lens.intrinsics
    inside = ((expected > 5) & (expected < np.array(SIZE) - 5)).all(axis=1)
    straight = lens.from_source(expected[inside])
    assert np.abs(straight - (RAYS[inside] * k.fx + (k.cx, k.cy))).max() < 0.1
    assert 0.5 * 300 < k.fx < 2 * 300


def test_a_point_in_an_image_with_eight_coefficients_goes_where_it_belongs(tmp_path: Path) -> None:
    lens = Undistorter(read(tmp_path, yaml(RATIONAL)), SIZE)
    ray = cv2.undistortPoints(np.array([[[337.5, 249.5]]]), K, np.array(RATIONAL)).reshape(2)
    k = lens.intrinsics
    assert lens.from_source(np.array([[338.0, 250.0]]))[0] == pytest.approx(ray * k.fx + (k.cx, k.cy), abs=0.1)


def test_full_opencv_of_colmap_is_the_rational_model(tmp_path: Path) -> None:
    numbers = " ".join(map(str, (300, 300, 192, 144, *RATIONAL)))
    found = read(tmp_path, f"1 FULL_OPENCV 384 288 {numbers}\n", "cameras.txt")
    assert np.abs(Undistorter(found, SIZE).to_source(RAYS) - projected(RATIONAL)).max() < 0.1


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (yaml((0.1, 0.2, 0, 0, 0, 0.3)), "6 coefficients"),
        (yaml((0.1, 0.2, 0, 0), matrix="300, 4, 191.5, 0, 300, 143.5, 0, 0, 1"), "skew 4"),
        (yaml((0.9,), extra="distortion_model: fov\n"), "fov"),
        (yaml((0.1, 0.2, 0, 0, 0.3), extra="distortion_model: equidistant\n"), "5 coefficients"),
        ("1 THIN_PRISM_FISHEYE 384 288 300 300 192 144 0 0 0 0 0 0 0 0\n", "THIN_PRISM_FISHEYE"),
        ("1 FOV 384 288 300 300 192 144 0.9\n", "FOV"),
        ("1 OPENCV 384 288 300 300 192 144 0.1 0 0 0 7\n", "9 parameters for OPENCV"),
        (json.dumps({"fl_x": 300, "w": 384, "h": 288, "k4": 0.1}), "k4"),
        (json.dumps({"fl_x": 300, "w": 384, "h": 288, "camera_model": "EQUIRECTANGULAR"}), "EQUIRECTANGULAR"),
        (json.dumps({"fl_x": 300, "w": 384, "h": 288, "is_fisheye": True, "p1": 0.1}), "p1"),
        ("cam0:\n  camera_model: eucm\n  intrinsics: [1, 1, 300, 300, 192, 144]\n  resolution: [384, 288]\n", "eucm"),
    ],
)
def test_what_cannot_be_applied_is_refused_by_name(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(InputError, match=named):
        read(tmp_path, text)


def test_instant_ngp_says_fisheye_and_angles_in_its_own_way(tmp_path: Path) -> None:
    record = {"camera_angle_x": 2 * np.arctan(0.5), "w": 384, "h": 288, "is_fisheye": True, "k1": 0.02, "k4": 0.001}
    found = read(tmp_path, json.dumps(record), "transforms.json")
    assert found.fx == pytest.approx(384) and found.distortion == "fisheye"
    assert found.coefficients == (0.02, 0.0, 0.0, 0.001)


def test_of_several_cameras_that_of_the_images_size_is_taken(tmp_path: Path) -> None:
    text = "1 PINHOLE 384 288 300 300 192 144\n2 PINHOLE 640 400 500 500 320 200\n"
    found = parse_camera(read(tmp_path, text, "cameras.txt").text())
    assert found.for_size((640, 400)).fx == 500 and found.for_size((384, 288)).fx == 300
    with pytest.raises(InputError, match="384x288, 640x400"):
        found.for_size((1000, 300))


def test_different_cameras_of_one_size_are_refused_with_a_list(tmp_path: Path) -> None:
    text = "1 PINHOLE 384 288 300 300 192 144\n2 PINHOLE 384 288 400 400 192 144\n"
    with pytest.raises(InputError, match="fx 300 at 384x288; fx 400 at 384x288"):
        read(tmp_path, text, "cameras.txt").for_size(SIZE)


def test_cameras_per_image_that_agree_count_as_one(tmp_path: Path) -> None:
    cameras = [Calibration(300 + n, 300 + n, 192, 144, "perspective", (0.1, 0, 0, 0), SIZE) for n in range(3)]
    assert one_camera(cameras) == cameras[1]
    with pytest.raises(InputError, match="4 different cameras"):
        one_camera([*cameras, Calibration(400, 400, 192, 144, "perspective", (0.1, 0, 0, 0), SIZE)])


@pytest.mark.parametrize("numbers", ["3000,3000,2016,1512", "300,300,-5000,144", "300,300,192,1e9"])
def test_a_principal_point_outside_the_image_is_refused(numbers: str) -> None:
    with pytest.raises(InputError, match="none of images of 384x288"):
        parse_camera(numbers).for_size(SIZE)


def test_numbers_of_the_turned_image_are_refused() -> None:
    with pytest.raises(InputError, match="is that of 400x300 pixels"):
        parse_camera("320,320,199.5,149.5").for_size((300, 400))


def test_focal_lengths_of_no_lens_are_refused() -> None:
    with pytest.raises(ConfigError, match="differ too much"):
        parse_camera("300,3000,192,144")


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["perspective", "fisheye"])
def test_a_camera_turns_with_its_images(orientation: int, kind: str) -> None:
    """A ray's pixel in the turned image is the turned pixel of the turned ray's original."""
    camera = Calibration(300, 310, 180, 150, kind, (-0.1, 0.02, 0.003, -0.004), SIZE)  # type: ignore[arg-type]
    turned = camera.turned(orientation)
    x, y = RAYS.T
    px, py = Undistorter(camera, SIZE).to_source(RAYS).T
    w, h = SIZE
    # For each EXIF orientation: displayed pixel and ray of a stored pixel and ray.
    shown = {
        1: ((px, py), (x, y)),
        2: ((w - px, py), (-x, y)),
        3: ((w - px, h - py), (-x, -y)),
        4: ((px, h - py), (x, -y)),
        5: ((py, px), (y, x)),
        6: ((h - py, px), (-y, x)),
        7: ((h - py, w - px), (-y, -x)),
        8: ((py, w - px), (y, -x)),
    }
    pixels, rays = (np.stack(pair, axis=1) for pair in shown[orientation])
    assert turned.size is not None
    assert np.abs(Undistorter(turned, turned.size).to_source(rays) - pixels).max() < 1e-6
