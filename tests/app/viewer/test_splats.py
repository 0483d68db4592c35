"""Gaussian splats on the viewer's pages."""

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from stream_recon.app.viewer.viewer import Viewer, show_results
from stream_recon.configs.schema import PointsConfig
from tests.app.boxroom import room_result
from tests.app.core.test_splats import some_splats
from tests.app.viewer.clients import WebClient, client_of


@pytest.fixture
def viewer() -> Iterator[Viewer]:
    with Viewer(PointsConfig(confidence=0.0, voxel=0.05), port=0, point_budget=30_000) as running:
        show_results(running, (room_result(i, size=(42, 42)) for i in range(6)))
        yield running


def test_splats_are_what_a_page_shows_once_there_are_some(viewer: Viewer) -> None:
    with client_of(viewer) as client:
        assert "splats" not in client.counts
        viewer.show_splats(some_splats(40))
        assert viewer.flush()
        client.sync()
        client.wait_for(lambda: "40 of 40 splats" in client.counts)
        assert client.visible("/") and set(client.visible("/splats")) == {"/splats"}
        assert not client.visible("/surface") and not client.visible("/points")
        client.set("Show", "Surface")
        assert client.visible("/surface") and not client.visible("/splats")
    with client_of(viewer) as later:
        later.wait_for(lambda: "40 of 40 splats" in later.counts)
        assert later.visible("/splats") and not later.visible("/surface")


def test_a_page_sees_splats_from_a_camera_of_the_path_unless_its_user_has_moved(viewer: Viewer) -> None:
    path = np.array([room_result(i, size=(42, 42)).T_world_camera[:3, 3] for i in range(6)])

    def is_on_path(client: WebClient) -> bool:
        return bool((np.linalg.norm(path - client.camera["position"], axis=1) < 1e-6).any())

    with client_of(viewer) as watching, client_of(viewer) as moved:
        for client in (watching, moved):
            client.wait_for(lambda client=client: "position" in client.camera)
            assert not is_on_path(client)
            client.report(client.camera["position"])
        moved.report(moved.camera["position"] + 1.0)
        moved.sync()
        viewer.show_splats(some_splats(40))
        assert viewer.flush()
        watching.wait_for(lambda: is_on_path(watching))
        moved.wait_for(lambda: "40 of 40 splats" in moved.counts)
        assert not is_on_path(moved)
        watching.click("Show all")
        watching.wait_for(lambda: not is_on_path(watching))


def test_later_splats_take_the_place_of_earlier_ones(viewer: Viewer) -> None:
    with client_of(viewer) as client:
        for count in (40, 30):
            viewer.show_splats(some_splats(count), 25)
            assert viewer.flush()
        client.wait_for(lambda: "25 of 30 splats" in client.counts)
        assert client.nodes["/splats"]["buffer"].size * client.nodes["/splats"]["buffer"].itemsize == 25 * 32


def test_a_page_ends_a_training(viewer: Viewer) -> None:
    asked = threading.Event()
    viewer.offer_stop(asked.set)
    assert viewer.flush()
    with client_of(viewer) as client:
        client.use("Finish splats now", True)
        assert asked.wait(5)
    viewer.offer_stop(None)
    assert viewer.flush()
    with client_of(viewer) as later, pytest.raises(StopIteration):
        later.control("Finish splats now")
