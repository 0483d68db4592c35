"""The viewer as its clients see it: budget, revisions, pauses, ports, skipped points."""

import socket
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from stream_recon.app.core.transforms import Similarity
from stream_recon.app.core.types import FrameRevision, Intrinsics, Revision
from stream_recon.app.viewer.viewer import FAILED_STATUS, MAX_WAITING_RESULTS, Viewer, show_results
from stream_recon.configs.errors import ResourceError
from stream_recon.configs.schema import PointsConfig
from tests.app.boxroom import HALF, room_result, walk_pose
from tests.app.viewer.clients import client_of
from tests.app.viewer.clouds import similar

CONFIG = PointsConfig(confidence=0.0, voxel=0.05)


def yaw(angle: float) -> np.ndarray:
    """A rotation about the vertical axis, as a pose [4, 4]."""
    T = np.eye(4)
    T[:3, :3] = [[np.cos(angle), 0, np.sin(angle)], [0, 1, 0], [-np.sin(angle), 0, np.cos(angle)]]
    return T


@pytest.fixture
def viewer() -> Iterator[Viewer]:
    with Viewer(CONFIG, port=0, point_budget=30_000) as running:
        yield running


def test_it_listens_on_this_machine_only_by_default(viewer: Viewer) -> None:
    assert viewer.host == "127.0.0.1"
    assert viewer.url == f"http://127.0.0.1:{viewer.port}"
    assert viewer.port != 0
    with socket.create_connection(("127.0.0.1", viewer.port), timeout=5):
        pass
    with Viewer(CONFIG, host="0.0.0.0", port=0) as open_to_all:
        assert open_to_all.host == "0.0.0.0"


def test_a_port_in_use_is_an_error_that_says_what_to_do(viewer: Viewer) -> None:
    with pytest.raises(ResourceError, match=f"^port {viewer.port} is in use; choose another with --port$"):
        Viewer(CONFIG, port=viewer.port)


@pytest.mark.parametrize(("host", "port"), [("no-such-host.invalid", 0), ("127.0.0.1", 70_000)])
def test_an_impossible_address_is_an_error(host: str, port: int) -> None:
    with pytest.raises(ResourceError, match=r"cannot listen on .* --host"):
        Viewer(CONFIG, host=host, port=port)


def test_nothing_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    Viewer(CONFIG, port=0).close()
    assert capsys.readouterr().out == ""


def test_a_long_video_stays_within_the_budget_and_loses_no_pose(viewer: Viewer) -> None:
    count = show_results(viewer, (room_result(i, size=(14, 14), keyframe=i % 4 == 0) for i in range(2000)))
    assert viewer.flush()
    assert count == len(viewer.state.timeline) == 2000
    assert viewer.skipped == 0
    with client_of(viewer) as client:
        assert len(client.cloud()) == viewer.points_shown
        assert 0 < viewer.points_shown <= viewer.state.store.total <= 30_000
        assert len(client.names("/points/")) <= viewer.state.store.max_chunks
        assert 0 < len(client.names("/cameras/")) <= 50
    np.testing.assert_array_equal(viewer.state.timeline.poses[1234], walk_pose(123.4))


def test_the_first_view_of_a_late_client_is_in_front_of_the_wall_behind_the_first_camera(viewer: Viewer) -> None:
    # At a distance of 0.6 times the typical depth the view would begin behind the wall.
    near = walk_pose(0)
    near[:3, 3] = [0, 0, 1.3 - HALF[2]]
    show_results(viewer, [room_result(0, near, size=(42, 42))])
    with client_of(viewer) as client:
        assert client.camera["position"][2] < -HALF[2]
    turned = [near @ yaw(angle) for angle in np.linspace(0, 2 * np.pi, 60)]
    back = np.eye(4)
    back[2, 3] = 3.0
    show_results(viewer, (room_result(1 + i, back @ T, size=(42, 42)) for i, T in enumerate(turned)))
    assert viewer.flush()
    with client_of(viewer) as client:
        assert abs(client.camera["position"][2]) < HALF[2]


