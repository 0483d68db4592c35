import errno
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import plyfile
import pytest

from stream_recon.app.core.depth_points import frame_points
from stream_recon.app.core.transforms import invert_pose, rotation_matrix, transform_points
from stream_recon.app.core.types import FrameRevision, Revision
from stream_recon.app.result import depth as depth_files
from stream_recon.app.result import files as output_files
from stream_recon.app.result.depth import read_depth, write_depth
from stream_recon.app.result.files import PlyFile
from stream_recon.app.result.folder import read_result
from stream_recon.app.result.resume import read_partial_result
from stream_recon.app.result.run_record import RunSummary
from stream_recon.app.result.writer import ResultWriter, check_output
from stream_recon.configs.errors import OutputError
from tests.app.fake_engine import POINTS, fake_result, frames, pose_at, prepared, run_info, trajectory_of

DONE = RunSummary(
    interrupted=False, frames_read=5, frames_reconstructed=5, keyframes=2, seconds=2.0, latency_p50_ms=40.0
)


def write_run(folder: Path, count: int = 5, *, finish: bool = True, overwrite: bool = False) -> ResultWriter:
    writer = ResultWriter(folder, run_info(), overwrite=overwrite)
    for frame in frames(count):
        writer.add(fake_result(prepared(frame)))
    if finish:
        writer.finish(DONE)
    return writer


def vertices_of(folder: Path) -> np.ndarray[Any, Any]:
    return np.asarray(plyfile.PlyData.read(str(folder / "points.ply"))["vertex"].data)


def test_the_folder_holds_what_is_promised(tmp_path: Path) -> None:
    write_run(tmp_path / "out")
    names = sorted(str(p.relative_to(tmp_path / "out")) for p in (tmp_path / "out").rglob("*"))
    assert names == [
        "cameras.json", "depth", *(f"depth/00000{i}.npz" for i in range(5)), "points.ply", "run.json", "trajectory.txt",
    ]  # fmt: skip


def test_trajectory_is_camera_to_world_in_tum_format(tmp_path: Path) -> None:
    write_run(tmp_path)
    lines = trajectory_of(tmp_path)
    assert lines[:, 0] == pytest.approx([0, 0.1, 0.2, 0.3, 0.4])
    for index, line in enumerate(lines):
        assert line[1:4] == pytest.approx(pose_at(index)[:3, 3])
        assert rotation_matrix(line[4:]) == pytest.approx(pose_at(index)[:3, :3], abs=1e-7)


def test_cameras_json(tmp_path: Path) -> None:
    write_run(tmp_path)
    cameras = json.loads((tmp_path / "cameras.json").read_text())["frames"]
    assert [c["index"] for c in cameras] == list(range(5))
    assert [c["keyframe"] for c in cameras] == [True, False, False, True, False]
    camera = cameras[3]
    assert np.array(camera["T_world_camera"]) == pytest.approx(pose_at(3))
    assert camera["T_world_camera_causal"] == camera["T_world_camera"]
    assert [camera[k] for k in ("fx", "fy", "cx", "cy")] == [32, 32, 32, 24]
    assert camera["timestamp"] == 0.3 and camera["flow"] == 1.5


def test_depth_files(tmp_path: Path) -> None:
    write_run(tmp_path)
    result = fake_result(prepared(frames(5)[4]))
    with np.load(tmp_path / "depth" / "000004.npz") as arrays:
        assert arrays["depth"].dtype == arrays["confidence"].dtype == np.float16
        assert arrays["depth"] == pytest.approx(result.depth, rel=1e-3)
        assert arrays["confidence"] == pytest.approx(result.confidence, rel=1e-3)
        assert arrays["crop"].tolist() == [0, 0, 64, 48]
        assert arrays["source_size"].tolist() == [64, 48]
        assert arrays["network_size"].tolist() == list(result.depth.shape[::-1])


def test_depth_beyond_half_precision_stays_finite(tmp_path: Path) -> None:
    writer = ResultWriter(tmp_path, run_info())
    result = fake_result(prepared(frames(1)[0]))
    result.depth[0, 0] = 1e6
    writer.add(result)
    with np.load(tmp_path / "depth" / "000000.npz") as arrays:
        assert arrays["depth"][0, 0] == np.finfo(np.float16).max
    writer.close()


