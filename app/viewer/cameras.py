"""Cameras of the viewer's clients: the opening view, the same on request, and views that follow a camera.

A page applies the server's first camera only if it arrives at the right moment, and reports a camera of its own before
that. So each page gets its view until it has reported it, and only later movements count as its user's.
"""

import threading
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.transforms import up_direction
from stream_recon.app.viewer.subject import Subject
from stream_recon.app.viewer.timeline import Timeline

TILT_DEG = 25.0
"""Angle by which the opening view looks down."""
ROUND_TILT_DEG = 38.0
"""The same where the cameras looked all around: over the walls that face away, which are not drawn."""
ROUND = 0.35
"""Length of the mean viewing direction below which the cameras looked all around."""
DIRECTIONS = 24
"""Directions that the opening view is chosen from."""
OUTLIER_SHARE = 0.04
"""Share of the points on each side that may lie outside the opening view."""
MARGIN = 1.05
"""Factor of the opening view's distance, which leaves a border around the points."""
MIN_FREE_RIGHT = 0.3
"""Share of the width to the right of the axis that counts as free in a narrow window."""
MAX_PATH = 2000
"""Camera positions that the opening view takes in."""
PANEL_WIDTH = 335
"""Width of viser's panel in pixels."""
PANEL_SHARE = 0.2
"""Least share of a window's width that the panel takes: on dense displays a pixel of it has several of the canvas."""
UPRIGHT = 0.9
"""Aspect below which a window counts as a phone's: its panel is a bar below."""
BAR_SHARE = 0.07
"""Share of a phone's height that the bar takes."""
USUAL_WINDOW = (1280, 720)
"""Assumed window size in pixels of clients that are not connected yet."""
UNMOVED = 1e-3
"""Distance, as a share of the view's distance, below which a client's camera is where the program put it."""
RESEND_S = 0.7
"""Time after which a view that a page has not reported is sent again."""
MAX_SENDS = 40
"""Most times that a view is sent."""
MIN_IN_VIEW = 0.8
"""Share of the subject that the opening view must show; below it a new one is chosen."""


@dataclass(frozen=True)
class FreeView:
    """Part of the window that the panel leaves free: tangents of the angles from the view's axis to its borders."""

    left: float
    right: float
    upright: float

    @classmethod
    def of_window(cls, fov: float, width: float, height: float) -> "FreeView":
        """``fov``: vertical field of view in radians; sizes in pixels, with the panel at the right or a bar below."""
        upright = float(np.tan(fov / 2))
        sideways = upright * width / height
        if width < UPRIGHT * height:
            return cls(sideways, sideways, upright * (1 - 2 * BAR_SHARE))
        panel = max(PANEL_WIDTH / width, PANEL_SHARE)
        return cls(sideways, sideways * max(1 - 2 * panel, MIN_FREE_RIGHT), upright)


