import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from stream_recon.app.core.box import Box
from stream_recon.app.core.gltf import glb, read_glb
from stream_recon.app.core.ply import VERTEX
from stream_recon.app.viewer.content import SceneContent, moved
from stream_recon.app.viewer.viewer import Viewer, show_results
from stream_recon.configs.schema import PointsConfig
from tests.app.boxroom import HALF, room_result
from tests.app.viewer.clients import WebClient, client_of


@pytest.fixture
def viewer() -> Iterator[Viewer]:
    with Viewer(PointsConfig(confidence=0.0, voxel=0.04), port=0, point_budget=60_000) as viewer:
        show_results(viewer, (room_result(i, size=(84, 63), keyframe=i % 4 == 0) for i in range(24)))
        assert viewer.flush()
        yield viewer


def planes(client: WebClient) -> NDArray[np.float64]:
    return np.array(client.cut["planes"]).reshape(-1, 4)


def vertices(ply: bytes) -> NDArray[np.float64]:
    rows = np.frombuffer(ply[ply.index(b"end_header\n") + 11 :], VERTEX)
    return np.stack([rows[axis] for axis in "xyz"], axis=1).astype(np.float64)


def on_the_wall(origin: NDArray[np.float64], target: NDArray[np.float64]) -> NDArray[np.float64]:
    """Where the ray from ``origin`` to ``target`` meets the room's walls."""
    direction = target - origin + 1e-12
    return np.asarray(origin + direction * np.min((np.sign(direction) * HALF - origin) / direction))


def narrow(client: WebClient, label: str, low: float, high: float) -> None:
    """Set a border of the box to shares of its range."""
    slider = client.control(label)
    ends = [slider["min"] + share * (slider["max"] - slider["min"]) for share in (low, high)]
    client.set(label, ends)


@pytest.mark.slow
def test_distances_between_clicked_points_are_measured_and_can_be_taken_back(viewer: Viewer) -> None:
    camera = viewer.state.timeline.poses[0][:3, 3]
    with client_of(viewer) as client, client_of(viewer) as other:
        client.point_at(camera, camera + np.array([0.1, 0, 1]))
        assert not viewer.state.pages[0].tools.picks, "nothing is measured before it is asked for"
        client.set("Measure", True)
        assert "Click two points" in client.html
        ends = [camera + np.array([x, 0.05, 1.0]) for x in (-0.3, 0.3)]
        for end in ends:
            client.point_at(camera, end)
        (page,) = (page for page in viewer.state.pages.values() if page.tools.picks)
        first, second = (pick.point for pick in page.tools.picks)
        length = float(np.linalg.norm(second - first))
        known = np.linalg.norm(np.subtract(*(on_the_wall(camera, end) for end in ends)))
        assert abs(length - known) < 0.02 * known
        assert f"<b>{length:.2f}"[:6] in client.html and " units</b>" in client.html
        assert client.names("/tools/") == [] and any(n.startswith("/tools/lines") for n in client.own)
        viewer.set_unit("metre", 0.1)
        client.sync()
        error = np.sqrt(sum(pick.error**2 for pick in page.tools.picks) + (0.2 * length) ** 2)
        assert f"± {error:.2f} m" in client.html or f"± {error:.3f} m" in client.html
        client.set("Points", "Undo point")
        assert len(page.tools.picks) == 1 and "second point" in client.html
        client.set("Points", "Clear")
        assert not page.tools.picks and not any(n.startswith("/tools/lines") for n in client.own)
        assert "units" not in other.html and not other.own.keys() & {"/tools/lines"}
        client.point_at(camera, camera + np.array([0, 0, 1]))
        client.set("Measure", False)
        client.point_at(camera, camera + np.array([0, 0.1, 1]))
        assert len(page.tools.picks) == 1


def test_a_click_beside_everything_says_so(viewer: Viewer) -> None:
    with client_of(viewer) as client:
        client.set("Measure", True)
        client.point_at([0, 0, -100], [0, 0, -200])
        assert any("No surface there" in note for note in client.notes)


