"""The viewer's panel of controls; the viewer's thread reads them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from stream_recon.app.viewer.points import PointOptions
from stream_recon.app.viewer.scene import SceneOptions
from stream_recon.app.viewer.timeline import Timeline, TimelineView


@dataclass(frozen=True)
class PanelEvents:
    """Callbacks of the panel, called in a thread of the server with the client that asks."""

    changed: Callable[[], None]
    """A user changed a control."""
    download: Callable[[Any], None]
    """A client asks for the PLY file."""
    show_all: Callable[[Any], None]
    """A client asks for the overview."""


class ViewerPanel:
    """Buttons, sliders and the status text."""

    def __init__(self, server: Any, min_rank: int, events: PanelEvents) -> None:
        gui = server.gui
        self.paused = False
        self._paused_by: int | None = None
        self._changed = events.changed
        self._status = gui.add_markdown("Waiting for the first frames")
        self._pause = gui.add_button("Pause", hint="Hold the video; what was reconstructed stays")
        self._pause.on_click(self._toggle_pause)
        self._download = gui.add_button(
            "Download PLY", hint="The points shown here as a binary PLY file; the complete cloud once the run is over"
        )
        self._download.on_click(lambda event: events.download(event.client))
        with gui.add_folder("View"):
            gui.add_button("Show all", hint="Move the view back until everything is in it").on_click(
                lambda event: events.show_all(event.client)
            )
            self._follow = gui.add_checkbox("Follow camera", False, hint="Move the view along with the camera")
            self._min_rank = gui.add_slider(
                "Confidence",
                0,
                95,
                1,
                min_rank,
                hint="Hide this percentage of each frame's pixels, least confident first",
            )
            self._point_size = gui.add_slider("Point size", 0.2, 4.0, 0.1, 1.0, hint="In voxels of the cloud")
            self._cameras = gui.add_checkbox("Cameras", True)
            self._path = gui.add_checkbox("Trajectory", True)
        self._map_folder = gui.add_folder("Map", visible=False)
        with self._map_folder:
            self._sparse_points = gui.add_checkbox(
                "Sparse points", False, hint="Points that were triangulated to correct the cameras"
            )
            self._loops = gui.add_checkbox("Loops", False, hint="Lines between frames of a loop closure")
            self._comparison = gui.add_checkbox(
                "Before and after",
                False,
                hint="The cloud before corrections, to the left of the corrected one; 'Show all' shows both",
            )
        self._frame_folder = gui.add_folder("Frames", visible=False)
        with self._frame_folder:
            self._scrubber = gui.add_slider("Frame", 0, 1, 1, 0, hint="Choose a frame of the video so far")
            self._picture = gui.add_image(np.zeros((96, 128, 3), np.uint8), format="jpeg", jpeg_quality=85)
            self._from_here = gui.add_checkbox("View from here", False)
            self._until_here = gui.add_checkbox("Points up to here", False)
        self._scrubbed = False
        self._pictured: TimelineView | None = None
        self._scrubber.on_update(self._scrub)
        server.on_client_disconnect(lambda client: self.client_gone(client.client_id))
        for control in (
            self._follow,
            self._min_rank,
            self._point_size,
            self._cameras,
            self._path,
            self._from_here,
            self._until_here,
            self._sparse_points,
            self._loops,
            self._comparison,
        ):
            control.on_update(lambda _: events.changed())

    @property
    def follow(self) -> bool:
        return bool(self._follow.value)

    @property
    def from_here(self) -> int | None:
        """Ordinal of the frame to look from, if asked for."""
        return int(self._scrubber.value) if self._from_here.value else None

    def options(self) -> SceneOptions:
        """The values of the controls."""
        frame = int(self._scrubber.value)
        picked = self._scrubbed or self._until_here.value or self._from_here.value
        return SceneOptions(
            PointOptions(
                min_rank=int(self._min_rank.value),
                size=float(self._point_size.value),
                last_frame=frame if self._until_here.value else None,
            ),
            selected=frame if picked and not self._from_here.value else None,
            # Seen from inside a camera, the thumbnails of its neighbours would hide the cloud.
            cameras=bool(self._cameras.value and not self._from_here.value),
            path=bool(self._path.value),
            sparse_points=bool(self._sparse_points.value),
            loops=bool(self._loops.value),
            comparison=bool(self._comparison.value),
        )

    def offer_map(self, has_map: bool, revised: bool) -> None:
        """Show the switches of layers that exist."""
        for switches, wanted in (((self._sparse_points, self._loops), has_map), ((self._comparison,), revised)):
            for switch in switches:
                if switch.visible != wanted:
                    switch.visible = wanted
        if self._map_folder.visible != (has_map or revised):
            self._map_folder.visible = has_map or revised

    def release_view(self) -> None:
        """Stop moving the view with a camera."""
        self._follow.value = self._from_here.value = False

    def show_status(self, text: str) -> None:
        self._status.content = text

    def show_frames(self, timeline: Timeline, points: int) -> None:
        """Extend the slider to the newest frame, and show the chosen frame's thumbnail."""
        if len(timeline) < 2 or not points:
            return
        self._scrubber.max = len(timeline) - 1
        if not (self._scrubbed or self._until_here.value or self._from_here.value):
            self._scrubber.value = len(timeline) - 1
        view = timeline.nearest_view(int(self._scrubber.value))
        if view is not None and view is not self._pictured:
            self._picture.image = view.image
            self._pictured = view
        self._frame_folder.visible = True

    def _toggle_pause(self, event: Any) -> None:
        self._pause_for(None if self.paused else event.client_id)

    def client_gone(self, client_id: int) -> None:
        """End a pause that a disconnected client requested."""
        if self.paused and self._paused_by == client_id:
            self._pause_for(None)

    def _pause_for(self, client_id: int | None) -> None:
        self.paused, self._paused_by = client_id is not None, client_id
        self._pause.label = "Resume" if self.paused else "Pause"
        self._changed()

    def _scrub(self, event: Any) -> None:
        # The program also moves the slider; only a user's change has a client.
        if event.client is not None:
            self._scrubbed = True
            self._changed()

    def offer_cloud(self, size: str) -> None:
        """Label the download as the result's complete cloud."""
        self._download.label = f"Download PLY ({size})"
        self._download.hint = f"The complete cloud of the result folder as a binary PLY file, {size}"

    def end_stream(self) -> None:
        """Remove the pause at the end of the video."""
        self.paused = False
        self._pause.visible = False
