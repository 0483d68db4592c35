"""Drives of KITTI raw: times, rectified or distorted camera, poses of the camera from oxts."""

from pathlib import Path

import numpy as np
import pytest

from stream_recon.app.datasets.find import find_scenes
from stream_recon.app.datasets.kitti_raw import load_kitti_raw
from stream_recon.configs.errors import InputError
from tests.app.datasets.folders import SIZE, truth_of, write_image, write_lines

LATITUDE, LONGITUDE = 49.0, 8.4
METRES_A_DEGREE = 6_378_137.0 * np.pi / 180
AXES = "0 -1 0 0 0 -1 1 0 0"
"""From the vehicle (forward, left, up) to a camera (right, down, forward)."""


def write_drive(root: Path, kind: str = "sync") -> Path:
    day = root / "2011_09_26"
    drive = day / f"2011_09_26_drive_0001_{kind}"
    for number in range(4):
        write_image(drive / f"image_02/data/{number:010d}.png", number, SIZE)
        # A drive to the east: yaw 0 is east.
        longitude = LONGITUDE + 2.0 * number / (METRES_A_DEGREE * np.cos(np.radians(LATITUDE)))
        write_lines(drive / f"oxts/data/{number:010d}.txt", f"{LATITUDE} {longitude:.12f} 110.0 0 0 0" + " 1" * 24)
    stamps = [f"2011-09-26 13:02:25.{100 * number + 5:03d}000000" for number in range(4)]
    write_lines(drive / "image_02/timestamps.txt", *stamps)
    width, height = SIZE
    write_lines(
        day / "calib_cam_to_cam.txt",
        "calib_time: 09-Jan-2012 13:57:47",
        f"S_02: {width} {height}",
        f"S_rect_02: {width} {height}",
        "K_02: 60 0 30 0 61 22 0 0 1",
        "D_02: -0.3 0.1 0.001 0.002 -0.02",
        "R_rect_00: 1 0 0 0 1 0 0 0 1",
        "P_rect_02: 50 0 31 5 0 50 23 0 0 0 1 0",
    )
    write_lines(day / "calib_velo_to_cam.txt", "calib_time: 15-Mar-2012 11:37:16", f"R: {AXES}", "T: 0 0 0")
    write_lines(day / "calib_imu_to_velo.txt", "R: 1 0 0 0 1 0 0 0 1", "T: 0 0 0")
    return drive


def test_a_drive_has_times_camera_and_poses(tmp_path: Path) -> None:
    (scene,) = find_scenes(write_drive(tmp_path))
    assert scene.dataset == "kitti" and scene.frames == 4
    with scene.open() as source:
        frames = list(source)
    assert np.diff([frame.timestamp for frame in frames]) == pytest.approx([0.1] * 3, abs=1e-6)
    truth = truth_of(scene)
    assert truth.intrinsics is not None and (truth.intrinsics.fx, truth.intrinsics.cx) == (50, 31.5)
    poses = [truth.poses[number] for number in range(4)]
    # The camera looks east, where the vehicle drives, 2 m a frame; its second camera stands 0.1 m to the left.
    forward = poses[1][:3, 3] - poses[0][:3, 3]
    assert forward == pytest.approx([2, 0, 0], abs=1e-3)
    assert poses[0][:3, :3] @ [0, 0, 1] == pytest.approx([1, 0, 0], abs=1e-9)
    assert poses[0][:3, 3] == pytest.approx([0, 0.1, 0], abs=1e-6)


def test_drives_that_are_not_rectified_have_their_distortion(tmp_path: Path) -> None:
    (scene,) = find_scenes(write_drive(tmp_path, "extract"))
    camera = load_kitti_raw(scene.path).known_camera(scene.name)
    assert camera.coefficients == (-0.3, 0.1, 0.001, 0.002, -0.02) and (camera.fx, camera.cx) == (60, 30.5)


def test_a_drive_without_all_times_is_refused(tmp_path: Path) -> None:
    drive = write_drive(tmp_path)
    write_lines(drive / "image_02/timestamps.txt", "2011-09-26 13:02:25.0")
    (scene,) = find_scenes(drive)
    with pytest.raises(InputError, match="1 lines"):
        scene.open()
    write_lines(drive / "image_02/timestamps.txt", *["yesterday"] * 4)
    with pytest.raises(InputError, match="date and time"):
        scene.open()


@pytest.mark.parametrize("change", ["fewer", "more"])
def test_rows_of_other_columns_are_refused(tmp_path: Path, change: str) -> None:
    drive = write_drive(tmp_path)
    path = drive / "oxts/data/0000000002.txt"
    words = path.read_text().split()
    write_lines(path, " ".join(words[1:] if change == "fewer" else ["0", *words]))
    with pytest.raises(InputError, match="30"):
        load_kitti_raw(drive)


def test_a_missing_row_of_oxts_is_told(tmp_path: Path) -> None:
    drive = write_drive(tmp_path)
    (drive / "oxts/data/0000000002.txt").unlink()
    (scene,) = find_scenes(drive)
    assert sorted(truth_of(scene).poses) == [0, 1, 3]
    with scene.open() as source:
        assert source.warnings == [f"3 of 4 images of {scene.name} have a pose, not 0000000002.png"]
