"""The cloud after revisions: as a run that had known the last poses would have written it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from stream_recon.app.core.ply import VERTEX
from stream_recon.app.core.transforms import Similarity
from stream_recon.app.core.types import FrameResult, FrameRevision, Intrinsics, Revision
from stream_recon.app.result import cloud as clouds
from stream_recon.app.result.cameras import Camera
from stream_recon.app.result.cloud import PointCloud
from stream_recon.app.result.folder import read_result
from stream_recon.app.result.run_record import RunSummary
from stream_recon.app.result.writer import ResultWriter
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
    """A walk through a room; files hold its numbers as they are."""
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
    """But for the few that the table of voxels has forgotten."""
    assert abs(len(ours) - len(expected)) < 0.002 * len(expected)
    for a, b in ((ours, expected), (expected, ours)):
        off = cKDTree(a).query(b)[0]
        assert (off > 1e-5).mean() < 0.002 and off.max() < 2 * VOXEL


SHIFT = Similarity(1.0, np.eye(3), np.array([0.0, 0.0, 0.3]))
GROWN = Similarity(1.2, np.eye(3), np.array([0.1, 0.0, 0.3]))


@pytest.mark.parametrize(
    ("moved", "change"), [([0], SHIFT), ([17], SHIFT), (range(20), GROWN), (range(25, 40), GROWN), (range(40), GROWN)]
)
def test_the_rebuilt_cloud_is_that_of_a_run_with_the_last_poses(
    tmp_path: Path, moved: list[int], change: Similarity, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clouds, "COPIED_POINTS", 500)
    results = walk()
    frames = {index: frame_revision(results[index], change) for index in moved}
    writer = room_writer(tmp_path / "revised", results)
    writer.revise(Revision(tuple(frames.values())))
    assert writer.finish(DONE)
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


def opened(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Indices of the depth files that a rebuild opens."""
    indices: list[int] = []
    result_of = clouds.result_of

    def noted(folder: Path, camera: Camera) -> FrameResult:
        indices.append(camera.index)
        return result_of(folder, camera)

    monkeypatch.setattr(clouds, "result_of", noted)
    return indices


def test_less_than_half_a_voxel_touches_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, results = room_writer(tmp_path, walk()), walk()
    before, read = (tmp_path / "points.ply").read_bytes(), opened(monkeypatch)
    nudge = Similarity(1.0, np.eye(3), np.array([0.4 * VOXEL, 0, 0]))
    writer.revise(Revision(tuple(frame_revision(result, nudge) for result in results)))
    writer.finish(DONE)
    assert not read and (tmp_path / "points.ply").read_bytes() == before
    assert read_result(tmp_path).run["revisions"] == {"cameras": 1, "trajectory": 1, "points": 1}


def test_small_moves_add_up(tmp_path: Path) -> None:
    writer, result = room_writer(tmp_path, walk()), walk()[5]
    for step, points in ((0.4, 1), (0.8, 1), (0.2, 3)):
        nudge = Similarity(1.0, np.eye(3), np.array([step * VOXEL, 0, 0]))
        writer.revise(Revision((frame_revision(result, nudge),)))
        writer.checkpoint(RunSummary())
        assert read_result(tmp_path).run["revisions"]["points"] == points
    writer.close()


def test_frames_elsewhere_are_copied_unopened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rooms far apart in one run: what moves in the second one leaves the first one's depth files alone."""
    far = Similarity(1.0, np.eye(3), np.array([100.0, 0, 0]))
    results = walk()
    results[20:] = [replace(r, T_world_camera=far.move_pose(r.T_world_camera)) for r in results[20:]]
    writer, read = room_writer(tmp_path, results), opened(monkeypatch)
    writer.revise(Revision(tuple(frame_revision(result, SHIFT) for result in results[30:])))
    seen: list[tuple[int, int]] = []
    writer.finish(DONE, lambda done, total: seen.append((done, total)))
    assert set(range(30, 40)) <= set(read) <= set(range(30, 40)), "later frames alone may have lost what moved ones had"
    assert seen[-1] == (40, 40) and seen == sorted(seen)
    first_room = xyz_of(tmp_path)
    assert (first_room[:, 0] < 50).sum() > 1000


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
        if done == 10 and how == "ctrl-c":
            raise KeyboardInterrupt

    if how == "error":
        (tmp_path / "depth" / "000010.npz").write_bytes(b"broken")
    if how == "asked":
        assert writer.finish(DONE, progress, lambda: len(calls) == 10) is False
    else:
        with pytest.raises(KeyboardInterrupt if how == "ctrl-c" else OutputError):
            writer.finish(DONE, progress)
    assert len(calls) == 10
    assert (tmp_path / "points.ply").read_bytes() == before and not list(tmp_path.rglob("*.part"))
    run = read_result(tmp_path).run
    assert run["interrupted"] is True and run["revisions"] == {"cameras": 1, "trajectory": 1, "points": 0}


def test_the_reader_gives_revised_depth_and_intrinsics(tmp_path: Path) -> None:
    results = walk()[:2]
    k = Intrinsics(50, 51, 20, 21)
    writer = room_writer(tmp_path, results)
    writer.revise(Revision((frame_revision(results[1], GROWN, k),)))
    writer.finish(DONE)
    first, second = read_result(tmp_path)
    np.testing.assert_allclose(first.depth, results[0].depth, rtol=1e-3)
    np.testing.assert_allclose(second.depth, 1.2 * results[1].depth, rtol=1e-3)
    assert second.intrinsics == k and first.intrinsics == results[0].intrinsics
    np.testing.assert_allclose(second.T_world_camera, GROWN.move_pose(results[1].T_world_camera))


def test_a_cloud_can_go_on_after_it_was_rebuilt(tmp_path: Path) -> None:
    writer, results = room_writer(tmp_path, walk()[:10]), walk()
    writer.revise(Revision(tuple(frame_revision(result, GROWN) for result in results[:5])))
    writer.checkpoint(RunSummary())
    cloud: PointCloud = writer._cloud
    assert cloud.stale and cloud.rebuild() and not cloud.stale
    for result in results[10:]:
        writer.add(result)
    writer.revise(Revision(tuple(frame_revision(result, SHIFT) for result in results[3:12])))
    writer.finish(DONE)
    known = [
        revised(result, frame_revision(result, SHIFT if 3 <= i < 12 else GROWN if i < 5 else Similarity.identity()))
        for i, result in enumerate(results)
    ]
    room_writer(tmp_path / "known", known).finish(DONE)
    ours, expected = xyz_of(tmp_path), xyz_of(tmp_path / "known")
    assert_same_points(ours, expected)
