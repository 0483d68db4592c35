"""The viewer's controls: a shared head with the status, and controls of its own for each page."""

import html
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from stream_recon.app.viewer.document import PICTURE_LABEL, markup
from stream_recon.app.viewer.place_layers import ALL_LAYERS, LayerChoice, LayerSwitches
from stream_recon.app.viewer.points import ALL_POINTS, PointOptions
from stream_recon.app.viewer.timeline import Timeline, TimelineView

Show = Literal["Surface", "Points", "Both", "Splats"]
WAITING = "Waiting for the first frames"
"""Status before the run has another one."""
VERDICT_COLOURS = {"good": "#2f9e44", "unsure": "#868e96", "doubtful": "#e8890c", "failed": "#e03131"}
OTHER_COLOUR = "#868e96"
HIDDEN: dict[Show, int] = {"Surface": 0, "Points": 40, "Both": 0, "Splats": 0}
"""Percentages of each frame's pixels, the least sure, that a page hides at first."""


@dataclass(frozen=True)
class PageOptions:
    """Choices of one page."""

    show: Show = "Surface"
    points: PointOptions = ALL_POINTS
    selected: int | None = None
    """Ordinal of the frame chosen with the slider."""
    cameras: bool = True
    path: bool = True
    matches: bool = False
    """Triangulated points of the map."""
    loops: bool = False
    comparison: bool = False
    """The causal cloud next to the revised one."""
    layers: LayerChoice = ALL_LAYERS

    @property
    def shows_points(self) -> bool:
        return self.show in ("Points", "Both") or self.comparison

    @property
    def shows_surfaces(self) -> bool:
        return self.show in ("Surface", "Both") and not self.comparison

    @property
    def shows_splats(self) -> bool:
        return self.show == "Splats" and not self.comparison


@dataclass(frozen=True)
class PanelEvents:
    """Callbacks of the panels, called in a thread of the server with the client that asks."""

    changed: Callable[[], None]
    """A user changed a control."""
    save: Callable[[str, Any], None]
    """A client asks for a download, by its kind."""
    show_all: Callable[[Any], None]
    """A client asks for the opening view."""
    request: Callable[[Callable[[], None]], None]
    """Runs something in the viewer's thread."""
    saves: Mapping[str, str]
    """Labels of the download buttons, by kind."""


class SharedPanel:
    """Head of all pages: status, verdict, and the pause of the run, which all pages share."""

    def __init__(self, server: Any, changed: Callable[[], None]) -> None:
        self.paused = False
        self._paused_by: int | None = None
        self._changed = changed
        self._text = ""
        self._status = server.gui.add_html("", order=0)
        self._caption = server.gui.add_html("", order=99)
        self._verdict = server.gui.add_html("", order=1, visible=False)
        self._pause = server.gui.add_button("Pause", hint="Hold the video; what was reconstructed stays", order=3)
        self._pause.on_click(self._toggle_pause)
        server.on_client_disconnect(lambda client: self.client_gone(client.client_id))

    def show_status(self, text: str) -> None:
        if self._text != text:
            self._text = text
            self._status.content = _paragraph(text)
            plain = html.escape(text.replace("**", "").replace("\n", " "))
            self._caption.content = f'<span hidden data-stream-recon-status="{plain}"></span>'

    def show_verdict(self, level: str, text: str) -> None:
        """A coloured line; ``level``: one of `LEVELS`."""
        colour = VERDICT_COLOURS.get(level, OTHER_COLOUR)
        attributes = f'data-stream-recon-verdict="{html.escape(f"{level}: {text}")}" data-colour="{colour}"'
        style = f"border-left: 4px solid {colour}; padding: 2px 8px; margin: 0 12px 8px; font-size: 0.875em"
        self._verdict.content = (
            f'<div {attributes} style="{style}">'
            f'<b style="color: {colour}">{html.escape(level)}</b> {html.escape(text)}</div>'
        )
        self._verdict.visible = True

    def end_stream(self) -> None:
        """Remove the pause at the end of the video."""
        self.paused = False
        self._pause.visible = False

    def client_gone(self, client_id: int) -> None:
        """End a pause that a disconnected client requested."""
        if self.paused and self._paused_by == client_id:
            self._pause_for(None)

    def _toggle_pause(self, event: Any) -> None:
        self._pause_for(None if self.paused else event.client_id)

    def _pause_for(self, client_id: int | None) -> None:
        self.paused, self._paused_by = client_id is not None, client_id
        self._pause.label = "Resume" if self.paused else "Pause"
        self._changed()


