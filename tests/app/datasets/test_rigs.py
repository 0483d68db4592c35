"""KITTI odometry, EuRoC."""

from pathlib import Path

import numpy as np
import pytest

from stream_recon.app.core.types import Intrinsics
from stream_recon.configs.errors import InputError
from tests.app.datasets.folders import (
    Pose,
    assert_frames,
    assert_intrinsics,
    assert_poses,
    camera_path,
    frames_of,
    matrix_line,
    only_scene,
    truth_of,
    write_image,
    write_lines,
)

PATH = camera_path(4)
K = np.array([[70.7, 0, 30.1], [0, 70.75, 18.3], [0, 0, 1]])
COLOUR_IN_GREY = np.array([0.06, -0.01, 0.003])
"""Place of the colour camera in the grey one's axes."""


def write_kitti(root: Path, image: str = "image_2") -> Path:
    folder = root / "sequences" / "04"
    for i in range(4):
        write_image(folder / image / f"{i:06d}.png", i)
    write_lines(folder / "times.txt", *(f"{0.1037 * i:e}" for i in range(4)))
    grey = np.hstack([K, np.zeros((3, 1))])
    colour = np.hstack([K, -(K @ COLOUR_IN_GREY)[:, None]])
    write_lines(folder / "calib.txt", f"P0: {matrix_line(grey, 3)}", f"P2: {matrix_line(colour, 3)}", "Tr: 1 0 0")
    write_lines(root / "poses" / "04.txt", *(matrix_line(pose.matrix, 3) for pose in PATH))
    return folder


def test_kitti_colour_images_have_poses_of_the_colour_camera(tmp_path: Path) -> None:
    write_kitti(tmp_path)
    scene = only_scene(tmp_path, "kitti")
    assert scene.name == "sequences__04"
    assert_frames(scene, [0.1037 * i for i in range(4)])
    truth = truth_of(scene)
    for i, pose in enumerate(PATH):
        np.testing.assert_allclose(truth.poses[i][:3, :3], pose.matrix[:3, :3], atol=1e-6)
        centre = pose.matrix[:3, :3] @ COLOUR_IN_GREY + pose.matrix[:3, 3]
        np.testing.assert_allclose(truth.poses[i][:3, 3], centre, atol=1e-6)
    assert_intrinsics(truth, 70.7, 70.75, 30.6, 18.8)
    assert not truth.has_depth and truth.depth(0) is None


def test_kitti_grey_images(tmp_path: Path) -> None:
    write_kitti(tmp_path, "image_0")
    assert_poses(truth_of(only_scene(tmp_path, "kitti")), {i: pose.matrix for i, pose in enumerate(PATH)})


def test_kitti_poses_follow_the_images_numbers_through_gaps(tmp_path: Path) -> None:
    folder = write_kitti(tmp_path, "image_0")
    (folder / "image_0" / "000001.png").unlink()
    write_lines(tmp_path / "poses" / "04.txt", *(matrix_line(pose.matrix, 3) for pose in PATH[:3]))
    scene = only_scene(tmp_path, "kitti")
    assert_frames(scene, [0.0, 0.2074, 0.3111], [0, 2, 3])
    assert_poses(truth_of(scene), {0: PATH[0].matrix, 1: PATH[2].matrix})
    with scene.open() as source:
        assert "poses end at frame 2" in source.warnings[0]


def test_kitti_test_sequences_have_no_poses(tmp_path: Path) -> None:
    write_kitti(tmp_path)
    (tmp_path / "poses" / "04.txt").unlink()
    truth = truth_of(only_scene(tmp_path, "kitti"))
    assert not truth.poses and truth.intrinsics is not None


def test_kitti_with_fewer_times_than_images(tmp_path: Path) -> None:
    write_lines(write_kitti(tmp_path) / "times.txt", "0.0", "0.1", "0.2")
    with pytest.raises(InputError, match=r"times\.txt has 3 lines, but there is an image 3"):
        frames_of(only_scene(tmp_path, "kitti"))


def test_kitti_times_out_of_order_sort_frames_with_their_poses(tmp_path: Path) -> None:
    write_lines(write_kitti(tmp_path, "image_0") / "times.txt", "0.0", "0.2", "0.1", "0.3")
    scene = only_scene(tmp_path, "kitti")
    assert [shown for _, _, shown in frames_of(scene)] == [0, 2, 1, 3]
    assert_poses(truth_of(scene), {i: PATH[j].matrix for i, j in enumerate((0, 2, 1, 3))})


SENSOR = """%YAML:1.0
# Camera sensor yaml
sensor_type: camera
T_BS:
  cols: 4
  rows: 4
  data: [{extrinsics}]
rate_hz: 20
resolution: [752, 480]
camera_model: pinhole
intrinsics: [458.654, 457.296, 367.215, 248.375] #fu, fv, cu, cv
distortion_model: {lens}
distortion_coefficients: [-0.28, 0.07, 0.0001, 1.7e-05]
"""
NANOSECONDS = [1403636579763555584 + 50_000_000 * i for i in range(4)]
CAMERA_IN_BODY = Pose((0.0, 0.0, 1.55), (-0.0216, -0.0647, 0.0098))