def overview(
    points: NDArray[np.floating],
    path: NDArray[np.floating],
    forward: NDArray[np.floating],
    up: NDArray[np.floating],
    free: FreeView,
    tilt_deg: float = TILT_DEG,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Position and target [3] of a view from behind and above, with nearly all points [N, 3] in the ``free`` part.

    The camera positions ``path`` [M, 3] are all in view. ``forward``: horizontal direction of the view; ``up``: unit
    vector; ``tilt_deg``: angle by which it looks down.
    """
    level = forward - (forward @ up) * up
    if np.linalg.norm(level) < 1e-6:  # straight up or down: any direction serves
        level = np.cross(up, np.eye(3)[np.argmin(np.abs(up))])
    level = level / np.linalg.norm(level)
    tilt = np.radians(tilt_deg)
    ahead = np.cos(tilt) * level - np.sin(tilt) * up
    right = np.cross(ahead, up)
    right /= np.linalg.norm(right)
    axes = np.stack([right, np.cross(right, ahead), ahead])
    seen = np.asarray(points, np.float64) @ axes.T
    if len(seen):
        low, high = np.quantile(seen, [OUTLIER_SHARE, 1 - OUTLIER_SHARE], axis=0)
        seen = seen[((seen >= low) & (seen <= high)).all(axis=1)]
    seen = np.concatenate([seen, np.asarray(path, np.float64) @ axes.T])
    centre = (seen.min(axis=0) + seen.max(axis=0)) / 2
    x, y, z = (seen - centre).T
    # The panel is at the right, so the axis lies right of the points' centre, by `offset` per unit of distance, and
    # both borders are `half` from the centre.
    half, offset = (free.left + free.right) / 2, (free.left - free.right) / 2
    needed = [(-x - free.left * z) / half, (x - free.right * z) / half, np.abs(y) / free.upright - z]
    distance = MARGIN * max(float(np.max(need)) for need in needed)
    distance = max(distance, 1e-6)
    target = (centre + np.array([offset * distance, 0, 0])) @ axes
    return target - distance * ahead, target


def opening_direction(
    rays: NDArray[np.floating], first: NDArray[np.floating], up: NDArray[np.floating]
) -> tuple[NDArray[np.float64], float]:
    """Horizontal direction [3] and tilt in degrees of the opening view.

    Of all directions it is the one that sees most of what the cameras saw from the side on which they were.

    Args:
        rays: unit vectors [N, 3] from the cameras to what they looked at.
        first: direction [3] of the first camera, which decides where others see as much.
        up: unit vector.
    """
    level = first - (first @ up) * up
    if np.linalg.norm(level) < 1e-6:
        level = np.cross(up, np.eye(3)[np.argmin(np.abs(up))])
    level = level / np.linalg.norm(level)
    if not len(rays):
        return np.asarray(level), TILT_DEG
    mean = rays.mean(axis=0)
    is_round = float(np.linalg.norm(mean - (mean @ up) * up)) < ROUND
    tilt = np.radians(ROUND_TILT_DEG if is_round else TILT_DEG)
    side = np.cross(up, level)
    angles = np.arange(DIRECTIONS) * (2 * np.pi / DIRECTIONS)
    directions = np.cos(angles)[:, None] * level + np.sin(angles)[:, None] * side
    views = np.cos(tilt) * directions - np.sin(tilt) * up
    seen = np.clip(np.asarray(rays) @ views.T, 0, None).mean(axis=0)
    best = int(np.argmax(seen + 0.03 * np.cos(angles)))
    return np.asarray(directions[best]), float(np.degrees(tilt))


@dataclass(frozen=True)
class View:
    """A camera: position, target and up direction [3] each."""

    position: NDArray[np.float64]
    target: NDArray[np.float64]
    up: NDArray[np.float64]

    def is_at(self, position: NDArray[np.floating]) -> bool:
        distance = max(float(np.linalg.norm(self.target - self.position)), 1e-9)
        return bool(np.linalg.norm(position - self.position) < UNMOVED * distance)


@dataclass
class ClientView:
    """What a client was shown last, and whether it has reported that."""

    sent: View | None = None
    sent_at: float = 0.0
    sends: int = 0
    reported: bool = False
    """Whether the client has been where it was sent."""
    moved: bool = False
    """Whether its user has moved it since."""


class ViewerCameras:
    """Moves the clients' views; distances are shares of the typical depth."""

    def __init__(self, server: Any, timeline: Timeline) -> None:
        self._server = server
        self._timeline = timeline
        self.subject = Subject()
        self._start: int | None = None
        self._first_typical_depth = 1.0
        self._clients: dict[int, ClientView] = {}
        self._lock = threading.Lock()
        self._opening: View | None = None
        """The opening view of a usual window."""
        server.on_client_disconnect(lambda client: self._clients.pop(client.client_id, None))

    @property
    def typical_depth(self) -> float:
        """Typical depth, in the world's present unit."""
        scale = 1.0 if self._start is None else float(self._timeline.depth_scales[self._start])
        return self._first_typical_depth * scale

    @property
    def waiting(self) -> bool:
        """Whether a client has not reported its view yet."""
        return any(not c.reported and c.sends < MAX_SENDS for c in list(self._clients.values()) if c.sent is not None)

    def start(self, ordinal: int, typical_depth: float) -> None:
        """Set the typical depth and the up direction by the first frame with points."""
        self._start, self._first_typical_depth = ordinal, typical_depth
        up = -self._timeline.poses[ordinal][:3, 1]
        self._server.scene.set_up_direction(up)
        self._server.initial_camera.up = up

    def connect(self, client: Any) -> None:
        """Take in a new client; call in the server's thread before its first view is sent."""
        state = ClientView()
        self._clients[client.client_id] = state

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
        if reframe or self._opening is None or _share_in_view(points, self._opening) < MIN_IN_VIEW:
            self._opening = self._opening_view(FreeView.of_window(self._server.initial_camera.fov, *USUAL_WINDOW))
            camera, view = self._server.initial_camera, self._opening
            camera.position, camera.look_at, camera.up = view.position, view.target, view.up
            for state in list(self._clients.values()):
                if not state.moved:
                    state.sent = None
        self.send()

    def send(self) -> None:
        """Send the opening view to clients that have none yet or have not reported it."""
        if self._opening is None:
            return
        for client in self._server.get_clients().values():
            state = self._clients.get(client.client_id)
            if state is None or state.moved or (state.reported and state.sent is not None):
                continue
            if state.sent is None:
                self._show(client, state, self._opening_view(_free_view(client)))
            elif time.monotonic() - state.sent_at > RESEND_S and state.sends < MAX_SENDS:
                self._show(client, state, state.sent)

    def look_from(self, client: Any, T_world_camera: NDArray[np.float64], back: float, lift: float) -> None:
        """Move a client's view behind (``back``) and above (``lift``) a camera."""
        state = self._clients.get(client.client_id)
        if state is None:
            return
        R, centre = T_world_camera[:3, :3], T_world_camera[:3, 3]
        position = centre + R @ np.array([0.0, -lift, -back]) * self.typical_depth
        target = centre + R @ np.array([0.0, 0.0, 1.0]) * self.typical_depth
        _move_to(client, View(position, target, np.asarray(client.camera.up_direction)))
        state.moved = True

    def show_all(self, client: Any, compared: NDArray[np.float32]) -> None:
        """Move a client's view to the opening view. ``compared``: points [n, 3] that it also takes in."""
        state = self._clients.get(client.client_id)
        if self._start is None or state is None:
            return
        state.moved = False
        self._show(client, state, self._opening_view(_free_view(client), compared))

    def _opening_view(self, free: FreeView, compared: NDArray[np.float32] | None = None) -> View:
        """The opening view of a window."""
        assert self._start is not None
        points, rays = self.subject.world(self._timeline)
        if compared is not None and len(compared):
            points = np.concatenate([points, compared])
        path = self._timeline.path(MAX_PATH)
        up = up_direction(self._timeline.rotations(MAX_PATH))
        return opening_view(points, rays, path, self._timeline.poses[self._start][:3, 2], up, free)

    def _show(self, client: Any, state: ClientView, view: View) -> None:
        with self._lock:
            state.sends = state.sends + 1 if state.sent is view else 1
            state.sent, state.sent_at, state.reported = view, time.monotonic(), False
        if state.sends > 1:
            # What the server takes for the page's camera is what it sent: an equal one would not be sent again.
            _move_to(client, View(view.position + 0.01 * (view.position - view.target), view.target, view.up))
        _move_to(client, view)

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


def opening_view(
    points: NDArray[np.floating],
    rays: NDArray[np.floating],
    path: NDArray[np.floating],
    first: NDArray[np.floating],
    up: NDArray[np.float64],
    free: FreeView,
) -> View:
    """The opening view: from behind and above what cameras looked at.

    Args:
        points, rays: of a `Subject` [N, 3]; there may be more points.
        path: camera positions [M, 3].
        first: direction [3] of the first camera.
        up: unit vector.
    """
    direction, tilt_deg = opening_direction(rays, first, up)
    position, target = overview(points, path, direction, up, free, tilt_deg)
    return View(position, target, up)


def _share_in_view(points: NDArray[np.floating], view: View) -> float:
    """Share of points [N, 3] in a usual window's view."""
    free = FreeView.of_window(np.radians(75.0), *USUAL_WINDOW)
    ahead = view.target - view.position
    ahead = ahead / np.linalg.norm(ahead)
    right = np.cross(ahead, view.up)
    right = right / max(float(np.linalg.norm(right)), 1e-9)
    axes = np.stack([right, np.cross(right, ahead), ahead])
    x, y, z = axes @ (np.asarray(points) - view.position).T
    inside = (z > 0) & (x > -free.left * z) & (x < free.right * z) & (np.abs(y) < free.upright * z)
    return float(inside.mean())


def _free_view(client: Any) -> FreeView:
    camera = client.camera
    return FreeView.of_window(camera.fov, camera.image_width, camera.image_height)


def _move_to(client: Any, view: View) -> None:
    with client.atomic():
        client.camera.up_direction = view.up
        client.camera.position, client.camera.look_at = view.position, view.target
