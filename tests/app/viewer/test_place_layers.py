"""Layers of a place: what a page hides by its switches, and how many pictures stay."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from stream_recon.app.core.types import Intrinsics
from stream_recon.app.viewer.nodes import MapLayer, MapLayerNodes
from stream_recon.app.viewer.place_layers import MAX_QUERIES, SOURCES, LayerChoice, PlaceLayers, SourceLayer

CAMERA = Intrinsics(300.0, 300.0, 160.0, 120.0)
NODES = [f"/{kind}/{k}" for kind in ("points/40", "surface", "cameras") for k in (0, 5, 10, 15)] + ["/surface/mesh"]


class Handle:
    def __init__(self, nodes: dict[str, Any], name: str) -> None:
        self._nodes, self._name = nodes, name

    def remove(self) -> None:
        del self._nodes[self._name]


class Scene:
    """Nodes by name, with the arguments that made them."""

    def __init__(self) -> None:
        self.nodes: dict[str, Any] = {}

    def _add(self, name: str, *arguments: Any, **options: Any) -> Handle:
        self.nodes[name] = arguments, options
        return Handle(self.nodes, name)

    add_camera_frustum = add_point_cloud = add_line_segments = _add


class Server:
    def __init__(self) -> None:
        self.scene = Scene()


@pytest.fixture
def server() -> Server:
    return Server()


def source(name: str, frames: range) -> SourceLayer:
    path = np.array([[k, 0, 0] for k in frames], np.float32)
    return SourceLayer(name, frames, path, path + 1, np.full((len(path), 3), 255, np.uint8))


def test_nothing_is_hidden_where_there_is_nothing(server: Server) -> None:
    layers = PlaceLayers(server)
    assert not layers.hidden(LayerChoice(), NODES)
    assert not layers.hidden(LayerChoice(queries=False, added=False, gone=False), NODES)


def test_sources_have_their_colours_and_can_be_hidden(server: Server) -> None:
    layers = PlaceLayers(server)
    layers.show_sources([source("one", range(10)), source("two", range(10, 20))], 2.0)
    colours = [server.scene.nodes[f"/sources/points/{k}"][0][1][0] for k in (0, 1)]
    assert [tuple(colour.tolist()) for colour in colours] == list(SOURCES[:2])
    assert layers.hidden(LayerChoice(), NODES) == {"/sources/points"}
    assert layers.hidden(LayerChoice(by_source=True), NODES) == {"/points", "/surface"}
    hidden = layers.hidden(LayerChoice(off=frozenset({1})), NODES)
    assert {name for name in NODES if name in hidden} == {
        f"/{kind}/{k}" for kind in ("points/40", "surface", "cameras") for k in (10, 15)
    }
    assert {"/sources/points/1", "/sources/path/1"} <= hidden


def test_changes_are_shown_until_they_are_switched_off(server: Server) -> None:
    layers = PlaceLayers(server)
    layers.show_change("added", np.zeros((3, 3), np.float32), (0, 255, 0), 1.0)
    layers.show_change("gone", np.zeros((0, 3), np.float32), (255, 0, 0), 1.0)
    assert set(server.scene.nodes) == {"/changes/added"}
    assert layers.hidden(LayerChoice(added=False, gone=False), NODES) == {"/changes/added"}


def test_the_oldest_pictures_go(server: Server) -> None:
    layers = PlaceLayers(server)
    for _ in range(MAX_QUERIES + 3):
        layers.add_query(np.zeros((24, 32, 3), np.uint8), CAMERA, np.eye(4), 1.0)
    assert len(server.scene.nodes) == MAX_QUERIES
    assert f"/queries/{MAX_QUERIES + 2}" in server.scene.nodes and "/queries/2" not in server.scene.nodes
    assert layers.hidden(LayerChoice(queries=False), NODES) == {"/queries"}


def test_the_map_is_shown_where_it_is_switched_on(server: Server) -> None:
    timeline: Any = SimpleNamespace(segments=lambda edges: np.ones((len(edges), 2, 3), np.float32))
    shown = MapLayer(np.ones((4, 3), np.float32), np.array([[0, 5]]))
    nodes, before = MapLayerNodes(server), set(server.scene.nodes)
    for points, loops in ((True, False), (False, True), (True, True), (False, False)):
        nodes.sync(shown, timeline, points, loops, typical_depth=1.0)
        expected = {name for name, on in (("/map/points", points), ("/map/loops", loops)) if on}
        assert set(server.scene.nodes) - before == expected
