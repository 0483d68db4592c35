"""Malformed files of data sets raise an `InputError` that names the file or folder."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from stream_recon.app.datasets.find import MAX_DEPTH, find_scenes
from stream_recon.app.datasets.sequence import read_sequence
from stream_recon.configs.errors import InputError
from tests.app.datasets.folders import write_depth, write_image, write_lines

DEEP = "[" * 100_000
LONG = "9" * 5_000


def nerfstudio(text: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        write_image(folder / "1.png", 1)
        write_lines(folder / "transforms.json", text)

    return write


def transforms(table: str = "", path: str = "1.png", matrix: str = "[[1,0,0,0],[0,1,0,0],[0,0,1,0]]") -> str:
    return f'{{{table} "frames": [{{"file_path": "{path}", "transform_matrix": {matrix}}}]}}'


def colmap(
    camera: str = "1 PINHOLE 64 48 50 50 32 24", image: str = "1 1 0 0 0 0 0 0 1 1.png", point: str = "1 0 0 1 0 0 0 0"
) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        write_image(folder / "images" / "1.png", 1)
        write_lines(folder / "sparse" / "0" / "cameras.txt", camera)
        write_lines(folder / "sparse" / "0" / "images.txt", image, "3 4 1")
        write_lines(folder / "sparse" / "0" / "points3D.txt", point)

    return write


def tum(listed: str) -> Callable[[Path], None]:
    return lambda folder: write_lines(folder / "rgb.txt", listed) and None


def kitti(folder: Path) -> None:
    write_image(folder / "image_2" / "000000.png", 1)
    write_lines(folder / "calib.txt", "P2: 1 1 0 0 1 1 0 0 0 0 0 1")


def euroc(stamp: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        write_image(folder / "mav0" / "cam0" / "data" / "1.png", 1)
        write_lines(folder / "mav0" / "cam0" / "data.csv", f"{stamp},1.png")

    return write


def fifo(folder: Path) -> None:
    folder.mkdir(parents=True)
    os.mkfifo(folder / "1.png")
    write_lines(folder / "rgb.txt", "0.5 1.png")


BROKEN: dict[str, tuple[str, Callable[[Path], None]]] = {
    "nested": ("nerfstudio", nerfstudio(DEEP)),
    "a number of 5,000 digits in a name": ("nerfstudio", nerfstudio(transforms(path=f"{LONG}.png"))),
    "a number of 5,000 digits": ("nerfstudio", nerfstudio(transforms(f'"fl_x": {LONG},'))),
    "a size beyond any float": ("nerfstudio", nerfstudio(transforms(f'"fl_x": 5, "h": 4, "w": 1{"0" * 400},'))),
    "a matrix beyond any float": (
        "nerfstudio",
        nerfstudio(transforms(matrix=f"[[1{'0' * 400},0,0,0],[0,1,0,0],[0,0,1,0]]")),
    ),
    "a zero byte in a name": ("nerfstudio", nerfstudio(transforms(path="a\\u0000b.png"))),
    "half a character in a name": ("nerfstudio", nerfstudio(transforms(path="a\\ud800b.png"))),
    "a camera as wide as infinity": ("colmap", colmap(camera="1 PINHOLE inf 48 50 50 32 24")),
    "a camera with half a number": ("colmap", colmap(camera="1.5 PINHOLE 64 48 50 50 32 24")),
    "a camera called nan": ("colmap", colmap(camera="nan PINHOLE 64 48 50 50 32 24")),
    "a focal length of nan": ("colmap", colmap(camera="1 PINHOLE 64 48 nan 50 32 24")),
    "a centre of infinity": ("colmap", colmap(camera="1 PINHOLE 64 48 50 50 inf 24")),
    "an image of camera infinity": ("colmap", colmap(image="1 1 0 0 0 0 0 0 inf 1.png")),
    "an image at nan": ("colmap", colmap(image="1 1 0 0 0 nan 0 0 1 1.png")),
    "an image turned by infinity": ("colmap", colmap(image="1 inf 0 0 0 0 0 0 1 1.png")),
    "a point called 1e30": ("colmap", colmap(point="1e30 0 0 1 0 0 0 0")),
    "a point called infinity": ("colmap", colmap(point="inf 0 0 1 0 0 0 0")),
    "a list with a zero byte": ("tum", tum("0.5 a\0b.png")),
    "a list that names a pipe": ("tum", fifo),
    "a list that names a device": ("tum", tum("0.5 /dev/zero")),
    "a singular projection": ("kitti", kitti),
    "a stamp of 5,000 digits": ("euroc", euroc(LONG)),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_scene_is_an_input_error_and_stops_no_other(tmp_path: Path, what: str) -> None:
    dataset, write = BROKEN[what]
    write(tmp_path / "a")
    write_image(tmp_path / "b" / "1.png", 1)
    write_image(tmp_path / "b" / "2.png", 2)
    scenes = {scene.path.name: scene for scene in find_scenes(tmp_path)}
    assert (scenes["a"].dataset, scenes["b"].dataset) == (dataset, "images")
    with pytest.raises(InputError) as error:
        with scenes["a"].open() as source:
            list(source)
        truth = scenes["a"].truth()
        assert truth is not None
        truth.depth(0)
    assert str(tmp_path) in str(error.value) or "readable" in str(error.value)
    with scenes["b"].open() as source:
        assert len(list(source)) == 2


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("poses.txt", b"0 \xff\xfe"),
        ("poses.txt", f"{LONG} {'1 ' * 16}".encode()),
        ("intrinsics.txt", b"nan nan 1 1 64 48"),
        ("intrinsics.txt", b"50 50 32 24 inf 48"),
    ],
)
def test_a_sequence_with_broken_ground_truth(tmp_path: Path, name: str, content: bytes) -> None:
    write_image(tmp_path / "rgb" / "0.png", 1)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=name):
        read_sequence(tmp_path)


def test_digits_that_are_no_number_in_an_image_name(tmp_path: Path) -> None:
    write_image(tmp_path / "rgb" / "²³.png", 1)
    write_lines(tmp_path / "poses.txt", "0 1 0 0 0 0 1 0 0 0 0 1 0 0 0 0 1")
    assert list(read_sequence(tmp_path).poses) == [0]


def test_sparse_depth_that_is_not_finite_is_left_out(tmp_path: Path) -> None:
    write_image(tmp_path / "rgb" / "0.png", 1)
    write_lines(tmp_path / "sparse" / "0.txt", "1 2 3", "nan 2 3", "1 inf 3", "4 5 nan")
    points = read_sequence(tmp_path).read_depth(0)  # type: ignore[misc]
    assert points is not None and points.uvz.tolist() == [[1, 2, 3]]  # type: ignore[union-attr]


def test_depth_under_a_name_that_is_not_utf8(tmp_path: Path) -> None:
    name = os.fsdecode(b"\xff.png")
    write_image(tmp_path / "1.png", 1).rename(write_image(tmp_path / "rgb" / "0.png", 1).with_name(name))
    (tmp_path / "rgb" / "0.png").unlink()
    write_depth(tmp_path / "1.png", 2000).rename((write_depth(tmp_path / "depth" / "1.png", 1)).with_name(name))
    depth = read_sequence(tmp_path).read_depth(0)  # type: ignore[misc]
    assert depth is not None and depth.metres.max() == 2  # type: ignore[union-attr]


def test_a_tree_without_end_is_not_searched_without_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_image(tmp_path / "scene" / "1.png", 1)
    write_image(tmp_path / "scene" / "2.png", 2)
    here = os.open(tmp_path, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    try:
        assert [scene.path.name for scene in find_scenes(tmp_path)] == ["scene"]
        assert f"more than {MAX_DEPTH} folders deep" in caplog.text
    finally:
        # Deeper than what removes a test's folder can go.
        inner = tmp_path / "d"
        while inner.exists():
            below = inner / "d"
            if below.exists():
                below = below.rename(tmp_path / "next")
            inner.rmdir()
            if not below.exists():
                break
            inner = below.rename(tmp_path / "d")


def test_a_folder_seen_twice_counts_once(tmp_path: Path) -> None:
    write_image(tmp_path / "a" / "1.png", 1)
    write_image(tmp_path / "a" / "2.png", 2)
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "same").symlink_to(tmp_path / "a")
    assert len(find_scenes(tmp_path)) == 1
    assert json.dumps([scene.name for scene in find_scenes(tmp_path)]) == '["a"]'
