"""Controls of one page's tools: measuring, cutting, clipping, floor plan, perspective and full screen."""

import html
import json
from collections.abc import Sequence
from typing import Any, Literal

from stream_recon.app.viewer.document import FULL_SCREEN_LABEL
from stream_recon.app.viewer.panel import PanelEvents

Clip = Literal["Off", "From above", "From this side"]
CLIPS: tuple[Clip, ...] = ("Off", "From above", "From this side")
AXES = ("Across", "Along", "Height")
"""Labels of the borders of the box, in the order x, z, y of its axes."""
AXIS_OF_LABEL = (0, 2, 1)
UNDO_POINT, CLEAR_POINTS = "Undo point", "Clear"
UNDO_CUT, RESET_CUT, SUBJECT = "Undo cut", "Reset cut", "Subject"
STEPS = 400
"""Steps of a border's slider."""
SMALL = 'style="font-size: 0.875em; padding: 0 12px 6px; overflow-wrap: anywhere"'


class ToolsPanel:
    """The folder of tools; its values are read by `PageTools`."""

    def __init__(self, gui: Any, events: PanelEvents) -> None:
        self._shown: dict[int, str] = {}
        self._hint = ""
        """What a page with a folded panel says."""
        with gui.add_folder("Tools", expand_by_default=False, order=7.5):
            self.measure = gui.add_checkbox("Measure", False, hint="Click two points of the surface")
            self._distances = gui.add_html("", visible=False)
            self.points = gui.add_button_group("Points", (UNDO_POINT, CLEAR_POINTS), visible=False)
            hint = "Hide what is outside a box; points and meshes that this page saves are cut likewise"
            self.cut = gui.add_checkbox("Cut by a box", False, hint=hint)
            self.borders = [gui.add_multi_slider(label, -1.0, 1.0, 0.01, (-1.0, 1.0), visible=False) for label in AXES]
            self.turn = gui.add_slider("Turn (°)", -45.0, 45.0, 0.5, 0.0, visible=False)
            hint = "Subject: the box is set around what the cameras look at"
            self.cuts = gui.add_button_group("Cuts", (UNDO_CUT, RESET_CUT, SUBJECT), visible=False, hint=hint)
            self._box = gui.add_html("", visible=False)
            hint = "Hide what is in front of a plane; what is saved stays whole"
            self.clip = gui.add_dropdown("Clipping plane", CLIPS, initial_value="Off", hint=hint)
            self.clip_share = gui.add_slider("Hidden (%)", 0, 100, 1, 30, visible=False)
            self.plan = gui.add_checkbox("Floor plan", False, hint="From straight above, cut at a height")
            self.plan_share = gui.add_slider("Cut at height (%)", 0, 100, 1, 55, visible=False)
            self.save_plan = gui.add_button("Save floor plan (PNG)", visible=False)
            self.perspective = gui.add_checkbox("Perspective", True, hint="Off: parallel lines stay parallel")
            gui.add_button(FULL_SCREEN_LABEL)
        self._cut_data = gui.add_html(_cut_html([], 0, ""), order=100)
        controls = (self.measure, self.cut, *self.borders, self.turn, self.clip, self.clip_share)
        for control in (*controls, self.plan, self.plan_share, self.perspective):
            control.on_update(lambda event: events.changed() if event.client is not None else None)

    def show_distances(self, lines: Sequence[str], waiting: bool) -> None:
        """Show measured distances. ``waiting``: a first point is picked, the second one is not."""
        hint = "Click the second point" if waiting else "" if lines else "Click two points of the surface"
        self._hint = (hint or lines[-1]) if self.measure.value else ""
        shown = [f"<b>{html.escape(line)}</b>" for line in lines]
        self._show(self._distances, "<br>".join([*shown, hint] if hint else shown), bool(self.measure.value or lines))
        _set(self.points, visible=bool(self.measure.value or lines or waiting))

    def show_box(self, lines: Sequence[str]) -> None:
        """Show the controls of the cut with lines about the box; no lines: it is switched off."""
        self._show(self._box, "<br>".join(map(html.escape, lines)), bool(lines))
        for control in (*self.borders, self.turn, self.cuts):
            _set(control, visible=bool(lines))

    def show_switched(self) -> None:
        """Show the controls that belong to what is switched on."""
        _set(self.clip_share, visible=self.clip.value != "Off")
        for control in (self.plan_share, self.save_plan):
            _set(control, visible=bool(self.plan.value))

    def send_cut(self, planes: Sequence[Sequence[float]], hide: float) -> None:
        """Give the page planes, see `Box.planes`, and the percentage of unsure surface that it hides."""
        self._show(self._cut_data, _cut_html(planes, hide, self._hint), True, raw=True)

    def _show(self, handle: Any, content: str, visible: bool, *, raw: bool = False) -> None:
        content = content if raw else f"<div {SMALL}>{content}</div>"
        if self._shown.get(id(handle)) != content:
            self._shown[id(handle)] = content
            handle.content = content
        _set(handle, visible=visible)


def _set(control: Any, *, visible: bool) -> None:
    if control.visible != visible:
        control.visible = visible


def _cut_html(planes: Sequence[Sequence[float]], hide: float, hint: str) -> str:
    data = {"planes": [[float(f"{value:.7g}") for value in plane] for plane in planes], "hide": hide}
    attributes = f'data-stream-recon-hint="{html.escape(hint)}"'
    return f'<span hidden {attributes} data-stream-recon-cut="{html.escape(json.dumps(data))}"></span>'
