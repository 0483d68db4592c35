"""The search for scenes, and what all scenes share."""

import logging
import pickle
from pathlib import Path

import cv2
import numpy as np
import pytest

from stream_recon.app.core.types import Intrinsics
from stream_recon.app.datasets.catalogue import list_datasets
from stream_recon.app.datasets.find import find_scenes
from stream_recon.app.result.writer import ResultWriter
from stream_recon.app.run.pipeline import reconstruct
from stream_recon.configs.errors import ConfigError, InputError
from tests.app.datasets.folders import (
    assert_depth,
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
from tests.app.fake_engine import FakeEngine, run_info, trajectory_of
from tests.app.media import write_images, write_video


def names(root: Path, dataset: str | None = None) -> list[tuple[str, str]]:
    return [(scene.name, scene.dataset) for scene in find_scenes(root, dataset)]


def write_minimal_tum(folder: Path, count: int = 2) -> Path:
    for i in range(count):
        write_image(folder / "rgb" / f"{i}.png", i)
    write_lines(folder / "rgb.txt", *(f"{i}.0 rgb/{i}.png" for i in range(count)))
    return folder


def test_all_kinds_under_one_root_in_natural_order(tmp_path: Path) -> None:
    write_minimal_tum(tmp_path / "scene 10")
    write_images(tmp_path / "scene 2" / "Küche ☕", ["1.jpg", "2.jpg"])
    write_video(tmp_path / "clip.mp4", frames=5)
    write_lines(tmp_path / "notes.txt", "nothing to see")
    scenes = find_scenes(tmp_path)
    assert [(s.name, s.dataset, s.frames) for s in scenes] == [
        ("clip.mp4", "video", 5),
        ("scene 2__Küche ☕", "images", 2),
        ("scene 10", "tum", 2),
    ]
    assert [len(frames_of(scene)) for scene in scenes] == [5, 2, 2]
    assert all(scene.path.is_absolute() for scene in scenes)


def test_a_scene_can_be_sent_to_another_process(tmp_path: Path) -> None:
    scene = find_scenes(write_minimal_tum(tmp_path / "room"))[0]
    again = pickle.loads(pickle.dumps(scene))
    assert again == scene and frames_of(again) == frames_of(scene)


def test_root_itself_may_be_the_scene(tmp_path: Path) -> None:
    write_images(tmp_path / "walk", ["2.png", "10.png"])
    (scene,) = find_scenes(tmp_path / "walk")
    assert (scene.name, scene.dataset) == ("walk", "images")
    assert frames_of(scene) == [(0, 0.0, 0), (1, pytest.approx(1 / 30), 1)]
    video = write_video(tmp_path / "walk.mp4")
    assert names(video) == [("walk.mp4", "video")]


def test_stride_and_limit_choose_frames_and_keep_indices(tmp_path: Path) -> None:
    scene = find_scenes(write_minimal_tum(tmp_path / "room", 7))[0]
    assert frames_of(scene, stride=2, limit=3) == [(0, 0.0, 0), (2, 2.0, 2), (4, 4.0, 4)]
    with scene.open(2, 3) as source:
        assert source.frame_hint == 3 and source.name == "room" and not source.live
    video = find_scenes(write_video(tmp_path / "walk.mp4"))[0]
    assert [index for index, _, _ in frames_of(video, stride=10)] == [0, 10, 20]
    assert video.truth() is None
    for stride, limit in ((0, None), (1, 0)):
        with pytest.raises(ConfigError, match="at least 1"):
            scene.open(stride, limit)


def test_the_pipeline_keeps_the_data_sets_timestamps(tmp_path: Path) -> None:
    folder = write_minimal_tum(tmp_path / "room")
    write_lines(folder / "rgb.txt", "1305031102.175304 rgb/0.png", "1305031102.211214 rgb/1.png")
    with find_scenes(folder)[0].open() as source:
        summary = reconstruct(source, FakeEngine(), ResultWriter(tmp_path / "out", run_info()))
    assert summary.frames_reconstructed == 2
    assert trajectory_of(tmp_path / "out")[:, 0].tolist() == [1305031102.175304, 1305031102.211214]


def test_inside_of_a_scene_is_not_searched(tmp_path: Path) -> None:
    write_video(write_minimal_tum(tmp_path / "room") / "preview.mp4")
    assert names(tmp_path) == [("room", "tum")]


def test_stray_images_beside_scenes_are_no_scene(tmp_path: Path) -> None:
    write_images(tmp_path, ["plot1.png", "plot2.png"])
    write_images(tmp_path / "a", ["1.png", "2.png", "3.png"])
    write_images(tmp_path / "b", ["1.png", "2.png", "3.png"])
    write_images(tmp_path / "b" / "thumbs", ["1.png", "2.png"])
    write_images(tmp_path / "b" / "depth", ["1.png", "2.png", "3.png", "4.png"])
    assert names(tmp_path) == [("a", "images"), ("b", "images")]
    write_minimal_tum(tmp_path / "a" / "room")
    assert names(tmp_path) == [("a__room", "tum"), ("b", "images")]


def test_hidden_folders_results_and_excluded_folders_are_passed_over(tmp_path: Path) -> None:
    for folder in ("shown", ".hidden", "out", "earlier"):
        write_images(tmp_path / folder, ["1.png", "2.png"])
    write_lines(tmp_path / "earlier" / "run.json", "{}")
    write_lines(tmp_path / "earlier" / "cameras.json", "{}")
    found = find_scenes(tmp_path, exclude=[tmp_path / "out", tmp_path / "not there"])
    assert [scene.name for scene in found] == ["shown"]


def test_links_are_followed_once_and_loops_end(tmp_path: Path) -> None:
    root, elsewhere = tmp_path / "root", tmp_path / "elsewhere"
    write_images(elsewhere / "far", ["1.png", "2.png"])
    write_images(root / "near", ["1.png", "2.png"])
    (root / "near" / "up").symlink_to(root, target_is_directory=True)
    (root / "linked").symlink_to(elsewhere, target_is_directory=True)
    (root / "self").symlink_to(root / "self")
    assert names(root) == [("near", "images"), ("linked__far", "images")]


def test_names_are_unique_and_fit_for_folders(tmp_path: Path) -> None:
    for folder in ("a/b", "a__b", 'what: "now"?', "x" * 150 + "/" + "y" * 150):
        write_images(tmp_path / folder, ["1.png", "2.png"])
    found = [scene.name for scene in find_scenes(tmp_path)]
    assert len({name.casefold() for name in found}) == 4
    for name in found:
        (tmp_path / "out" / name).mkdir(parents=True)
    assert "what_ _now__" in found
    assert sorted(name.split("~")[0] for name in found)[:2] == ["a__b", "a__b"]
    # A further scene changes no other's name.
    write_images(tmp_path / "new", ["1.png", "2.png"])
    again = find_scenes(tmp_path, exclude=[tmp_path / "out"])
    assert {scene.name for scene in again} == {*found, "new"}


def test_read_only_root_is_enough(tmp_path: Path) -> None:
    folder = write_minimal_tum(tmp_path / "room")
    for path in (tmp_path, folder, folder / "rgb"):
        path.chmod(0o555)
    try:
        assert len(frames_of(find_scenes(tmp_path)[0])) == 2
    finally:
        for path in (tmp_path, folder, folder / "rgb"):
            path.chmod(0o755)


def test_searching_and_reading_writes_nothing(tmp_path: Path) -> None:
    write_minimal_tum(tmp_path / "room")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    frames_of(find_scenes(tmp_path)[0])
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_a_folder_that_cannot_be_listed_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write_images(tmp_path / "open", ["1.png", "2.png"])
    write_images(tmp_path / "locked", ["1.png", "2.png"])
    listed = Path.iterdir

    def refuse(folder: Path) -> object:
        if folder.name == "locked":
            raise PermissionError(13, "Permission denied")
        return listed(folder)

    monkeypatch.setattr(Path, "iterdir", refuse)
    with caplog.at_level(logging.WARNING):
        assert names(tmp_path) == [("open", "images")]
    assert "locked cannot be read and is skipped" in caplog.text


def test_named_data_set_finds_only_its_own(tmp_path: Path) -> None:
    write_minimal_tum(tmp_path / "room")
    write_video(tmp_path / "clip.mp4")
    assert names(tmp_path, "tum") == [("room", "tum")]
    assert names(tmp_path, "video") == [("clip.mp4", "video")]
    # Asked for images, the layout around them is not looked at.
    assert names(tmp_path, "images") == [("room__rgb", "images")]


def test_nothing_found_says_what_was_looked_for(tmp_path: Path) -> None:
    write_minimal_tum(tmp_path / "room")
    with pytest.raises(InputError, match=r"no KITTI odometry under .*: looked for .*image_2"):
        find_scenes(tmp_path, "kitti")
    write_lines(tmp_path / "empty" / "notes.txt", "")
    with pytest.raises(InputError, match=r"no scene under .*: looked for bonn, eth3d, tum"):
        find_scenes(tmp_path / "empty")
    with pytest.raises(InputError, match="no scene under"):
        find_scenes(tmp_path / "empty" / "notes.txt")
    with pytest.raises(InputError, match="no such folder"):
        find_scenes(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="no data set called 'kiti': there are bonn"):
        find_scenes(tmp_path, "kiti")


def test_table_lists_every_data_set_once() -> None:
    rows = list_datasets()
    known = [name for name, _, _ in rows]
    assert len(set(known)) == len(known)
    wanted = {"tum", "7scenes", "kitti", "euroc", "scannet", "eth3d", "icl-nuim", "bonn"}
    wanted |= {"nerfstudio", "polycam", "record3d", "arkitscenes", "colmap", "sequence", "video", "images"}
    assert wanted == set(known)
    assert all(title and files for _, title, files in rows)


def test_unreadable_images_are_reported_when_they_are_reached(tmp_path: Path) -> None:
    folder = write_minimal_tum(tmp_path / "room", 4)
    (folder / "rgb" / "0.png").write_bytes(b"no image")
    (folder / "rgb" / "2.png").unlink()
    scene = find_scenes(tmp_path)[0]
    with scene.open() as source:
        assert [frame.index for frame in source] == [1, 3]
        assert source.damaged == 2
        assert source.warnings == [f"{n}.png is not a readable image and was skipped" for n in (0, 2)]


def test_one_size_for_all_images(tmp_path: Path) -> None:
    folder = write_minimal_tum(tmp_path / "room")
    write_image(folder / "rgb" / "1.png", 1, (32, 24))
    with pytest.raises(InputError, match=r"1\.png is 32x24 but 0\.png is 64x48"):
        frames_of(find_scenes(tmp_path)[0])


def test_video_that_cannot_be_read_is_listed_and_fails_when_opened(tmp_path: Path) -> None:
    (tmp_path / "broken.mp4").write_bytes(b"no video")
    (scene,) = find_scenes(tmp_path)
    assert scene.frames is None
    with pytest.raises(InputError, match=r"broken\.mp4 is not a video"):
        scene.open()


def test_sequences_of_the_evaluation(tmp_path: Path) -> None:
    path = camera_path(3)
    for i in range(3):
        write_image(tmp_path / "hall" / "rgb" / f"{i:06d}.jpg", i)
        write_depth(tmp_path / "hall" / "depth" / f"{i:06d}.png", 3000)
    write_lines(tmp_path / "hall" / "poses.txt", *(f"{i} {matrix_line(path[i].matrix)}" for i in (0, 2)))
    write_lines(tmp_path / "hall" / "intrinsics.txt", "60 61 64 48 128 96")
    scene = only_scene(tmp_path, "sequence")
    assert scene.frames == 3 and len(frames_of(scene)) == 3
    truth = truth_of(scene)
    assert_poses(truth, {0: path[0].matrix, 2: path[2].matrix})
    assert truth.intrinsics == Intrinsics(30, 30.5, 32, 24) and truth.metric
    assert_depth(truth, 1, 3.0)


def test_sequences_with_sparse_points_are_not_metric(tmp_path: Path) -> None:
    write_image(tmp_path / "hall" / "rgb" / "0.png", 0)
    write_lines(tmp_path / "hall" / "sparse" / "0.txt", "10 20 1.5")
    truth = truth_of(only_scene(tmp_path, "sequence"))
    depth = truth.depth(0)
    assert not truth.metric and truth.has_depth and depth is not None
    assert not isinstance(depth, np.ndarray) and depth.uvz.tolist() == [[10, 20, 1.5]]  # type: ignore[union-attr]


def test_truth_needs_one_readable_image(tmp_path: Path) -> None:
    folder = write_minimal_tum(tmp_path / "freiburg1", 2)
    (folder / "rgb" / "0.png").write_bytes(b"no image")
    assert truth_of(find_scenes(tmp_path)[0]).source_size == (64, 48)
    (folder / "rgb" / "1.png").write_bytes(b"nor this")
    with pytest.raises(InputError, match="not one image"):
        find_scenes(tmp_path)[0].truth()


def test_grey_sixteen_bit_images_stream(tmp_path: Path) -> None:
    for i in range(2):
        path = tmp_path / "infrared" / f"{i}.png"
        path.parent.mkdir(exist_ok=True)
        assert cv2.imwrite(str(path), np.full((48, 64), (8 * i + 4) * 256, np.uint16))
    assert frames_of(find_scenes(tmp_path)[0])[1][2] == 1


def test_folders_of_systems_are_no_scenes_and_links_come_after_what_they_lead_to(tmp_path: Path) -> None:
    for name in ("room", "@eaDir/room", "__MACOSX/room", "$RECYCLE.BIN/room", ".trash/room"):
        write_images(tmp_path / name, ["0.png", "1.png"])
    (tmp_path / "alias").symlink_to("room")
    (tmp_path / "room" / "up").symlink_to("..")
    assert [scene.name for scene in find_scenes(tmp_path)] == ["room"]
