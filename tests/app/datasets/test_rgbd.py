"""TUM RGB-D, Bonn, ETH3D SLAM, ICL-NUIM."""

from pathlib import Path

import cv2
import numpy as np
import pytest

from stream_recon.app.core.ground_truth import DepthMap
from stream_recon.app.datasets.find import find_scenes
from stream_recon.configs.errors import InputError
from tests.app.datasets.folders import (
    SIZE,
    assert_depth,
    assert_frames,
    assert_intrinsics,
    assert_poses,
    camera_path,
    frames_of,
    only_scene,
    truth_of,
    write_depth,
    write_image,
    write_lines,
)

PATH = camera_path(4)
TIMES = [1305031102.175304, 1305031102.211214, 1305031102.243211, 1305031102.275326]


def write_tum(folder: Path, times: list[float] = TIMES, vga: bool = False) -> Path:
    """Truth 4 ms before each image, depth 15 ms after it."""
    size = (640, 480) if vga else SIZE
    for number, time in enumerate(times):
        write_image(folder / "rgb" / f"{time:.6f}.png", number, size)
        write_depth(folder / "depth" / f"{time + 0.015:.6f}.png", 5000 * (number + 1))
    write_lines(
        folder / "rgb.txt", "# color images", "# timestamp filename", *(f"{t:.6f} rgb/{t:.6f}.png" for t in times)
    )
    write_lines(folder / "depth.txt", "# depth maps", *(f"{t + 0.015:.6f} depth/{t + 0.015:.6f}.png" for t in times))
    poses = [p.tum(f"{t - 0.004:.4f}") for t, p in zip(times, PATH, strict=True)]
    write_lines(folder / "groundtruth.txt", "# ground truth trajectory", *poses)
    return folder


def test_tum_gives_frames_timestamps_poses_camera_and_depth(tmp_path: Path) -> None:
    write_tum(tmp_path / "rgbd_dataset_freiburg1_desk", vga=True)
    scene = only_scene(tmp_path, "tum")
    assert scene.name == "rgbd_dataset_freiburg1_desk" and scene.frames == 4
    assert_frames(scene, TIMES)
    truth = truth_of(scene)
    assert truth.source_size == (640, 480) and truth.metric and truth.has_depth
    assert_poses(truth, {i: pose.matrix for i, pose in enumerate(PATH)})
    # Published as 318.6, 255.3 for a first pixel with its centre at 0; here it is at 0.5.
    assert_intrinsics(truth, 517.3, 516.5, 319.1, 255.8)
    assert_depth(truth, 0, 1.0)
    assert_depth(truth, 3, 4.0)


def test_lists_of_colour_and_depth_that_are_exchanged_are_refused(tmp_path: Path) -> None:
    folder = write_tum(tmp_path / "s")
    (folder / "rgb.txt").write_text((folder / "depth.txt").read_text())
    with pytest.raises(InputError, match=r"rgb\.txt lists depth images"):
        only_scene(tmp_path, "tum").truth()


def test_two_times_in_a_line_are_refused(tmp_path: Path) -> None:
    folder = write_tum(tmp_path / "s")
    rows = [line.split() for line in (folder / "rgb.txt").read_text().splitlines() if line[0] != "#"]
    write_lines(folder / "rgb.txt", *(f"{time},{time} {name}" for time, name in rows))
    with pytest.raises(InputError, match=r"rgb\.txt line 1 must be 'timestamp file'"):
        only_scene(tmp_path, "tum").truth()


def test_an_image_that_is_listed_twice_is_told(tmp_path: Path) -> None:
    folder = write_tum(tmp_path / "s")
    *lines, one, other = (folder / "rgb.txt").read_text().splitlines()
    write_lines(folder / "rgb.txt", *lines, one, f"{other.split()[0]} {one.split()[1]}")
    with only_scene(tmp_path, "tum").open() as source:
        assert "1 images in rgb.txt are listed more than once, at different times" in source.warnings


def test_tum_camera_depends_on_the_sequence(tmp_path: Path) -> None:
    focal = {}
    for name in ("rgbd_dataset_freiburg2_xyz", "rgbd_dataset_freiburg3_teddy", "kitchen"):
        write_tum(tmp_path / name / name, vga=True)
        intrinsics = truth_of(only_scene(tmp_path / name, "tum")).intrinsics
        focal[name] = intrinsics and intrinsics.fx
    assert list(focal.values()) == [520.9, 535.4, None]


def test_tum_without_groundtruth_or_depth_still_streams(tmp_path: Path) -> None:
    write_tum(tmp_path / "room")
    (tmp_path / "room" / "groundtruth.txt").unlink()
    (tmp_path / "room" / "depth.txt").unlink()
    scene = only_scene(tmp_path, "tum")
    assert len(frames_of(scene)) == 4
    assert scene.truth() is None


