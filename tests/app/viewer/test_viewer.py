"""The viewer as its clients see it: budget, revisions, pauses, ports, skipped points."""

import socket
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from stream_recon.app.core.gltf import glb
from stream_recon.app.core.transforms import Similarity
from stream_recon.app.core.types import FrameRevision, Intrinsics, Revision
from stream_recon.app.viewer.cameras import RESEND_S
from stream_recon.app.viewer.content import moved
from stream_recon.app.viewer.scene import STEPS
from stream_recon.app.viewer.surfaces import SurfaceLimits
from stream_recon.app.viewer.update_queue import MAX_WAITING_RESULTS
from stream_recon.app.viewer.viewer import FAILED_STATUS, Viewer, show_results
from stream_recon.configs.errors import ResourceError
from stream_recon.configs.schema import PointsConfig
from tests.app.boxroom import room_result, walk_pose
from tests.app.viewer.clients import client_of
from tests.app.viewer.clouds import similar

CONFIG = PointsConfig(confidence=0.0, voxel=0.05)


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


def test_a_short_video_is_shown_with_all_cameras(viewer: Viewer) -> None:
    show_results(viewer, (room_result(i, keyframe=i % 2 == 0) for i in range(8)))
    assert viewer.flush() and viewer.skipped == 0
    with client_of(viewer) as client:
        assert len(client.cloud()) == viewer.state.scene.shown > 0
    for ordinal in range(8):
        np.testing.assert_array_equal(viewer.state.timeline.poses[ordinal], walk_pose(ordinal / 10))
        view = viewer.state.timeline.nearest_view(ordinal)
        assert view is not None and view.ordinal == ordinal


@pytest.mark.slow
def test_a_long_video_stays_within_the_budget_and_loses_no_pose(viewer: Viewer) -> None:
    count = show_results(viewer, (room_result(i, size=(14, 14), keyframe=i % 4 == 0) for i in range(1500)))
    assert viewer.flush()
    assert count == len(viewer.state.timeline) == 1500
    assert viewer.skipped == 0
    with client_of(viewer) as client:
        assert len(client.cloud()) == viewer.state.scene.shown
        assert 0 < viewer.state.scene.shown <= viewer.state.store.total <= 30_000
        assert len(client.names("/points/")) <= len(STEPS) * viewer.state.store.max_chunks
        assert 0 < len(client.names("/cameras/")) <= 50
    np.testing.assert_array_equal(viewer.state.timeline.poses[1234], walk_pose(123.4))


@pytest.mark.parametrize("ended", [False, True])
def test_a_page_opens_on_what_the_cameras_looked_at_from_above(viewer: Viewer, ended: bool) -> None:
    show_results(viewer, (room_result(i, size=(42, 42)) for i in range(60)))
    if ended:
        viewer.finish()
    assert viewer.flush()
    points, _ = viewer.state.cameras.subject.world(viewer.state.timeline)
    with client_of(viewer) as client:
        position, target = client.camera["position"], client.camera["look_at"]
    ahead = (target - position) / np.linalg.norm(target - position)
    assert ahead[1] > 0.3, "y is down"
    offset = points - position
    depth = offset @ ahead
    radius = np.linalg.norm(offset - depth[:, None] * ahead, axis=1)
    assert ((depth > 0) & (radius < 1.5 * depth)).mean() > 0.9


def test_the_last_opening_view_is_chosen_when_all_frames_are_in(viewer: Viewer) -> None:
    for index in range(16):
        viewer.add(room_result(index, size=(84, 63)))
    viewer.finish()  # while most of them wait
    assert viewer.flush()
    with client_of(viewer) as client:
        chosen = client.camera["position"]
        viewer.state.cameras.update(reframe=True)
        client.sync()
        np.testing.assert_allclose(client.camera["position"], chosen, atol=1e-9)


