"""One page's tools: measured distances, a box to cut by, a clipping plane, a floor plan. Used from the viewer's thread.

The page draws only what is in front of all planes that it is given, see ``page.js``.
"""

import time
from collections.abc import Callable
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.box import Box, cut_primitive
from stream_recon.app.viewer.cameras import ViewerCameras
from stream_recon.app.viewer.content import Extent, SceneContent, moved
from stream_recon.app.viewer.measure import MAX_POINTS, PickedPoint, Unit, distances, pick
from stream_recon.app.viewer.panel import PageOptions, PanelEvents
from stream_recon.app.viewer.picking import PointingRay
from stream_recon.app.viewer.plan import PlanFrame, bar_length, floor_plan
from stream_recon.app.viewer.tool_nodes import ToolNodes
from stream_recon.app.viewer.tools_panel import AXIS_OF_LABEL, STEPS, SUBJECT, UNDO_CUT, UNDO_POINT, ToolsPanel

Borders = tuple[tuple[float, float], tuple[float, float], tuple[float, float]]
POINT_SIZE = 0.009
"""Radius of a measured point as a share of the typical depth."""
SETTLED_S = 1.0
MAX_CUTS = 50
"""Cuts that can be undone."""
NO_PLANES = np.zeros((0, 4))


class PageTools:
    """Tools of one page."""

    def __init__(
        self,
        client: Any,
        content: SceneContent,
        cameras: ViewerCameras,
        events: PanelEvents,
        options: Callable[[], PageOptions],
    ) -> None:
        """``options``: gives what the page shows."""
        self._client, self._content, self._cameras = client, content, cameras
        self._events, self._options = events, options
        self.panel = ToolsPanel(client.gui, events)
        self.picks: list[PickedPoint] = []
        self.box: Box | None = None
        """The box that the page is cut by."""
        self._extent: Extent | None = None
        self._turn = 0.0
        self._cuts: list[tuple[Borders, float]] = []
        self._changed_at = 0.0
        self.settled_s = SETTLED_S
        """Time without a change after which a cut is one that can be undone."""
        self.is_listening = False
        """Whether clicks on the scene are taken."""
        self._flat = self._planned = False
        self._clip: tuple[str, NDArray[np.float64], float, float] | None = None
        """The chosen clip, the plane's normal toward what is shown, and the first and last place of the plane."""
        self._nodes = ToolNodes(client)
        self.panel.points.on_click(lambda event: events.request(lambda: self._drop_points(event.target.value)))
        self.panel.cuts.on_click(lambda event: events.request(lambda: self._change_cuts(event.target.value)))
        self.panel.save_plan.on_click(lambda event: events.save("plan", event.client))

    def sync(self, unit: Unit) -> None:
        """Follow the controls, and send what changed."""
        if self._content.is_empty:
            return
        self._listen(bool(self.panel.measure.value))
        self._sync_box(unit)
        self._sync_views()
        planes, options = self.planes(), self._options()
        hide = 0 if self._content.has_mesh or not options.shows_surfaces else options.points.min_rank
        self._show_measured(unit)
        self.panel.send_cut(planes.tolist(), hide)
        self.panel.show_switched()

    def planes(self) -> NDArray[np.float64]:
        """Planes [P, 4] behind which the page shows nothing."""
        parts = [NO_PLANES]
        if self.box is not None:
            parts.append(self.box.planes(self._content.axes()))
        if self._clip is not None:
            _, normal, first, last = self._clip
            offset = first + self.panel.clip_share.value / 100 * (last - first)
            parts.append(np.append(normal, -offset)[None])
        if self.panel.plan.value and self._extent is not None:
            parts.append(np.append(-self._content.axes()[1], self._plan_height())[None])
        return np.concatenate(parts)

    def point_at(self, origin: NDArray[np.float64], direction: NDArray[np.float64]) -> None:
        """Add the place that a clicked pixel's ray meets, if any."""
        camera = self._client.camera
        pixel = 2 * np.tan(camera.fov / 2) / max(camera.image_height, 1)
        ray = PointingRay(origin, direction / np.linalg.norm(direction), float(pixel), self.planes())
        hit = self._content.hit(ray, self._options())
        if hit is None:
            self._client.add_notification("No surface there", "Click on the surface.", auto_close_seconds=4.0)
            return
        path = self._content.timeline.path(len(self._content.timeline))
        self.picks = [*self.picks, pick(ray, hit, path)][-MAX_POINTS:]

    def plan_picture(self, unit: Unit) -> bytes:
        """The floor plan as a PNG file."""
        assert self._extent is not None, "the button appears with the plan"
        R = self._box_axes()
        parts = [moved(part, R, np.zeros(3)) for part in self._content.shown(self._options())]
        low, high = self._extent.low, self._extent.high
        if self.box is not None:
            sides = Box(self.box.low, self.box.high).planes(np.eye(3))
            parts = [cut_primitive(part, sides) for part in parts]
            low, high = np.maximum(low, self.box.low), np.minimum(high, self.box.high)
        frame = PlanFrame((float(low[0]), float(low[2])), (float(high[0]), float(high[2])), self._plan_height())
        image = floor_plan(parts, frame, "m" if unit.is_metric else "units")
        return bytes(cv2.imencode(".png", cv2.cvtColor(image, cv2.COLOR_RGB2BGR))[1])

    def release_view(self) -> None:
        """Give up the floor plan and the flat view, where something else moves the view."""
        if self.panel.plan.value:
            self.panel.plan.value = False
        if not self.panel.perspective.value:
            self.panel.perspective.value = True

    def _listen(self, is_listening: bool) -> None:
        """Get clicks on the scene, or stop that."""
        if is_listening == self.is_listening:
            return
        self.is_listening = is_listening
        if not is_listening:
            self._client.scene.remove_click_callback()
            return

        def click(event: Any) -> None:
            origin, direction = (np.array(v, np.float64) for v in (event.ray_origin, event.ray_direction))
            if np.linalg.norm(direction) > 0:
                self._events.request(lambda: self._clicked(origin, direction))

        self._client.scene.on_click()(click)

    def _clicked(self, origin: NDArray[np.float64], direction: NDArray[np.float64]) -> None:
        self.point_at(origin, direction)
        self._events.changed()

    def _drop_points(self, button: str) -> None:
        self.picks = self.picks[:-1] if button == UNDO_POINT else []
        self._events.changed()

    def _box_axes(self) -> NDArray[np.float64]:
        """Rotation [3, 3] from the world to the axes of the box."""
        return np.asarray(Box((0, 0, 0), (1, 1, 1), self._turn).R_box_gltf @ self._content.axes())

    def _sync_box(self, unit: Unit) -> None:
        """Follow the controls of the cut."""
        panel = self.panel
        if not panel.cut.value:
            self.box = None
            panel.show_box([])
            self._nodes.show_box(None)
            return
        if self._extent is None or not self._cuts:
            self._begin(self._content.wall_turn_deg())
        assert self._extent is not None
        if panel.turn.value != self._turn:
            self._turn_to(float(panel.turn.value))
        self._note_cut()
        low, high = [0.0] * 3, [0.0] * 3
        for axis, slider in zip(AXIS_OF_LABEL, panel.borders, strict=True):
            first, last = slider.value
            # A slider at its end cuts nothing: outliers are outside its range.
            low[axis] = float(self._extent.lowest[axis] if first <= slider.min + slider.step / 2 else first)
            high[axis] = float(self._extent.highest[axis] if last >= slider.max - slider.step / 2 else last)
            high[axis] = max(high[axis], low[axis] + 1e-6)
        self.box = Box((low[0], low[1], low[2]), (high[0], high[1], high[2]), self._turn)
        size = [last - first for first, last in (slider.value for slider in panel.borders)]
        name = "m" if unit.is_metric else "units"
        panel.show_box([f"{size[0]:.3g} x {size[1]:.3g} x {size[2]:.3g} {name}", f"export --box={self.box.text}"])
        self._nodes.show_box(self.box.corners(self._content.axes()))

    def _begin(self, turn_deg: float) -> None:
        """Set the borders to the whole scene."""
        self._show_cut(None, turn_deg)
        self._cuts = [(self._slider_ranges(), turn_deg)]

    def _show_cut(self, borders: Borders | None, turn_deg: float) -> None:
        self._turn = turn_deg
        self._extent = self._content.extent(self._box_axes())
        with self._client.atomic():
            self.panel.turn.value = turn_deg
            self._limit()
            self._set_borders(borders or self._slider_ranges())

    def _slider_ranges(self) -> Borders:
        a, b, c = ((float(slider.min), float(slider.max)) for slider in self.panel.borders)
        return a, b, c

    def _limit(self) -> None:
        """Set the range of the borders' sliders."""
        assert self._extent is not None
        for axis, slider in zip(AXIS_OF_LABEL, self.panel.borders, strict=True):
            low, high = float(self._extent.low[axis]), float(self._extent.high[axis])
            step = bar_length((high - low) / STEPS)
            digits = max(0, -int(np.floor(np.log10(step))))
            slider.min = round(float(np.floor(low / step)) * step, digits)
            slider.max = round(float(np.ceil(high / step)) * step, digits)
            slider.step = step

    def _set_borders(self, borders: Borders) -> None:
        for slider, (first, last) in zip(self.panel.borders, borders, strict=True):
            slider.value = float(np.clip(first, slider.min, slider.max)), float(np.clip(last, slider.min, slider.max))

    def _turn_to(self, turn_deg: float) -> None:
        """Turn the box about its middle."""
        borders, ranges = [slider.value for slider in self.panel.borders], self._slider_ranges()
        middle = np.zeros(3)
        for axis, (first, last) in zip(AXIS_OF_LABEL, borders, strict=True):
            middle[axis] = (first + last) / 2
        world = middle @ self._box_axes()
        self._turn = turn_deg
        self._extent = self._content.extent(self._box_axes())
        middle = self._box_axes() @ world
        with self._client.atomic():
            self._limit()
            turned = []
            ends = zip(AXIS_OF_LABEL, borders, ranges, self._slider_ranges(), strict=True)
            for axis, (first, last), (lowest, highest), (low, high) in ends:
                half, slack = (last - first) / 2, (highest - lowest) / STEPS
                turned.append(
                    (
                        low if first <= lowest + slack else middle[axis] - half,
                        high if last >= highest - slack else middle[axis] + half,
                    )
                )
            self._set_borders((turned[0], turned[1], turned[2]))

    def _note_cut(self) -> None:
        """Keep a cut that differs from the last one, to undo it; changes in quick succession are one."""
        a, b, c = ((float(first), float(last)) for first, last in (slider.value for slider in self.panel.borders))
        now = (a, b, c), self._turn
        if now == self._cuts[-1]:
            return
        if len(self._cuts) > 1 and time.monotonic() - self._changed_at < self.settled_s:
            self._cuts[-1] = now
        else:
            self._cuts = [*self._cuts, now][-MAX_CUTS:]
        self._changed_at = time.monotonic()

    def _change_cuts(self, button: str) -> None:
        """Take back the last cut, or all of them, or cut to the subject, by the button that was pressed."""
        if self._extent is None or not self._cuts:
            return
        if button == UNDO_CUT:
            self._cuts = self._cuts[:-1] or self._cuts
        elif button == SUBJECT:
            box = self._content.subject(self._turn)
            if box is None:
                self._client.add_notification(
                    "No subject", "The cameras do not look at one place from around it.", auto_close_seconds=6.0
                )
                return
            a, b, c = ((box.low[axis], box.high[axis]) for axis in AXIS_OF_LABEL)
            self._cuts = [*self._cuts, ((a, b, c), self._turn)][-MAX_CUTS:]
        else:
            self._begin(self._content.wall_turn_deg())
        self._show_cut(*self._cuts[-1])
        self._changed_at = 0.0
        self._events.changed()

    def _plan_height(self) -> float:
        assert self._extent is not None
        low, high = self._extent.low[1], self._extent.high[1]
        return float(low + self.panel.plan_share.value / 100 * (high - low))

    def _sync_views(self) -> None:
        """Follow the clipping plane, the floor plan and the perspective."""
        chosen = self.panel.clip.value
        if chosen != (self._clip[0] if self._clip is not None else "Off"):
            self._clip = None if chosen == "Off" else self._clip_of(chosen)
        plan = bool(self.panel.plan.value)
        if plan != self._planned:
            self._planned = plan
            self.panel.perspective.value = not plan
            if plan and self._extent is None:
                self._turn = self._content.wall_turn_deg()
                self._extent = self._content.extent(self._box_axes())
        flat = not self.panel.perspective.value
        if flat != self._flat:
            self._flat = flat
            self._cameras.set_flat(self._client, flat)
            if plan:
                assert self._extent is not None
                self._cameras.look_down(self._client, self._box_axes(), self._extent.low, self._extent.high)
            elif not flat and not plan:
                self._cameras.stand_up(self._client)

    def _clip_of(self, chosen: str) -> tuple[str, NDArray[np.float64], float, float]:
        """The plane of a choice: its normal toward what is shown, and its places at 0 and 100 %."""
        if chosen == "From above":
            normal = -self._content.axes()[1]
        else:
            camera = self._client.camera
            normal = np.asarray(camera.look_at - camera.position, np.float64)
            normal = normal / max(float(np.linalg.norm(normal)), 1e-9)
        side = np.cross(normal, np.eye(3)[np.argmin(np.abs(normal))])
        side /= np.linalg.norm(side)
        extent = self._content.extent(np.stack([normal, side, np.cross(normal, side)]))
        return chosen, normal, float(extent.low[0]), float(extent.high[0])

    def _show_measured(self, unit: Unit) -> None:
        measured = distances(self.picks, unit)
        texts = [each.text for each in measured]
        self.panel.show_distances(texts, len(self.picks) % 2 == 1)
        points = np.array([each.point for each in self.picks]).reshape(-1, 3)
        segments = np.array([[d.first.point, d.second.point] for d in measured]).reshape(-1, 2, 3)
        self._nodes.show_measured(points, segments, texts, POINT_SIZE * self._cameras.typical_depth)
