"""nerfstudio and COLMAP."""

import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stream_recon.app.core.ground_truth import DepthPoints
from stream_recon.app.core.types import Intrinsics
from stream_recon.app.datasets.find import find_scenes
from stream_recon.configs.errors import InputError
from tests.app.datasets.folders import (
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
from tests.mutations import Mutant, of_lines, silently_other

PATH = camera_path(3)
OPENCV = {"camera_model": "OPENCV", "fl_x": 80.0, "fl_y": 81.0, "cx": 63.0, "cy": 49.0, "w": 128, "h": 96, "k1": 0.01}


def opengl(index: int) -> list[list[float]]:
    """The same camera with axes right, up, backward: the second and third column point the other way."""
    T = PATH[index].matrix
    T[:3, 1], T[:3, 2] = -T[:3, 1], -T[:3, 2]
    return T.tolist()  # type: ignore[no-any-return]


def write_nerfstudio(folder: Path, table: dict[str, Any], numbers: tuple[int, ...] = (9, 10, 11)) -> dict[str, Any]:
    """Listed in another order than that of the camera, with names whose letters would sort wrongly."""
    frames = []
    for i, number in enumerate(numbers):
        write_image(folder / "images" / f"frame_{number}.png", i)
        frames.append({"file_path": f"images/frame_{number}.png", "transform_matrix": opengl(i)})
    whole = {**table, "frames": [frames[i] for i in (2, 0, 1)]}
    write_lines(folder / "transforms.json", json.dumps(whole))
    return whole


def test_nerfstudio(tmp_path: Path) -> None:
    write_nerfstudio(tmp_path / "poster", OPENCV)
    scene = only_scene(tmp_path, "nerfstudio")
    assert scene.frames == 3
    assert_frames(scene, [i / 30 for i in range(3)])
    truth = truth_of(scene)
    assert_poses(truth, {i: pose.matrix for i, pose in enumerate(PATH)})
    # The images are half as large as the calibration says.
    assert truth.intrinsics == Intrinsics(40, 40.5, 31.5, 24.5)
    assert not truth.metric and not truth.has_depth


def test_nerfstudio_depth_images_make_it_metric(tmp_path: Path) -> None:
    whole = write_nerfstudio(tmp_path / "poster", OPENCV)
    write_depth(tmp_path / "poster" / "depth" / "10.png", 2500)
    whole["frames"][2]["depth_file_path"] = "depth/10.png"
    write_lines(tmp_path / "poster" / "transforms.json", json.dumps(whole))
    truth = truth_of(only_scene(tmp_path, "nerfstudio"))
    assert truth.metric
    assert_depth(truth, 1, 2.5)
    assert truth.depth(0) is None


def test_nerfstudio_angle_of_view_instead_of_focal_length(tmp_path: Path) -> None:
    write_nerfstudio(tmp_path / "lego", {"camera_angle_x": 2 * np.arctan(0.5)})
    assert_intrinsics(truth_of(only_scene(tmp_path, "nerfstudio")), 64, 64, 32, 24)


def test_nerfstudio_lenses_that_no_one_pinhole_describes(tmp_path: Path) -> None:
    whole = write_nerfstudio(tmp_path / "poster", {**OPENCV, "camera_model": "OPENCV_FISHEYE"})
    assert truth_of(only_scene(tmp_path, "nerfstudio")).intrinsics is None
    for frame, focal in zip(whole["frames"], (80.0, 80.5, 120.0), strict=True):
        frame["fl_x"] = focal
    write_lines(tmp_path / "poster" / "transforms.json", json.dumps({**whole, "camera_model": "OPENCV"}))
    assert truth_of(only_scene(tmp_path, "nerfstudio")).intrinsics is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "no list of 'frames'"),
        ('{"frames": [{"transform_matrix": []}]}', "no 'file_path'"),
        ('{"frames": [{"file_path": "a.png", "transform_matrix": [[1, 2]]}]}', "must be a 4x4 matrix"),
        ('{"frames": [{"file_path": "a.png", "transform_matrix": [["x"]]}]}', "must have numbers"),
    ],
)
def test_broken_transforms_are_named(tmp_path: Path, text: str, message: str) -> None:
    write_lines(tmp_path / "transforms.json", text.replace("%s", json.dumps(opengl(0))))
    with pytest.raises(InputError, match=message):
        only_scene(tmp_path, "nerfstudio").truth()