@pytest.mark.slow
def test_a_page_that_loses_its_first_view_gets_it_again_and_is_left_alone_once_it_was_moved(viewer: Viewer) -> None:
    show_results(viewer, (room_result(i, size=(42, 42)) for i in range(20)))
    with client_of(viewer) as client:
        wanted = client.camera["position"]
        client.camera.clear()
        client.report([3.0, 3.0, 3.0])  # the page's own first camera, as if nothing had arrived
        client.wait_for(lambda: "position" in client.camera)
        client.wait_for(lambda: np.allclose(client.camera["position"], wanted))
        client.report(wanted)
        client.camera.clear()
        time.sleep(2.5 * RESEND_S)
        assert not client.camera, "the view has arrived"
        client.report([1.0, 1.0, 1.0])
        viewer.finish()
        client.sync()
        time.sleep(0.2)
        assert not client.camera, "a user has moved it"
        client.click("Show all")
        client.wait_for(lambda: "position" in client.camera)


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
        np.testing.assert_allclose(client.points("/points/0/0"), before["/points/0/0"])
        for name in ("/points/0/64", "/points/80/128"):
            expected = change.apply(before[name])
            np.testing.assert_allclose(client.points(name), expected, atol=0.02)
        name = next(n for n in client.names("/cameras/") if n[9:].isdecimal() and int(n[9:]) >= 64)
        frustum, ordinal = client.nodes[name], int(name[9:])
    np.testing.assert_allclose(frustum["position"], change.apply(walk_pose(ordinal / 10)[:3, 3]), atol=1e-6)
    width, height = room_result(0).transform.source_size
    assert frustum["fov"] == pytest.approx(2 * np.arctan(height / 2 / wide.fy), abs=1e-9)
    assert frustum["aspect"] == pytest.approx(width / height)


@pytest.mark.slow
def test_a_frame_revised_alone_is_sent_again_and_the_rest_of_its_chunk_stays(viewer: Viewer) -> None:
    show_results(viewer, (room_result(i) for i in range(130)))
    with client_of(viewer) as client:
        before, sent = viewer.state.store.world_points(), dict(client.sent)
        viewer.revise(Revision((FrameRevision(70, walk_pose(20.0)),)))
        client.sync()
        shown, after = client.cloud(), viewer.state.store.world_points()
        again = {name: client.sent[name] - sent[name] for name in client.names("/points/")}
    still = before.frame != 70
    assert len(shown) == len(before)
    np.testing.assert_allclose(after.xyz[still], before.xyz[still], atol=1e-5)
    assert np.linalg.norm(after.xyz[~still] - before.xyz[~still], axis=1).min() > 0.05
    assert again == {f"/points/{step}/{first}": int(first == 64) for step in STEPS for first in (0, 64, 128)}


def test_sizes_and_the_opening_view_follow_a_change_of_scale(viewer: Viewer) -> None:
    show_results(viewer, (room_result(i) for i in range(10)))
    viewer.finish()
    assert viewer.flush()
    with client_of(viewer) as client:
        size, eye = client.nodes["/cameras/current"]["scale"], client.camera["position"]
        change = Similarity(3.0, np.eye(3), np.array([5.0, 0, 0]))
        viewer.revise(Revision(tuple(similar(i, walk_pose(i / 10), change) for i in range(10))))
        client.sync()
        assert client.nodes["/cameras/current"]["scale"] == pytest.approx(3 * size)
    with client_of(viewer) as client:
        np.testing.assert_allclose(client.camera["position"], change.apply(eye), atol=1e-4)


def test_a_finished_chunk_is_not_sent_again_while_the_video_goes_on(viewer: Viewer) -> None:
    show_results(viewer, (room_result(i, size=(28, 21)) for i in range(70)))
    with client_of(viewer) as client:
        sent = client.sent["/points/0/0"]
        show_results(viewer, (room_result(i, size=(28, 21)) for i in range(70, 100)))
        client.sync()
        assert client.sent["/points/0/0"] == sent
        assert client.sent["/points/0/64"] >= 2


