"""cameras.json: its format, and revisions that copy what they do not name."""

import json
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from stream_recon.app.core.depth_correction import GRID, validated_field
from stream_recon.app.core.transforms import Similarity
from stream_recon.app.core.types import FrameRevision, Intrinsics, NetworkEstimate
from stream_recon.app.result.cameras import CameraFiles, FrameCamera, iterate_cameras, revision_since_causal
from stream_recon.app.result.files import GrowingFile
from stream_recon.configs.errors import OutputError
from tests.app.fake_engine import fake_result, frames, pose_at, prepared, trajectory_of


def cameras(count: int) -> list[FrameCamera]:
    one = FrameCamera.from_result(fake_result(prepared(frames(1)[0])))
    return [
        replace(one, index=3 * i, T_world_camera=pose_at(i), T_world_camera_causal=pose_at(i)) for i in range(count)
    ]


def written(folder: Path, count: int) -> CameraFiles:
    files = CameraFiles(folder)
    for camera in cameras(count):
        files.append(camera)
    return files


def same(a: FrameCamera, b: FrameCamera) -> bool:
    return a.to_json() == b.to_json()


def test_format_3_comes_back_as_it_went_in(tmp_path: Path) -> None:
    written(tmp_path, 3).close()
    content = json.loads((tmp_path / "cameras.json").read_text())
    assert (content["format"], content["revisions"]) == (3, 0)
    frame = content["frames"][1]
    assert (frame["width"], frame["height"], frame["depth_scale"]) == (64, 48, 1.0) and "intrinsics_causal" not in frame
    assert all(same(a, b) for a, b in zip(iterate_cameras(tmp_path / "cameras.json"), cameras(3), strict=True))


def test_joined_windows_keep_the_unit_they_had_at_first(tmp_path: Path) -> None:
    files = CameraFiles(tmp_path)
    files.append(replace(cameras(1)[0], depth_scale=2.0, depth_scale_causal=2.0))
    files.close()
    (camera,) = iterate_cameras(tmp_path / "cameras.json")
    refined = camera.revised(FrameRevision(0, pose_at(5), 2.2))
    assert refined.as_causal.depth_scale == 2.0 and (refined.as_causal.T_world_camera == pose_at(0)).all()
    (since,) = revision_since_causal([refined]).frames
    assert since.depth_scale == pytest.approx(1.1) and (since.T_world_camera == pose_at(5)).all()


def test_what_the_network_said_is_kept_beside_what_was_given_out(tmp_path: Path) -> None:
    said = NetworkEstimate(pose_at(5), Intrinsics(30, 31, 32, 24), 0.8)
    files = CameraFiles(tmp_path)
    files.append(replace(cameras(1)[0], network=said, depth_scale=1.5))
    files.close()
    (read,) = iterate_cameras(tmp_path / "cameras.json")
    assert read.network is not None and (read.network.T_world_camera == said.T_world_camera).all()
    network = read.as_network
    assert (network.T_world_camera == pose_at(5)).all() and (read.T_world_camera == pose_at(0)).all()
    assert (network.intrinsics, network.depth_scale) == (said.intrinsics, 0.8)
    plain = cameras(3)[2].revised(FrameRevision(6, pose_at(9), 2.0)).as_network
    assert (plain.T_world_camera == pose_at(2)).all() and plain.depth_scale == 1.0


def test_a_depth_field_comes_back_bit_for_bit_and_is_none_of_the_first() -> None:
    field = validated_field(np.random.default_rng(1).normal(0, 0.1, (GRID, GRID)))
    plain = cameras(1)[0]
    assert "depth_field" not in plain.to_json()
    refined = plain.revised(FrameRevision(plain.index, pose_at(2), 1.1, depth_field=field))
    read = FrameCamera.from_json(json.loads(refined.to_json()))
    assert read.depth_field is not None and (read.depth_field == field).all() and read.depth_field.dtype == np.float16
    assert read.as_causal.depth_field is None and read.as_network.depth_field is None
    moved = read.moved(Similarity(2.0, np.eye(3), np.zeros(3)))
    assert moved.depth_field is read.depth_field, "a unit changes no ratio"
    (since,) = revision_since_causal([moved]).frames
    assert since.depth_field is read.depth_field
    assert read.revised(FrameRevision(read.index, pose_at(2), 1.1)).depth_field is None
    for wrong in ([[0.1]], "none", [[9.0] * GRID] * GRID):
        with pytest.raises((ValueError, TypeError)):
            FrameCamera.from_json({**json.loads(refined.to_json()), "depth_field": wrong})