def test_a_box_hides_what_is_outside_on_its_own_page(viewer: Viewer) -> None:
    with client_of(viewer) as client, client_of(viewer) as other:
        assert not len(planes(client))
        client.set("Cut by a box", True)
        assert planes(client).shape == (6, 4) and not len(planes(other))
        everything = viewer.state.store.world_points().xyz
        shown = (everything @ planes(client)[:, :3].T + planes(client)[:, 3] >= 0).all(axis=1)
        assert shown.all(), "a box that nobody has narrowed cuts nothing"
        narrow(client, "Height", 0.0, 0.5)
        cut = planes(client)
        shown = (everything @ cut[:, :3].T + cut[:, 3] >= 0).all(axis=1)
        assert 0.1 < shown.mean() < 0.9
        assert "/tools/box" in client.own and "export --box=" in client.html
        client.set("Cut by a box", False)
        assert not len(planes(client)) and "/tools/box" not in client.own


def test_cuts_are_taken_back_one_by_one_and_all_at_once(viewer: Viewer) -> None:
    with client_of(viewer) as client:
        (page,) = viewer.state.pages.values()
        page.tools.settled_s = 0.0
        client.set("Cut by a box", True)
        states = [planes(client)]
        for label, low, high in (("Height", 0, 0.6), ("Across", 0.2, 1), ("Height", 0, 0.4)):
            narrow(client, label, low, high)
            states.append(planes(client))
        for state in reversed(states[1:-1]):
            client.set("Cuts", "Undo cut")
            np.testing.assert_allclose(planes(client), state, atol=1e-5)
        narrow(client, "Along", 0.3, 0.7)
        client.set("Turn (°)", 20.0)
        assert page.tools.box is not None and page.tools.box.turn_deg == 20
        client.set("Cuts", "Reset cut")
        np.testing.assert_allclose(planes(client), states[0], atol=1e-5)
        client.set("Cuts", "Subject")
        assert "No subject" in str(client.notes), "in a room the cameras look outward"
        np.testing.assert_allclose(planes(client), states[0], atol=1e-5)


def test_a_box_around_the_subject_is_a_cut_like_others(viewer: Viewer, monkeypatch: pytest.MonkeyPatch) -> None:
    with client_of(viewer) as client:
        (page,) = viewer.state.pages.values()
        client.set("Cut by a box", True)
        whole, extent = planes(client), page.tools.box
        assert extent is not None
        low, high = (tuple(np.multiply(0.3, side).tolist()) for side in (extent.low, extent.high))
        monkeypatch.setattr(SceneContent, "subject", lambda self, turn: Box(low, high, turn))
        client.set("Cuts", "Subject")
        box = page.tools.box
        np.testing.assert_allclose([box.low, box.high], [low, high], atol=0.05)
        client.set("Cuts", "Undo cut")
        np.testing.assert_allclose(planes(client), whole, atol=1e-5)


