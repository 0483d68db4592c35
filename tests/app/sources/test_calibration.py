"""Known cameras: read from what other programs write, and their lenses taken out of images."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from stream_recon.app.sources.calibration import Calibration, parse_camera
from stream_recon.app.sources.frame_choice import FrameChoice
from stream_recon.app.sources.source import open_source
from stream_recon.app.sources.undistort import Undistorter
from stream_recon.configs.errors import ConfigError, InputError

BENT = (-0.2, 0.05, 0.001, -0.002)
OPENCV = Calibration(500.0, 510.0, 320.5, 242.5, "perspective", BENT, (640, 480))
FISHEYE = Calibration(300.0, 301.0, 320.5, 242.5, "fisheye", (0.02, -0.01, 0.003, -0.001), (640, 480))
INFINITE = OPENCV.text().replace("640", "Infinity")
FILES = {
    "cameras.txt": "# Camera list\n#   CAMERA_ID, MODEL\n1 OPENCV 640 480 500 510 320.5 242.5 -0.2 0.05 0.001 -0.002\n",
    "transforms.json": json.dumps(
        {"camera_model": "OPENCV", "fl_x": 500, "fl_y": 510, "cx": 320.5, "cy": 242.5, "w": 640, "h": 480}
        | dict(zip(("k1", "k2", "p1", "p2"), BENT, strict=True))
    ),
    "camera_info.yaml": """image_width: 640
image_height: 480
camera_name: head
camera_matrix:
  rows: 3
  cols: 3
  data: [500.0, 0.0, 320.0, 0.0, 510.0, 242.0, 0.0, 0.0, 1.0]
distortion_model: plumb_bob
distortion_coefficients:
  rows: 1
  cols: 5
  data: [-0.2, 0.05, 0.001, -0.002, 0.0]
rectification_matrix:
  rows: 3
  cols: 3
  data: [1, 0, 0, 0, 1, 0, 0, 0, 1]
""",
    "camchain.yaml": """cam0:
  cam_overlaps: [1]
  camera_model: pinhole
  distortion_coeffs: [-0.2, 0.05, 0.001, -0.002]
  distortion_model: radtan
  intrinsics: [500.0, 510.0, 320.0, 242.0]
  resolution: [640, 480]
  rostopic: /cam0/image_raw
cam1:
  camera_model: pinhole
  intrinsics: [200.0, 200.0, 160.0, 100.0]
  resolution: [320, 200]
""",
    "euroc.yaml": """sensor_type: camera
resolution: [640, 480]
camera_model: pinhole
intrinsics:
  - 500.0
  - 510.0
  - 320.0
  - 242.0