def test_missing_and_lost_groundtruth_lines_leave_frames_without_pose(tmp_path: Path) -> None:
    file = write_tum(tmp_path / "room") / "groundtruth.txt"
    lines = file.read_text().splitlines()
    lines[2] = " ".join([lines[2].split()[0], *["nan"] * 7])
    write_lines(file, *lines[:4])
    assert_poses(truth_of(only_scene(tmp_path, "tum")), {0: PATH[0].matrix, 2: PATH[2].matrix})


def test_association_ends_at_two_hundredths_of_a_second(tmp_path: Path) -> None:
    folder = write_tum(tmp_path / "room", [10.0, 11.0, 12.0, 13.0])
    write_lines(folder / "groundtruth.txt", PATH[0].tum(10.019), PATH[1].tum(11.021), PATH[2].tum(11.981))
    assert_poses(truth_of(only_scene(tmp_path, "tum")), {0: PATH[0].matrix, 2: PATH[2].matrix})


def test_images_out_of_order_are_sorted_with_a_warning_and_keep_their_truth(tmp_path: Path) -> None:
    folder = write_tum(tmp_path / "room")
    lines = (folder / "rgb.txt").read_text().splitlines()
    write_lines(folder / "rgb.txt", lines[4], lines[2], lines[3], lines[5], lines[5])
    scene = only_scene(tmp_path, "tum")
    assert [shown for _, _, shown in frames_of(scene)] == [0, 1, 2, 3]
    assert_poses(truth_of(scene), {i: pose.matrix for i, pose in enumerate(PATH)})
    with scene.open() as source:
        assert ["out of order" in source.warnings[0], "repeat" in source.warnings[1]] == [True, True]


@pytest.mark.parametrize(
    ("file", "line", "message"),
    [
        ("rgb.txt", "1305031102.1", "line 1 must be 'timestamp file'"),
        ("rgb.txt", "now rgb/1.png", "line 1: not a number"),
        ("rgb.txt", "nan rgb/1.png", "a timestamp is negative or not a number"),
        ("rgb.txt", "# nothing", "lists no images"),
        ("groundtruth.txt", "1305031102.1 0 0 0 1", "line 1: 5 numbers, fewer than 8"),
        ("groundtruth.txt", "1305031102.1 0 0 0 0 0 0 0", "quaternion is zero"),
    ],
)
def test_broken_tables_are_named_with_their_line(tmp_path: Path, file: str, line: str, message: str) -> None:
    write_lines(write_tum(tmp_path / "room") / file, line)
    with pytest.raises(InputError, match=message):
        only_scene(tmp_path, "tum").truth()


def test_depth_of_another_form_is_refused(tmp_path: Path) -> None:
    folder = write_tum(tmp_path / "room")
    cv2.imwrite(str(folder / "depth" / f"{TIMES[1] + 0.015:.6f}.png"), np.zeros((48, 64, 3), np.uint8))
    truth = truth_of(only_scene(tmp_path, "tum"))
    with pytest.raises(InputError, match="16-bit"):
        truth.depth(1)


def test_bonn_poses_are_those_of_the_camera_not_of_the_markers(tmp_path: Path) -> None:
    write_tum(tmp_path / "rgbd_bonn_dataset" / "rgbd_bonn_crowd", vga=True)
    truth = truth_of(only_scene(tmp_path, "bonn"))
    # The published chain T_ros^-1 T T_ros T_m, T_m's rotation block divided by its scale, the cube root of its
    # determinant; the result is compared to the three digits that this block has.
    T_ros = np.array([[-1, 0, 0, 0], [0, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 1]])
    T_m = np.array([[1.0157, 0.1828, -0.2389, 0.0113], [0.0009, -0.8431, -0.6413, -0.0098]])
    T_m = np.vstack([T_m, [-0.3009, 0.6147, -0.8085, 0.0111], [0, 0, 0, 1]])
    T_m[:3, :3] /= np.cbrt(np.linalg.det(T_m[:3, :3]))
    for index, pose in enumerate(PATH):
        expected = np.linalg.inv(T_ros) @ pose.matrix @ T_ros @ T_m
        np.testing.assert_allclose(truth.poses[index], expected, atol=5e-3)
        np.testing.assert_allclose(truth.poses[index][:3, :3] @ truth.poses[index][:3, :3].T, np.eye(3), atol=1e-9)
    assert truth.intrinsics is not None and truth.intrinsics.fx == 542.822841
    assert_depth(truth, 1, 2.0)


def test_eth3d_takes_its_camera_from_calibration_txt(tmp_path: Path) -> None:
    folder = write_tum(tmp_path / "cables_1")
    write_lines(folder / "calibration.txt", "72.62 72.63 31.2 20.4")
    truth = truth_of(only_scene(tmp_path, "eth3d"))
    assert_intrinsics(truth, 72.62, 72.63, 31.7, 20.9)
    assert_poses(truth, {i: pose.matrix for i, pose in enumerate(PATH)})
    write_lines(folder / "calibration.txt", "726.2 726.3")
    with pytest.raises(InputError, match=r"calibration\.txt line 1"):
        only_scene(tmp_path, "eth3d").truth()


