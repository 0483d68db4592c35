"""Inputs as users of other programs report them: what is not read right is refused, or told, by its name."""

import json
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest

from stream_recon.app.datasets.find import find_scenes
from stream_recon.app.datasets.known_poses import read_known_poses
from stream_recon.app.datasets.scene import Scene
from stream_recon.app.metric_scale.gps_tracks import read_positions
from stream_recon.app.sources.source import open_source
from stream_recon.configs.errors import StreamReconError
from tests.app.datasets.folders import camera_path, matrix_line, truth_of, write_depth, write_lines
from tests.app.media import number_of, write_images

STEP = [0.1 * number for number in range(4)]


def images(folder: Path) -> None:
    with open_source(str(folder)) as source:
        list(source)
        raise StreamReconError("; ".join(source.warnings))


def scene(folder: Path) -> None:
    (found,) = find_scenes(folder)
    with found.open() as source:
        list(source)
        said = source.warnings
    found.truth()
    raise StreamReconError("; ".join(said))


def poses(folder: Path) -> None:
    read_known_poses(folder / "poses.csv")


def track(folder: Path) -> None:
    read_positions(folder / "track.txt")


def counter(folder: Path) -> None:
    write_images(folder, [f"DSC_{number:04d}.jpg" for number in (9998, 9999, 1, 2)])


def links(folder: Path) -> None:
    write_images(folder, ["0.png", "1.png"])
    (folder / "2.png").symlink_to(folder / "gone.png")


def pointers(folder: Path) -> None:
    for number in range(2):
        write_lines(folder / f"{number}.jpg", "version https://git-lfs.github.com/spec/v1", "oid sha256:1", "size 1")


def transforms(folder: Path, *names: str, size: tuple[int, int] = (64, 48)) -> None:
    write_images(folder / "images", ["0.png", "1.png"])
    frames = [{"file_path": name, "transform_matrix": np.eye(4).tolist()} for name in names]
    table = {"camera_model": "PINHOLE", "fl_x": 50, "cx": size[0] / 2, "cy": size[1] / 2, "w": size[0], "h": size[1]}
    (folder / "transforms.json").write_text(json.dumps({**table, "frames": frames}))


def twice(folder: Path) -> None:
    transforms(folder, "images/0.png", "./images/0.png", "images/1.png")


def windows(folder: Path) -> None:
    transforms(folder, "C:\\data\\0.png", "C:\\data\\1.png")


def shape(folder: Path) -> None:
    transforms(folder, "images/0.png", "images/1.png", size=(128, 64))


def late_depth(folder: Path) -> None:
    write_images(folder / "rgb", ["0.png", "1.png"])
    write_depth(folder / "depth/0.png", 5000)
    write_lines(folder / "associations.txt", *(f"{n} rgb/{n}.png {n + 3} depth/0.png" for n in (0.0, 1.0)))
    (folder / "rgb/0.png").rename(folder / "rgb/0.0.png")
    (folder / "rgb/1.png").rename(folder / "rgb/1.0.png")


def no_poses(folder: Path) -> None:
    write_images(folder / "color", ["0.jpg", "1.jpg"])
    write_lines(folder / "pose/a.txt", matrix_line(np.eye(4)))


def still(folder: Path) -> None:
    for number in range(3):
        write_images(folder, [f"frame-{number:06d}.color.png"])
        write_lines(folder / f"frame-{number:06d}.pose.txt", matrix_line(np.eye(4)))


def other_camera(folder: Path) -> None:
    write_images(folder / "color", ["0.jpg", "1.jpg"])
    write_lines(folder / "intrinsic/intrinsic_color.txt", "1170 0 648 0", "0 1170 484 0", "0 0 1 0", "0 0 0 1")


def masks(folder: Path) -> None:
    transforms(folder, "images/0.png", "images/1.png")
    table = json.loads((folder / "transforms.json").read_text())
    table["frames"][0] |= {"mask_path": "x.png", "depth_path": "y.png"}
    (folder / "transforms.json").write_text(json.dumps(table))


def quaternion(folder: Path) -> None:
    write_images(folder / "images", ["0.png", "1.png"])
    write_lines(folder / "sparse/0/cameras.txt", "1 PINHOLE 64 48 50 50 32 24")
    write_lines(folder / "sparse/0/images.txt", "1 1 0 0 0 0 0 0 1 0.png", "", "2 0.3 0.1 0 0 -1 0 0 1 1.png", "")