distortion_model: radtan
distortion_coefficients: [-0.2, 0.05, 0.001, -0.002]
distortion_coeffs: [-0.2, 0.05, 0.001, -0.002]
""",
}


def test_a_sequence_with_truth_says_its_camera(tmp_path: Path) -> None:
    (tmp_path / "intrinsics.txt").write_text("585 586 320 240 640 480\n")
    assert parse_camera(str(tmp_path / "intrinsics.txt")) == Calibration(585, 586, 320, 240, size=(640, 480))


@pytest.mark.parametrize("name", FILES)
def test_files_of_other_programs_say_the_same(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(FILES[name])
    found = parse_camera(str(tmp_path / name))
    assert (found.fx, found.fy, found.cx, found.cy, found.size) == (500, 510, 320.5, 242.5, (640, 480))
    assert found.distortion == "perspective" and found.coefficients[:4] == BENT


def test_opencv_writes_what_is_read(tmp_path: Path) -> None:
    storage = cv2.FileStorage(str(tmp_path / "opencv.yml"), cv2.FILE_STORAGE_WRITE)
    storage.write("image_width", 640)
    storage.write("image_height", 480)
    storage.write("camera_matrix", np.array([[500.0, 0, 320], [0, 510, 242], [0, 0, 1]]))
    storage.write("distortion_coefficients", np.array([*BENT, 0.0]))
    storage.release()
    found = parse_camera(str(tmp_path / "opencv.yml"))
    assert (found.fx, found.fy, found.cx, found.cy, found.size) == (500, 510, 320.5, 242.5, (640, 480))
    assert found.coefficients[:4] == BENT


def test_fish_eyes_are_told_from_others(tmp_path: Path) -> None:
    (tmp_path / "cameras.txt").write_text("1 OPENCV_FISHEYE 640 480 300 301 320.5 242.5 0.02 -0.01 0.003 -0.001\n")
    text = FILES["camchain.yaml"].replace("radtan", "equidistant").replace("500.0, 510.0", "300.0, 301.0")
    (tmp_path / "k.yaml").write_text(text.replace("[-0.2, 0.05, 0.001, -0.002]", "[0.02, -0.01, 0.003, -0.001]"))
    assert parse_camera(str(tmp_path / "cameras.txt")) == FISHEYE
    assert parse_camera(str(tmp_path / "k.yaml")).for_size((640, 480)) == replace(FISHEYE, others=())


@pytest.mark.parametrize(
    "changed",
    [
        {"fx": 1e300},
        {"fy": 1e-300},
        {"cx": math.nan},
        {"size": (0, 480)},
        {"size": (640, 10**9)},
        {"coefficients": (0.1, 0.2)},
        {"distortion": "fisheye", "coefficients": (0.0, 0.0)},
    ],
)
def test_numbers_that_no_camera_has_are_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"^a camera"):
        replace(OPENCV, **changed)


def test_numbers_and_what_a_run_keeps() -> None:
    assert parse_camera("500,510,320,242") == Calibration(500, 510, 320.5, 242.5)
    assert parse_camera("500, 510,320, 242,-.2,5e-2,0.001,-0.002").coefficients == BENT
    for camera in (OPENCV, FISHEYE, Calibration(1.5, 1.5, 1, 1)):
        assert parse_camera(camera.text()) == camera


@pytest.mark.parametrize(
    "text", ["500,510,320", "500,510,320,242,1", "0,510,320,242", "nan.txt", "{", '{"fx": 1}', INFINITE]
)
def test_what_is_no_camera_is_refused_in_one_line(text: str) -> None:
    with pytest.raises((ConfigError, InputError)) as raised:
        parse_camera(text)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello: world\n",
        "1 THIN_PRISM 640 480 1 2 3 4\n",
        "1 OPENCV 640 480 5\n",
        "intrinsics: [a, b, c, d]",
        "585 586 320 240 1e999 480\n",
        '{"fl_x": 500, "w": Infinity, "h": 480}',
    ],
)
def test_files_that_are_none_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "camera.txt").write_text(text)
    with pytest.raises(InputError, match="--intrinsics"):
        parse_camera(str(tmp_path / "camera.txt"))


def test_a_camera_goes_with_smaller_images_of_its_shape_alone() -> None:
    half = OPENCV.for_size((320, 240))
    assert (half.fx, half.cy, half.coefficients) == (250, 121.25, BENT)
    with pytest.raises(InputError, match="aspect ratio"):
        OPENCV.for_size((480, 640))


@pytest.mark.parametrize("camera", [OPENCV, FISHEYE])
def test_lines_are_straight_once_the_lens_is_gone(camera: Calibration) -> None:
    """A grid seen through the lens comes out as a pinhole camera of the told focal length would show it."""
    rectify = Undistorter(camera, (640, 480))
    k = rectify.intrinsics
    assert k.fx == k.fy and (k.cx, k.cy) == (320, 240)
    rays = np.stack(np.meshgrid(np.linspace(-0.35, 0.35, 8), np.linspace(-0.25, 0.25, 6)), axis=-1).reshape(-1, 2)
    for ray, at in zip(rays, rectify.to_source(rays), strict=True):
        y, x = np.mgrid[0:480, 0:640] + 0.5
        spot = 255 * np.exp(-((x - at[0]) ** 2 + (y - at[1]) ** 2) / (2 * 3.0**2))
        straight = rectify(np.repeat(spot.astype(np.uint8)[..., None], 3, axis=2))[..., 0].astype(float)
        total = straight.sum()
        centre = (straight * x).sum() / total, (straight * y).sum() / total
        assert centre == pytest.approx((k.fx * ray[0] + k.cx, k.fy * ray[1] + k.cy), abs=0.6)


@pytest.mark.parametrize("camera", [OPENCV, FISHEYE])
def test_no_corner_is_empty_and_no_more_is_cut_than_has_to_be(camera: Calibration) -> None:
    rectify = Undistorter(camera, (640, 480))
    white = rectify(np.full((480, 640, 3), 255, np.uint8))
    assert white[2:-2, 2:-2].min() == 255
    border = np.array([[0, 0], [640, 0], [0, 480], [640, 480], [320, 0], [320, 480], [0, 240], [640, 240]])
    at = rectify.to_source((border - (320, 240)) / rectify.intrinsics.fx)
    room = np.minimum(at, np.array([640, 480]) - at).min()
    assert -1 < room < 3


def test_an_image_without_a_lens_is_not_touched() -> None:
    rectify = Undistorter(Calibration(500, 500, 320.2, 239.8, "perspective", (0.0, 0.0)), (640, 480))
    image = np.zeros((480, 640, 3), np.uint8)
    assert rectify(image) is image and rectify.intrinsics.fx == 500


def test_a_source_gives_frames_without_the_lens_and_says_its_camera(tmp_path: Path) -> None:
    image = np.random.default_rng(0).integers(0, 255, (48, 64, 3), np.uint8)
    for number in range(3):
        cv2.imwrite(str(tmp_path / f"{number}.png"), image)
    with open_source(str(tmp_path), FrameChoice(camera=OPENCV.text())) as source:
        assert source.intrinsics is None
        frames = list(source)
        expected = Undistorter(OPENCV.for_size((64, 48)), (64, 48))
        assert source.intrinsics == expected.intrinsics
        assert np.array_equal(frames[2].rgb, expected(image[..., ::-1].copy()))


def test_a_camera_in_shares_of_the_image_is_refused() -> None:
    with pytest.raises(InputError, match=r"focal length 0\.9 .* none of images of 640x480 pixels"):
        parse_camera("0.9,1.2,0.5,0.5").for_size((640, 480))
