"""The cloud after revisions equals the cloud of a run with the final poses, and holds what frames agree on."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from stream_recon.app.core.cancel import Cancelled
from stream_recon.app.core.ply import VERTEX
from stream_recon.app.core.transforms import Similarity
from stream_recon.app.core.types import FrameResult, FrameRevision, Intrinsics, Revision
from stream_recon.app.core.voxels import voxel_first
from stream_recon.app.result.amend import rebuild_cloud
from stream_recon.app.result.cameras import FrameCamera
from stream_recon.app.result.consistent import ConsistentFrames
from stream_recon.app.result.disk_limit import DiskLimit
from stream_recon.app.result.files import replace_json
from stream_recon.app.result.folder import read_result
from stream_recon.app.result.run_record import RunSummary
from stream_recon.app.result.writer import CloudTime, ResultWriter
from stream_recon.configs.errors import OutputError
from tests.app.boxroom import room_result
from tests.app.fake_engine import POINTS, run_info

FRAMES = 40
VOXEL = POINTS.voxel
DONE = RunSummary(interrupted=False)


def room_writer(folder: Path, results: list[FrameResult]) -> ResultWriter:
    writer = ResultWriter(folder, run_info())
    for result in results:
        writer.add(result)
    return writer


def half(values: NDArray[np.float32]) -> NDArray[np.float32]:
    return values.astype(np.float16).astype(np.float32)


def walk() -> list[FrameResult]:
    """A walk through a room, with depths that half precision represents exactly."""
    results = (room_result(index) for index in range(FRAMES))
    return [replace(r, depth=half(r.depth), confidence=half(r.confidence)) for r in results]


def xyz_of(folder: Path) -> NDArray[np.float64]:
    data = (folder / "points.ply").read_bytes()
    body = data[data.index(b"end_header\n") + 11 :]
    vertices = np.frombuffer(body, VERTEX)
    return np.stack([vertices[axis] for axis in "xyz"], axis=1).astype(np.float64)


def frame_revision(result: FrameResult, change: Similarity, intrinsics: Intrinsics | None = None) -> FrameRevision:
    pose = change.move_pose(result.T_world_camera)
    return FrameRevision(result.index, pose, change.scale, intrinsics)


def revised(result: FrameResult, frame: FrameRevision) -> FrameResult:
    return replace(
        result,
        T_world_camera=frame.T_world_camera,
        depth=result.depth * np.float32(frame.depth_scale),
        intrinsics=frame.intrinsics or result.intrinsics,
    )


def assert_same_points(ours: NDArray[np.float64], expected: NDArray[np.float64]) -> None:
    """Equal except for the few voxels that the hash table has overwritten."""
    assert abs(len(ours) - len(expected)) < 0.002 * len(expected)
    for a, b in ((ours, expected), (expected, ours)):
        off = cKDTree(a).query(b)[0]
        assert (off > 1e-5).mean() < 0.002 and off.max() < 2 * VOXEL


SHIFT = Similarity(1.0, np.eye(3), np.array([0.0, 0.0, 0.3]))
GROWN = Similarity(2.0, np.eye(3), np.array([0.1, 0.0, 0.3]))


@pytest.mark.parametrize(
    ("moved", "change"), [([0], SHIFT), ([17], SHIFT), (range(20), GROWN), (range(25, 40), GROWN), (range(40), GROWN)]
)
def test_the_rebuilt_cloud_is_that_of_a_run_with_the_final_poses(
    tmp_path: Path, moved: list[int], change: Similarity
) -> None:
    results = walk()
    frames = {index: frame_revision(results[index], change) for index in moved}
    writer = room_writer(tmp_path / "revised", results)
    writer.revise(Revision(tuple(frames.values())))
    shown: list[tuple[int, int]] = []
    assert writer.finish(DONE, lambda done, total: shown.append((done, total)))
    assert shown == [(done, FRAMES) for done in range(1, FRAMES + 1)]
    assert read_result(tmp_path / "revised").run["revisions"] == {"cameras": 1, "trajectory": 1, "points": 1}
    known = [revised(result, frames[result.index]) if result.index in frames else result for result in results]
    room_writer(tmp_path / "known", known).finish(DONE)
    ours, expected = xyz_of(tmp_path / "revised"), xyz_of(tmp_path / "known")
    assert_same_points(ours, expected)


def test_intrinsics_move_points_too(tmp_path: Path) -> None:
    results = walk()[:3]
    k = results[1].intrinsics
    frame = FrameRevision(1, results[1].T_world_camera, 1.0, replace(k, fx=1.1 * k.fx, fy=1.1 * k.fy))
    writer = room_writer(tmp_path / "revised", results)
    writer.revise(Revision((frame,)))
    writer.finish(DONE)
    results[1] = revised(results[1], frame)
    room_writer(tmp_path / "known", results).finish(DONE)
    assert_same_points(xyz_of(tmp_path / "revised"), xyz_of(tmp_path / "known"))


def test_frames_without_depth_files_take_their_points_along(tmp_path: Path) -> None:
    results = walk()
    for keep in ("all", "none"):
        writer = ResultWriter(tmp_path / keep, run_info(), limit=DiskLimit(keep))
        for result in results:
            writer.add(result)
        writer.revise(Revision(tuple(frame_revision(result, GROWN) for result in results)))
        writer.finish(DONE)
    # The same points of all frames together, thinned in the grid of another world.
    a, b = (xyz_of(tmp_path / keep) for keep in ("all", "none"))
    assert len(b) == pytest.approx(len(a), rel=0.35) and len(b) < len(a)
    assert np.quantile(cKDTree(b).query(a)[0], 0.99) < 2 * GROWN.scale * VOXEL


def test_a_camera_that_stands_adds_no_points(tmp_path: Path) -> None:
    first = walk()[0]
    nudge = np.eye(4)
    nudge[0, 3] = VOXEL
    for name, pose in (("stands", nudge), ("moves", np.diag([-1.0, 1, -1, 1]))):
        second = replace(first, index=1, T_world_camera=first.T_world_camera @ pose)
        room_writer(tmp_path / name, [first, second]).finish(DONE)
    room_writer(tmp_path / "alone", [first]).finish(DONE)
    alone, stands, moves = (len(xyz_of(tmp_path / name)) for name in ("alone", "stands", "moves"))
    assert stands < 1.01 * alone and moves > 1.5 * alone


def test_pixels_much_closer_than_voxels_are_thinned(tmp_path: Path) -> None:
    fine = walk()[:2]
    coarse = replace(POINTS, voxel=50 * VOXEL)
    for result in fine:
        read = {result.index: result}
        camera = FrameCamera.from_result(result)
        full, thin = (ConsistentFrames(lambda c, r=read: r[c.index], config) for config in (POINTS, coarse))
        count, rest = len(full.points(camera, [])), len(thin.points(camera, []))
        cells = len(voxel_first(full.points(camera, []).xyz, coarse.voxel))
        assert cells < rest < count / 3


def test_later_frames_confirm_points_at_the_end(tmp_path: Path) -> None:
    results = walk()
    # A bubble in the view of the first frame, which only later frames can see through.
    depth = results[0].depth.copy()
    depth[4:9, 4:9] *= 0.5
    results[0] = replace(results[0], depth=depth)
    writer = room_writer(tmp_path / "bubble", results)
    writer.checkpoint(RunSummary())
    room_writer(tmp_path / "room", walk()).finish(DONE)
    room = cKDTree(xyz_of(tmp_path / "room"))
    assert (room.query(xyz_of(tmp_path / "bubble"))[0] > 0.2).any()
    writer.finish(DONE)
    assert not (room.query(xyz_of(tmp_path / "bubble"))[0] > 0.2).any()


@pytest.mark.parametrize("how", ["asked", "error", "ctrl-c"])
def test_a_rebuild_that_is_stopped_leaves_the_old_file(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = walk()
    writer = room_writer(tmp_path, results)
    writer.checkpoint(RunSummary())
    before = (tmp_path / "points.ply").read_bytes()
    writer.revise(Revision(tuple(frame_revision(result, GROWN) for result in results)))
    calls: list[int] = []

    def progress(done: int, _total: int) -> None:
        calls.append(done)
        if done == 10 and how != "error":
            raise KeyboardInterrupt if how == "ctrl-c" else Cancelled

    if how == "error":
        (tmp_path / "depth" / "000010.npz").write_bytes(b"broken")
    if how == "asked":
        assert writer.finish(DONE, progress) is False
    else:
        with pytest.raises(KeyboardInterrupt if how == "ctrl-c" else OutputError):
            writer.finish(DONE, progress)
    assert len(calls) == 10
    assert (tmp_path / "points.ply").read_bytes() == before and not list(tmp_path.rglob("*.part"))
    run = read_result(tmp_path).run
    assert run["interrupted"] is True and run["revisions"] == {"cameras": 1, "trajectory": 1, "points": 0}


def test_a_cloud_written_anew_is_that_of_the_end_of_the_run(tmp_path: Path) -> None:
    room_writer(tmp_path, walk()[:12]).finish(DONE)
    before = (tmp_path / "points.ply").read_bytes()
    (tmp_path / "points.ply").write_bytes(b"gone")
    shown: list[tuple[int, int]] = []
    rebuild_cloud(read_result(tmp_path), lambda done, total: shown.append((done, total)))
    assert (tmp_path / "points.ply").read_bytes() == before and shown[-1] == (12, 12)
    assert read_result(tmp_path).run["revisions"] == {"cameras": 0, "trajectory": 0, "points": 0}


def test_a_cloud_written_anew_is_of_the_latest_cameras(tmp_path: Path) -> None:
    """As after a kill between the changes of cameras and cloud."""
    room_writer(tmp_path, walk()[:4]).finish(DONE)
    record = read_result(tmp_path).run
    record["revisions"] = {"cameras": 3, "trajectory": 3, "points": 2}
    replace_json(tmp_path / "run.json", record)
    rebuild_cloud(read_result(tmp_path))
    assert read_result(tmp_path).run["revisions"] == {"cameras": 3, "trajectory": 3, "points": 3}


@pytest.mark.parametrize("how", ["asked", "error"])
def test_writing_anew_that_is_stopped_leaves_the_old_cloud(tmp_path: Path, how: str) -> None:
    room_writer(tmp_path, walk()[:12]).finish(DONE)
    before = (tmp_path / "points.ply").read_bytes()
    if how == "asked":

        def stop(done: int, _total: int) -> None:
            raise Cancelled

        with pytest.raises(Cancelled):
            rebuild_cloud(read_result(tmp_path), stop)
    else:
        (tmp_path / "depth" / "000007.npz").write_bytes(b"broken")
        with pytest.raises(OutputError):
            rebuild_cloud(read_result(tmp_path))
    assert (tmp_path / "points.ply").read_bytes() == before and not list(tmp_path.rglob("*.part"))


def test_the_reader_gives_revised_depth_and_intrinsics(tmp_path: Path) -> None:
    results = walk()[:2]
    k = Intrinsics(50, 51, 20, 21)
    writer = room_writer(tmp_path, results)
    writer.revise(Revision((frame_revision(results[1], GROWN, k),)))
    writer.finish(DONE)
    first, second = read_result(tmp_path)
    np.testing.assert_allclose(first.depth, results[0].depth, rtol=1e-3)
    np.testing.assert_allclose(second.depth, 2 * results[1].depth, rtol=1e-3)
    assert second.intrinsics == k and first.intrinsics == results[0].intrinsics
    np.testing.assert_allclose(second.T_world_camera, GROWN.move_pose(results[1].T_world_camera))


def test_a_cloud_written_only_at_the_end_is_the_same(tmp_path: Path) -> None:
    results = walk()[:12]
    times: tuple[CloudTime, ...] = ("live", "end", "never")
    for name in times:
        writer = ResultWriter(tmp_path / name, run_info())
        writer.cloud = name
        for result in results:
            writer.add(result)
        if name != "live":
            assert not len(xyz_of(tmp_path / name))
        assert writer.finish(DONE)
    live, end = ((tmp_path / name / "points.ply").read_bytes() for name in ("live", "end"))
    assert live == end and len(xyz_of(tmp_path / "end")) > 1000
    assert not len(xyz_of(tmp_path / "never"))
    # As a refinement does.
    rebuild_cloud(read_result(tmp_path / "never"))
    assert (tmp_path / "never" / "points.ply").read_bytes() == live