@pytest.mark.slow
def test_the_panel_changes_what_its_own_page_shows(viewer: Viewer) -> None:
    show_results(viewer, (room_result(i) for i in range(20)))
    with client_of(viewer) as client, client_of(viewer) as other:
        assert client.visible("/surface/") and not client.visible("/points/")
        client.set("Show", "Points")
        assert not client.visible("/surface/")
        counts = [len(client.visible_cloud())]
        for hidden in (80, 0):
            client.set("Hide unsure (%)", hidden)
            counts.append(len(client.visible_cloud()))
        initially, few, everything = counts
        assert few < initially < everything == viewer.state.store.total
        assert f"{everything:,} points" in client.counts
        client.set("Frame", 3)
        client.set("Only up to here", True)
        assert 0 < len(client.visible_cloud()) < everything
        np.testing.assert_allclose(client.own["/selected"]["position"], walk_pose(0.3)[:3, 3])
        for last in (0, 7, 0, 12):
            client.set("Frame", last)
            frames = np.isin(viewer.state.store.world_points().frame, range(last + 1))
            assert len(client.visible_cloud()) == frames.sum() > 0
        client.set("Show", "Both")
        assert set(client.visible("/surface/")) < set(other.visible("/surface/"))
        client.set("Only up to here", False)
        assert len(client.visible_cloud()) == everything
        voxel_size = other.nodes["/points/0/0"]["point_size"]
        client.set("Point size", 2.0)
        assert client.nodes["/points/0/0"]["point_size"] == pytest.approx(2 * voxel_size)
        client.set("Cameras", False)
        assert not client.visible("/cameras/")
        client.set("Path", False)
        assert not client.visible("/path")
        # Nothing of this is seen on the other page.
        other.sync()
        assert not other.visible("/points/") and other.visible("/surface/") and other.visible("/cameras/")
        assert other.nodes["/points/0/0"]["point_size"] == voxel_size and other.visible("/path")
        assert other.control("Show")["value"] == "Surface"


def test_surfaces_move_with_a_revision_and_their_textures_are_sent_once(viewer: Viewer) -> None:
    show_results(viewer, (room_result(i, size=(56, 42), keyframe=i % 10 == 0) for i in range(40)))
    with client_of(viewer) as client:
        names = client.names("/surface/")
        assert len(names) >= 2 and all(client.sent[name] == 1 for name in names)
        change = Similarity(2.0, walk_pose(0.7)[:3, :3], np.array([1.0, 0.5, -2.0]))
        viewer.revise(Revision(tuple(similar(i, walk_pose(i / 10), change) for i in range(40))))
        client.sync()
        for name in names:
            ordinal = int(name.split("/")[-1])
            np.testing.assert_allclose(
                client.nodes[name]["position"], change.apply(walk_pose(ordinal / 10)[:3, 3]), atol=1e-6
            )
            np.testing.assert_allclose(client.nodes[name]["scale"], 2.0)
            assert client.sent[name] == 1
    with client_of(viewer) as late:
        assert late.names("/surface/") == names


def test_points_stand_in_where_limits_have_removed_surfaces(viewer: Viewer) -> None:
    viewer.state.surfaces.limits = SurfaceLimits(surfaces=2)
    show_results(viewer, (room_result(2 * i, size=(28, 21)) for i in range(140)))
    with client_of(viewer) as client:
        assert len(client.visible("/surface/")) == 2
        assert {name.split("/")[3] for name in client.visible("/points/")} == {"0", "64", "128"}
        viewer.state.surfaces.dropped -= set(range(64, 128))
        client.sync()
        assert {name.split("/")[3] for name in client.visible("/points/")} == {"0", "128"}
        client.set("Show", "Both")
        assert {name.split("/")[3] for name in client.visible("/points/")} == {"0", "64", "128"}