def zeros(folder: Path) -> None:
    write_images(folder, ["frame1.png", "frame01.png", "frame2.png"])


def vehicles(folder: Path) -> None:
    rows = (f"{number},{t + number / 20},{t + 100 * number},0,0" for number in (0, 1) for t in STEP)
    write_lines(folder / "track.txt", "id,time,x,y,z", *rows)


def euroc_csv(folder: Path) -> None:
    write_lines(folder / "poses.csv", *(f"{1520530308199447626 + n},1,2,3,1,0,0,0" for n in range(4)))


def degrees(folder: Path) -> None:
    write_lines(folder / "track.txt", *(f"{t} {47.371 + t / 1e4} {8.542 + t / 1e4} {450 + t}" for t in STEP))


def subtitles(folder: Path) -> None:
    write_lines(folder / "track.txt", "1", "00:00:00,000 --> 00:00:01,000", "[latitude: 47.1] [longitude: 8.5]", "")


def geojson(folder: Path) -> None:
    write_lines(folder / "track.txt", '{"type": "FeatureCollection",', '"features": []}')


def columns(folder: Path) -> None:
    write_lines(folder / "track.txt", "time,x,y,z,x,y,z", *(f"{t},{t},0,0,5,{t},7" for t in STEP))


@pytest.mark.parametrize(
    ("make", "read", "said"),
    [
        (counter, images, "numbers up to 9999 and from 1 on"),
        (links, images, "1 images are links to files that are not there, such as 2.png"),
        (pointers, images, "no frame of .* is readable, such as 0.jpg"),
        (twice, scene, "images/0.png is in 'frames' more than once"),
        (windows, scene, r"C:\\data\\0.png"),
        (shape, scene, "the camera is of 128x64 pixels, the images of 64x48"),
        (late_depth, scene, "depth is up to 3.00 s from its image"),
        (no_poses, scene, "no image has a pose in pose/"),
        (still, scene, "all poses of .* are the same"),
        (other_camera, scene, "centre .648.5, 484.5. is outside of images of 64x48"),
        (masks, scene, "mask_path of its frames is not applied.*; depth_path of its frames is not read"),
        (quaternion, scene, "1.png: the quaternion is not of length 1"),
        (zeros, images, "differ by zeros alone, as those of frame1"),
        (vehicles, track, "two trajectories in it"),
        (euroc_csv, poses, "nanoseconds and commas, as EuRoC's files with qw first"),
        (degrees, track, "look like degrees"),
        (geojson, track, "it is JSON"),
        (subtitles, track, "DJI's SRT"),
        (columns, track, "more than one column x"),
    ],
)
def test_what_is_reported_is_told(
    tmp_path: Path, make: Callable[[Path], None], read: Callable[[Path], None], said: str
) -> None:
    make(tmp_path)
    with pytest.raises((StreamReconError, ValueError), match=said):
        read(tmp_path)


def test_poses_of_scannet_are_found_by_their_number(tmp_path: Path) -> None:
    write_images(tmp_path / "color", [f"{number:06d}.jpg" for number in range(3)])
    for number, pose in enumerate(camera_path(3)):
        write_lines(tmp_path / f"pose/{number}.txt", matrix_line(pose.matrix))
        write_depth(tmp_path / f"depth/{number}.png", 1000 * number)
    truth = truth_of(Scene("walk", "scannet", tmp_path, None))
    for number, pose in enumerate(camera_path(3)):
        np.testing.assert_allclose(truth.poses[number], pose.matrix, atol=1e-6)
    depth = truth.depth(2)
    assert depth is not None and depth.metres.max() == 2  # type: ignore[union-attr]


def test_pictures_of_another_format_than_their_suffix_are_read(tmp_path: Path) -> None:
    write_images(tmp_path, ["0.png", "1.png"])
    (tmp_path / "1.png").rename(tmp_path / "1.jpg")
    assert cv2.imwrite(str(tmp_path / "2.webp"), np.full((48, 64, 3), 20, np.uint8))
    (tmp_path / "2.webp").rename(tmp_path / "2.tif")
    with open_source(str(tmp_path)) as source:
        assert [number_of(frame.rgb) for frame in source] == [0, 1, 2]
