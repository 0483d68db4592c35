"""The viewer without a browser: budget, revisions, pauses, ports, skipped points."""

import io
import socket
import time
from collections.abc import Iterator

import numpy as np
import plyfile
import pytest

from stream_recon.app.results import FrameRevision, Revision
from stream_recon.app.transforms import rotation_matrix
from stream_recon.app.viewer.timeline import Timeline, make_view
from stream_recon.app.viewer.viewer import WAITING_RESULTS, Viewer, view_results
from stream_recon.configs.errors import ResourceError
from stream_recon.configs.schema import PointsConfig
from tests.app.boxroom import HALF, room_result, walk_pose

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
    count = view_results(viewer, (room_result(i, size=(14, 14), keyframe=i % 4 == 0) for i in range(2000)))
    assert viewer.flush()
    assert count == len(viewer.timeline) == 2000
    assert viewer.skipped == 0
    assert 0 < viewer.points_shown <= viewer.store.total <= 30_000
    assert len(viewer.scene.nodes) == len(viewer.store.chunks) <= viewer.store.max_chunks
    assert 0 < len(viewer.scene.frusta) <= 48
    assert len(viewer.timeline.views) <= viewer.timeline.max_views
    np.testing.assert_array_equal(viewer.timeline.poses[1234], walk_pose(123.4))


def test_the_first_view_of_a_late_browser_is_before_the_wall_behind_the_first_camera(viewer: Viewer) -> None:
    first = walk_pose(0)
    viewer.scene.start_view(first, unit=4 * float(HALF.max()))
    camera = viewer.scene._server.initial_camera
    assert (np.abs(camera.position) > HALF).any()
    view_results(viewer, (room_result(i, size=(42, 42)) for i in range(200)))
    assert viewer.flush()
    viewer.scene.start_view(first, unit=4 * float(HALF.max()))
    viewer.scene.clear_start(viewer.store)
    assert (np.abs(camera.position) < HALF).all()


def test_a_revised_anchor_moves_its_node_and_sends_no_points(viewer: Viewer) -> None:
    view_results(viewer, (room_result(i) for i in range(130)))
    assert viewer.flush()
    node = viewer.scene.nodes[64]
    handle, sent = node.handle, [n.sent for n in viewer.scene.nodes.values()]
    better = walk_pose(7.7)
    viewer.revise(Revision((FrameRevision(64, better),)))
    assert viewer.flush()
    assert node.handle is handle
    assert [n.sent for n in viewer.scene.nodes.values()] == sent
    np.testing.assert_allclose(handle.position, better[:3, 3], atol=1e-6)
    w, x, y, z = handle.wxyz
    np.testing.assert_allclose(rotation_matrix(np.array([x, y, z, w])), better[:3, :3], atol=1e-6)
    np.testing.assert_array_equal(viewer.timeline.poses[64], better)


def test_a_finished_chunk_is_not_sent_again_while_the_video_goes_on(viewer: Viewer) -> None:
    view_results(viewer, (room_result(i, size=(28, 21)) for i in range(70)))
    assert viewer.flush()
    first = viewer.scene.nodes[0].sent
    view_results(viewer, (room_result(i, size=(28, 21)) for i in range(70, 100)))
    assert viewer.flush()
    assert viewer.scene.nodes[0].sent == first
    assert viewer.scene.nodes[64].sent >= 2


def test_the_panel_changes_what_is_shown(viewer: Viewer) -> None:
    view_results(viewer, (room_result(i) for i in range(20)))
    assert viewer.flush()
    initially = viewer.points_shown
    viewer.panel._min_rank.value = 80
    assert viewer.flush()
    few = viewer.points_shown
    viewer.panel._min_rank.value = 0
    assert viewer.flush()
    assert few < initially < viewer.points_shown == viewer.store.total
    viewer.panel._scrubber.value = 3
    viewer.panel._until_here.value = True
    assert viewer.flush()
    until_third = viewer.points_shown
    assert 0 < until_third < viewer.store.total
    assert viewer.panel.options().selected == 3
    viewer.panel._point_size.value = 2.0
    assert viewer.flush()
    assert viewer.scene.nodes[0].handle.point_size == pytest.approx(2 * viewer.store.chunks[0].voxel)
    viewer.panel._cameras.value = False
    assert viewer.flush()
    assert not viewer.scene.frusta


def test_the_pause_button_toggles_the_flag(viewer: Viewer) -> None:
    assert not viewer.paused
    viewer.panel._toggle_pause(None)
    assert viewer.paused
    assert viewer.panel._pause.label == "Resume"
    viewer.panel._toggle_pause(None)
    assert not viewer.paused
    viewer.panel._toggle_pause(None)
    viewer.finish()
    assert not viewer.paused