def test_points_are_the_sure_pixels_in_world_axes(tmp_path: Path) -> None:
    writer = ResultWriter(tmp_path, run_info())
    result = fake_result(prepared(frames(8)[7]))
    writer.add(result)
    writer.close()
    vertices = vertices_of(tmp_path)
    expected = frame_points(result, POINTS)
    assert 0.6 * result.depth.size < len(vertices) <= len(expected)
    assert [vertices.dtype[n].kind for n in ("x", "red")] == ["f", "u"]
    xyz = np.stack([vertices[n] for n in "xyz"], axis=1)
    # Back in the camera the points lie on the wall: depth 2 + column / 100, in the colour of their pixel.
    local = transform_points(invert_pose(result.T_world_camera), xyz)
    k = result.network_intrinsics
    columns = np.floor(local[:, 0] / local[:, 2] * k.fx + k.cx).astype(int)
    rows = np.floor(local[:, 1] / local[:, 2] * k.fy + k.cy).astype(int)
    assert local[:, 2] == pytest.approx(2 + columns / 100, abs=1e-4)
    rgb = np.stack([vertices[n] for n in ("red", "green", "blue")], axis=1)
    assert (rgb == result.rgb[rows, columns]).all()


def test_the_same_view_again_adds_no_points(tmp_path: Path) -> None:
    writer = ResultWriter(tmp_path, run_info())
    result = fake_result(prepared(frames(1)[0]))
    counts = []
    for index in range(3):
        writer.add(replace(result, index=index))
        counts.append(len(vertices_of(tmp_path)))
    writer.close()
    assert counts[0] == counts[1] == counts[2] > 100


def test_run_json_says_interrupted_until_the_end(tmp_path: Path) -> None:
    writer = write_run(tmp_path, finish=False)
    record = json.loads((tmp_path / "run.json").read_text())
    assert record["interrupted"] is True
    writer.checkpoint(RunSummary(frames_reconstructed=4))
    assert json.loads((tmp_path / "run.json").read_text())["frames"]["reconstructed"] == 4
    writer.finish(DONE)
    record = json.loads((tmp_path / "run.json").read_text())
    assert record["interrupted"] is False
    assert record["weights_sha256"] == "ab" * 32 and record["device"] == "cpu" and record["version"]
    counts = {"read": 5, "reconstructed": 5, "keyframes": 2, "dropped": 0, "damaged": 0, "blank": 0, "without_depth": 0}
    assert record["frames"] == counts
    assert record["timings"] == {"seconds": 2.0, "fps": 2.5, "latency_ms": {"p50": 40.0, "p95": None}}
    assert record["preset"]["image"]["max_patches"] == 12


def test_every_file_is_readable_after_every_frame(tmp_path: Path) -> None:
    writer = ResultWriter(tmp_path, run_info())
    for count, frame in enumerate(frames(12), start=1):
        writer.add(fake_result(prepared(frame)))
        assert len(json.loads((tmp_path / "cameras.json").read_text())["frames"]) == count
        assert trajectory_of(tmp_path).shape == (count, 8)
        ply = plyfile.PlyData.read(str(tmp_path / "points.ply"))
        assert (tmp_path / "points.ply").stat().st_size == len(ply.header) + 1 + 15 * len(ply["vertex"].data)
        assert len(list(read_result(tmp_path))) == count
    writer.close()


def test_results_come_back_as_they_went_in(tmp_path: Path) -> None:
    write_run(tmp_path)
    folder = read_result(tmp_path)
    assert len(folder) == 5 and folder.points == POINTS
    for stored, frame in zip(folder, frames(5), strict=True):
        result = fake_result(prepared(frame))
        assert (stored.index, stored.timestamp, stored.is_keyframe, stored.flow) == (
            result.index, result.timestamp, result.is_keyframe, result.flow,
        )  # fmt: skip
        assert (stored.T_world_camera == result.T_world_camera).all()
        assert stored.intrinsics == result.intrinsics and stored.transform == result.transform
        assert stored.depth == pytest.approx(result.depth, rel=1e-3)
        assert stored.rgb.shape == result.rgb.shape
        assert abs(stored.rgb.mean() - result.rgb.mean()) < 3