def test_a_client_that_opens_a_finished_video_sees_all_of_it_first(viewer: Viewer) -> None:
    show_results(viewer, (room_result(i, size=(42, 42)) for i in range(200)))
    assert viewer.flush()
    with client_of(viewer) as client:
        assert (np.abs(client.camera["position"]) < HALF).all(), "within the room while it grows"
    viewer.finish()
    assert viewer.flush()
    with client_of(viewer) as client:
        position, target = client.camera["position"], client.camera["look_at"]
        ahead = (target - position) / np.linalg.norm(target - position)
        offset = client.cloud() - position
    depth = offset @ ahead
    radius = np.linalg.norm(offset - depth[:, None] * ahead, axis=1)
    assert ((depth > 0) & (radius < 2 * depth)).mean() > 0.97


def test_revised_frames_move_nodes_and_cameras_and_send_no_points(viewer: Viewer) -> None:
    show_results(viewer, (room_result(i) for i in range(130)))
    change = Similarity(2.0, walk_pose(0.7)[:3, :3], np.array([1.0, 0.5, -2.0]))
    k = room_result(0).intrinsics
    wide = Intrinsics(0.999 * k.fx, 0.999 * k.fy, k.cx, k.cy)
    with client_of(viewer) as client:
        sent, before = dict(client.sent), {name: client.points(name) for name in client.names("/points/")}
        frames = [similar(i, walk_pose(i / 10), change) for i in range(64, 130)]
        viewer.revise(Revision(tuple(replace(f, intrinsics=wide) for f in frames)))
        client.sync()
        assert {n: client.sent[n] for n in before} == {n: sent[n] for n in before}
        np.testing.assert_allclose(client.points("/points/0"), before["/points/0"])
        for name in ("/points/64", "/points/128"):
            expected = change.apply(before[name])
            np.testing.assert_allclose(client.points(name), expected, atol=0.02)
        name = next(n for n in client.names("/cameras/") if n[9:].isdecimal() and int(n[9:]) >= 64)
        frustum, ordinal = client.nodes[name], int(name[9:])
    np.testing.assert_allclose(frustum["position"], change.apply(walk_pose(ordinal / 10)[:3, 3]), atol=1e-6)
    width, height = room_result(0).transform.source_size
    assert frustum["fov"] == pytest.approx(2 * np.arctan(height / 2 / wide.fy), abs=1e-9)
    assert frustum["aspect"] == pytest.approx(width / height)


def test_a_frame_revised_alone_is_sent_again_and_the_rest_of_its_chunk_stays(viewer: Viewer) -> None:
    show_results(viewer, (room_result(i) for i in range(130)))
    with client_of(viewer) as client:
        before, sent = viewer.state.points(), dict(client.sent)
        viewer.revise(Revision((FrameRevision(70, walk_pose(20.0)),)))
        client.sync()
        shown, after = client.cloud(), viewer.state.points()
        again = {name: client.sent[name] - sent[name] for name in client.names("/points/")}
    still = before.frame != 70
    np.testing.assert_allclose(shown[still], before.xyz[still], atol=0.02)
    np.testing.assert_allclose(after.xyz[still], before.xyz[still], atol=1e-5)
    assert np.linalg.norm(after.xyz[~still] - before.xyz[~still], axis=1).min() > 0.05
    assert again == {"/points/0": 0, "/points/64": 1, "/points/128": 0}


def test_sizes_and_the_first_view_follow_a_change_of_scale(viewer: Viewer) -> None:
    show_results(viewer, (room_result(i) for i in range(10)))
    with client_of(viewer) as client:
        size, eye = client.nodes["/cameras/current"]["scale"], client.camera["position"]
        change = Similarity(3.0, np.eye(3), np.array([5.0, 0, 0]))
        viewer.revise(Revision(tuple(similar(i, walk_pose(i / 10), change) for i in range(10))))
        client.sync()
        assert client.nodes["/cameras/current"]["scale"] == pytest.approx(3 * size)
    with client_of(viewer) as client:
        np.testing.assert_allclose(client.camera["position"], change.apply(eye), atol=1e-6)


