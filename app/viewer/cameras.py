"""Cameras of the viewer's clients: the opening view, the same on request, and views that follow a camera.

A page applies the server's first camera only if it arrives at the right moment, and reports a camera of its own before
that. So each page gets its view until it has reported it, and only later movements count as its user's.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.transforms import up_direction
from stream_recon.app.viewer import overview
from stream_recon.app.viewer.subject import Subject
from stream_recon.app.viewer.timeline import Timeline

RESEND_S = 0.7
"""Time after which a view that a page has not reported is sent again."""
MAX_SENDS = 40
"""Most times that a view is sent."""
LOST_FROM_VIEW = 0.05
"""Share of the subject that may leave the opening view since it was chosen; above it a new one is chosen."""
FOV = float(np.radians(50.0))
"""Vertical field of view: in a much wider one, what stands upright leans outward."""
FLAT_FOV = float(np.radians(1.0))
"""Field of view without perspective, about: from so far away, things in the back are as large as in front."""
FLAT_DEPTH = 12.0
"""What is drawn of a flat view, in heights of the view before and behind its target."""
USUAL_NEAR, USUAL_FAR, FAR_ORBIT = 0.01, 1000.0, 1e7
"""Limits of drawing of the client library, and the largest distance of a view from its target."""


@dataclass
class ClientView:
    """What a client was shown last, and whether it has reported that."""

    sent: overview.View | None = None
    sent_at: float = 0.0
    sends: int = 0
    reported: bool = False
    """Whether the client has been where it was sent."""
    moved: bool = False
    """Whether its user has moved it since."""
    share: float = 0.0
    """Share of the subject below which another view is chosen."""
    inside: bool = False
    """Whether it opens at a camera of the path."""
    fov: float = FOV
    """Vertical field of view in radians, as it was set: a page reports the last one for a while."""


class ViewerCameras:
    """Moves the clients' views; distances are shares of the typical depth."""

    def __init__(self, server: Any, timeline: Timeline) -> None:
        self._server = server
        self._timeline = timeline
        self.subject = Subject()
        self._start: int | None = None
        self._first_typical_depth = 1.0
        self.clients: dict[int, ClientView] = {}
        """What each client was shown, by its id."""
        self._lock = threading.Lock()
        self._opening: overview.View | None = None
        """The opening view of a usual window."""
        self._share = 0.0
        """Share of the subject below which another one is chosen."""
        self.surface_up: NDArray[np.float64] | None = None
        """Up direction of the mesh; None: that of the cameras."""
        self.on_misplaced: Callable[[], None] = lambda: None
        """Called where a page has left its view by itself, which has to be sent again."""
        server.on_client_disconnect(lambda client: self.clients.pop(client.client_id, None))

    @property
    def typical_depth(self) -> float:
        """Typical depth, in the world's present unit."""
        scale = 1.0 if self._start is None else float(self._timeline.depth_scales[self._start])
        return self._first_typical_depth * scale

    @property
    def waiting(self) -> bool:
        """Whether a client has not reported its view yet."""
        return any(not c.reported and c.sends < MAX_SENDS for c in list(self.clients.values()) if c.sent is not None)

    def start(self, ordinal: int, typical_depth: float) -> None:
        """Set the typical depth and the up direction by the first frame with points."""
        self._start, self._first_typical_depth = ordinal, typical_depth
        up = -self._timeline.poses[ordinal][:3, 1]
        self._server.scene.set_up_direction(up)
        self._server.initial_camera.up = up

    def connect(self, client: Any) -> None:
        """Take in a new client; call in the server's thread before its first view is sent."""
        state = ClientView()
        self.clients[client.client_id] = state

        async def report(camera: Any) -> None:
            self._report(state, np.array(camera.position))

        client.camera.on_update(report)

    def update(self, *, reframe: bool) -> None:
        """Choose the opening view again if it has to change, and send it to clients that have not moved.

        ``reframe``: choose it again in any case.
        """
        if self._start is None or not len(self.subject):
            return
        points, _ = self.subject.world(self._timeline)
        usual = overview.FreeView.of_window(FOV, *overview.USUAL_WINDOW)
        if reframe or self._opening is None or overview.share_in_view(points, self._opening, usual) < self._share:
            self._opening = self._opening_view(usual)
            self._share = overview.share_in_view(points, self._opening, usual) - LOST_FROM_VIEW
            camera, view = self._server.initial_camera, self._opening
            camera.position, camera.look_at, camera.up = view.position, view.target, view.up
        for client in self._server.get_clients().values():
            state = self.clients.get(client.client_id)
            if state is None or state.moved or state.sent is None:
                continue
            if reframe or overview.share_in_view(points, state.sent, _free_view(client, state)) < state.share:
                state.sent = None
        self.send()

    def send(self) -> None:
        """Send the opening view to clients that have none yet or have not reported it."""
        if self._opening is None:
            return
        for client in self._server.get_clients().values():
            state = self.clients.get(client.client_id)
            if state is None or state.moved or (state.reported and state.sent is not None):
                continue
            if state.sent is None:
                free = _free_view(client, state)
                points, _ = self.subject.world(self._timeline)
                if state.inside:
                    view = overview.inner_view(
                        points, self._timeline.spaced_poses(overview.MAX_TRIED), self._up(), free
                    )
                else:
                    view = self._opening_view(free)
                state.share = overview.share_in_view(points, view, free) - LOST_FROM_VIEW
                self._show(client, state, view)
            elif time.monotonic() - state.sent_at > RESEND_S and state.sends < MAX_SENDS:
                self._show(client, state, state.sent)

    def look_from(self, client: Any, T_world_camera: NDArray[np.float64], back: float, lift: float) -> None:
        """Move a client's view behind (``back``) and above (``lift``) a camera."""
        state = self.clients.get(client.client_id)
        if state is None:
            return
        R, centre = T_world_camera[:3, :3], T_world_camera[:3, 3]
        position = centre + R @ np.array([0.0, -lift, -back]) * self.typical_depth
        target = centre + R @ np.array([0.0, 0.0, 1.0]) * self.typical_depth
        self._put(client, overview.View(position, target, np.asarray(client.camera.up_direction)))

    def show_all(self, client: Any, compared: NDArray[np.float32]) -> None:
        """Move a client's view to the opening view. ``compared``: points [n, 3] that it also takes in."""
        state = self.clients.get(client.client_id)
        if self._start is None or state is None:
            return
        state.moved = state.inside = False
        self._show(client, state, self._opening_view(_free_view(client, state), compared))

    def go_inside(self, client: Any) -> None:
        """Open at a camera of the path, unless the client's user has moved the view.

        From outside, splats hide what is behind walls.
        """
        state = self.clients.get(client.client_id)
        if state is None or state.moved:
            return
        state.inside, state.sent = True, None
        self.send()

    def set_flat(self, client: Any, flat: bool) -> None:
        """Show a client's view without perspective, or with it again; what is in its middle keeps its size."""
        camera, state = client.camera, self.clients.get(client.client_id)
        if state is None:
            return
        fov = FLAT_FOV if flat else FOV
        ratio = np.tan(state.fov / 2) / np.tan(fov / 2)
        position, target = np.array(camera.position), np.array(camera.look_at)
        if flat:
            camera.max_orbit_distance = FAR_ORBIT
        state.fov = fov
        self._put(client, overview.View(target + ratio * (position - target), target, np.array(camera.up_direction)))

    def look_down(
        self, client: Any, R: NDArray[np.float64], low: NDArray[np.float64], high: NDArray[np.float64]
    ) -> None:
        """Look straight down on a box; ``low``, ``high`` [3]: in axes x right, y up, z down the page, ``R`` [3, 3]."""
        free = _free_view(client, self.clients.get(client.client_id, ClientView()))
        width, height = high[0] - low[0], high[2] - low[2]
        distance = overview.MARGIN * max(width / (free.left + free.right), height / (2 * free.upright))
        middle = (low + high) / 2
        middle[0] += (free.left - free.right) / 2 * distance
        target = middle @ R
        self._put(client, overview.View(target + distance * R[1], target, -R[2]))

    def stand_up(self, client: Any) -> None:
        """Move a client's view that looked straight down back to the opening view."""
        if np.asarray(client.camera.up_direction) @ self._up() < 0.9:
            self.show_all(client, np.zeros((0, 3), np.float32))

    def _put(self, client: Any, view: overview.View) -> None:
        """Move a client's view on its user's behalf."""
        state = self.clients.get(client.client_id)
        if state is not None:
            state.moved = True
            _move_to(client, view, state.fov)

    def _up(self) -> NDArray[np.float64]:
        if self.surface_up is not None:
            return self.surface_up
        return up_direction(self._timeline.rotations(overview.MAX_PATH))

    def _opening_view(self, free: overview.FreeView, compared: NDArray[np.float32] | None = None) -> overview.View:
        """The opening view of a window."""
        assert self._start is not None
        points, rays = self.subject.world(self._timeline)
        if compared is not None and len(compared):
            points = np.concatenate([points, compared])
        path = self._timeline.path(overview.MAX_PATH)
        up = self._up()
        return overview.opening_view(points, rays, path, self._timeline.poses[self._start][:3, 2], up, free)

    def _show(self, client: Any, state: ClientView, view: overview.View) -> None:
        with self._lock:
            state.sends = state.sends + 1 if state.sent is view else 1
            state.sent, state.sent_at, state.reported = view, time.monotonic(), False
        if state.sends > 1:
            # What the server takes for the page's camera is what it sent: an equal one would not be sent again.
            away = overview.View(view.position + 0.01 * (view.position - view.target), view.target, view.up)
            _move_to(client, away, state.fov)
        _move_to(client, view, state.fov)

    def _report(self, state: ClientView, position: NDArray[np.float64]) -> None:
        """Note where a client's camera is."""
        with self._lock:
            if state.sent is None:
                return
            if state.sent.is_at(position):
                state.reported = True
            elif state.reported and not (self._opening is not None and self._opening.is_at(position)):
                state.moved = True
            elif state.reported:  # the page has applied the first camera of all pages late
                state.reported, state.sends = False, 1
                self.on_misplaced()


def _free_view(client: Any, state: ClientView) -> overview.FreeView:
    return overview.FreeView.of_window(state.fov, client.camera.image_width, client.camera.image_height)


def _move_to(client: Any, view: overview.View, fov: float) -> None:
    camera, near, far = client.camera, USUAL_NEAR, USUAL_FAR
    if fov == FLAT_FOV:
        distance = float(np.linalg.norm(view.position - view.target))
        depth = FLAT_DEPTH * distance * np.tan(fov / 2)
        near, far = max(distance - depth, USUAL_NEAR), distance + depth
    with client.atomic():
        camera.fov, camera.near, camera.far, camera.up_direction = fov, near, far, view.up
        camera.position, camera.look_at = view.position, view.target
