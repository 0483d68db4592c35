"""Captures of phones, written from true poses: their poses, cameras and photographs."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from stream_recon.app.core.transforms import invert_pose, quaternion_xyzw
from stream_recon.app.datasets.find import find_scenes
from stream_recon.app.datasets.known_poses import read_known_poses, times_in_names
from stream_recon.app.datasets.scene import given_camera
from stream_recon.app.sources.frame_choice import FrameChoice
from stream_recon.app.sources.source import open_source
from stream_recon.configs.errors import InputError
from tests.app.datasets.folders import write_image, write_lines
from tests.app.slam.room import walk
from tests.mutations import Mutant, of_lines, of_scalars, of_tree, silently_other

PATH = walk(6)
ARKIT = PATH @ np.diag([1.0, -1.0, -1.0, 1.0])
"""The same poses with ARKit's camera axes: right, up, backward."""
FOCAL, CENTRE = (50.0, 51.0), (31.0, 25.0)
Write = Callable[[Path], Path]


def write_polycam(folder: Path, poses: np.ndarray = ARKIT, kind: str = "corrected_") -> Path:
    for number, T in enumerate(poses):
        name = f"{48526254447 + 250000 * number}"
        write_image(folder / f"keyframes/{kind}images/{name}.jpg", number)
        content = {f"t_{row}{column}": float(T[row, column]) for row in range(3) for column in range(4)}
        camera = dict(zip(("fx", "fy", "cx", "cy", "width", "height"), (*FOCAL, *CENTRE, 64, 48), strict=True))
        file = folder / f"keyframes/{kind}cameras/{name}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({**content, **camera, "blur_score": 90.5, "timestamp": int(name)}))
    return folder


def write_record3d(folder: Path, poses: np.ndarray = ARKIT) -> Path:
    for number in range(len(poses)):
        write_image(folder / f"rgbd/{number}.jpg", number)
    rows = [[*quaternion_xyzw(T[:3, :3]).tolist(), *T[:3, 3].tolist()] for T in poses]
    K = [FOCAL[0], 0, 0, 0, FOCAL[1], 0, *CENTRE, 1]
    focus = [[*FOCAL, *CENTRE]] * len(poses)
    times = [0.1 * number for number in range(len(poses))]
    content = {"w": 64, "h": 48, "fps": 10, "K": K, "poses": rows, "frameTimestamps": times}
    (folder / "metadata").write_text(json.dumps({**content, "perFrameIntrinsicCoeffs": focus, "dw": 8, "dh": 6}))
    return folder


def write_arkitscenes(folder: Path, poses: np.ndarray = PATH) -> Path:
    lines = []
    for number, T in enumerate(invert_pose(poses)):
        second = 305.3 + 0.1 * number
        write_image(folder / f"lowres_wide/41069021_{second:.3f}.png", number)
        write_lines(folder / f"lowres_wide_intrinsics/41069021_{second:.3f}.pincam", "64 48 50 51 31 25")
        turn = cv2.Rodrigues(T[:3, :3])[0].ravel()
        lines.append(" ".join(f"{value:.9f}" for value in (second, *turn, *T[:3, 3])))
    write_lines(folder / "lowres_wide.traj", *lines)
    return folder


CAPTURES = [write_polycam, write_record3d, write_arkitscenes]


@pytest.mark.parametrize("write", CAPTURES)
def test_captures_give_poses_camera_and_photographs(tmp_path: Path, write: Write) -> None:
    folder = write(tmp_path / "capture")
    with open_source(str(folder), FrameChoice()) as source:
        assert len([*source]) == len(PATH)
    (scene,) = find_scenes(folder)
    truth = scene.truth()
    assert truth is not None and truth.metric
    known = read_known_poses(folder)
    assert known.metric
    images = sorted(folder.glob("keyframes/*/*.jpg")) or sorted(folder.glob("*/*.jpg")) or sorted(folder.rglob("*.png"))
    seconds = times_in_names(images)
    found = known.of_images(images) if known.names else known.at(seconds) if seconds is not None else {}
    for number, T in enumerate(PATH):
        assert np.allclose(truth.poses[number], T, atol=1e-6) and np.allclose(found[number], T, atol=1e-6)
    camera = given_camera(str(folder))
    assert (camera.fx, camera.fy, camera.cx, camera.cy, camera.size) == (*FOCAL, *CENTRE, (64, 48))


def test_polycams_corrected_images_and_poses_are_preferred(tmp_path: Path) -> None:
    folder = write_polycam(tmp_path, walk(7)[1:], kind="")
    assert not np.allclose(read_known_poses(folder).poses, PATH)
    write_image(folder / "thumbnail.jpg", 9)
    write_polycam(folder)
    assert np.allclose(read_known_poses(folder).poses, PATH)
    with open_source(str(folder), FrameChoice()) as source:
        assert source.warnings == [f"the photographs in keyframes/corrected_images of {folder.name} are used"]
    next((folder / "keyframes/corrected_cameras").iterdir()).unlink()
    assert len(read_known_poses(folder).poses) == len(PATH) - 1