def test_a_finished_chunk_is_not_sent_again_while_the_video_goes_on(viewer: Viewer) -> None:
    show_results(viewer, (room_result(i, size=(28, 21)) for i in range(70)))
    with client_of(viewer) as client:
        sent = client.sent["/points/0"]
        show_results(viewer, (room_result(i, size=(28, 21)) for i in range(70, 100)))
        client.sync()
        assert client.sent["/points/0"] == sent
        assert client.sent["/points/64"] >= 2


def test_the_panel_changes_what_is_shown(viewer: Viewer) -> None:
    show_results(viewer, (room_result(i) for i in range(20)))
    with client_of(viewer) as client:
        counts = [len(client.cloud())]
        for confidence in (80, 0):
            client.set("Confidence", confidence)
            counts.append(len(client.cloud()))
        initially, few, everything = counts
        assert few < initially < everything == viewer.state.store.total
        client.set("Frame", 3)
        client.set("Points up to here", True)
        assert 0 < len(client.cloud()) < everything
        np.testing.assert_allclose(client.nodes["/cameras/selected"]["position"], walk_pose(0.3)[:3, 3])
        voxel_size = client.nodes["/points/0"]["point_size"]
        client.set("Point size", 2.0)
        assert client.nodes["/points/0"]["point_size"] == pytest.approx(2 * voxel_size)
        client.set("Cameras", False)
        assert client.names("/cameras/") == ["/cameras/selected"]
        client.set("Trajectory", False)
        assert not client.names("/trajectory")


def test_sparse_points_and_loops_are_shown_on_request_and_follow_the_frames(viewer: Viewer) -> None:
    def lines() -> np.ndarray:
        return np.asarray(client.nodes["/map/loops"]["points"].reshape(-1, 2, 3))

    show_results(viewer, (room_result(i) for i in range(20)))
    points = np.random.default_rng(0).normal(size=(500, 3))
    with client_of(viewer) as client:
        assert not client.control("Map")["visible"]
        viewer.show_map(points, np.array([[0, 15], [2, 17], [3, 999]]))
        client.sync()
        assert client.control("Map")["visible"] and client.control("Loops")["visible"]
        assert not client.control("Before and after")["visible"]
        assert not client.names("/map/"), "until asked for"
        client.set("Sparse points", True)
        client.set("Loops", True)
        assert client.points("/map/points").shape == (500, 3)
        np.testing.assert_allclose(lines()[1, 1], walk_pose(1.7)[:3, 3], atol=1e-6)
        assert len(lines()) == 2, "a frame that was not added has no loop"
        viewer.revise(Revision((FrameRevision(17, walk_pose(5.0)),)))
        viewer.show_map(points[:100], np.array([[2, 17]]))
        client.sync()
        np.testing.assert_allclose(lines()[0, 1], walk_pose(5.0)[:3, 3], atol=1e-6)
        assert client.points("/map/points").shape == (100, 3)
        viewer.show_map(np.zeros((0, 3)), np.zeros((0, 2), int))
        client.sync()
        assert not client.names("/map/")


def test_the_causal_cloud_is_shown_to_the_left_of_the_revised_one(viewer: Viewer) -> None:
    show_results(viewer, (room_result(i) for i in range(130)))
    with client_of(viewer) as client:
        causal = client.cloud()
        change = Similarity(1.0, walk_pose(0.7)[:3, :3], np.array([0.3, 0.1, 0.0]))
        viewer.revise(Revision(tuple(similar(i, walk_pose(i / 10), change) for i in range(60, 130))))
        client.sync()
        assert client.control("Before and after")["visible"] and not client.names("/before/")
        client.set("Before and after", True)
        shown, revised = client.cloud("/before/points/"), client.cloud()
        assert client.names("/before/trajectory") and len(client.names("/before/before")) == 1
        client.set("Before and after", False)
        assert not client.names("/before/points/") and not client.names("/before/trajectory")
    assert len(shown) == len(causal)
    offset = np.median(shown, axis=0) - np.median(causal, axis=0)
    np.testing.assert_allclose(np.sort(shown - offset, axis=0), np.sort(causal, axis=0), atol=5e-2)
    right = walk_pose(0)[:3, 0]
    assert np.quantile(shown @ right, 0.98) < np.quantile(revised @ right, 0.02)


