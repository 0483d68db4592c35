"""The viewer without a browser: budget, revisions, pauses, ports, skipped points."""

import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from stream_recon.app.core.transforms import Similarity, rotation_matrix
from stream_recon.app.core.types import FrameRevision, Intrinsics, Revision
from stream_recon.app.viewer.queue import MAX_WAITING_RESULTS
from stream_recon.app.viewer.viewer import FAILED_STATUS, Viewer, show_results
from stream_recon.configs.errors import ResourceError
from stream_recon.configs.schema import PointsConfig
from tests.app.boxroom import HALF, room_result, walk_pose
from tests.app.viewer.browsers import FakeBrowser
from tests.app.viewer.clouds import similar

CONFIG = PointsConfig(confidence_quantile=0.3, voxel=0.05)


@pytest.fixture
def viewer() -> Iterator[Viewer]:
    with Viewer(CONFIG, port=0, point_budget=30_000) as running:
        yield running


def test_it_listens_on_this_machine_alone_unless_told_otherwise(viewer: Viewer) -> None:
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
    assert 0 < viewer.points_shown <= viewer.state.store.total <= 30_000
    assert len(viewer.state.scene.nodes) == len(viewer.state.store.chunks) <= viewer.state.store.max_chunks
    assert 0 < len(viewer.state.scene.frusta) <= 48
    assert len(viewer.state.timeline.views) <= viewer.state.timeline.max_views
    np.testing.assert_array_equal(viewer.state.timeline.poses[1234], walk_pose(123.4))


def test_the_first_view_of_a_late_browser_is_before_the_wall_behind_the_first_camera(viewer: Viewer) -> None:
    first = walk_pose(0)
    viewer.state.timeline.add_frame(-1, first, room_result(0).intrinsics)
    viewer.state.store.add_frame(0, first)
    viewer.state.cameras.start(0, typical_depth=4 * float(HALF.max()))
    camera = viewer.state.scene._server.initial_camera
    assert (np.abs(camera.position) > HALF).any()
    show_results(viewer, (room_result(i, size=(42, 42)) for i in range(200)))
    assert viewer.flush()
    viewer.state.cameras.start(0, typical_depth=4 * float(HALF.max()))
    viewer.state.cameras.update_start(viewer.state.store)
    assert (np.abs(camera.position) < HALF).all()


def test_whoever_opens_a_finished_page_sees_all_of_it_first(viewer: Viewer) -> None:
    camera = viewer.state.scene._server.initial_camera
    show_results(viewer, (room_result(i, size=(42, 42)) for i in range(200)))
    assert viewer.flush()
    assert (np.abs(camera.position) < HALF).all(), "within the room while it grows"
    viewer.finish()
    assert viewer.flush()
    ahead = (camera.look_at - camera.position) / np.linalg.norm(camera.look_at - camera.position)
    seen = viewer.state.store.sample(1000) - camera.position
    depth = seen @ ahead
    aside = np.linalg.norm(seen - depth[:, None] * ahead, axis=1)
    assert ((depth > 0) & (aside < 2 * depth)).mean() > 0.97


def test_revised_frames_move_nodes_and_cameras_and_send_no_points(viewer: Viewer) -> None:
    show_results(viewer, (room_result(i) for i in range(130)))
    assert viewer.flush()
    scene = viewer.state.scene
    handles = {first: node.handle for first, node in scene.nodes.items()}
    sent = [n.sent for n in scene.nodes.values()]
    change = Similarity(2.0, walk_pose(0.7)[:3, :3], np.array([1.0, 0.5, -2.0]))
    k = room_result(0).intrinsics
    wide = Intrinsics(0.999 * k.fx, 0.999 * k.fy, k.cx, k.cy)
    frames = [similar(i, walk_pose(i / 10), change) for i in range(64, 130)]
    viewer.revise(Revision(tuple(replace(f, intrinsics=wide) for f in frames)))
    assert viewer.flush()
    assert {first: node.handle for first, node in scene.nodes.items()} == handles
    assert [n.sent for n in scene.nodes.values()] == sent
    for first, expected in ((0, 1.0), (64, 2.0), (128, 2.0)):
        chunk, handle = viewer.state.store.chunk_of(first), handles[first]
        assert handle.scale == pytest.approx(expected, rel=1e-3)
        np.testing.assert_allclose(handle.position, chunk.S_world_chunk.translation, atol=1e-3)
        w, x, y, z = handle.wxyz
        np.testing.assert_allclose(rotation_matrix(np.array([x, y, z, w])), chunk.S_world_chunk.rotation, atol=1e-4)
    ordinal, frustum = next((o, f) for o, f in scene.frusta.items() if o >= 64)
    np.testing.assert_allclose(frustum.handle.position, change.apply(walk_pose(ordinal / 10)[:3, 3]), atol=1e-6)
    width, height = viewer.state.timeline.views[ordinal].extent if ordinal in viewer.state.timeline.views else (112, 84)
    assert frustum.handle.fov == pytest.approx(2 * np.arctan(height / 2 / wide.fy), abs=1e-9)
    assert frustum.handle.aspect == pytest.approx(width / height)