def test_record3ds_export_of_exr_is_read_as_the_capture_itself(tmp_path: Path) -> None:
    folder = write_record3d(tmp_path)
    (folder / "rgbd").rename(folder / "rgb")
    (folder / "metadata").rename(folder / "metadata.json")
    write_lines(folder / "depth/0.exr", "")
    assert np.allclose(read_known_poses(folder).poses, PATH)


def test_poses_of_arkitscenes_between_its_images_are_interpolated(tmp_path: Path) -> None:
    folder = write_arkitscenes(tmp_path)
    known = read_known_poses(folder / "lowres_wide.traj")
    found = known.at(np.array([305.35, 305.9]))
    assert [*found] == [0], "none after the last one"
    assert np.allclose(found[0][:3, 3], (PATH[0] + PATH[1])[:3, 3] / 2, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"poses": [[0, 0, 0, 1, 0, 0, 0]] * 5}, "5 poses, and none for image 5"),
        ({"frameTimestamps": [0.1, 0.2]}, "frameTimestamps is no list of 1 numbers for each of 6 poses"),
        ({"frameTimestamps": [0.5, 0.4, 0.3, 0.2, 0.1, 0]}, "times of its images do not ascend"),
        ({"poses": [[0, 0, 0, 1, 0, 0]] * 6}, "poses is no list of 7 numbers for each image"),
        ({"poses": [[0, 0, 0, 2, 0, 0, 0]] * 6}, "poses, row 0: the quaternion"),
    ],
)
def test_what_contradicts_itself_is_refused_by_name(tmp_path: Path, change: dict[str, Any], what: str) -> None:
    file = write_record3d(tmp_path) / "metadata"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(InputError, match=what):
        read_known_poses(tmp_path)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"K": [50, 0, 31, 0, 51, 25, 0, 0, 1]}, "K is not fx, 0, 0"),
        ({"K": [80, 0, 0, 0, 80, 0, 31, 25, 1]}, "different cameras"),
        ({"lens": 3}, "'lens', not understood"),
    ],
)
def test_a_camera_that_is_not_understood_is_told_and_poses_are_used(
    tmp_path: Path, change: dict[str, Any], what: str
) -> None:
    file = write_record3d(tmp_path) / "metadata"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    assert len(read_known_poses(tmp_path).poses) == len(PATH)
    with pytest.raises(InputError, match=what):
        given_camera(str(tmp_path))


def test_archives_and_names_without_times_are_refused(tmp_path: Path) -> None:
    (tmp_path / "scan.r3d").write_bytes(b"PK")
    with pytest.raises(InputError, match="unpack it"):
        read_known_poses(tmp_path / "scan.r3d")
    (scene,) = find_scenes(write_arkitscenes(tmp_path / "a"))
    (tmp_path / "a/lowres_wide/41069021_305.300.png").rename(tmp_path / "a/lowres_wide/first.png")
    with pytest.raises(InputError, match="first"):
        scene.truth()


def read(folder: Path) -> tuple[Any, list[str]]:
    """Poses and the camera of a folder, or why it has none."""
    found, said = read_known_poses(folder), list[str]()
    try:
        camera = str(given_camera(str(folder)))
    except InputError as error:
        camera, said = "", [str(error)]
    return (
        found.poses.round(6).tolist(),
        found.names,
        None if found.times is None else found.times.tolist(),
        camera,
    ), said


def columns(text: str) -> list[Mutant[str]]:
    """Lines without names, and with a number more or less; of fewer lines there are fewer poses."""
    rows = [line.split() for line in text.splitlines()]
    less, more = (
        "\n".join(" ".join(row) for row in other) for other in ([r[:-1] for r in rows], [[*r, "7.5"] for r in rows])
    )
    changed = [m for m in of_lines(text) if m.change in ("repeated line", "added a line after", "commented")]
    return [Mutant(m.change, (*m.names, ".traj"), m.content) for m in changed] + [
        Mutant("removed a column", (".traj",), less),
        Mutant("added a column", (".traj",), more),
    ]


@pytest.mark.parametrize("write", CAPTURES)
def test_no_change_of_a_capture_is_read_as_another_one(tmp_path: Path, write: Write) -> None:
    folder = write(tmp_path / "capture")
    file = next(p for p in sorted(folder.rglob("*")) if p.suffix in (".json", ".traj") or p.name == "metadata")
    whole = file.read_text()
    mutants = columns(whole) if file.suffix == ".traj" else [
        Mutant(m.change, m.names, json.dumps(m.content))
        for m in (*of_tree(json.loads(whole)), *of_scalars(json.loads(whole)))
        if (m.change, m.names[0]) != ("removed", "frameTimestamps")  # times that no image needs
    ]  # fmt: skip
    expected, _ = read(folder)

    def of_text(text: str) -> tuple[Any, list[str]]:
        file.write_text(text)
        return read(folder)

    assert len(mutants) > 4
    assert silently_other(of_text, mutants, expected, InputError) == []
