import dataclasses
from pathlib import Path

import cv2
import numpy as np
import pytest

from stream_recon.app.core.ground_truth import DepthMap, DepthPoints
from stream_recon.app.core.types import ImageTransform, Intrinsics
from stream_recon.app.datasets.scene import Scene
from stream_recon.app.datasets.sequence import read_sequence
from stream_recon.app.datasets.text import rigid
from stream_recon.configs.errors import InputError


def write_images(folder: Path, names: list[str], size: tuple[int, int] = (32, 24)) -> None:
    (folder / "rgb").mkdir(parents=True, exist_ok=True)
    for value, name in enumerate(names):
        image = np.full((size[1], size[0], 3), (value, 10, 200), np.uint8)  # blue, green, red
        cv2.imwrite(str(folder / "rgb" / name), image)


def pose_line(index: float, x: float, pose: np.ndarray | None = None) -> str:
    matrix = np.eye(4) if pose is None else pose.copy()
    matrix[0, 3] = x
    return " ".join(str(value) for value in [index, *matrix.ravel()])


def write_poses(folder: Path, lines: list[str]) -> None:
    (folder / "poses.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_a_rotation_that_is_not_finite_is_refused(value):
    pose = np.eye(4)
    pose[1, 0] = value  # singular values of infinite matrices are never found
    with pytest.raises(InputError, match="here is not a rotation"):
        rigid(pose, "here")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "café walk"
    write_images(path, [f"{i}.png" for i in (10, 2, 1, 9)])
    return path


def test_images_come_in_natural_order_and_keep_their_position(folder: Path) -> None:
    sequence = read_sequence(folder)
    assert [p.name for p in sequence.images] == ["1.png", "2.png", "9.png", "10.png"]
    assert (sequence.poses, sequence.camera, sequence.read_depth) == ({}, None, None)


def test_poses_belong_to_the_number_in_the_name(folder: Path) -> None:
    write_poses(folder, ["# index and pose", "", *(pose_line(i, float(i)) for i in (1, 2, 9, 10))])
    assert {k: p[0, 3] for k, p in read_sequence(folder).poses.items()} == {0: 1, 1: 2, 2: 9, 3: 10}


def test_poses_counted_from_zero_belong_to_positions_where_names_are_no_such_numbers(tmp_path: Path) -> None:
    write_images(tmp_path, [f"shot_{i}.jpg" for i in (7, 8, 30)])
    write_poses(tmp_path, [pose_line(i, float(i)) for i in range(3)])
    assert {k: p[0, 3] for k, p in read_sequence(tmp_path).poses.items()} == {0: 0, 1: 1, 2: 2}


def test_frames_without_a_pose_are_missing_and_so_are_lost_ones(folder: Path) -> None:
    write_poses(folder, [pose_line(2, 1.0), pose_line(9, float("inf")), pose_line(10, 3.0)])
    assert sorted(read_sequence(folder).poses) == [1, 3]


def test_rounded_rotations_become_exact(folder: Path) -> None:
    rounded = np.eye(4)
    rounded[:3, :3] = [[0.6, -0.8, 0], [0.8004, 0.6003, 0], [0, 0, 0.9998]]
    write_poses(folder, [pose_line(1, 4.0, rounded)])
    pose = read_sequence(folder).poses[0]
    np.testing.assert_allclose(pose[:3, :3] @ pose[:3, :3].T, np.eye(3), atol=1e-12)
    np.testing.assert_allclose(pose[:3, :3], rounded[:3, :3], atol=1e-3)
    assert pose[0, 3] == 4


MIRROR = np.diag([1.0, 1.0, -1.0, 1.0])


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([pose_line(1, 0.0), pose_line(1, 1.0)], "more than one pose"),
        ([pose_line(77, 0.0)], "none of its 1 poses belongs to an image"),
        ([pose_line(0.5, 0.0)], "must begin with the image's number"),
        (["1 2 3"], "line 1: 3 numbers instead of 17"),
        (["one " + pose_line(1, 0.0)], "line 1: not a number"),
        ([pose_line(1, 0.0, MIRROR)], "1.png is not a rotation"),
        ([pose_line(1, 0.0, 3 * np.eye(4))], "1.png is not a rotation"),
    ],
)
def test_malformed_poses_are_refused(folder: Path, lines: list[str], message: str) -> None:
    write_poses(folder, lines)
    with pytest.raises(InputError, match=message):
        read_sequence(folder)