def test_a_revision_moves_the_last_pose_and_the_points(tmp_path: Path) -> None:
    writer = write_run(tmp_path / "revised", finish=False)
    lifted = pose_at(2)
    lifted[1, 3] += 50
    writer.revise(Revision((FrameRevision(2, lifted),)))
    writer.finish(DONE)
    write_run(tmp_path / "plain")
    assert trajectory_of(tmp_path / "revised")[2, 2] == pytest.approx(50)
    assert np.delete(trajectory_of(tmp_path / "revised"), 2, 0) == pytest.approx(
        np.delete(trajectory_of(tmp_path / "plain"), 2, 0)
    )
    camera = json.loads((tmp_path / "revised" / "cameras.json").read_text())["frames"][2]
    assert np.array(camera["T_world_camera"]) == pytest.approx(lifted)
    assert np.array(camera["T_world_camera_causal"]) == pytest.approx(pose_at(2))
    heights = vertices_of(tmp_path / "revised")["y"]
    assert (heights > 40).sum() == len(frame_points(fake_result(prepared(frames(3)[2])), POINTS))
    assert 0 < (heights < 40).sum() <= len(vertices_of(tmp_path / "plain"))
    assert [r.T_world_camera[1, 3] for r in read_result(tmp_path / "revised")] == [0, 0, 50, 0, 0]
    assert not list((tmp_path / "revised").rglob("*.part"))


def test_an_existing_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    check_output(tmp_path / "empty", overwrite=False)
    check_output(tmp_path / "new", overwrite=False)
    (tmp_path / "empty" / "mine.txt").write_text("mine")
    with pytest.raises(OutputError, match="--overwrite"):
        check_output(tmp_path / "empty", overwrite=False)
    (tmp_path / "file").write_text("a file")
    with pytest.raises(OutputError, match="is a file"):
        check_output(tmp_path / "file", overwrite=True)


def test_overwriting_replaces_our_files_and_no_others(tmp_path: Path) -> None:
    write_run(tmp_path, 8)
    foreign = {"notes.txt": "mine", "depth/mine.npz": "mine", "depth/999999.npz": "mine", "more/points.ply": "mine"}
    for name, text in foreign.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    write_run(tmp_path, 3, overwrite=True)
    for name, text in foreign.items():
        assert (tmp_path / name).read_text() == text
    assert sorted(p.name for p in (tmp_path / "depth").glob("00000*")) == ["000000.npz", "000001.npz", "000002.npz"]
    assert len(list(read_result(tmp_path))) == 3


def test_depth_files_round_to_the_nearest_float16(tmp_path: Path) -> None:
    (tmp_path / "depth").mkdir()
    noise = np.random.default_rng(0)
    values = (10.0 ** noise.uniform(-8, 6, (210, 301))).astype(np.float32)
    values[0, :5] = -1, 0, np.inf, np.nan, 65519
    result = fake_result(prepared(frames(1)[0]))
    result = replace(result, transform=replace(result.transform, network_size=(301, 210)))
    result = replace(result, depth=values, confidence=values[:, ::-1], rgb=np.zeros((210, 301, 3), np.uint8))
    write_depth(tmp_path, result)
    read = read_depth(tmp_path / "depth" / "000000.npz")
    # A pixel that is no number is read as one without depth.
    wanted = np.nan_to_num(np.clip(values, 0, 65504)).astype(np.float16).astype(np.float32)
    np.testing.assert_array_equal(read.depth, wanted)
    np.testing.assert_array_equal(read.confidence, wanted[:, ::-1])


