"""Where browsers look from: at first, on request, and along with a camera.

A view from which everything is to be seen.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.viewer.chunks import ChunkStore
from stream_recon.app.viewer.timeline import Timeline

TILT_DEG = 25.0
"""How far the view looks down."""
LEFT_OUT = 0.01
"""Share of the points, the furthest out on each side, that need not be in view."""
MARGIN = 1.05
LEAST_RIGHT = 0.3
"""Of the width right of the view's axis, what is taken to be free however narrow the page is."""


@dataclass(frozen=True)
class FreeView:
    """What of a page is free: tangents of the angles from the view's axis to its borders."""

    left: float
    right: float
    upright: float

    @classmethod
    def of_page(cls, fov: float, width: float, height: float, panel: float) -> "FreeView":
        """``fov``: from top to bottom, in radians; sizes in pixels, ``panel`` at the right."""
        upright = float(np.tan(fov / 2))
        aside = upright * width / height
        return cls(aside, aside * max(1 - 2 * panel / width, LEAST_RIGHT), upright)


def overview(
    points: NDArray[np.floating],
    path: NDArray[np.floating],
    forward: NDArray[np.floating],
    up: NDArray[np.floating],
    free: FreeView,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Position and target [3] of a view from behind and above that has nearly all ``points`` [N, 3], and the whole of
    ``path`` [M, 3], within the ``free`` part of the page.

    ``forward``: where the view looks, seen from above; ``up``: [3], of length one.
    """
    level = forward - (forward @ up) * up
    if np.linalg.norm(level) < 1e-6:  # straight up or down: any direction is as good
        level = np.cross(up, np.eye(3)[np.argmin(np.abs(up))])
    level = level / np.linalg.norm(level)
    tilt = np.radians(TILT_DEG)
    ahead = np.cos(tilt) * level - np.sin(tilt) * up
    right = np.cross(ahead, up)
    right /= np.linalg.norm(right)
    axes = np.stack([right, np.cross(right, ahead), ahead])
    seen = np.asarray(points, np.float64) @ axes.T
    if len(seen):
        low, high = np.quantile(seen, [LEFT_OUT, 1 - LEFT_OUT], axis=0)
        seen = seen[((seen >= low) & (seen <= high)).all(axis=1)]
    seen = np.concatenate([seen, np.asarray(path, np.float64) @ axes.T])
    centre = (seen.min(axis=0) + seen.max(axis=0)) / 2
    x, y, z = (seen - centre).T
    # Left of the middle there may be more room than right of it: the axis then lies right of the centre, by `shift` for
    # each unit of distance, and both borders are `half` from the centre.
    half, shift = (free.left + free.right) / 2, (free.left - free.right) / 2
    needed = [(-x - free.left * z) / half, (x - free.right * z) / half, np.abs(y) / free.upright - z]
    distance = MARGIN * max(float(np.max(need)) for need in needed)
    target = (centre + np.array([shift * distance, 0, 0])) @ axes
    return target - distance * ahead, target


START_BACKS = (0.6, 0.4, 0.25, 0.15, 0.08)
"""How far behind the first camera, and half of that above it, a browser's first view may be; the furthest clear one."""
START_SLOPE = 0.6
"""What is in the way lies in a cone toward the first camera, so wide for each unit of its length."""
IN_THE_WAY = 10
"""Points in that cone from which on a view is not clear."""
GROWN = 1.2
"""Points by now over those at the last look for a clear view, from which on it is worth another."""
OVERVIEW_POINTS = 20_000
PANEL_PIXELS = 335
"""Of the page's width, under viser's panel."""
USUAL_PAGE = (1280, 720)
"""Pixels of the page for which a browser still to come is given its view: its own size is not known before."""
STILL = 1e-3
"""Of the unit: a browser whose view is no further than this from where it was put has not been moved by its user."""


class ViewerCameras:
    """Moves browsers' views; lengths are in units of the typical depth."""

    def __init__(self, server: Any, timeline: Timeline) -> None:
        self._server = server
        self._timeline = timeline
        self._start: int | None = None
        self._first_unit = 1.0
        self._cleared_at = 0
        """Points there were at the last look for a clear view."""
        self._back = START_BACKS[0]
        self._begun_at = np.zeros((2, 3))
        self._put: dict[int, NDArray[np.float64]] = {}
        """By browser, where its view began or was last taken to. What the first camera is by now says nothing of that:
        revisions move it."""
        # Not where a new one says that it is: that may be from before it heard of the first view.
        server.on_client_connect(lambda client: self._put.update({client.client_id: self._begun_at[0]}))
        server.on_client_disconnect(lambda client: self._put.pop(client.client_id, None))

    @property
    def unit(self) -> float:
        """Typical depth in the world's unit, as that is now."""
        scale = 1.0 if self._start is None else float(self._timeline.depth_scales[self._start])
        return self._first_unit * scale

    def start(self, ordinal: int, unit: float) -> None:
        """Set the unit, the up direction and everybody's first view from the first frame with points."""
        self._start, self._first_unit = ordinal, unit
        self._cleared_at = 0
        pose = self._timeline.poses[ordinal]
        up = -pose[:3, 1]
        self._server.scene.set_up_direction(up)
        self._server.initial_camera.up = up
        back = START_BACKS[0]
        self._begin_at(pose, back)
        for client in self._server.get_clients().values():
            with client.atomic():
                client.camera.up_direction = up
            self.look(client, pose, back, back / 2)
            self._put[client.client_id] = np.array(client.camera.position)

    def clear_start(self, store: ChunkStore) -> None:
        """Bring the first view of browsers still to come before what has been found behind the first camera."""
        if self._start is None:
            return
        pose = self._timeline.poses[self._start]
        if store.total >= GROWN * self._cleared_at:
            self._cleared_at = store.total
            for back in START_BACKS:
                eye, _ = self._viewpoint(pose, back, back / 2)
                if store.count_in_cone(eye, pose[:3, 3], START_SLOPE) < IN_THE_WAY:
                    break
            self._begin_at(pose, back)
        elif not np.array_equal(self._begun_at, self._viewpoint(pose, self._back, self._back / 2)):
            self._begin_at(pose, self._back)  # the first camera has moved, or the unit has changed

    def begin_with_all(self, store: ChunkStore, beside: NDArray[np.float32]) -> None:
        """The first view of browsers is from now on that of `show_all`; those that nobody has moved are taken there."""
        if self._start is None:
            return
        untouched = [client for client in self._server.get_clients().values() if self._stands_where_put(client)]
        free = FreeView.of_page(self._server.initial_camera.fov, *USUAL_PAGE, PANEL_PIXELS)
        points = _shown(store, beside)
        self._start_from(*self._overview(self._start, points, free))
        for client in untouched:
            _place(client, *self._overview(self._start, points, _free_view(client)))
            self._put[client.client_id] = np.array(client.camera.position)

    def look(self, client: Any, T_world_camera: NDArray[np.float64], back: float, lift: float) -> None:
        """Put a browser's view behind (``back``) and above (``lift``) a camera."""
        _place(client, *self._viewpoint(T_world_camera, back, lift))

    def show_all(self, client: Any, store: ChunkStore, beside: NDArray[np.float32]) -> None:
        """Put a browser's view where it has nearly all points and cameras in it, and all that is shown ``beside``."""
        if self._start is None:
            return
        _place(client, *self._overview(self._start, _shown(store, beside), _free_view(client)))

    def _overview(
        self, start: int, points: NDArray[np.float32], free: FreeView
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Position and target of a view with nearly all points and cameras in it, the way the frame ``start`` looks."""
        first, path = self._timeline.poses[start], self._timeline.path(OVERVIEW_POINTS)
        return overview(points, path, first[:3, 2], -first[:3, 1], free)

    def _stands_where_put(self, client: Any) -> bool:
        put = self._put.get(client.client_id)
        return put is not None and bool(np.linalg.norm(np.asarray(client.camera.position) - put) < STILL * self.unit)

    def _viewpoint(
        self, T_world_camera: NDArray[np.float64], back: float, lift: float
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Position and target of a view behind and above a camera."""
        R, centre = T_world_camera[:3, :3], T_world_camera[:3, 3]
        position = centre + R @ np.array([0.0, -lift, -back]) * self.unit
        return position, centre + R @ np.array([0.0, 0.0, 1.0]) * self.unit

    def _begin_at(self, T_world_camera: NDArray[np.float64], back: float) -> None:
        self._back = back
        self._start_from(*self._viewpoint(T_world_camera, back, back / 2))

    def _start_from(self, position: NDArray[np.float64], target: NDArray[np.float64]) -> None:
        self._begun_at = np.stack([position, target])
        camera = self._server.initial_camera
        camera.position, camera.look_at = position, target


def _shown(store: ChunkStore, beside: NDArray[np.float32]) -> NDArray[np.float32]:
    """A sample of all points on the page."""
    return np.concatenate([store.sample(OVERVIEW_POINTS), beside])


def _free_view(client: Any) -> FreeView:
    camera = client.camera
    return FreeView.of_page(camera.fov, camera.image_width, camera.image_height, PANEL_PIXELS)


def _place(client: Any, position: NDArray[np.float64], target: NDArray[np.float64]) -> None:
    with client.atomic():
        client.camera.position, client.camera.look_at = position, target
