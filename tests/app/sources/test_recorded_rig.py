"""Rigs of the cameras in ROS recordings: tf, stereo pairs by their projection matrices, and files that name topics."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("rosbags")

from stream_recon.app.core.rig import VIEW_STRIDE, view_of
from stream_recon.app.core.so3 import exp
from stream_recon.app.core.transforms import invert_pose
from stream_recon.app.core.types import Frame
from stream_recon.app.sources.frame_choice import TF, FrameChoice
from stream_recon.app.sources.source import Source, open_source
from stream_recon.configs.errors import ConfigError, InputError
from tests.app.sources.bags import STEP_NS, Bag
from tests.app.sources.test_rig_files import KALIBR, T_SECOND_FIRST, colmap

SIZE = WIDTH, HEIGHT = 64, 48
K = [70.0, 0, 31.5, 0, 70, 23.5, 0, 0, 1]
BASELINE = 0.075
LEFT, RIGHT = "/oak/left/image_raw", "/oak/right/image_raw"
RECTIFIED = ["/zed/left/image_rect", "/zed/right/image_rect"]


def pose(x: float, y: float = 0.0, z: float = 0.0, turn: tuple[float, float, float] = (0, 0, 0)) -> NDArray[np.float64]:
    T = np.eye(4)
    T[:3, :3], T[:3, 3] = exp(np.array(turn, float)), (x, y, z)
    return T


OPTICAL = pose(0, turn=(-np.pi / 2, 0, 0)) @ pose(0, turn=(0, np.pi / 2, 0))
T_BASE_LEFT, T_BASE_RIGHT = pose(0.1, 0.04, 0.2) @ OPTICAL, pose(0.1, -0.035, 0.21, (0, 0, 0.02)) @ OPTICAL
TREE = {
    ("base", "left_optical_frame"): T_BASE_LEFT,
    ("base", "mount"): pose(0.1),
    ("mount", "right_optical_frame"): invert_pose(pose(0.1)) @ T_BASE_RIGHT,
}


def projection(shift: float = 0.0, focal: float = 70.0) -> list[float]:
    return [focal, 0, 31.5, shift, 0, focal, 23.5, 0, 0, 0, 1, 0]


def picture(number: int) -> NDArray[np.uint8]:
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    return np.stack([3 * x + 5 * number, 4 * y + 10, 200 - 2 * x - y], axis=-1).astype(np.uint8)


def write(
    path: Path,
    tree: dict[tuple[str, str], NDArray[np.float64]] | None = TREE,
    topics: tuple[str, str] = (LEFT, RIGHT),
    p: tuple[list[float], list[float]] = (projection(), projection()),
    r: NDArray[np.float64] | None = None,
    frames: tuple[str, str] = ("left_optical_frame", "right_optical_frame"),
    transforms: Iterable[tuple[str, str, NDArray[np.float64]]] = (),
    **options: Any,
) -> Path:
    with Bag(path, **options) as bag:
        for parent, frame, T in transforms:
            bag.transforms("/tf_static", 0, {(parent, frame): T})
        if tree is not None:
            bag.transforms("/tf_static", 0, tree)
        for topic, each, frame in zip(topics, p, frames, strict=True):
            bag.camera(f"{topic.rpartition('/')[0]}/camera_info", SIZE, K, [0.0] * 5, p=each, frame=frame, r=r)
        for number in range(4):
            bag.transforms("/tf", number, {("odom", "base"): pose(number)})
            for topic, frame in zip(topics, frames, strict=True):
                bag.raw(topic, number, picture(number), "rgb8", frame=frame)
            bag.raw("/oak/depth/image", number, np.ones((HEIGHT, WIDTH), np.uint16), "16UC1")
    return path


def opened(path: Path, **choice: Any) -> Source:
    return open_source(str(path), FrameChoice(rig=TF, **choice))


def numbers(frames: list[Frame]) -> list[tuple[int, int]]:
    return [(view_of(frame.index), frame.index % VIEW_STRIDE) for frame in frames]


@pytest.mark.parametrize(("name", "mcap"), [("walk.bag", False), ("walk", False), ("walk", True)])
def test_cameras_are_where_tf_has_them(tmp_path: Path, name: str, mcap: bool) -> None:
    path = write(tmp_path / name, mcap=mcap)
    path = next(path.glob("*.mcap")) if mcap else path
    with opened(path) as source:
        frames, rig, k = list(source), source.rig, source.intrinsics
        assert source.warnings == []
    assert rig is not None and rig.names == (LEFT, RIGHT) and k is not None and k.fx == 70
    np.testing.assert_allclose(rig.T_body_view[1], invert_pose(T_BASE_LEFT) @ T_BASE_RIGHT, atol=1e-9)
    assert numbers(frames) == [(view, number) for view in (0, 1) for number in range(4)]
    assert [frame.timestamp for frame in frames[4:]] == pytest.approx([0.05 * n for n in range(4)], abs=1e-6)
    with opened(path, topic=f"{RIGHT},{LEFT}", max_frames=2) as source:
        assert source.rig is not None and source.rig.names == (RIGHT, LEFT), "the first topic gives the pose"


@pytest.mark.parametrize("rectified", [True, False])
def test_projection_matrices_of_a_stereo_pair_are_used_where_tf_does_not_contradict(
    tmp_path: Path, rectified: bool
) -> None:
    """Of images that are not rectified the axes are turned."""
    R = exp(np.array([0.01, -0.02, 0.03]))
    pair = (projection(), projection(-70 * BASELINE))
    topics = (RECTIFIED[0], RECTIFIED[1]) if rectified else (LEFT, RIGHT)
    expected = pose(BASELINE)
    expected[:3, 3] = expected[:3, 3] if rectified else R.T @ expected[:3, 3]
    # In tf the camera that was turned by R is where it was mounted.
    mounted = pose(0)
    mounted[:3, :3] = R if rectified else np.eye(3)
    near = expected @ pose(0.001)
    trees = (
        None,
        {("base", "left_optical_frame"): mounted, ("base", "right_optical_frame"): near @ mounted},
        {("base", "left_optical_frame"): np.eye(4)},
    )
    for number, tree in enumerate(trees):
        with opened(write(tmp_path / f"{number}", tree, topics, pair, R)) as source:
            assert source.rig is not None
            np.testing.assert_allclose(source.rig.T_body_view[1], expected, atol=1e-9)
    far = {("base", "left_optical_frame"): mounted, ("base", "right_optical_frame"): expected @ pose(0.02) @ mounted}
    with pytest.raises(InputError, match=r"\[0\.07.* by the projection matrix, .* by tf"):
        opened(write(tmp_path / "far", far, topics, pair, R))


def test_rectified_images_are_turned_from_the_frame_of_tf(tmp_path: Path) -> None:
    R = exp(np.array([0.0, 0.1, 0.0]))
    path = write(tmp_path / "a", topics=(RECTIFIED[0], RECTIFIED[1]), r=R)
    turned = np.eye(4)
    turned[:3, :3] = R
    with opened(path) as source:
        assert source.rig is not None
        T = turned @ invert_pose(T_BASE_LEFT) @ T_BASE_RIGHT @ turned.T
        np.testing.assert_allclose(source.rig.T_body_view[1], T, atol=1e-9)


TWO = ("left_optical_frame", "left_optical_frame")


@pytest.mark.parametrize(
    ("tree", "options", "message"),
    [
        (None, {}, "tf does not join the cameras: it has left_optical_frame; right_optical_frame; and no projection"),
        ({("base", "left_optical_frame"): np.eye(4)}, {}, "left_optical_frame below base below odom; right_optical"),
        (TREE | {("right_optical_frame", "mount"): np.eye(4)}, {}, "is one of two: its parent is right_optical_frame"),
        ({("left_optical_frame", "mount"): np.eye(4), ("mount", "left_optical_frame"): np.eye(4)}, {}, "has a loop"),
        (TREE, {"frames": TWO}, "frames of the topics are left_optical_frame, left_optical_frame"),
        (None, {"p": (projection(), projection(-5, 90))}, "no projection matrices are those of a stereo pair"),
        (None, {"p": (projection(-5), projection(-5))}, "no projection matrices are those of a stereo pair"),
        (TREE, {"topics": (RECTIFIED[0], RECTIFIED[1]), "r": 2 * np.eye(3)}, "R of .* is no rotation"),
    ],
)
def test_what_is_not_stated_without_doubt_is_refused_by_what_was_found(
    tmp_path: Path, tree: dict[tuple[str, str], NDArray[np.float64]], options: Any, message: str
) -> None:
    path = write(tmp_path / "a", tree, **options)
    with pytest.raises(InputError, match=message):
        opened(path)


def test_a_transform_that_moves_or_is_none_is_refused(tmp_path: Path) -> None:
    for number, T in enumerate((pose(0.1, 0.001), pose(np.nan))):
        with Bag(tmp_path / f"{number}") as bag:
            for topic, frame in ((LEFT, "left_optical_frame"), (RIGHT, "right_optical_frame")):
                bag.camera(f"{topic.rpartition('/')[0]}/camera_info", SIZE, K, [], frame=frame)
                bag.raw(topic, 0, picture(0), "rgb8", frame=frame)
            bag.transforms("/tf_static", 0, TREE | ({("base", "mount"): T} if number else {}))
            bag.transforms("/tf", 1, {("base", "mount"): T})
        with pytest.raises(InputError, match=f"from base to mount {('moves', 'is no rigid transform')[number]}"):
            opened(tmp_path / f"{number}")


Transform = tuple[str, str, NDArray[np.float64]]


def changed_trees() -> Iterator[tuple[str, list[Transform]]]:
    """The tree with one transform removed, renamed, turned round, or told twice."""
    tree = [(parent, frame, T) for (parent, frame), T in TREE.items()]
    for number, (parent, frame, T) in enumerate(tree):
        before, after, name = tree[:number], tree[number + 1 :], f"{parent} to {frame}"
        yield f"{name} removed", [*before, *after]
        yield f"{name}: other parent", [*before, (f"{parent}_", frame, T), *after]
        yield f"{name}: other frame", [*before, (parent, f"{frame}_", T), *after]
        yield f"{name} turned round", [*before, (frame, parent, T), *after]
        for other in (parent, "world", "left_optical_frame", "right_optical_frame"):
            yield f"{name} twice, in {other}", [*tree, (other, frame, T @ pose(0.01))]


def test_no_change_of_tf_is_silent(tmp_path: Path) -> None:
    with opened(write(tmp_path / "whole")) as source:
        assert source.rig is not None
        expected = source.rig.T_body_view
    other, count = [], 0
    for number, (what, tree) in enumerate(changed_trees()):
        path = write(tmp_path / str(number), tree=None, transforms=tree)
        try:
            with opened(path) as source:
                count += 1
                is_same = source.rig is not None and np.allclose(source.rig.T_body_view, expected)
                other += [] if is_same or source.warnings else [what]
        except InputError:
            continue
    assert other == [] and count < number / 4


def test_frames_that_are_not_optical_by_name_are_doubted_and_cameras_without_calibration_refused(
    tmp_path: Path,
) -> None:
    tree = {("base", "cam0"): T_BASE_LEFT, ("base", "cam1"): T_BASE_RIGHT}
    with opened(write(tmp_path / "a", tree, frames=("cam0", "cam1"))) as source:
        list(source)
        assert [line.partition(" by ")[0] for line in source.warnings] == [
            "frame cam0 is no optical one",
            "frame cam1 is no optical one",
        ]
    with Bag(tmp_path / "b") as bag:
        bag.raw("/a/image", 0, picture(0), "rgb8")
        bag.raw("/b/image", 0, picture(0), "rgb8")
    with pytest.raises(InputError, match="/a/image has no camera_info"):
        opened(tmp_path / "b")
    with pytest.raises(InputError, match="two or more image topics, and b has /a/image"):
        opened(tmp_path / "b", topic="/a/image")
    with pytest.raises(ConfigError, match="no image topic /c: it has /a/image"):
        opened(tmp_path / "b", topic="/c,/a/image")
    with pytest.raises(ConfigError, match="for ROS recordings"):
        opened(tmp_path)


@pytest.mark.parametrize("kalibr", [True, False])
def test_files_of_rigs_name_topics(tmp_path: Path, kalibr: bool) -> None:
    image = np.zeros((96, 128, 3), np.uint8)
    with Bag(tmp_path / "walk") as bag:
        for number in range(3):
            for name in ("cam0/image_raw", "cam1") if kalibr else ("cam0", "cam1"):
                bag.raw(f"/{name}", number, image, "rgb8")
    rig = tmp_path / "rig.yaml"
    rig.write_text(KALIBR if kalibr else json.dumps(colmap()))
    with open_source(str(tmp_path / "walk"), FrameChoice(rig=str(rig))) as source:
        assert numbers(list(source)) == [(view, number) for view in (0, 1) for number in range(3)]
        assert source.rig is not None
        np.testing.assert_allclose(source.rig.T_body_view[1], invert_pose(T_SECOND_FIRST), atol=1e-9)
    rig.write_text(KALIBR.replace("/cam0/image_raw", "/left") if kalibr else json.dumps(colmap()).replace("cam0", "up"))
    with pytest.raises(ConfigError, match=r"walk has no image topic /(left|up): it has /cam0"):
        open_source(str(tmp_path / "walk"), FrameChoice(rig=str(rig)))


def moments(path: Path, first: list[float], second: list[float], **choice: Any) -> tuple[list[Frame], list[str]]:
    """Frames and warnings of a pair whose images are at these times, in frames of 50 ms."""
    with Bag(path) as bag:
        bag.transforms("/tf_static", 0, TREE)
        for topic, frame, times in ((LEFT, "left_optical_frame", first), (RIGHT, "right_optical_frame", second)):
            bag.camera(f"{topic.rpartition('/')[0]}/camera_info", SIZE, K, [], frame=frame)
            for time in times:
                bag.at(round(time * STEP_NS)).raw(topic, 0, picture(round(time)), "rgb8", frame=frame)
    with opened(path, **choice) as source:
        frames = list(source)
    return frames, source.warnings


def test_images_are_paired_by_the_nearest_stamp_within_half_a_frame(tmp_path: Path) -> None:
    first = [float(k) for k in range(8)]
    frames, warnings = moments(tmp_path / "a", first, [2.04, 3.4, 3.04, 4.55, 6.04, 7.04, 9])
    assert numbers(frames[8:]) == [(1, 2), (1, 3), (1, 5), (1, 6), (1, 7)]
    assert [frame.timestamp for frame in frames[8:]] == pytest.approx([0.102, 0.152, 0.2275, 0.302, 0.352], abs=1e-6)
    assert any(f"3 images of {LEFT} have no partner in {RIGHT}" in line for line in warnings)


def test_pairs_are_those_of_one_moment_whatever_frames_are_chosen(tmp_path: Path) -> None:
    first = [float(k) for k in range(12)]
    frames, warnings = moments(tmp_path / "a", first, first[3:], stride=2)
    assert numbers(frames[6:]) == [(1, number) for number in (4, 6, 8, 10)]
    assert [frame.rgb[0, 0, 0] for frame in frames[6:]] == [picture(k)[0, 0, 0] for k in (4, 6, 8, 10)]
    assert any("2 images of" in line for line in warnings)
    frames, _ = moments(tmp_path / "b", first, [k / 2 for k in range(24)], fps=10.0)
    assert numbers(frames[6:]) == [(1, number) for number in range(0, 12, 2)]
    assert [frame.timestamp for frame in frames[6:]] == pytest.approx([frame.timestamp for frame in frames[:6]])


def test_images_between_moments_are_told_and_a_camera_without_partners_refused(tmp_path: Path) -> None:
    first = [float(k) for k in range(6)]
    _, warnings = moments(tmp_path / "a", first, [k + 0.3 for k in first])
    assert any("0.015 s from those" in line for line in warnings)
    with pytest.raises(InputError, match=f"no image of {RIGHT} is of a moment of {LEFT}"):
        moments(tmp_path / "b", first, [k + 100 for k in first])