@pytest.mark.parametrize("name", ["trajectory.txt", "points.ply", "run.json", "depth/000000.npz"])
def test_overwriting_never_takes_a_name_that_another_program_uses(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text('{"program": "another"}')
    with pytest.raises(OutputError, match="was not written by stream-recon"):
        ResultWriter(tmp_path, run_info(), overwrite=True)
    assert (tmp_path / name).read_text() == '{"program": "another"}'


def test_nothing_is_removed_behind_a_link(tmp_path: Path) -> None:
    write_run(tmp_path / "out")
    (tmp_path / "out" / "depth").rename(tmp_path / "mine")
    (tmp_path / "out" / "depth").symlink_to(tmp_path / "mine")
    with pytest.raises(OutputError, match="is a link"):
        ResultWriter(tmp_path / "out", run_info(), overwrite=True)
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    (tmp_path / "out" / "run.json").write_text(json.dumps(record | {"interrupted": True}))
    with pytest.raises(OutputError, match="is a link"):
        ResultWriter(tmp_path / "out", run_info(), resume=read_partial_result(tmp_path / "out"))
    assert len(list((tmp_path / "mine").iterdir())) == 5


def test_an_old_result_stays_until_the_first_new_one_is_there(tmp_path: Path) -> None:
    write_run(tmp_path)
    writer = ResultWriter(tmp_path, run_info(), overwrite=True)
    assert len(list(read_result(tmp_path))) == 5
    writer.finish(RunSummary())
    assert len(list(read_result(tmp_path))) == 5
    assert json.loads((tmp_path / "run.json").read_text())["interrupted"] is False


def test_a_run_without_results_leaves_no_folder(tmp_path: Path) -> None:
    ResultWriter(tmp_path / "out", run_info()).finish(RunSummary())
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot write"):
        ResultWriter(tmp_path / "file" / "out", run_info())


@pytest.mark.parametrize("target", ["cameras.json", "trajectory.txt", "points.ply", "depth"])
def test_a_full_disk_loses_only_the_frame_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    """Half of what is written next still fits, then nothing: every file goes back to its last whole state."""
    writer = write_run(tmp_path, 4, finish=False)
    pwrite, replace_file = os.pwrite, output_files.replace_file

    def full(file: int, data: bytes, offset: int) -> int:
        path = Path(f"/proc/self/fd/{file}").readlink()
        if path.name == target and offset + len(data) > path.stat().st_size:
            if len(data) > 20:
                return pwrite(file, data[: path.stat().st_size - offset + 7], offset)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return pwrite(file, data, offset)

    def full_replace(path: Path, write: Callable[[BinaryIO], object]) -> None:
        def half(file: BinaryIO) -> None:
            file.write(b"half of a zip")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        replace_file(path, half)

    monkeypatch.setattr(output_files.os, "pwrite", full)
    monkeypatch.setattr(depth_files, "replace_file", full_replace if target == "depth" else replace_file)
    extra = fake_result(prepared(frames(40)[39]))
    with pytest.raises(OutputError, match="No space left"):
        writer.add(extra)
        raise AssertionError("the disk was full")
    writer.close()
    monkeypatch.undo()
    assert len(list(read_result(tmp_path))) >= 4
    assert json.loads((tmp_path / "cameras.json").read_text())
    assert trajectory_of(tmp_path).shape[0] >= 4
    assert len(vertices_of(tmp_path)) > 100
    assert json.loads((tmp_path / "run.json").read_text())["interrupted"] is True
    assert not list(tmp_path.rglob("*.part"))


def test_reading_what_is_no_result(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="no such result folder"):
        read_result(tmp_path / "none")
    with pytest.raises(OutputError, match="is not a result"):
        read_result(tmp_path)
    write_run(tmp_path / "out")
    (tmp_path / "out" / "depth" / "000002.npz").write_bytes(b"PK broken")
    with pytest.raises(OutputError, match=r"000002\.npz is missing or damaged"):
        list(read_result(tmp_path / "out"))
    (tmp_path / "out" / "cameras.json").write_text("{}")
    with pytest.raises(OutputError, match=r"cameras\.json"):
        read_result(tmp_path / "out")


def test_ply_header_has_one_size_for_any_count(tmp_path: Path) -> None:
    ply = PlyFile(tmp_path / "p.ply")
    for size in (0, 1, 9, 90, 900):
        ply.append(np.full((size, 3), size, np.float32), np.full((size, 3), 7, np.uint8))
    ply.close()
    data = plyfile.PlyData.read(str(tmp_path / "p.ply"))
    assert not data.text and data.byte_order == "<"
    assert len(data["vertex"].data) == ply.count == 1000
    assert data["vertex"]["x"].sum() == 1 + 81 + 8100 + 810000


def test_frames_that_wait_elsewhere_are_not_counted(tmp_path: Path) -> None:
    writer = ResultWriter(tmp_path / "out", run_info())
    for frame in frames(5):
        writer.add(fake_result(prepared(frame)))
    for write in (writer.checkpoint, writer.finish):
        write(RunSummary(interrupted=True, frames_read=33, frames_reconstructed=33, keyframes=12))
        counts = json.loads((tmp_path / "out" / "run.json").read_text())["frames"]
        assert (counts["reconstructed"], counts["keyframes"], counts["read"]) == (5, 2, 33)