def test_a_slow_page_costs_points_of_non_keyframes_first_and_never_poses(viewer: Viewer) -> None:
    # Frames take far longer to unproject than to add, so the queue overflows; its keyframes alone would fit.
    results = [room_result(i, size=(280, 210), keyframe=i == 0) for i in range(16)]
    for i in range(160):
        base = results[i % 16]
        viewer.add(type(base)(**{**base.__dict__, "index": i}))
    assert viewer.flush()
    assert 0 < viewer.skipped <= 160 - WAITING_RESULTS
    assert len(viewer.timeline) == 160
    placed = {o for chunk in viewer.store.chunks for o in chunk.placed}
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
    view_results(viewer, [room_result(0)])
    assert viewer.flush()
    content = viewer.panel._status.content
    assert content.startswith("**12** frames at 5 a second")
    assert f"**{viewer.points_shown:,}** points" in content


def test_the_downloaded_cloud_is_the_shown_one_in_world_axes(viewer: Viewer) -> None:
    start = walk_pose(3.0)
    view_results(viewer, (room_result(i, walk_pose(3 + i / 10)) for i in range(70)))
    assert viewer.flush()
    content = viewer.ply_bytes()
    assert content.startswith(b"ply\nformat binary_little_endian")
    cloud = plyfile.PlyData.read(io.BytesIO(content))
    vertex = cloud["vertex"]
    xyz = np.stack([vertex["x"], vertex["y"], vertex["z"]], axis=1)
    assert len(xyz) == viewer.points_shown > 0
    assert np.abs(np.abs(xyz) - HALF).min(axis=1).max() < 1e-4
    assert not np.allclose(start, np.eye(4))
    assert {p.name for p in vertex.properties} == {"x", "y", "z", "red", "green", "blue"}


class FakeBrowser:
    """Stands for a connected browser: keeps what it is sent."""

    def __init__(self) -> None:
        self.files: list[tuple[str, bytes]] = []
        self.notes: list[str] = []

    def send_file_download(self, name: str, content: bytes, save_immediately: bool) -> None:
        assert save_immediately
        self.files.append((name, content))

    def add_notification(self, title: str, body: str, color: str) -> None:
        self.notes.append(f"{title}: {body}")


def test_the_download_button_sends_what_the_provider_gives_or_says_why_not(viewer: Viewer) -> None:
    browser = FakeBrowser()
    viewer.ply_provider = lambda: b"ply of the result folder"
    viewer._queue(viewer._send_ply, browser)
    assert viewer.flush()

    def fails() -> bytes:
        raise FileNotFoundError("points.ply is not written yet")

    viewer.ply_provider = fails
    viewer._queue(viewer._send_ply, browser)
    assert viewer.flush()
    assert browser.files == [("points.ply", b"ply of the result folder")]
    assert browser.notes == ["No PLY: points.ply is not written yet"]


def test_wait_returns_once_closed() -> None:
    viewer = Viewer(CONFIG, port=0)
    viewer.close()
    viewer.wait()
    viewer.close()


def test_views_are_thinned_evenly_and_poses_kept() -> None:
    timeline = Timeline(max_views=16)
    result = room_result(0)
    for i in range(1000):
        ordinal = timeline.add_pose(3 * i, walk_pose(i / 10))
        if timeline.wants_view(ordinal):
            timeline.add_view(make_view(ordinal, result))
    kept = sorted(v.ordinal for v in timeline.views.values())
    assert 8 <= len(kept) <= 16
    assert np.diff(kept).max() <= 128
    assert len(timeline.thinned_views(5)) <= 5
    nearest = timeline.nearest_view(500)
    assert nearest is not None and abs(nearest.ordinal - 500) <= 64
    assert timeline.index(10) == 30
    assert timeline.path(50).shape == (50, 3)
    np.testing.assert_allclose(timeline.path(50)[-1], walk_pose(99.9)[:3, 3], atol=1e-6)
    assert timeline.revise(30, np.eye(4)) == 10
    np.testing.assert_array_equal(timeline.poses[10], np.eye(4))


def test_a_view_keeps_the_cameras_shape() -> None:
    view = make_view(0, room_result(0, size=(280, 210)))
    assert view.image.shape == (96, 128, 3)
    assert view.fov == pytest.approx(2 * np.arctan(105 / (0.8 * 280)))
    assert view.aspect == pytest.approx(280 / 210)