NAMES = ("IMG 2.png", "IMG 10.png", "IMG 11.png")
POINTS = {7: np.array([0.5, 1.5, 9.0]), 8: np.array([-0.5, 2.0, 8.0]), 1000000007: np.array([0.0, 0.0, 12.0])}
FOCAL, CENTRE = 60.0, (32.0, 24.0)


def observations(index: int) -> list[tuple[float, float, int]]:
    """Keypoints of one image: the projection of each point, and a keypoint that belongs to none."""
    R, t = PATH[index].matrix[:3, :3], np.array(PATH[index].position)
    seen = []
    for key, point in POINTS.items():
        x, y, z = R.T @ (point - t)
        seen.append((FOCAL * x / z + CENTRE[0], FOCAL * y / z + CENTRE[1], key))
    return [(1.5, 2.5, -1), *seen]


def world_to_camera(index: int) -> tuple[list[float], list[float]]:
    """COLMAP's quaternion w x y z (the conjugate) and translation -R^T t."""
    x, y, z, w = PATH[index].xyzw
    return [w, -x, -y, -z], list(-PATH[index].matrix[:3, :3].T @ np.array(PATH[index].position))


def write_colmap_text(model: Path, camera: str = f"1 SIMPLE_RADIAL 64 48 {FOCAL} 32 24 0.01") -> None:
    write_lines(model / "cameras.txt", "# Camera list", camera)
    lines = []
    for i in (2, 0, 1):
        q, t = world_to_camera(i)
        lines.append(" ".join(str(v) for v in [i + 1, *q, *t, 1, NAMES[i]]))
        lines.append(" ".join(f"{u} {v} {key}" for u, v, key in observations(i)) if i != 1 else "")
    write_lines(model / "images.txt", "# Image list", *lines)
    write_lines(model / "points3D.txt", *(f"{key} {p[0]} {p[1]} {p[2]} 9 9 9 0.5 1 0 2 1" for key, p in POINTS.items()))


def write_colmap_binary(model: Path) -> None:
    model.mkdir(parents=True)
    camera = struct.pack("<iiQQ4d", 1, 2, 64, 48, FOCAL, *CENTRE, 0.01)
    (model / "cameras.bin").write_bytes(struct.pack("<Q", 1) + camera)
    images = struct.pack("<Q", 3)
    for i in (2, 0, 1):
        q, t = world_to_camera(i)
        seen = observations(i) if i != 1 else []
        images += struct.pack("<i7di", i + 1, *q, *t, 1) + NAMES[i].encode() + b"\0" + struct.pack("<Q", len(seen))
        images += b"".join(struct.pack("<ddq", *row) for row in seen)
    (model / "images.bin").write_bytes(images)
    points = struct.pack("<Q", len(POINTS))
    for key, p in POINTS.items():
        points += struct.pack("<Q3d3BdQ", key, *p, 9, 9, 9, 0.5, 2) + struct.pack("<4i", 1, 0, 2, 1)
    (model / "points3D.bin").write_bytes(points)


def write_photos(folder: Path) -> None:
    for i, name in enumerate(NAMES):
        write_image(folder / "images" / name, i)


@pytest.mark.parametrize("form", ["text", "binary"])
@pytest.mark.parametrize("model", ["sparse/0", "sparse"])
def test_colmap(tmp_path: Path, form: str, model: str) -> None:
    write_photos(tmp_path / "garden")
    (write_colmap_text if form == "text" else write_colmap_binary)(tmp_path / "garden" / model)
    scene = only_scene(tmp_path, "colmap")
    assert scene.frames == 3
    assert_frames(scene, [i / 30 for i in range(3)])
    truth = truth_of(scene)
    assert_poses(truth, {i: pose.matrix for i, pose in enumerate(PATH)})
    assert truth.intrinsics == Intrinsics(FOCAL, FOCAL, *CENTRE) and not truth.metric
    depth = truth.depth(0)
    assert isinstance(depth, DepthPoints) and len(depth.uvz) == 3
    for (u, v, _), (_, point), row in zip(observations(0)[1:], POINTS.items(), depth.uvz, strict=True):
        ahead = PATH[0].matrix[:3, 2] @ (point - np.array(PATH[0].position))
        np.testing.assert_allclose(row, [u, v, ahead], atol=1e-6)
    assert truth.depth(1) is None