@pytest.mark.parametrize(
    ("head", "reason"),
    [('{"format": 4,', "is of format 4"), ('{"format": 2,', "is of version 0.1"), ("{", "is not a cameras.json")],
)
def test_other_formats_are_told(tmp_path: Path, head: str, reason: str) -> None:
    (tmp_path / "cameras.json").write_text(f'{head}\n"frames": [\n\n]}}\n')
    with pytest.raises(OutputError, match=reason):
        list(iterate_cameras(tmp_path / "cameras.json"))


def test_a_revision_changes_the_frames_it_names_and_no_byte_of_others(tmp_path: Path) -> None:
    files = written(tmp_path, 6)
    before = (tmp_path / "cameras.json").read_bytes().splitlines()
    k = Intrinsics(40, 41, 30, 20)
    files.revise({3: FrameRevision(3, pose_at(9), 2.5, k), 15: FrameRevision(15, pose_at(8))}, revisions=4)
    after = (tmp_path / "cameras.json").read_bytes().splitlines()
    assert json.loads(b"\n".join(after))["revisions"] == 4
    assert [a == b for a, b in zip(after[2:-1], before[2:-1], strict=True)] == [True, False, True, True, True, False]
    revised = list(iterate_cameras(tmp_path / "cameras.json"))
    assert (revised[1].T_world_camera == pose_at(9)).all() and (revised[1].T_world_camera_causal == pose_at(1)).all()
    assert (revised[1].depth_scale, revised[1].intrinsics) == (2.5, k)
    assert revised[1].intrinsics_causal == revised[0].intrinsics == revised[5].intrinsics
    # What is known stays where a later revision says nothing of it, and the files go on growing.
    files.revise({3: FrameRevision(3, pose_at(7), 0.5)}, revisions=5)
    files.append(replace(cameras(1)[0], index=99))
    files.close()
    last = list(iterate_cameras(tmp_path / "cameras.json"))
    assert (last[1].depth_scale, last[1].intrinsics) == (0.5, k) and last[1].intrinsics_causal == revised[0].intrinsics
    assert [camera.index for camera in last] == [0, 3, 6, 9, 12, 15, 99]
    lines = trajectory_of(tmp_path)
    assert lines.shape == (7, 8)
    np.testing.assert_allclose(lines[:, 1:4], [camera.T_world_camera[:3, 3] for camera in last], atol=1e-8)
    assert not list(tmp_path.glob("*.part"))


def test_reading_takes_no_more_memory_for_more_frames(tmp_path: Path) -> None:
    written(tmp_path, 2000).close()
    tracemalloc.start()
    assert sum(1 for _ in iterate_cameras(tmp_path / "cameras.json")) == 2000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 500_000 < (tmp_path / "cameras.json").stat().st_size


def test_a_rewrite_that_fails_leaves_the_file_growing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = GrowingFile(tmp_path / "a", b"head ", b" tail")
    for entry in (b"one ", b"two "):
        file.append(entry)

    def refuse(_path: Path, _target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(OutputError, match="No space left"):
        file.rewrite(b"HEAD ", {0: b"first "})
    monkeypatch.undo()
    file.append(b"three ")
    assert (tmp_path / "a").read_bytes() == b"head one two three  tail"
    file.rewrite(b"HEAD ", {1: b""})
    file.append(b"four ")
    file.close()
    assert (tmp_path / "a").read_bytes() == b"HEAD one three four  tail" and not list(tmp_path.glob("*.part"))