def test_downloads_hold_exactly_the_box(viewer: Viewer, tmp_path: Path) -> None:
    everything = viewer.state.store.world_points().xyz
    with client_of(viewer) as client:
        client.set("Cut by a box", True)
        narrow(client, "Height", 0.1, 0.6)
        narrow(client, "Across", 0.2, 0.9)
        cut = planes(client)
        inside = (everything @ cut[:, :3].T + cut[:, 3]).min(axis=1)
        client.click("Points in the box (PLY)")
        client.wait_for(lambda: bool(client.files) and client.files[-1][1] != b"")
        found = vertices(client.files[-1][1])
        assert (inside > 1e-5).sum() <= len(found) <= (inside > -1e-5).sum()
        assert (found @ cut[:, :3].T + cut[:, 3] > -1e-5).all()

        # The result's own files, once they are there.
        (tmp_path / "points.ply").write_bytes(_ply(viewer, everything))
        viewer.offer_cloud(tmp_path / "points.ply")
        axes, surfaces = viewer.state.content.axes(), viewer.state.content.surfaces()
        (tmp_path / "mesh.glb").write_bytes(glb([moved(part, axes, np.zeros(3)) for part in surfaces]))
        viewer.show_mesh(tmp_path / "mesh.glb", axes.T)
        client.sync()
        for label, name in (("Points in the box (PLY)", "points.ply"), ("Mesh in the box (GLB)", "mesh.glb")):
            count = len(client.files)
            client.click(label)
            client.wait_for(lambda count=count: len(client.files) > count and client.files[-1][1] != b"")
            assert client.files[-1][0] == name
            content = client.files[-1][1]
            is_ply = name.endswith("ply")
            xyz = vertices(content) if is_ply else np.concatenate([part.xyz for part in read_glb(content)]) @ axes
            assert len(xyz) and (xyz @ cut[:, :3].T + cut[:, 3] > -1e-5).all()
            if name.endswith("ply"):
                assert (inside > 1e-5).sum() <= len(xyz) <= (inside > -1e-5).sum()


def test_the_text_of_a_box_is_the_box(viewer: Viewer) -> None:
    with client_of(viewer) as client:
        client.set("Cut by a box", True)
        narrow(client, "Along", 0.25, 0.75)
        (page,) = viewer.state.pages.values()
        text = client.html.split("export --box=")[1].split("<")[0]
        np.testing.assert_allclose(Box.parse(text).planes(viewer.state.content.axes()), planes(client), atol=2e-3)
        assert page.tools.box is not None and page.tools.box.text == text


@pytest.mark.slow
def test_a_clipping_plane_and_a_plan_hide_what_is_above(viewer: Viewer) -> None:
    up = viewer.state.content.axes()[1]
    with client_of(viewer) as client:
        client.set("Clipping plane", "From above")
        (plane,) = planes(client)
        np.testing.assert_allclose(plane[:3], -up, atol=1e-6)
        client.set("Hidden (%)", 60)
        assert planes(client)[0, 3] < plane[3], "more is hidden"
        client.set("Clipping plane", "From this side")
        assert len(planes(client)) == 1
        client.set("Clipping plane", "Off")
        client.set("Floor plan", True)
        np.testing.assert_allclose(planes(client)[0, :3], -up, atol=1e-6)
        position, target = client.camera["position"], client.camera["look_at"]
        down = (target - position) / np.linalg.norm(target - position)
        np.testing.assert_allclose(down, -up, atol=1e-4)
        assert client.control("Perspective")["value"] is False
        client.click("Save floor plan (PNG)")
        client.wait_for(lambda: bool(client.files) and client.files[-1][1] != b"")
        assert client.files[-1][0] == "plan.png" and client.files[-1][1][:4] == b"\x89PNG"
        client.set("Floor plan", False)
        assert not len(planes(client)) and client.control("Perspective")["value"] is True


def test_surfaces_hide_the_percentage_that_the_slider_says(viewer: Viewer) -> None:
    with client_of(viewer) as client:
        assert client.cut["hide"] == 0
        client.set("Hide unsure (%)", 37)
        assert client.cut["hide"] == 37
        client.set("Show", "Points")
        assert client.cut["hide"] == 0 and client.control("Hide unsure (%)")["value"] == 40
        for hidden in (40, 7, 53, 0):
            client.set("Hide unsure (%)", hidden)
            ranks = viewer.state.store.world_points().rank
            assert len(client.visible_cloud()) == (ranks >= hidden).sum() > 0
        client.set("Show", "Surface")
        assert client.control("Hide unsure (%)")["value"] == 37 and client.cut["hide"] == 37


def _ply(viewer: Viewer, xyz: NDArray[np.float32]) -> bytes:
    from stream_recon.app.core import ply

    file = io.BytesIO()
    file.write(ply.header(len(xyz)) + ply.vertices_of(xyz, np.zeros((len(xyz), 3), np.uint8)).tobytes())
    return file.getvalue()