def test_of_several_colmap_models_the_largest_is_read_and_told(tmp_path: Path) -> None:
    write_photos(tmp_path / "garden")
    write_colmap_text(tmp_path / "garden/sparse/1")
    write_colmap_text(tmp_path / "garden/sparse/0")
    images = tmp_path / "garden/sparse/0/images.txt"
    write_lines(images, *images.read_text().splitlines()[:3])
    scene = only_scene(tmp_path, "colmap")
    assert len(truth_of(scene).poses) == 3
    with scene.open() as source:
        assert source.warnings == ["of 2 COLMAP models 1, of 3 images, is used, not 0 (1)"]
    (tmp_path / "garden/sparse/1/images.txt").unlink()
    with only_scene(tmp_path, "colmap").open() as source:
        assert source.warnings == ["1 of 3 images of garden have a pose, not IMG 2.png"]


def colmap_read(root: Path) -> tuple[object, list[str]]:
    """Camera, poses and depth of the images of the one model, and warnings."""
    scene = only_scene(root, "colmap")
    truth = truth_of(scene)
    depth = [truth.depth(number) for number in truth.poses]
    points = [d.uvz.tolist() for d in depth if isinstance(d, DepthPoints)]
    with scene.open() as source:
        k = truth.intrinsics
        camera = [] if k is None else [k.fx, k.fy, k.cx, k.cy]
        return ({i: [*camera, *pose.ravel()] for i, pose in truth.poses.items()}, points), source.warnings


@pytest.mark.parametrize("name", ["cameras.txt", "images.txt"])
def test_no_change_of_a_line_of_colmap_is_read_as_something_else(tmp_path: Path, name: str) -> None:
    write_photos(tmp_path / "garden")
    model = tmp_path / "garden/sparse/0"
    write_colmap_text(model)
    count = "# Number of images: 3, mean observations per image: 3\n" if name == "images.txt" else ""
    whole = count + "\n".join(line for line in (model / name).read_text().splitlines() if line[:1] != "#") + "\n"

    def read(content: str) -> tuple[object, list[str]]:
        (model / name).write_text(content)
        return colmap_read(tmp_path)

    # Lines of keypoints have no name, and names of images may contain the sign of a comment. Without the line of an
    # image its keypoints are where an image is expected.
    named = [mutant for mutant in of_lines(whole, comment=None) if mutant.names[-1].isdecimal()]
    mutants = [replace(mutant, names=(*mutant.names, "image 1.5: not a number")) for mutant in named]
    assert len(mutants) >= 3 and silently_other(read, mutants, read(whole)[0], InputError) == []


