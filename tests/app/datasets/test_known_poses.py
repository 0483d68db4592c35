"""Known poses in the files and folders that a user may have."""

import json
from pathlib import Path

import numpy as np
import pytest

from stream_recon.app.core.transforms import invert_pose, quaternion_xyzw, rotation_angle_deg
from stream_recon.app.datasets.known_poses import KnownPoses, read_known_poses, times_in_names
from stream_recon.configs.errors import InputError
from tests.app.slam.room import walk

PATH = walk(6)


def write_tum(file: Path, poses: np.ndarray, first: float = 0.0, step: float = 0.1) -> Path:
    """A trajectory as of the TUM benchmark."""
    rows = [(first + step * i, *T[:3, 3], *quaternion_xyzw(T[:3, :3])) for i, T in enumerate(poses)]
    file.write_text("\n".join(" ".join(f"{value:.9f}" for value in row) for row in rows))
    return file


def write_colmap(folder: Path, poses: np.ndarray) -> Path:
    folder.mkdir()
    (folder / "cameras.txt").write_text("1 PINHOLE 320 240 260 260 160 120\n")
    lines = []
    for i, T in enumerate(invert_pose(poses)):
        x, y, z, w = quaternion_xyzw(T[:3, :3])
        lines += [" ".join(map(str, (i + 1, w, x, y, z, *T[:3, 3], 1, f"cam/{i:06d}.jpg"))), ""]
    (folder / "images.txt").write_text("\n".join(lines) + "\n")
    return folder


def write_transforms(file: Path, poses: np.ndarray) -> Path:
    matrices = (poses @ np.diag([1.0, -1, -1, 1])).tolist()
    frames = [{"file_path": f"images/{i:06d}", "transform_matrix": T} for i, T in enumerate(matrices)]
    file.write_text(json.dumps({"frames": frames}))
    return file


@pytest.mark.parametrize("write", [write_colmap, write_transforms])
def test_poses_of_images_go_by_their_names(tmp_path: Path, write: object) -> None:
    known = read_known_poses(write(tmp_path / "poses.json", PATH))  # type: ignore[operator]
    assert known.times is None and not known.metric
    found = known.of_images([Path("film/000003.png"), Path("film/other.png"), Path("film/000000.PNG")])
    assert sorted(found) == [0, 2]
    assert np.allclose(found[0], PATH[3]) and np.allclose(found[2], PATH[0])


def test_cameras_with_the_same_names_go_by_their_folders() -> None:
    known = KnownPoses(PATH[:2], names=("left/1.jpg", "right/1.jpg"))
    assert np.allclose(known.of_images([Path("a/right/1.jpg")])[0], PATH[1])


def test_poses_between_those_of_a_trajectory_are_interpolated(tmp_path: Path) -> None:
    known = read_known_poses(write_tum(tmp_path / "a.txt", PATH[[0, 1, 2, 5]], first=10.0))
    assert known.metric and known.times is not None and np.allclose(known.times, [10, 10.1, 10.2, 10.3])
    found = known.at(np.array([9.9, 10.0, 10.15, 10.31]))
    assert sorted(found) == [1, 2], "none before the first and after the last one"
    assert np.allclose(found[1], PATH[0], atol=1e-6)
    assert np.allclose(found[2][:3, 3], (PATH[1] + PATH[2])[:3, 3] / 2, atol=1e-6)
    turns = [rotation_angle_deg(found[2][:3, :3].T @ PATH[i][:3, :3]) for i in (1, 2)]
    assert turns[0] == pytest.approx(turns[1], abs=1e-4)


def test_where_tracking_was_lost_for_long_there_is_no_pose() -> None:
    times = np.array([0.0, 0.1, 0.2, 0.3, 2.0, 2.1])
    assert sorted(KnownPoses(PATH, times).at(np.array([0.25, 1.0, 2.05]))) == [0, 2]


def test_images_may_be_called_by_their_times() -> None:
    seconds = times_in_names([Path("1305031102.175304.png"), Path("1305031102.211214.png")])
    assert seconds is not None and np.allclose(np.diff(seconds), 0.03591, atol=1e-5)
    assert times_in_names([Path("000001.png"), Path("000002.png")]) is None


def test_what_has_no_poses_that_are_read_is_refused_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "lost.txt").write_text("0.0 nan nan nan nan nan nan nan\n")
    for name, what in (("empty", "no poses that can be read"), ("lost.txt", "no poses")):
        with pytest.raises(InputError, match=what):
            read_known_poses(tmp_path / name)