def test_a_frame_revised_alone_is_sent_again_and_the_rest_of_its_chunk_is_where_it_was(viewer: Viewer) -> None:
    show_results(viewer, (room_result(i) for i in range(130)))
    assert viewer.flush()
    before, sent = viewer.state.points(), [n.sent for n in viewer.state.scene.nodes.values()]
    viewer.revise(Revision((FrameRevision(70, walk_pose(20.0)),)))
    assert viewer.flush()
    after = viewer.state.points()
    still = before.frame != 70
    np.testing.assert_allclose(after.xyz[still], before.xyz[still], atol=1e-5)
    assert np.linalg.norm(after.xyz[~still] - before.xyz[~still], axis=1).min() > 0.05
    assert [n.sent for n in viewer.state.scene.nodes.values()] == [sent[0], sent[1] + 1, sent[2]]


def test_sizes_and_the_first_view_follow_a_change_of_unit(viewer: Viewer) -> None:
    show_results(viewer, (room_result(i) for i in range(10)))
    assert viewer.flush()
    typical_depth, start = viewer.state.cameras.typical_depth, viewer.state.scene._server.initial_camera
    size, eye = viewer.state.scene._current.handle.scale, np.array(start.position)
    change = Similarity(3.0, np.eye(3), np.array([5.0, 0, 0]))
    viewer.revise(Revision(tuple(similar(i, walk_pose(i / 10), change) for i in range(10))))
    assert viewer.flush()
    assert viewer.state.cameras.typical_depth == pytest.approx(3 * typical_depth)
    assert viewer.state.scene._current.handle.scale == pytest.approx(3 * size)
    np.testing.assert_allclose(start.position, change.apply(eye), atol=1e-6)


def test_a_finished_chunk_is_not_sent_again_while_the_video_goes_on(viewer: Viewer) -> None:
    show_results(viewer, (room_result(i, size=(28, 21)) for i in range(70)))
    assert viewer.flush()
    first = viewer.state.scene.nodes[0].sent
    show_results(viewer, (room_result(i, size=(28, 21)) for i in range(70, 100)))
    assert viewer.flush()
    assert viewer.state.scene.nodes[0].sent == first
    assert viewer.state.scene.nodes[64].sent >= 2


def test_the_panel_changes_what_is_shown(viewer: Viewer) -> None:
    show_results(viewer, (room_result(i) for i in range(20)))
    assert viewer.flush()
    initially = viewer.points_shown
    viewer.state.panel._min_rank.value = 80
    assert viewer.flush()
    few = viewer.points_shown
    viewer.state.panel._min_rank.value = 0
    assert viewer.flush()
    assert few < initially < viewer.points_shown == viewer.state.store.total
    viewer.state.panel._scrubber.value = 3
    viewer.state.panel._until_here.value = True
    assert viewer.flush()
    until_third = viewer.points_shown
    assert 0 < until_third < viewer.state.store.total
    assert viewer.state.panel.options().selected == 3
    viewer.state.panel._point_size.value = 2.0
    assert viewer.flush()
    assert viewer.state.scene.nodes[0].handle.point_size == pytest.approx(2 * viewer.state.store.chunks[0].voxel)
    viewer.state.panel._cameras.value = False
    assert viewer.flush()
    assert not viewer.state.scene.frusta


def test_sparse_points_and_loops_are_shown_on_request_and_follow_the_frames(viewer: Viewer) -> None:
    show_results(viewer, (room_result(i) for i in range(20)))
    assert viewer.flush()
    panel, nodes = viewer.state.panel, viewer.state.scene.map_nodes
    assert not panel._map_folder.visible
    points = np.random.default_rng(0).normal(size=(500, 3))
    viewer.show_map(points, np.array([[0, 15], [2, 17], [3, 999]]))
    assert viewer.flush()
    assert panel._map_folder.visible and panel._loops.visible and not panel._comparison.visible
    assert nodes._points is None and nodes._loops is None, "until asked for"
    panel._sparse_points.value = panel._loops.value = True
    assert viewer.flush()
    assert nodes._points.points.shape == (500, 3)
    np.testing.assert_allclose(nodes._loops.points[1, 1], walk_pose(1.7)[:3, 3], atol=1e-6)
    assert len(nodes._loops.points) == 2, "a frame that is not on the page has no loop"
    viewer.revise(Revision((FrameRevision(17, walk_pose(5.0)),)))
    viewer.show_map(points[:100], np.array([[2, 17]]))
    assert viewer.flush()
    np.testing.assert_allclose(nodes._loops.points[0, 1], walk_pose(5.0)[:3, 3], atol=1e-6)
    assert nodes._points.points.shape == (100, 3)
    viewer.show_map(np.zeros((0, 3)), np.zeros((0, 2), int))
    assert viewer.flush()
    assert nodes._points is None and nodes._loops is None