def test_the_pause_button_pauses_and_resumes(viewer: Viewer) -> None:
    with client_of(viewer) as client:
        assert not viewer.paused
        client.click("Pause")
        assert viewer.paused and "paused" in client.status
        client.click("Resume")
        assert not viewer.paused
        client.click("Pause")
        viewer.finish()
        client.sync()
        assert not viewer.paused and not client.control("Resume")["visible"]


def test_a_pause_ends_with_the_client_that_asked_for_it(viewer: Viewer) -> None:
    with client_of(viewer) as other:
        with client_of(viewer) as client:
            client.click("Pause")
            assert viewer.paused
        other.wait_for(lambda: not viewer.paused)


def test_a_slow_viewer_skips_points_of_non_keyframes_first_and_never_poses(viewer: Viewer) -> None:
    # Frames take far longer to unproject than to add, so the queue overflows; its keyframes alone would fit.
    results = [room_result(i, size=(280, 210), keyframe=i == 0) for i in range(16)]
    for i in range(160):
        base = results[i % 16]
        viewer.add(type(base)(**{**base.__dict__, "index": i}))
    assert viewer.flush()
    assert 0 < viewer.skipped <= 160 - MAX_WAITING_RESULTS
    assert len(viewer.state.timeline) == 160
    with client_of(viewer) as client:
        client.set("Confidence", 0)
        assert f"{viewer.skipped:,} without points" in client.status
        # The keyframes are one frame repeated, so all of its points are there.
        seen = set(viewer.state.points().frame.tolist())
    assert seen & set(range(0, 160, 16)) and len(seen) <= 160 - viewer.skipped


def test_adding_is_cheap(viewer: Viewer) -> None:
    results = [room_result(i, size=(224, 168), keyframe=False) for i in range(8)]
    spent = []
    for i in range(120):
        base = results[i % 8]
        result = type(base)(**{**base.__dict__, "index": i})
        began = time.perf_counter()
        viewer.add(result)
        spent.append(time.perf_counter() - began)
        time.sleep(0.002)
    assert np.median(spent) < 0.002


def test_the_status_reaches_the_panel(viewer: Viewer) -> None:
    show_results(viewer, [room_result(0)])
    with client_of(viewer) as client:
        viewer.status("**12** frames at 5 a second")
        client.wait_for(lambda: client.status.startswith("**12** frames at 5 a second"))
        assert f"**{viewer.points_shown:,}** points" in client.status


def test_wait_returns_once_closed() -> None:
    viewer = Viewer(CONFIG, port=0)
    viewer.close()
    viewer.wait()
    viewer.close()


def test_a_viewer_that_fails_reports_it_once_and_the_run_continues(
    viewer: Viewer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    show_results(viewer, (room_result(i) for i in range(4)))
    assert viewer.flush()

    def breaks(*_: object) -> None:
        raise RuntimeError("no such prop: point_shading")

    with client_of(viewer) as client:
        client.click("Pause")
        monkeypatch.setattr(viewer.state.scene, "sync", breaks)
        viewer.add(room_result(4))
        assert not viewer.flush()
        client.wait_for(lambda: client.status == FAILED_STATUS)
        assert viewer.failed
        assert not viewer.paused, "a pause cannot hold the run"
        for index in range(5, 200):
            viewer.add(room_result(index % 20))
            viewer.revise(Revision((FrameRevision(0, np.eye(4)),)))
            viewer.status(f"frame {index}")
        assert viewer.has_room() and viewer.skipped == 0
        viewer.finish()
        (record,) = (r for r in caplog.records if r.name.startswith("stream_recon"))
        assert record.levelname == "ERROR"
        assert "the run continues" in record.getMessage()
        assert "point_shading" in caplog.text
        assert client.status == FAILED_STATUS
        client.use("Download PLY", True)
        client.wait_for(lambda: client.notes == ["No PLY: The viewer has failed; the cloud is in the result folder."])