def test_no_change_of_a_count_or_record_of_a_binary_model_is_silent(tmp_path: Path) -> None:
    write_photos(tmp_path / "garden")
    model = tmp_path / "garden/sparse/0"
    write_colmap_binary(model)
    expected = colmap_read(tmp_path)
    for file in sorted(model.iterdir()):
        whole = file.read_bytes()
        (count,) = struct.unpack_from("<Q", whole)
        record = whole[8 : 8 + (len(whole) - 8) // count]
        changes = {
            "less": struct.pack("<Q", count - 1) + whole[8:],
            "more": struct.pack("<Q", count + 1) + whole[8:],
            "longer": whole + bytes(8),
            "again": struct.pack("<Q", count + 1) + record + whole[8:],
            "cut": whole[:-1],
            "named": whole[:8] + struct.pack("<i", 1 << 30) + whole[12:],
        }
        if file.name == "points3D.bin":
            del changes["named"]  # keypoints of points that are gone are left out
        mutants = [Mutant(change, (file.name, "camera 1", "IMG"), data) for change, data in changes.items()]

        def read(data: bytes, file: Path = file) -> tuple[object, list[str]]:
            file.write_bytes(data)
            return colmap_read(tmp_path)

        assert silently_other(read, mutants, expected[0], InputError) == []
        file.write_bytes(whole)


def test_colmap_model_of_larger_images_is_scaled(tmp_path: Path) -> None:
    write_photos(tmp_path)
    write_colmap_text(tmp_path / "sparse" / "0", f"1 PINHOLE 128 96 {2 * FOCAL} {2 * FOCAL} 64 48")
    truth = truth_of(only_scene(tmp_path, "colmap"))
    assert truth.intrinsics == Intrinsics(FOCAL, FOCAL, *CENTRE)
    depth = truth.depth(2)
    assert isinstance(depth, DepthPoints)
    np.testing.assert_allclose(depth.uvz[0, :2], np.array(observations(2)[1][:2]) / 2)


def test_colmap_images_that_were_not_registered_have_no_pose(tmp_path: Path) -> None:
    write_photos(tmp_path)
    write_image(tmp_path / "images" / "IMG 3.png", 5)
    write_colmap_text(tmp_path / "sparse" / "0")
    scene = only_scene(tmp_path, "colmap")
    assert [shown for _, _, shown in frames_of(scene)] == [0, 5, 1, 2]
    assert_poses(truth_of(scene), {0: PATH[0].matrix, 2: PATH[1].matrix, 3: PATH[2].matrix})


def test_colmap_model_of_rotated_images_is_refused_with_both_sizes(tmp_path: Path) -> None:
    write_photos(tmp_path)
    write_colmap_text(tmp_path / "sparse" / "0", "1 PINHOLE 48 64 60 60 24 32")
    with pytest.raises(InputError, match="the camera is of 48x64 pixels, the images of 64x48"):
        only_scene(tmp_path, "colmap").truth()


def test_colmap_model_without_points_has_no_depth(tmp_path: Path) -> None:
    write_photos(tmp_path)
    write_colmap_binary(tmp_path / "sparse" / "0")
    (tmp_path / "sparse" / "0" / "points3D.bin").unlink()
    truth = truth_of(only_scene(tmp_path, "colmap"))
    assert not truth.has_depth and truth.depth(0) is None


def test_colmap_keypoints_of_points_that_are_gone_are_left_out(tmp_path: Path) -> None:
    write_photos(tmp_path)
    write_colmap_text(tmp_path / "sparse" / "0")
    file = tmp_path / "sparse" / "0" / "points3D.txt"
    write_lines(file, "# 3D points", *file.read_text().splitlines()[1:])
    depth = truth_of(only_scene(tmp_path, "colmap")).depth(0)
    assert isinstance(depth, DepthPoints)
    np.testing.assert_allclose(depth.uvz[:, :2], [row[:2] for row in observations(0)[2:]])
    write_lines(file, "# no points at all")
    assert truth_of(only_scene(tmp_path, "colmap")).depth(0) is None


def test_colmap_images_that_are_gone_are_counted(tmp_path: Path) -> None:
    write_photos(tmp_path)
    (tmp_path / "images" / NAMES[1]).unlink()
    write_colmap_binary(tmp_path / "sparse" / "0")
    with only_scene(tmp_path, "colmap").open() as source:
        assert source.warnings == [f"1 images of the COLMAP model are not in images/: {NAMES[1]!r}"]


def test_colmap_fisheye_gives_no_pinhole(tmp_path: Path) -> None:
    write_photos(tmp_path)
    write_colmap_text(tmp_path / "sparse" / "0", "1 OPENCV_FISHEYE 64 48 60 60 32 24 0 0 0 0")
    truth = truth_of(only_scene(tmp_path, "colmap"))
    assert truth.intrinsics is None and len(truth.poses) == 3


@pytest.mark.parametrize(
    ("camera", "message"),
    [
        ("1 SQUARE 64 48 60", "unknown camera model SQUARE"),
        ("1 PINHOLE 64 48 60", "1 parameters for PINHOLE"),
        ("1 PINHOLE", "'number MODEL width height parameters'"),
        ("2 PINHOLE 64 48 60 60 32 24", "has no camera 1"),
    ],
)
def test_broken_colmap_cameras_are_named(tmp_path: Path, camera: str, message: str) -> None:
    write_photos(tmp_path)
    write_colmap_text(tmp_path / "sparse" / "0", camera)
    with pytest.raises(InputError, match=message):
        only_scene(tmp_path, "colmap").truth()


@pytest.mark.parametrize("file", ["cameras.bin", "images.bin"])
def test_cut_off_colmap_files_are_named(tmp_path: Path, file: str) -> None:
    write_photos(tmp_path)
    model = tmp_path / "sparse" / "0"
    write_colmap_binary(model)
    (model / file).write_bytes((model / file).read_bytes()[:-9])
    with pytest.raises(InputError, match=f"{file}.* is cut off"):
        find_scenes(tmp_path)[0].truth()
