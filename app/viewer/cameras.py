"""Where browsers look from: at first, on request, and along with a camera."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.viewer.chunks import ChunkStore
from stream_recon.app.viewer.overview import FreeView, overview
from stream_recon.app.viewer.timeline import Timeline

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