def test_a_mesh_replaces_the_surfaces(viewer: Viewer, tmp_path: Path) -> None:
    show_results(viewer, (room_result(i) for i in range(10)))
    assert viewer.flush()
    axes = np.diag([1.0, -1, -1])
    whole = [moved(part, axes.T, np.zeros(3)) for part in viewer.state.content.surfaces()]
    (tmp_path / "mesh.glb").write_bytes(glb(whole))
    count = sum(len(part.faces) for part in whole if part.faces is not None)
    with client_of(viewer) as client:
        viewer.show_mesh(tmp_path / "none.glb", np.eye(3))
        client.sync()
        assert "/surface/mesh" not in client.nodes
        viewer.show_mesh(tmp_path / "mesh.glb", np.diag([1.0, -1, -1]))
        client.sync()
        assert client.names("/surface/") == ["/surface/mesh"]
        cameras = client.names("/cameras/")
        assert cameras and "/cameras/current" not in cameras, "no picture stands before the whole subject"
        assert all(client.nodes[name]["_image_data"] is None for name in cameras)
        np.testing.assert_allclose(np.abs(client.nodes["/surface/mesh"]["wxyz"]), [0, 1, 0, 0], atol=1e-9)
        client.wait_for(lambda: f"mesh of {count:,} triangles" in client.counts)
        assert not client.visible("/points/")
        show_results(viewer, [room_result(10)])
        client.sync()
        assert client.names("/surface/") == ["/surface/mesh"] and not viewer.state.surfaces.surfaces
    assert viewer.shows_mesh


def test_the_verdict_and_the_name_are_shown(viewer: Viewer) -> None:
    viewer.name("kitchen <1>")
    viewer.show_verdict("doubtful", "3 of 4 frames & more")
    with client_of(viewer) as client:
        html = client.verdict
        assert "doubtful" in html and "3 of 4 frames &amp; more" in html
    with urllib.request.urlopen(viewer.url) as answer:
        text = answer.read(200_000).decode(errors="ignore")
    assert "<title>kitchen &lt;1&gt;</title>" in text and text.count("<title>") == 1


def test_sparse_points_and_loops_are_shown_on_request_and_follow_the_frames(viewer: Viewer) -> None:
    def lines() -> np.ndarray:
        return np.asarray(client.nodes["/map/loops"]["points"].reshape(-1, 2, 3))

    show_results(viewer, (room_result(i) for i in range(20)))
    points = np.random.default_rng(0).normal(size=(500, 3))
    with client_of(viewer) as client:
        assert not client.control("Corrections")["visible"]
        viewer.show_map(points, np.array([[0, 15], [2, 17], [3, 999]]))
        client.sync()
        assert client.control("Corrections")["visible"] and client.control("Loops")["visible"]
        assert not client.control("Compare with before")["visible"]
        assert not client.names("/map/"), "until asked for"
        client.set("Matched points", True)
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


@pytest.mark.slow
def test_the_causal_cloud_is_shown_to_the_left_of_the_revised_one(viewer: Viewer) -> None:
    show_results(viewer, (room_result(i) for i in range(130)))
    with client_of(viewer) as client:
        causal = client.cloud()
        change = Similarity(1.0, walk_pose(0.7)[:3, :3], np.array([0.3, 0.1, 0.0]))
        viewer.revise(Revision(tuple(similar(i, walk_pose(i / 10), change) for i in range(60, 130))))
        client.sync()
        assert client.control("Compare with before")["visible"] and not client.names("/before/")
        client.set("Compare with before", True)
        shown, revised = client.cloud("/before/points/"), client.cloud()
        assert client.names("/before/trajectory") and len(client.names("/before/before")) == 1
        client.set("Compare with before", False)
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
        client.set("Hide unsure (%)", 0)
        assert f"{viewer.skipped:,} without points" in client.counts
        # The keyframes are one frame repeated, so all of its points are there.
        seen = set(viewer.state.store.world_points().frame.tolist())
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
        client.wait_for(lambda: client.status.startswith("12 frames at 5 a second"))
        client.set("Show", "Both")
        client.set("Hide unsure (%)", 0)
        assert f"{viewer.state.scene.shown:,} points" in client.counts


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
        client.wait_for(lambda: client.status == FAILED_STATUS.replace("**", ""))
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
        assert client.status == FAILED_STATUS.replace("**", "")
        client.use("Points (PLY)", True)
        client.wait_for(lambda: client.notes == ["No file: The viewer has failed; the cloud is in the result folder."])