class PagePanel:
    """Controls of one page. They change what this page shows, and nothing for others.

    Attributes: controls of viser, whose values users and tests set.
    """

    def __init__(self, client: Any, events: PanelEvents) -> None:
        self._client = client
        self._hides = dict(HIDDEN)
        self._shown: Show = "Surface"
        self._events = events
        self._scrubbed = False
        self._pictured: TimelineView | None = None
        gui = client.gui
        self._counts = gui.add_html("", order=2)
        self.show = gui.add_dropdown("Show", ("Surface", "Points", "Both"), initial_value="Surface", order=4)
        self._add_view(gui)
        self._add_frames(gui)
        self._add_comparison(gui)
        self._add_saves(gui)
        self.layers = LayerSwitches(gui, events.changed)
        self.frame.on_update(self._scrub)
        self.show.on_update(lambda _: self._recall_hidden())
        self._light.on_update(lambda _: self._set_theme())
        for control in (
            self.show,
            self.follow_camera,
            self.hidden,
            self._point_size,
            self.cameras,
            self.path,
            self.view_from_here,
            self._until_here,
            self._matches,
            self._loops,
            self._comparison,
        ):
            control.on_update(lambda _: events.changed())

    def _add_view(self, gui: Any) -> None:
        with gui.add_folder("View", order=5):
            gui.add_button("Show all", hint="Back to the view from behind and above").on_click(
                lambda event: self._events.show_all(event.client)
            )
            self.follow_camera = gui.add_checkbox("Follow camera", False, hint="Move the view along with the camera")
            hint = "This percentage of each frame's pixels is hidden, the least sure first"
            self.hidden = gui.add_slider("Hide unsure (%)", 0, 95, 1, HIDDEN["Surface"], hint=hint)
            self._point_size = gui.add_slider("Point size", 0.2, 4.0, 0.1, 1.0, hint="In voxels of the cloud")
            self.cameras = gui.add_checkbox("Cameras", True, hint="Where keyframes were taken, and what they see")
            self.path = gui.add_checkbox("Path", True, hint="The line that the camera moved along")
            self._light = gui.add_checkbox("Light background", False)

    def _add_frames(self, gui: Any) -> None:
        self._frame_folder = gui.add_folder("Frames", visible=False, expand_by_default=False, order=6)
        with self._frame_folder:
            self.frame = gui.add_slider("Frame", 0, 1, 1, 0, hint="Choose a frame of the video so far")
            self._picture = gui.add_image(np.zeros((96, 128, 3), np.uint8), format="jpeg", jpeg_quality=85)
            self.view_from_here = gui.add_checkbox("View from here", False)
            self._until_here = gui.add_checkbox("Only up to here", False, hint="Hide what later frames have added")

    def _add_comparison(self, gui: Any) -> None:
        self._map_folder = gui.add_folder("Corrections", visible=False, expand_by_default=False, order=7)
        with self._map_folder:
            self._matches = gui.add_checkbox(
                "Matched points", False, hint="Points seen in several frames, by which the cameras were corrected"
            )
            self._loops = gui.add_checkbox("Loops", False, hint="Lines between frames that show the same place again")
            self._comparison = gui.add_checkbox(
                "Compare with before",
                False,
                hint="The points before corrections, to the left of the corrected ones; 'Show all' shows both",
            )

    def _add_saves(self, gui: Any) -> None:
        self._saves: dict[str, Any] = {}
        with gui.add_folder("Save", expand_by_default=False, order=8):
            gui.add_button(PICTURE_LABEL, hint="A PNG file of what this page shows")
            for kind, label in self._events.saves.items():
                self._saves[kind] = gui.add_button(label)
                self._saves[kind].on_click(lambda event, kind=kind: self._events.save(kind, event.client))

    @property
    def follow(self) -> bool:
        return bool(self.follow_camera.value)

    @property
    def from_here(self) -> int | None:
        """Ordinal of the frame to look from, if asked for."""
        return int(self.frame.value) if self.view_from_here.value else None

    def options(self) -> PageOptions:
        """The values of the controls."""
        frame = int(self.frame.value)
        picked = self._scrubbed or self._until_here.value or self.view_from_here.value
        return PageOptions(
            self.show.value,
            PointOptions(
                min_rank=int(self.hidden.value),
                size=float(self._point_size.value),
                last_frame=frame if self._until_here.value else None,
            ),
            selected=frame if picked and not self.view_from_here.value else None,
            # Seen from inside a camera, the thumbnails of its neighbours would hide the scene.
            cameras=bool(self.cameras.value and not self.view_from_here.value),
            path=bool(self.path.value),
            matches=bool(self._matches.value),
            loops=bool(self._loops.value),
            comparison=bool(self._comparison.value),
            layers=self.layers.choice(),
        )

    def offer_map(self, has_map: bool, revised: bool) -> None:
        """Show the switches of layers that exist."""
        for switches, exists in (((self._matches, self._loops), has_map), ((self._comparison,), revised)):
            for switch in switches:
                if switch.visible != exists:
                    switch.visible = exists
        if self._map_folder.visible != (has_map or revised):
            self._map_folder.visible = has_map or revised

    def offer_splats(self, exist: bool) -> bool:
        """Let the page show splats once they exist; True where it begins to show them."""
        is_new = exist and "Splats" not in self.show.options
        if is_new:
            self.show.options = (*self.show.options, "Splats")
            self.show.value = "Splats"
        return is_new

    def start_following(self) -> None:
        """Move the view along with the camera, until a user changes that."""
        self.follow_camera.value = True

    def release_view(self) -> None:
        """Stop moving the view with a camera."""
        self.follow_camera.value = self.view_from_here.value = False

    def allow_hiding(self, possible: bool) -> None:
        """Whether the page shows something of which the unsure part can be hidden."""
        if self.hidden.disabled == possible:
            self.hidden.disabled = not possible

    def _recall_hidden(self) -> None:
        """Set the slider to its last value for what is shown."""
        self._hides[self._shown] = int(self.hidden.value)
        self._shown = self.show.value
        self.hidden.value = self._hides[self._shown]

    def show_counts(self, text: str, mesh: str = "") -> None:
        """Show what the page has; ``mesh``: name of a mesh that it draws later than a rough shape."""
        content = _paragraph(text, f'data-stream-recon-mesh="{mesh}"' if mesh else "")
        if self._counts.content != content:
            self._counts.content = content

    def show_frames(self, timeline: Timeline) -> None:
        """Extend the slider to the newest frame, and show the chosen frame's thumbnail."""
        if len(timeline) < 2 or not timeline.views:
            return
        if self.frame.max != len(timeline) - 1:
            self.frame.max = len(timeline) - 1
        if not (self._scrubbed or self._until_here.value or self.view_from_here.value):
            self.frame.value = len(timeline) - 1
        view = timeline.nearest_view(int(self.frame.value))
        if view is not None and view is not self._pictured:
            self._picture.image = view.image
            self._pictured = view
        self._frame_folder.visible = True

    def label_saves(self, labels: Mapping[str, str]) -> None:
        """Label the download buttons with what they give."""
        for kind, label in labels.items():
            if self._saves[kind].label != label:
                self._saves[kind].label = label

    def _set_theme(self) -> None:
        with suppress(RuntimeError):  # the client has gone
            set_theme(self._client.gui, dark=not self._light.value)

    def _scrub(self, event: Any) -> None:
        # The program also moves the slider; only a user's change has a client.
        if event.client is not None:
            self._scrubbed = True
            self._events.changed()


def _paragraph(text: str, attributes: str = "") -> str:
    return f'<div {attributes} style="padding: 0 12px 8px; font-size: 0.875em; line-height: 1.4">{markup(text)}</div>'


def set_theme(gui: Any, *, dark: bool) -> None:
    """Set the colours of all pages, or of one page by its own ``gui``."""
    gui.configure_theme(dark_mode=dark, show_logo=False, show_share_button=False, brand_color=(82, 140, 255))