def test_before_stands_beside_after(viewer: Viewer) -> None:
    show_results(viewer, (room_result(i) for i in range(130)))
    assert viewer.flush()
    first = viewer.state.points()
    change = Similarity(1.0, walk_pose(0.7)[:3, :3], np.array([0.3, 0.1, 0.0]))
    viewer.revise(Revision(tuple(similar(i, walk_pose(i / 10), change) for i in range(60, 130))))
    assert viewer.flush()
    panel, before = viewer.state.panel, viewer.state.scene.comparison
    assert panel._comparison.visible and not before._nodes
    panel._comparison.value = True
    assert viewer.flush()
    shown = np.concatenate(
        [
            node._handle.points @ rotation_matrix(np.roll(node._handle.wxyz, -1)).T + node._handle.position
            for node in before._nodes.values()
        ]
    )
    assert len(shown) == len(first)
    np.testing.assert_allclose(np.sort(shown - before._shift, axis=0), np.sort(first.xyz, axis=0), atol=2e-2)
    right = walk_pose(0)[:3, 0]
    assert np.quantile(shown @ right, 0.98) < np.quantile(viewer.state.points().xyz @ right, 0.02), "to the left of it"
    assert np.linalg.norm(before.sample(viewer.state.store, viewer.state.timeline, 1000) @ right) > 0
    panel._comparison.value = False
    assert viewer.flush()
    assert not before._nodes and before._path is None


def test_the_pause_button_toggles_the_flag(viewer: Viewer) -> None:
    assert not viewer.paused
    viewer.state.panel._toggle_pause(SimpleNamespace(client_id=1))
    assert viewer.paused
    assert viewer.state.panel._pause.label == "Resume"
    viewer.state.panel._toggle_pause(SimpleNamespace(client_id=1))
    assert not viewer.paused
    viewer.state.panel._toggle_pause(SimpleNamespace(client_id=1))
    viewer.finish()
    assert not viewer.paused


def test_a_slow_page_costs_points_of_non_keyframes_first_and_never_poses(viewer: Viewer) -> None:
    # Frames take far longer to unproject than to add, so the queue overflows; its keyframes alone would fit.
    results = [room_result(i, size=(280, 210), keyframe=i == 0) for i in range(16)]
    for i in range(160):
        base = results[i % 16]
        viewer.add(type(base)(**{**base.__dict__, "index": i}))
    assert viewer.flush()
    assert 0 < viewer.skipped <= 160 - MAX_WAITING_RESULTS
    assert len(viewer.state.timeline) == 160
    placed = set(np.flatnonzero(viewer.state.store._frames.filled).tolist())
    assert len(placed) == 160 - viewer.skipped
    assert placed >= set(range(0, 160, 16))


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
    viewer.status("**12** frames at 5 a second")
    show_results(viewer, [room_result(0)])
    assert viewer.flush()
    content = viewer.state.panel._status.content
    assert content.startswith("**12** frames at 5 a second")
    assert f"**{viewer.points_shown:,}** points" in content


def test_wait_returns_once_closed() -> None:
    viewer = Viewer(CONFIG, port=0)
    viewer.close()
    viewer.wait()
    viewer.close()


def test_a_viewer_that_fails_says_so_once_and_the_run_goes_on(
    viewer: Viewer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    show_results(viewer, (room_result(i) for i in range(4)))
    assert viewer.flush()
    viewer.state.panel._toggle_pause(SimpleNamespace(client_id=1))

    def breaks(*_: object) -> None:
        raise RuntimeError("no such prop: point_shading")

    monkeypatch.setattr(viewer.state.scene, "sync", breaks)
    viewer.add(room_result(4))
    assert not viewer.flush()
    viewer._thread.join(timeout=5)
    assert viewer.failed
    assert not viewer.paused, "nothing holds the run any more"
    for index in range(5, 200):
        viewer.add(room_result(index % 20))
        viewer.revise(Revision((FrameRevision(0, np.eye(4)),)))
        viewer.status(f"frame {index}")
    assert len(viewer._queue) == 0
    assert viewer.has_room()
    viewer.finish()
    assert viewer.state.panel._status.content == FAILED_STATUS
    (record,) = (r for r in caplog.records if r.name.startswith("stream_recon"))
    assert record.levelname == "ERROR"
    assert "the run continues" in record.getMessage()
    assert "point_shading" in caplog.text
    browser = FakeBrowser()
    viewer._download(browser)
    assert browser.notes == ["No PLY: The viewer has failed; the cloud is in the result folder."]
