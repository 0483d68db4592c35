"""7-Scenes, ScanNet."""

from pathlib import Path

import numpy as np
import pytest

from stream_recon.app.core.types import Intrinsics
from stream_recon.configs.errors import InputError
from tests.app.datasets.folders import (
    assert_depth,
    assert_frames,
    assert_poses,
    camera_path,
    frames_of,
    matrix_line,
    only_scene,
    truth_of,
    write_depth,
    write_image,
    write_lines,
)

PATH = camera_path(4)
LOST = " ".join(["-inf"] * 16)


def write_seven_scenes(folder: Path) -> Path:
    for i, pose in enumerate(PATH):
        write_image(folder / f"frame-{i:06d}.color.png", i, (640, 480))
        write_depth(folder / f"frame-{i:06d}.depth.png", 1500 + i, unknown=65535, size=(640, 480))
        write_lines(folder / f"frame-{i:06d}.pose.txt", *("\t ".join(f"{v:.7e}" for v in row) for row in pose.matrix))
    return folder


def test_seven_scenes(tmp_path: Path) -> None:
    write_seven_scenes(tmp_path / "chess" / "seq-01")
    write_lines(tmp_path / "chess" / "TestSplit.txt", "sequence1")
    scene = only_scene(tmp_path, "7scenes")
    assert scene.name == "chess__seq-01" and scene.frames == 4
    assert_frames(scene, [i / 30 for i in range(4)])
    truth = truth_of(scene)
    assert_poses(truth, {i: pose.matrix for i, pose in enumerate(PATH)})
    assert truth.intrinsics == Intrinsics(585, 585, 320, 240) and truth.metric
    assert_depth(truth, 2, 1.502)


def test_seven_scenes_without_a_pose_file_or_depth_of_a_frame(tmp_path: Path) -> None:
    folder = write_seven_scenes(tmp_path / "seq-01")
    (folder / "frame-000001.pose.txt").unlink()
    (folder / "frame-000002.depth.png").unlink()
    write_lines(folder / "frame-000003.pose.txt", LOST)
    truth = truth_of(only_scene(tmp_path, "7scenes"))
    assert_poses(truth, {0: PATH[0].matrix, 2: PATH[2].matrix})
    assert truth.depth(2) is None
    assert_depth(truth, 3, 1.503)
    with only_scene(tmp_path, "7scenes").open() as source:
        assert source.warnings == [
            "1 depth images of seq-01 are missing, such as frame-000002.depth.png",
            "2 of 4 images of seq-01 have a pose, not frame-000001.color.png",
        ]


def test_a_pose_that_is_no_rotation_is_refused_with_its_file(tmp_path: Path) -> None:
    folder = write_seven_scenes(tmp_path / "seq-01")
    write_lines(folder / "frame-000001.pose.txt", matrix_line(np.diag([2.0, 2, 2, 1])))
    with pytest.raises(InputError, match=r"frame-000001\.pose\.txt is not a rotation"):
        only_scene(tmp_path, "7scenes").truth()


def write_scannet(folder: Path) -> Path:
    """Every fifth frame exported, so that the order of names is not that of letters."""
    for i, pose in enumerate(PATH):
        write_image(folder / "color" / f"{5 * i}.jpg", i, (1296, 968))
        write_depth(folder / "depth" / f"{5 * i}.png", 2000 + i, size=(640, 480))
        write_lines(folder / "pose" / f"{5 * i}.txt", *(matrix_line(row[None]) for row in pose.matrix))
    K = np.eye(4)
    K[0, 0], K[1, 1], K[:2, 2] = 1170.19, 1170.2, (647.75, 483.75)
    write_lines(folder / "intrinsic" / "intrinsic_color.txt", *(matrix_line(row[None]) for row in K))
    return folder


def test_scannet(tmp_path: Path) -> None:
    folder = write_scannet(tmp_path / "scene0000_00")
    write_lines(folder / "pose" / "5.txt", LOST)
    scene = only_scene(tmp_path, "scannet")
    assert [shown for _, _, shown in frames_of(scene)] == [0, 1, 2, 3]
    truth = truth_of(scene)
    assert_poses(truth, {i: PATH[i].matrix for i in (0, 2, 3)})
    assert truth.intrinsics == Intrinsics(1170.19, 1170.2, 648.25, 484.25)
    assert truth.source_size == (1296, 968)
    assert_depth(truth, 3, 2.003)


def test_scannet_calibration_that_is_no_matrix(tmp_path: Path) -> None:
    folder = write_scannet(tmp_path / "scene0000_00")
    write_lines(folder / "intrinsic" / "intrinsic_color.txt", "1170 0 640")
    with pytest.raises(InputError, match="4x4 camera matrix"):
        only_scene(tmp_path, "scannet").truth()


def test_scannet_without_the_camera_of_its_colour_is_told(tmp_path: Path) -> None:
    folder = write_scannet(tmp_path / "scene0000_00") / "intrinsic"
    (folder / "intrinsic_color.txt").rename(folder / "intrinsic_depth.txt")
    scene = only_scene(tmp_path, "scannet")
    with scene.open() as source:
        assert any("no intrinsic_color.txt in intrinsic" in line for line in source.warnings)
    assert truth_of(scene).intrinsics is None