def test_a_folder_without_images_is_refused_with_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere is not an evaluation sequence"):
        read_sequence(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"looked for .*/rgb/\*\.jpg"):
        read_sequence(tmp_path)
    (tmp_path / "rgb").mkdir()
    with pytest.raises(InputError, match="rgb"):
        read_sequence(tmp_path)


def test_intrinsics_follow_the_size_of_the_images(folder: Path) -> None:
    (folder / "intrinsics.txt").write_text("600 590 320 250 640 480", encoding="utf-8")
    camera = read_sequence(folder).camera
    assert camera is not None and camera.for_size((32, 24)) == Intrinsics(fx=30, fy=29.5, cx=16, cy=12.5)
    (folder / "intrinsics.txt").write_text("0 590 320 250 640 480", encoding="utf-8")
    with pytest.raises(InputError, match="a camera cannot have focal lengths 0"):
        read_sequence(folder)


def test_depth_is_read_in_metres_and_other_images_are_refused(folder: Path) -> None:
    (folder / "depth").mkdir()
    cv2.imwrite(str(folder / "depth" / "1.png"), np.full((24, 32), 1500, np.uint16))
    cv2.imwrite(str(folder / "depth" / "2.png"), np.full((24, 32), 15, np.uint8))
    read = read_sequence(folder).read_depth
    assert read is not None
    depth = read(0)
    assert isinstance(depth, DepthMap)
    assert depth.metres.shape == (24, 32) and np.unique(depth.metres) == 1.5
    with pytest.raises(InputError, match=r"2\.png is not a 16-bit image"):
        read(1)
    assert read(2) is None


def test_sparse_points_are_read_and_an_empty_file_is_no_points(folder: Path) -> None:
    (folder / "sparse").mkdir()
    (folder / "sparse" / "1.txt").write_text("3.5 4 2\n10 11 5\n", encoding="utf-8")
    (folder / "sparse" / "2.txt").write_text("", encoding="utf-8")
    read = read_sequence(folder).read_depth
    assert read is not None
    first, second = read(0), read(1)
    assert isinstance(first, DepthPoints) and first.uvz.tolist() == [[3.5, 4, 2], [10, 11, 5]]
    assert isinstance(second, DepthPoints) and second.uvz.shape == (0, 3)


def test_dense_truth_is_sampled_under_the_centres_of_network_pixels() -> None:
    metres = np.arange(1, 13, dtype=np.float32).reshape(3, 4)  # at half the source's resolution
    metres[0, 0], metres[2, 3] = 0.0, 61.0  # unknown, out of range
    matched = DepthMap(metres).at_network(ImageTransform((8, 6), (0, 0, 8, 6), (4, 3)))
    assert (0, 0) not in zip(matched.rows, matched.columns, strict=True)
    assert (2, 3) not in zip(matched.rows, matched.columns, strict=True)
    assert len(matched.z) == 10
    np.testing.assert_array_equal(matched.z, metres[matched.rows, matched.columns])
    cropped = DepthMap(metres).at_network(ImageTransform((8, 6), (4, 2, 4, 2), (2, 1)))
    assert cropped.z.tolist() == [7, 8]
    assert cropped.columns.tolist() == [0, 1]


def test_sparse_truth_lies_in_the_network_pixel_that_covers_it() -> None:
    points = np.array([[0.0, 0.0, 1.0], [7.9, 5.9, 2.0], [8.0, 3.0, 3.0], [-0.1, 3.0, 4.0], [4.0, 2.0, -5.0]])
    matched = DepthPoints(points).at_network(ImageTransform((8, 6), (0, 0, 8, 6), (4, 3)))
    assert matched.z.tolist() == [1, 2]
    assert (matched.rows.tolist(), matched.columns.tolist()) == ([0, 2], [0, 3])


def test_reduced_images_have_a_reduced_truth(folder: Path) -> None:
    (folder / "intrinsics.txt").write_text("30 31 16 12 32 24\n", encoding="utf-8")
    (folder / "sparse").mkdir()
    (folder / "sparse" / "1.txt").write_text("8 4 2\n", encoding="utf-8")
    scene = Scene("walk", "sequence", folder, None, side=16)
    truth = scene.truth()
    assert truth is not None and truth.source_size == (16, 12)
    assert truth.intrinsics == Intrinsics(15, 15.5, 8, 6)
    points = truth.depth(0)
    assert isinstance(points, DepthPoints) and points.uvz.tolist() == [[4, 2, 2]]
    with scene.open() as source:
        assert {frame.rgb.shape for frame in source} == {(12, 16, 3)}
    with dataclasses.replace(scene, side=100).open() as source:
        assert {frame.rgb.shape for frame in source} == {(24, 32, 3)}