def test_icl_nuim_is_mirrored_so_that_points_project_where_negative_fy_puts_them(tmp_path: Path) -> None:
    folder = tmp_path / "living_room_traj2_frei_png"
    for number in range(3):
        write_image(folder / "rgb" / f"{number}.png", number, (640, 480))
        write_depth(folder / "depth" / f"{number}.png", 10000, size=(640, 480))
    write_lines(folder / "associations.txt", *(f"{i} depth/{i}.png {i} rgb/{i}.png" for i in range(3)))
    # As published: the first image has no pose.
    write_lines(folder / "livingRoom2.gt.freiburg", *(PATH[i].tum(i) for i in (1, 2)))
    scene = only_scene(tmp_path, "icl-nuim")
    assert scene.frames == 3
    assert_frames(scene, [i / 30 for i in range(3)])
    truth = truth_of(scene)
    assert sorted(truth.poses) == [1, 2]
    assert_depth(truth, 1, 2.0)
    k = truth.intrinsics
    assert k is not None and (k.fx, k.fy) == (481.2, 480.0)
    point = np.array([0.3, -0.2, 9.0])
    for index in (1, 2):
        x, y, z = (np.linalg.inv(PATH[index].matrix) @ [*point, 1])[:3]
        row_from_bottom_up_world = -480.0 * y / z + 239.5 + 0.5
        mirrored = np.linalg.inv(truth.poses[index]) @ [point[0], -point[1], point[2], 1]
        assert k.fx * mirrored[0] / mirrored[2] + k.cx == pytest.approx(481.2 * x / z + 320)
        assert k.fy * mirrored[1] / mirrored[2] + k.cy == pytest.approx(row_from_bottom_up_world)
        assert np.linalg.det(truth.poses[index][:3, :3]) == pytest.approx(1)


def test_icl_associations_of_another_form_are_refused(tmp_path: Path) -> None:
    write_image(tmp_path / "rgb" / "0.png", 0)
    write_lines(tmp_path / "associations.txt", "0 depth/0.png")
    with pytest.raises(InputError, match=r"associations\.txt line 1"):
        frames_of(only_scene(tmp_path, "icl-nuim"))


def write_pairs(folder: Path, lines: list[str]) -> None:
    write_lines(folder / "associations.txt", *lines)
    for number in range(3):
        for name in (f"rgb/{number}.png", f"a/{number}.png"):
            write_image(folder / name, number, SIZE)
        for name in (f"depth/{number}.png", f"b/{number}.png"):
            write_depth(folder / name, 5000 * (number + 1))
    write_lines(folder / "groundtruth.txt", *(p.tum(f"{0.1 * n:.4f}") for n, p in enumerate(PATH)))


@pytest.mark.parametrize(
    "line",
    [
        "{t:.4f} rgb/{n}.png {t:.4f} depth/{n}.png",
        "{t:.4f} depth/{n}.png {t:.4f} rgb/{n}.png",
        "{t:.4f} a/{n}.png {t:.4f} b/{n}.png",
        "{t:.4f} b/{n}.png {t:.4f} a/{n}.png",
    ],
)
def test_pairs_in_either_order_give_the_colour_images(tmp_path: Path, line: str) -> None:
    write_pairs(tmp_path / "pairs", [line.format(t=0.1 * n, n=n) for n in range(3)])
    (scene,) = find_scenes(tmp_path / "pairs", "icl-nuim")
    with scene.open() as source:
        frames = list(source)
    assert [frame.timestamp for frame in frames] == pytest.approx([0, 0.1, 0.2])
    for number, frame in enumerate(frames):
        path = tmp_path / "pairs/rgb" / f"{number}.png"
        assert np.array_equal(frame.rgb, cv2.imread(str(path))[..., ::-1])
    truth = truth_of(scene)
    assert_poses(truth, {i: pose.matrix for i, pose in enumerate(PATH[:3])})
    assert truth.intrinsics is None
    depth = truth.depth(2)
    assert isinstance(depth, DepthMap) and depth.metres.max() == pytest.approx(3.0)


def test_pairs_of_frame_numbers_may_begin_with_colour(tmp_path: Path) -> None:
    write_pairs(tmp_path / "pairs", [f"{n} rgb/{n}.png {n} depth/{n}.png" for n in range(3)])
    (scene,) = find_scenes(tmp_path / "pairs")
    with scene.open() as source:
        frames = list(source)
    assert [frame.timestamp for frame in frames] == pytest.approx([0, 1 / 30, 2 / 30])
    assert np.array_equal(frames[1].rgb, cv2.imread(str(tmp_path / "pairs/rgb/1.png"))[..., ::-1])


def test_pairs_without_depth_are_refused(tmp_path: Path) -> None:
    write_pairs(tmp_path / "pairs", [f"{n} rgb/{n}.png {n} a/{n}.png" for n in range(3)])
    (scene,) = find_scenes(tmp_path / "pairs")
    with pytest.raises(InputError, match="which of its two columns"):
        scene.open()
