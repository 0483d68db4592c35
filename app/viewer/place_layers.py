"""Layers of a place that several videos or pictures show: located pictures, sources in their colours, and changes.

They are the same for all pages; each page chooses what it shows of them with its own switches.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.types import Intrinsics
from stream_recon.app.viewer.nodes import Frustum, LineNode, Node, path_segments, wxyz
from stream_recon.app.viewer.timeline import TimelineView

QUERY = (170, 90, 255)
"""Colour of located pictures."""
SOURCES = (
    (86, 156, 255),
    (255, 150, 50),
    (80, 210, 120),
    (235, 90, 160),
    (240, 215, 70),
    (90, 215, 225),
    (190, 140, 255),
)
"""Colours of sources, repeated where there are more."""
MAX_QUERIES = 200
"""Pictures shown at once; of more, the oldest ones go."""
POINT_SIZE = 0.006
"""Size of a point, as a share of the typical depth."""
QUERY_SIZE = 0.06
"""Depth of a picture's frustum, as a share of the typical depth."""
SHADE = 0.35
"""Brightness that a source's colour keeps where the picture is black."""


@dataclass(frozen=True)
class LayerChoice:
    """What one page shows of these layers."""

    queries: bool = True
    added: bool = True
    gone: bool = True
    by_source: bool = False
    """Points in the colours of their sources, in place of surfaces and points."""
    off: frozenset[int] = frozenset()
    """Sources that are hidden."""


ALL_LAYERS = LayerChoice()


@dataclass(frozen=True)
class SourceLayer:
    """Frames of one source of a merged result."""

    name: str
    frames: range
    """Ordinals of its frames."""
    path: NDArray[np.float32]  # [N, 3]
    points: NDArray[np.float32]  # [M, 3], in the world
    rgb: NDArray[np.uint8]  # [M, 3]


class PlaceLayers:
    """Nodes of these layers. Used from the viewer's thread."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self.sources: list[SourceLayer] = []
        self.kinds: set[str] = set()
        """Those of ``queries``, ``added`` and ``gone`` that there are."""
        self._queries: dict[int, Frustum] = {}
        self._count = 0

    def add_query(
        self, image: NDArray[np.uint8], camera: Intrinsics, T_world_camera: NDArray[np.float64], typical_depth: float
    ) -> None:
        """Show a picture where it was taken. ``image``: [h, w, 3], small; ``camera``: in pixels of the picture."""
        number, self._count = self._count, self._count + 1
        view = TimelineView(number, image, (2 * camera.cx, 2 * camera.cy))
        frustum = self._queries[number] = Frustum(self._server, f"/queries/{number}", QUERY, emphasis=True)
        quaternion = wxyz(T_world_camera[None, :3, :3])[0]
        frustum.show(view, camera, T_world_camera, quaternion, QUERY_SIZE * typical_depth)
        self.kinds.add("queries")
        for old in [old for old in self._queries if old <= number - MAX_QUERIES]:
            self._queries.pop(old).remove()

    def show_change(
        self, kind: str, points: NDArray[np.float32], colour: tuple[int, int, int], typical_depth: float
    ) -> None:
        """Show points [N, 3] of a kind of change: ``added`` or ``gone``."""
        if len(points):
            self._points(f"/changes/{kind}", points, colour, 2 * POINT_SIZE * typical_depth)
            self.kinds.add(kind)

    def show_sources(self, sources: Iterable[SourceLayer], typical_depth: float) -> None:
        """Show the sources of a merged result."""
        self.sources = list(sources)
        for number, source in enumerate(self.sources):
            colour = np.array(SOURCES[number % len(SOURCES)])
            bright = source.rgb.mean(axis=1, keepdims=True) / 255
            shaded = (colour * (SHADE + (1 - SHADE) * bright)).astype(np.uint8)
            if len(source.points):
                self._points(f"/sources/points/{number}", source.points, shaded, POINT_SIZE * typical_depth)
            if len(source.path) > 1:
                path = LineNode(self._server, f"/sources/path/{number}")
                path.sync(path_segments(source.path), tuple(colour.tolist()), thickness=4.0)

    def _points(self, name: str, points: NDArray[np.float32], colours: Any, size: float) -> None:
        Node(self._server, name).handle = self._server.scene.add_point_cloud(
            name, points, colours, point_size=size, point_shape="circle", precision="float32"
        )

    def hidden(self, choice: LayerChoice, nodes: Iterable[str]) -> set[str]:
        """Names of the nodes that a page hides; ``nodes``: those of points, surfaces and cameras of the scene."""
        shown = {"queries": choice.queries, "changes/added": choice.added, "changes/gone": choice.gone}
        hidden = {f"/{name}" for name, is_shown in shown.items() if not is_shown and name.split("/")[-1] in self.kinds}
        if not self.sources:
            return hidden
        if choice.by_source:
            hidden |= {"/points", "/surface"}
        else:
            hidden |= {"/sources/points"}
        off = [self.sources[number] for number in choice.off if number < len(self.sources)]
        hidden |= {f"/sources/{part}/{number}" for part in ("points", "path") for number in choice.off}
        if off:
            hidden |= {name for name in nodes if any(_ordinal(name) in source.frames for source in off)}
        return hidden


def _ordinal(name: str) -> int:
    last = name.rsplit("/", 1)[-1]
    return int(last) if last.isdecimal() else -1


class LayerSwitches:
    """Switches of one page; a layer gets one when it exists."""

    def __init__(self, gui: Any, changed: Callable[[], None]) -> None:
        self._gui, self._changed = gui, changed
        self._folder: Any = None
        self._kinds: dict[str, Any] = {}
        self._sources: list[Any] = []
        self._by_source: Any = None

    def offer(self, layers: PlaceLayers) -> None:
        """Add switches of layers that are new."""
        labels = {"queries": "Located pictures", "added": "New since then", "gone": "No longer there"}
        for kind, label in labels.items():
            if kind in layers.kinds and kind not in self._kinds:
                self._kinds[kind] = self._switch(label, True)
        if layers.sources and self._by_source is None:
            self._by_source = self._switch("Colours of the sources", False)
        for source in layers.sources[len(self._sources) :]:
            self._sources.append(self._switch(source.name, True))

    def _switch(self, label: str, on: bool) -> Any:
        if self._folder is None:
            self._folder = self._gui.add_folder("Place", order=5.5)
        with self._folder:
            switch = self._gui.add_checkbox(label, on)
        switch.on_update(lambda _: self._changed())
        return switch

    def choice(self) -> LayerChoice:
        """The values of the switches."""
        kinds = {kind: bool(switch.value) for kind, switch in self._kinds.items()}
        off = frozenset(number for number, switch in enumerate(self._sources) if not switch.value)
        return LayerChoice(**kinds, by_source=bool(self._by_source and self._by_source.value), off=off)
