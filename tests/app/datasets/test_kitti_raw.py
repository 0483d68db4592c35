"""Drives of KITTI raw: times, and a rectified or distorted camera."""

from pathlib import Path

import numpy as np
import pytest

from stream_recon.app.datasets.find import find_scenes
from stream_recon.app.datasets.rigs import load_kitti
from stream_recon.configs.errors import InputError
from tests.app.datasets.folders import SIZE, truth_of, write_image, write_lines


def write_drive(root: Path, kind: str = "sync") -> Path:
    day = root / "2011_09_26"
    drive = day / f"2011_09_26_drive_0001_{kind}"
    for number in range(4):
        write_image(drive / f"image_02/data/{number:010d}.png", number, SIZE)
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
    return drive


def test_a_drive_has_times_and_a_camera(tmp_path: Path) -> None:
    (scene,) = find_scenes(write_drive(tmp_path))
    assert scene.dataset == "kitti" and scene.frames == 4
    with scene.open() as source:
        frames = list(source)
    assert np.diff([frame.timestamp for frame in frames]) == pytest.approx([0.1] * 3, abs=1e-6)
    truth = truth_of(scene)
    assert truth.intrinsics is not None and (truth.intrinsics.fx, truth.intrinsics.cx) == (50, 31.5)


def test_drives_that_are_not_rectified_have_their_distortion(tmp_path: Path) -> None:
    (scene,) = find_scenes(write_drive(tmp_path, "extract"))
    camera = load_kitti(scene.path).known_camera(scene.name)
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
