"""Files of data sets with one element renamed, removed, added, moved or commented: never another result silently."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from stream_recon.app.datasets.catalogue import reader_named
from stream_recon.app.datasets.known_poses import read_known_poses
from stream_recon.app.sources.frame_choice import FrameChoice
from stream_recon.configs.errors import InputError
from tests.app.datasets.folders import write_lines
from tests.app.datasets.test_calibrated import nerfstudio
from tests.app.datasets.test_kitti_raw import write_drive
from tests.app.datasets.test_rgbd import write_pairs, write_tum
from tests.app.datasets.test_rigs import write_euroc, write_kitti
from tests.app.datasets.test_rooms import write_scannet, write_seven_scenes
from tests.app.datasets.test_sequence import pose_line
from tests.app.datasets.test_sequence import write_images as write_sequence
from tests.app.datasets.test_sfm import write_colmap_text, write_photos
from tests.mutations import Mutant, of_lines, of_scalars, of_table, of_tree, silently_other


def rows_of(text: str) -> Iterator[Mutant[str]]:
    """Of a list without names: comments, lines of something else, and columns that are removed or added.

    Lines themselves are data: with fewer of them there are fewer images or poses.
    """
    yield from (mutant for mutant in of_lines(text) if "line" not in mutant.change or MARKED in mutant.change)
    header = [line for line in text.splitlines() if line.startswith("#")]
    rows = [line.split() for line in text.splitlines() if not line.startswith("#")]
    for mutant in of_table([str(column) for column in range(len(rows[0]))], rows):
        if "removed" in mutant.change or "added" in mutant.change:
            lines = [*header, *(" ".join(row) for row in mutant.content[1:])]
            yield Mutant(mutant.change, ("column",), "\n".join(lines) + "\n")


MARKED = "added a line"


def pairs(text: str) -> Iterator[Mutant[str]]:
    """Of lines ``name: values``."""
    yield from of_lines(text)
    lines = text.splitlines()
    for number, line in enumerate(lines):
        name, _, values = line.partition(":")
        for change, other in (("renamed", f"{name}zzz:{values}"), ("shortened", line.rpartition(" ")[0])):
            yield Mutant(change, (name,), "\n".join([*lines[:number], other, *lines[number + 1 :]]) + "\n")
        yield Mutant("moved", (name,), "\n".join([*lines[:number], *lines[number + 1 :], line]) + "\n")


def tree(text: str) -> Iterator[Mutant[str]]:
    """Of JSON, or of YAML, which JSON is, too."""
    content = yaml.safe_load(text.replace("%YAML:1.0", ""))
    for mutant in (*of_tree(content, lists=False), *of_scalars(content)):
        if "file_path" not in mutant.names[0] or "put" not in mutant.change:  # an image that is missing is told
            yield Mutant(mutant.change, mutant.names, json.dumps(mutant.content))


def euroc(folder: Path) -> Path:
    return write_euroc(folder)


def pairs_of_images(folder: Path) -> Path:
    folder.mkdir(parents=True)
    write_pairs(folder, [f"{number} depth/{number}.png {number} rgb/{number}.png" for number in range(3)])
    return folder


def sequence(folder: Path) -> Path:
    write_sequence(folder, ["0.png", "1.png"])
    write_lines(folder / "poses.txt", *(pose_line(number, 0.5 * number) for number in range(2)))
    write_lines(folder / "intrinsics.txt", "30 31 16 12 32 24")
    return folder


def colmap(folder: Path) -> Path:
    write_photos(folder)
    write_colmap_text(folder / "sparse/0")
    return folder


def eth3d(folder: Path) -> Path:
    write_tum(folder)
    write_lines(folder / "calibration.txt", "726.2 726.3 359.2 202.4")
    return folder


def icl(folder: Path) -> Path:
    pairs_of_images(folder)
    write_lines(folder / "room.gt.freiburg", *(f"{number} {0.1 * number} 0 -2.25 0 0 0 1" for number in range(3)))
    return folder


Write = Callable[[Path], Path]
CASES: list[tuple[str, Write, str, Callable[[str], Iterator[Mutant[str]]]]] = [
    ("kitti", lambda folder: write_kitti(folder), "calib.txt", pairs),
    ("kitti", lambda folder: write_kitti(folder), "times.txt", rows_of),
    ("kitti", lambda folder: write_kitti(folder), "../../poses/04.txt", rows_of),
    ("kitti", lambda folder: write_drive(folder), "../calib_cam_to_cam.txt", pairs),
    ("kitti", lambda folder: write_drive(folder, "extract"), "../calib_cam_to_cam.txt", pairs),
    ("kitti", lambda folder: write_drive(folder), "image_02/timestamps.txt", rows_of),
    ("euroc", euroc, "mav0/cam0/sensor.yaml", tree),
    ("euroc", euroc, "mav0/cam0/data.csv", rows_of),
    ("scannet", write_scannet, "intrinsic/intrinsic_color.txt", of_lines),
    ("scannet", write_scannet, "pose/0.txt", of_lines),
    ("7scenes", write_seven_scenes, "frame-000000.pose.txt", of_lines),
    ("tum", write_tum, "rgb.txt", rows_of),
    ("tum", write_tum, "depth.txt", rows_of),
    ("eth3d", eth3d, "calibration.txt", of_lines),
    ("eth3d", eth3d, "calibration.txt", rows_of),
    ("icl-nuim", pairs_of_images, "associations.txt", rows_of),
    ("icl-nuim", icl, "room.gt.freiburg", rows_of),
    ("nerfstudio", nerfstudio, "transforms.json", tree),
    ("sequence", sequence, "intrinsics.txt", rows_of),
    ("sequence", sequence, "poses.txt", rows_of),
    ("colmap", colmap, "sparse/0/points3D.txt", rows_of),
]


def images_of_model(text: str) -> Iterator[Mutant[str]]:
    """Lines of keypoints have no name, and without the line of an image there is an image less."""
    return (m for m in of_lines(text, comment=None) if m.names[-1].isdecimal() and m.change != "removed line")


KNOWN: list[tuple[str, Write, str, Callable[[str], Iterator[Mutant[str]]]]] = [
    ("groundtruth.txt", write_tum, "groundtruth.txt", rows_of),
    ("transforms.json", nerfstudio, "transforms.json", tree),
    (".", colmap, "sparse/0/images.txt", images_of_model),
    (".", euroc, "mav0/cam0/sensor.yaml", tree),
]


def read_poses(path: Path) -> tuple[Any, list[str]]:
    found = read_known_poses(path)
    return (found.poses.round(6).tolist(), found.names, found.metric), []


@pytest.mark.parametrize(("given", "write", "name", "mutants"), KNOWN, ids=[case[2] for case in KNOWN])
def test_no_change_of_known_poses_is_read_as_something_else(
    tmp_path: Path, given: str, write: Write, name: str, mutants: Callable[[str], Iterator[Mutant[str]]]
) -> None:
    folder = write(tmp_path / "scene")
    file = folder / name
    whole = file.read_text()

    def of_text(text: str) -> tuple[Any, list[str]]:
        file.write_text(text)
        return read_poses(folder / given)

    expected, _ = of_text(whole)
    named = [Mutant(m.change, (*m.names, file.name), m.content) for m in mutants(whole)]
    assert len(named) > 4
    assert silently_other(of_text, named, expected, InputError) == []


def read(dataset: str, folder: Path) -> tuple[Any, list[str]]:
    """What a folder gives as plain values, and the warnings on it."""
    found = reader_named(dataset).load(folder)
    with found.source(dataset, FrameChoice()) as source:
        frames = [(frame.index, round(frame.timestamp, 6)) for frame in source]
        warnings = source.warnings
    poses = {number: pose.round(6).tolist() for number, pose in found.poses.items()}
    depth = None if found.read_depth is None else found.read_depth(0)
    values = None if depth is None else vars(depth).values()
    return (
        frames, [image.name for image in found.images], poses, found.camera, found.calibration, found.metric,
        [np.asarray(value).sum().round(5) for value in values or ()],
    ), warnings  # fmt: skip


@pytest.mark.parametrize(("dataset", "write", "name", "mutants"), CASES, ids=[f"{c[0]} {c[2]}" for c in CASES])
def test_no_change_is_read_as_something_else(
    tmp_path: Path, dataset: str, write: Write, name: str, mutants: Callable[[str], Iterator[Mutant[str]]]
) -> None:
    folder = write(tmp_path / "scene")
    file = folder / name
    whole = file.read_text()
    expected, _ = read(dataset, folder)

    def of_text(text: str) -> tuple[Any, list[str]]:
        file.write_text(text)
        return read(dataset, folder)

    # Lines have no names but their file's and their number.
    named = [Mutant(m.change, m.names if mutants is tree else (*m.names, file.name), m.content) for m in mutants(whole)]
    assert len(named) > 4
    assert silently_other(of_text, named, expected, InputError) == []