def write_euroc(folder: Path, lens: str = "radial-tangential") -> Path:
    cam, truth = folder / "mav0" / "cam0", folder / "mav0" / "state_groundtruth_estimate0"
    rows = []
    for i, (stamp, body) in enumerate(zip(NANOSECONDS, PATH, strict=True)):
        write_image(cam / "data" / f"{stamp}.png", i)
        x, y, z, w = body.xyzw
        state = ", ".join(f"{v:.9f}" for v in [*body.position, w, x, y, z, 0.1, 0.2, 0.3])
        rows.append(f"{stamp + 2_000_000}, {state}")
    write_lines(cam / "data.csv", "#timestamp [ns],filename", *(f"{s},{s}.png" for s in NANOSECONDS))
    matrix = ",\n         ".join(", ".join(f"{v:.9f}" for v in row) for row in CAMERA_IN_BODY.matrix)
    write_lines(cam / "sensor.yaml", SENSOR.format(extrinsics=matrix, lens=lens))
    write_lines(truth / "data.csv", "#timestamp, p_RS_R_x [m], ..", *rows)
    return folder


def test_euroc_poses_are_those_of_the_camera(tmp_path: Path) -> None:
    write_euroc(tmp_path / "MH_01_easy")
    scene = only_scene(tmp_path, "euroc")
    assert scene.name == "MH_01_easy" and scene.frames == 4
    assert_frames(scene, [s / 1e9 for s in NANOSECONDS])
    truth = truth_of(scene)
    # A point of the camera goes through the body to the world.
    point = np.array([0.2, -0.4, 3.0])
    for i, body in enumerate(PATH):
        in_body = CAMERA_IN_BODY.matrix[:3, :3] @ point + CAMERA_IN_BODY.position
        in_world = body.matrix[:3, :3] @ in_body + body.position
        np.testing.assert_allclose((truth.poses[i] @ [*point, 1])[:3], in_world, atol=1e-6)
    # The sensor's camera is of 752x480 pixels, and these images are a part of it.
    assert truth.intrinsics is None
    with scene.open() as source:
        assert any("sensor.yaml is of 752x480 pixels, the images of 64x48" in line for line in source.warnings)
    for image in (tmp_path / "MH_01_easy/mav0/cam0/data").iterdir():
        write_image(image, 0, (376, 240))
    assert truth_of(scene).intrinsics == Intrinsics(458.654 / 2, 457.296 / 2, 367.715 / 2, 248.875 / 2)


def test_euroc_layout_with_a_fisheye_gives_no_pinhole(tmp_path: Path) -> None:
    write_euroc(tmp_path / "room1", "equidistant")
    truth = truth_of(only_scene(tmp_path, "euroc"))
    assert truth.intrinsics is None and len(truth.poses) == 4


def test_euroc_inside_mav0(tmp_path: Path) -> None:
    folder = write_euroc(tmp_path / "MH_01_easy")
    assert len(frames_of(only_scene(folder / "mav0", "euroc"))) == 4


def test_euroc_truth_needs_the_calibration(tmp_path: Path) -> None:
    sensor = write_euroc(tmp_path / "MH_01_easy") / "mav0" / "cam0" / "sensor.yaml"
    write_lines(sensor, "sensor_type: camera")
    with pytest.raises(InputError, match="T_BS"):
        only_scene(tmp_path, "euroc").truth()
    sensor.unlink()
    with pytest.raises(InputError, match=r"sensor\.yaml is missing"):
        only_scene(tmp_path, "euroc").truth()


@pytest.mark.parametrize("name", ["mocap0", "vicon0", "gt"])
def test_poses_of_any_tracked_sensor_are_those_of_the_camera(tmp_path: Path, name: str) -> None:
    base = write_euroc(tmp_path / "room1") / "mav0"
    expected = truth_of(only_scene(tmp_path, "euroc")).poses
    (base / "state_groundtruth_estimate0").rename(base / name)
    rows = (base / name / "data.csv").read_text().splitlines()[1:]
    names = "#timestamp [ns], p_RS_R_x [m], p_RS_R_y [m], p_RS_R_z [m], q_RS_w [], q_RS_x [], q_RS_y [], q_RS_z []"
    write_lines(base / name / "data.csv", names, *(", ".join(row.split(", ")[:8]) for row in rows))
    write_lines(base / "imu0" / "data.csv", "#timestamp [ns],w_RS_S_x [rad s^-1]", "1,2")
    assert_poses(truth_of(only_scene(tmp_path, "euroc")), dict(expected))
    marker = Pose((0.3, 0.1, 0.0), (0.1, 0.0, 0.2)).matrix
    write_lines(base / name / "sensor.yaml", f"T_BS:\n  rows: 4\n  cols: 4\n  data: {marker.round(9).ravel().tolist()}")
    found = truth_of(only_scene(tmp_path, "euroc")).poses
    to_body = np.linalg.inv(CAMERA_IN_BODY.matrix)
    for index, pose in expected.items():
        body = pose @ to_body
        np.testing.assert_allclose(found[index], body @ np.linalg.inv(marker) @ CAMERA_IN_BODY.matrix, atol=1e-6)
